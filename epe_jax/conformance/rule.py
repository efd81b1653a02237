"""A rule of the suite: what it needs and measures, and the result of a check."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from epe_jax.conformance import affine, samples
from epe_jax.conformance.causes import CAUSES, Severity
from epe_jax.conformance.laws import ALPHA
from epe_jax.conformance.measurements import Measurements
from epe_jax.conformance.session import NotChecked, OutOfTime

Status = Literal['passed', 'broken', 'not checked', 'does not apply']
"""A rule that does not apply says nothing of such claims or mechanisms; one that was not
checked may be broken."""


# What a rule needs of a claim and a mechanism: whether it is missing, and why then the
# rule says nothing. Functions that check raise NotChecked themselves.
EXEMPTIONS = {
  'presence': (
    lambda m: m.claim.adjacency != 'add_or_remove',
    'the claim is not one of a client that is present or absent',
  ),
  'others': (lambda m: m.claim.num_clients == 1, 'a round has one client'),
  'rounds': (lambda m: m.claim.max_rounds == 1, 'a run has one round'),
  'hidden clip norm': (
    lambda m: m.publishes and samples.adapts(m),
    'the clip norm is public and adapts; see clip_norm',
  ),
  'public clip norm': (
    lambda m: not m.publishes,
    'the mechanism publishes no clip_norm',
  ),
  'constants': (
    lambda m: (
      not m.session.is_constant.any() and m.claim.calls_per_release == 1
    ),
    'no coordinate is constant',
  ),
  'coordinates': (lambda m: m.claim.dim == 1, 'there is one coordinate'),
  'many coordinates': (
    lambda m: m.claim.dim < samples.LEVEL_DIM,
    f'below {samples.LEVEL_DIM} coordinates a random amount of noise is another '
    'law; see noise_law',
  ),
  'fine grid': (
    lambda m: m.step > 1e-4 * m.claim.num_clients,
    'a small update is less than a step of the claimed grid',
  ),
}
"""Without them a rule does not apply."""
NEEDS = {
  'two clients': (
    lambda m: m.claim.num_clients < 2,
    'it needs num_clients of 2 or more',
  ),
  'gaussian noise': (
    lambda m: m.claim.order == 1,
    'several releases are judged with Gaussian noise only',
  ),
  'readable': (Measurements.check_quiet, ''),
  'influence': (affine.check_influence, ''),
  'level': (affine.check_level, ''),
  'noise': (
    lambda m: samples.measure_noise(m).common_std == 0,
    'there is no noise; see noise_scale',
  ),
  'ample noise': (
    lambda m: samples.measure_noise(m).samples.size < samples.AMPLE,
    f'it needs {samples.AMPLE:,} samples of noise',
  ),
  'runs that differ': (
    lambda m: samples.find_repeats(m).p_value < ALPHA,
    'noise repeats between runs; see noise_between_runs',
  ),
  'zeros that count': (
    affine.skips_zeros,
    'clients that send zeros are not counted; see noise_scale',
  ),
  'clients that count alike': (
    lambda m: not m.count_alike,
    'clients do not count alike; see places',
  ),
}
"""Without them a rule is not checked."""


def require(m: Measurements, *needs: str) -> None:
  """Raises NotChecked with the reason if something is missing."""
  for is_missing, why in map(NEEDS.__getitem__, needs):
    if is_missing(m):
      raise NotChecked(why)


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
    epsilon: at δ of the claim, if it is not that of `mu`, as a spread tells more.
  """

  measured: str
  p_value: float | None = None
  cause: str | Sequence[str] = ()
  mu: float | None = None
  at: str = ''
  details: Mapping[str, Any] = {}
  severity: Severity | None = None
  epsilon: float | None = None


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
  """The result of checking a rule: what was measured, or why nothing was."""

  rule: str
  status: Status
  measured: str
  p_value: float | None = None
  finding: Finding | None = None


class Rule(NamedTuple):
  """A rule that every mechanism has to follow.

  `needs` are keys in `EXEMPTIONS` and `NEEDS`. `measure` raises `NotChecked` if a
  measurement cannot be made, or `OutOfTime`.
  """

  name: str
  needs: tuple[str, ...]
  measure: Callable[[Measurements], Outcome]

  def check(self, m: Measurements, *, delta: float = 1e-5) -> Result:
    """Checks a mechanism; a finding has its ε at `delta`."""
    try:
      with np.errstate(all='ignore'):
        for need in self.needs:
          if need in NEEDS:
            require(m, need)
          elif EXEMPTIONS[need][0](m):
            return Result(self.name, 'does not apply', EXEMPTIONS[need][1])
        outcome = self.measure(m)
    except (NotChecked, OutOfTime) as error:
      measured = ' '.join(str(error).split())
      return Result(self.name, 'not checked', measured)
    measured, p, keys, mu, at, details, severity, epsilon = outcome
    if mu is not None and epsilon is None:
      epsilon = m.claim.compute_epsilon(mu, delta)
    # It may quote what a mechanism raises, and is a row of a table.
    measured = ' '.join(measured.split())
    if not keys or (p is not None and p >= ALPHA):
      return Result(self.name, 'passed', measured, p)
    keys = [keys] if isinstance(keys, str) else [*dict.fromkeys(keys)]
    causes = [CAUSES[key] for key in keys]
    cures = dict.fromkeys(cause.cure for cause in causes)
    finding = Finding(
      self.name,
      keys[0],
      severity or causes[0].severity,
      measured,
      '; and '.join(cause.likely for cause in causes).format_map(details),
      ' '.join(cures).format_map(details),
      mu=None if mu is None else m.claim.distance * float(mu),
      epsilon=epsilon,
      at=at,
    )
    return Result(self.name, 'broken', measured, p, finding)


def rule(*needs: str) -> Callable[[Callable[[Measurements], Outcome]], Rule]:
  """Makes a rule with such needs of a function; its name is that of the function."""
  return lambda measure: Rule(measure.__name__, needs, measure)
