"""Tests a claimed ε, the flag --claim, prints the outcome, gives the exit status."""

from __future__ import annotations

from collections.abc import Sequence
import math
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
  from epe_jax.audit.results import Audit
  from epe_jax.epsilon.types import Estimate
  from epe_jax.experiment.run_result import RunResult
  from epe_jax.watch.sequential import ClaimTest


def check_claim(claim: float | None) -> None:
  """Checks a claimed ε, before any work.

  Raises:
    ValueError: it is not a finite number >= 0.
  """
  if claim is not None and not 0 <= claim < math.inf:
    raise ValueError(f'--claim={claim}; give a finite ε >= 0.')


def describe_whom(
  claim: float | None, result: RunResult, *, delta: float | None = None
) -> str:
  """Of whom the claim of a finished run is judged, if that is not a client; or nothing.

  Args:
    claim: ε >= 0; None if nothing is claimed.
    result: of the run.
    delta: of the claim, in (0, 1); None for the run's own.

  Raises:
    ValueError: canaries in known rounds cannot test what is claimed of clients.
  """
  if claim is None:
    return ''
  from epe_jax.epsilon import tradeoff
  from epe_jax.experiment import client_rounds
  from epe_jax.report import audit_notes, leaks

  run, of_canary = leaks.count_participations(result), result.analytic_epsilon
  if of_canary is not None:
    if delta not in (None, result.delta) and not run.is_gaussian:
      # All that is known: ε falls with δ.
      of_canary = of_canary if delta > result.delta else math.inf
    elif delta not in (None, result.delta):
      mu = tradeoff.mu_of_epsilon(of_canary, result.delta)
      of_canary = float(tradeoff.epsilon_gdp(mu, delta))
    client_rounds.check_claim('--claim', claim, of_canary, run)
  return audit_notes.describe_participations(run)


def choose_bounds(audit: Audit) -> list[Estimate]:
  """Chooses the lower bounds that test a claim: only bounds that hold together.

  Bounds that assume a shape are left out: with scores of another shape they would
  accuse a mechanism that keeps its claim.
  """
  if audit.is_simultaneous:
    return [
      bound
      for attack in audit.attacks
      for bound in attack.bounds
      if bound.is_shape_free
    ]
  return [] if audit.headline is None else [audit.headline[1]]


def report_claim(
  claim: float | None,
  bounds: Sequence[Estimate],
  *,
  test: ClaimTest | None = None,
  whom: str = '',
  to_stderr: bool = False,
) -> int:
  """Prints how a claim stands.

  Args:
    claim: ε >= 0; None if nothing is claimed.
    bounds: lower bounds that hold together.
    test: of the claim by the rounds of a run; None if there was none.
    whom: as `describe_whom` gives it.
    to_stderr: whether stdout has another use.

  Returns:
    The exit status: 1 if the claim is violated, else 0.

  Raises:
    ValueError: there is no bound to test a claim with.
  """
  if claim is None:
    return 0
  from epe_jax.report import cells, tables

  if not bounds:
    raise ValueError(
      f'--claim={claim:g} cannot be tested: no lower bound holds for it, since '
      'nothing was audited, or no scores of rounds have a known law.'
    )
  bound = max(bounds, key=lambda one: one.epsilon)
  assert bound.confidence is not None, 'bounds have one'
  found = (
    f'ε ≥ {cells.format_epsilon(bound)} at δ = {cells.format_delta(bound.delta)} '
    f'with {100 * bound.confidence:.4g} % confidence '
    f'({cells.describe_method(bound)})'
  )
  rejected = test is not None and test.rejected_after is not None
  if bound.epsilon > claim:
    text = f'Claim ε ≤ {claim:g}: violated. {found}.'
  elif test is not None and rejected:
    text = (
      f'Claim ε ≤ {claim:g}: rejected after round {test.rejected_after}, if the '
      f'mechanism is Gaussian; at most {100 * test.significance:g} % of such runs '
      f'that keep the claim ever are. Of any mechanism {found}.'
    )
  else:
    text = f'Claim ε ≤ {claim:g}: not contradicted, which does not prove it. {found}.'
    text = f'{text} {whom}'.rstrip()
  stream = sys.stderr if to_stderr else sys.stdout
  print(f'\n{tables.fill_paragraph(text)}', file=stream)
  return int(bound.epsilon > claim or rejected)
