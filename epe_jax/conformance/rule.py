"""A rule of the suite: what it measures, what breaks it, and the result of a check."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from epe_jax import io
from epe_jax.conformance.measurements import Measurements
from epe_jax.conformance.session import NotChecked, OutOfTime

Status = Literal['passed', 'broken', 'not checked', 'does not apply']
"""A rule that does not apply says nothing of such claims or mechanisms; one that was not
checked may be broken."""
Severity = Literal['privacy', 'utility']


class Cause(NamedTuple):
  """Why a rule may be broken.

  Attributes:
    key: of the cause.
    likely: the likely cause or causes.
    cure: what to do.
    severity: 'privacy' if a client is protected less than claimed, 'utility' if
      updates are lost, which also hides canaries from audits.
  """

  key: str
  likely: str
  cure: str
  severity: Severity = 'privacy'


class Outcome(NamedTuple):
  """What a rule measured.

  Attributes:
    measured: one sentence, with numbers.
    p_value: probability of such a measurement if the rule holds; None if nothing
      in it is random.
    cause: the likely cause; None if the rule holds.
    mu: measured influence of a client, in standard deviations of the noise; None
      if privacy is not at stake.
    at: the change of the claim under which this much noise is missing; '' for the
      claim itself.
  """

  measured: str
  p_value: float | None = None
  cause: Cause | None = None
  mu: float | None = None
  at: str = ''


class Finding(NamedTuple):
  """A rule that a mechanism breaks: see `Cause` and `Outcome`.

  Attributes:
    mu: distance of neighbouring rounds, in standard deviations of the noise.
    epsilon: ε of noise of the claimed law with `mu`, at the δ of the report.
  """

  rule: str
  cause: str
  severity: Severity
  measured: str
  likely: str
  cure: str
  mu: float | None = None
  epsilon: float | None = None
  at: str = ''


class Result(NamedTuple):
  """The result of checking one rule.

  Attributes:
    rule: its name.
    status: whether it holds.
    measured: what was measured, or why nothing was.
    p_value: as in `Outcome`.
    finding: of a broken rule.
  """

  rule: str
  status: Status
  measured: str
  p_value: float | None = None
  finding: Finding | None = None


class Rule(NamedTuple):
  """A rule that every mechanism has to follow.

  Attributes:
    name: under which it is reported.
    measure: returns the outcome for a mechanism; raises `NotChecked` if a
      measurement cannot be made, or `OutOfTime`.
  """

  name: str
  measure: Callable[[Measurements], Outcome]

  def check(self, m: Measurements, *, delta: float = 1e-5) -> Result:
    """Checks a mechanism; a finding has its ε at `delta`."""
    try:
      with np.errstate(all='ignore'):
        outcome = self.measure(m)
    except (NotChecked, OutOfTime) as error:
      return Result(self.name, 'not checked', io.join_lines(str(error)))
    measured, p_value, cause, mu, at = outcome
    # It may quote what a mechanism raises.
    measured = io.join_lines(measured)
    if cause is None:
      return Result(self.name, 'passed', measured, p_value)
    claim = m.claim
    finding = Finding(
      self.name,
      cause.key,
      cause.severity,
      measured,
      cause.likely,
      cause.cure,
      mu=None if mu is None else claim.distance * float(mu),
      epsilon=None if mu is None else claim.compute_epsilon(float(mu), delta),
      at=at,
    )
    return Result(self.name, 'broken', measured, p_value, finding)


def rule(measure: Callable[[Measurements], Outcome]) -> Rule:
  """Makes a rule of a function; its name is that of the function."""
  return Rule(measure.__name__, measure)
