"""A rule of the suite: what it needs and measures, and the result of a check."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from epe_jax import io
from epe_jax.conformance.causes import CAUSES, Severity
from epe_jax.conformance.laws import ALPHA
from epe_jax.conformance.measurements import Measurements
from epe_jax.conformance.needs import NEEDS, Status
from epe_jax.conformance.session import NotChecked, OutOfTime


class Outcome(NamedTuple):
  """What a rule measured.

  Attributes:
    measured: one sentence, with numbers.
    p_value: probability of such a measurement if the rule holds; None if nothing
      in it is random. A rule breaks below `laws.ALPHA`.
    cause: key of the likely cause, or of several, in `CAUSES`; () if the rule holds.
    mu: measured influence of a client, in standard deviations of the noise; None
      if privacy is not at stake.
    at: the change of the claim under which this much noise is missing; '' for the
      claim itself.
    details: what stands in braces in the texts of the cause.
    severity: if it is not that of the cause.
  """

  measured: str
  p_value: float | None = None
  cause: str | Sequence[str] = ()
  mu: float | None = None
  at: str = ''
  details: Mapping[str, Any] = {}
  severity: Severity | None = None


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
    needs: keys in `NEEDS` of what the measurement needs.
    measure: returns the outcome for a mechanism; raises `NotChecked` if a
      measurement cannot be made, or `OutOfTime`.
  """

  name: str
  needs: tuple[str, ...]
  measure: Callable[[Measurements], Outcome]

  def check(self, m: Measurements, *, delta: float = 1e-5) -> Result:
    """Checks a mechanism; a finding has its ε at `delta`."""
    try:
      with np.errstate(all='ignore'):
        for need in map(NEEDS.__getitem__, self.needs):
          if why := need.find_lack(m):
            return Result(self.name, need.status, why)
        outcome = self.measure(m)
    except (NotChecked, OutOfTime) as error:
      return Result(self.name, 'not checked', io.join_lines(str(error)))
    # It may quote what a mechanism raises.
    measured, p = io.join_lines(outcome.measured), outcome.p_value
    if not outcome.cause or (p is not None and p >= ALPHA):
      return Result(self.name, 'passed', measured, p)
    finding = self._describe(outcome, m, delta)
    return Result(self.name, 'broken', measured, p, finding)

  def _describe(self, x: Outcome, m: Measurements, delta: float) -> Finding:
    keys = [x.cause] if isinstance(x.cause, str) else [*dict.fromkeys(x.cause)]
    causes = [CAUSES[key] for key in keys]
    cures = dict.fromkeys(cause.cure for cause in causes)
    return Finding(
      self.name,
      keys[0],
      x.severity or causes[0].severity,
      io.join_lines(x.measured),
      '; and '.join(cause.likely for cause in causes).format_map(x.details),
      ' '.join(cures).format_map(x.details),
      mu=None if x.mu is None else m.claim.distance * float(x.mu),
      epsilon=x.mu if x.mu is None else m.claim.compute_epsilon(x.mu, delta),
      at=x.at,
    )


def rule(*needs: str) -> Callable[[Callable[[Measurements], Outcome]], Rule]:
  """Makes a rule with such needs of a function; its name is that of the function."""
  return lambda measure: Rule(measure.__name__, needs, measure)
