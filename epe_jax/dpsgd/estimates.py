"""ε of a run of DP-SGD from the scores of its steps, or of its final models.

In the white-box game each step gives a score without the canary and one with it.
They tell what one step leaks at the rate of the canary, and the estimate is the ε of
all steps at the rate of training. `StepMechanism` describes both, and `ESTIMATORS`
is the table of estimators.

All of them assume that steps are Gaussian mechanisms of one noise multiplier.

References:
  Nasr et al., "Tight auditing of differentially private machine learning" (2023),
  sections 4, 5.5 and 6.1.
"""

from collections.abc import Callable
import dataclasses
import functools
from typing import Any, Literal, NamedTuple

import numpy as np

from epe_jax.dpsgd import credible, families, uncorrected
from epe_jax.epsilon import lower_bounds, tradeoff
from epe_jax.epsilon.types import Assumption, Estimate, Scores, scalar_or_array

Thresholds = Literal['same', 'held_out', 'band']
"""Which scores choose the threshold.

'same': those that are counted, for the largest result. The paper does so, and the
result is not a bound. 'held_out': half of them, and the other half is counted.
'band': all of them, with one test of all thresholds together.
"""

_MULTIPLICITY: dict[str, lower_bounds.Correction] = {
  'same': uncorrected.Uncorrected(),
  'held_out': lower_bounds.Split(seed=0),
  'band': lower_bounds.Band(),
}


class StepMechanism(NamedTuple):
  """The mechanism behind one score, and how its ε composes to that of the run.

  Attributes:
    step: the mechanism behind one score, a family by its noise.
    compose: (ε of one score, δ) -> ε of the run, increasing in ε; None if they are
      equal.
  """

  step: tradeoff.MechanismFamily
  compose: Callable[[float, float], float] | None


def make_step_mechanism(
  *,
  canary_probability: float = 1.0,
  sampling_probability: float | None = None,
  steps: int = 1,
  make_lines: Callable[[Any], tradeoff.Lines] | None = None,
) -> StepMechanism:
  """Describes Gaussian steps; each step gives a score.

  Args:
    canary_probability: q_c in (0, 1], of the canary in the steps of scores with it.
    sampling_probability: q in (0, 1], of the run; None if it is that of the canary.
    steps: T >= 1 of the run.
    make_lines: approximates the curve of a step, such as `families.algorithm_4`;
      None for the exact curve.

  Returns:
    The mechanism. The ε of a run is exact for T = 1 or q = 1 (μ √T), and otherwise that
    of the PLD of dp_accounting.

  Raises:
    ValueError: an argument is out of range.

  >>> mechanism = make_step_mechanism(steps=100)
  >>> epsilon = tradeoff.epsilon_gdp(0.1, 1e-5)
  >>> round(mechanism.compose(epsilon, 1e-5), 4)  # That of μ = 0.1 √100.
  4.3772
  """
  q = (
    canary_probability if sampling_probability is None else sampling_probability
  )
  step = families.subsampled_gaussian_family(canary_probability)
  if canary_probability == 1:
    step = tradeoff.gaussian_family()
  run = families.subsampled_gaussian_family(q, steps=steps)

  def compose(epsilon: float, delta: float) -> float:
    if epsilon == 0 or np.isinf(epsilon):
      return epsilon
    noise_multiplier = families.noise_of_epsilon(
      epsilon, delta, sampling_probability=canary_probability
    )
    return run.epsilon(noise_multiplier, delta)

  if make_lines is not None:
    step = _approximate(step, make_lines)
  is_composed = steps > 1 or q != canary_probability
  return StepMechanism(step, compose if is_composed else None)


def make_run_mechanism(
  *,
  sampling_probability: float,
  steps: int,
  make_lines: Callable[[Any], tradeoff.Lines] | None = None,
) -> StepMechanism:
  """Describes whole runs; the final model of each gives one score.

  Args:
    sampling_probability: q in (0, 1], of the canary in a batch.
    steps: T >= 1 of a run.
    make_lines: approximates the curve of a run, such as `families.algorithm_4`;
      None for enough lines to follow the curve of its privacy loss distribution.

  Raises:
    ValueError: an argument is out of range.
  """
  run = families.subsampled_run_family(
    sampling_probability, steps=steps, make_lines=make_lines
  )
  return StepMechanism(run, compose=None)


class StepEstimator(NamedTuple):
  """An audit of single steps.

  Attributes:
    label: its name in the paper.
    thresholds: the choices of thresholds that it allows, the paper's first.
    estimate: (scores, mechanism, *, delta, significance, multiplicity) -> ε of one
      step.
  """

  label: str
  thresholds: tuple[Thresholds, ...]
  estimate: Callable[..., Estimate]


def estimate_run(
  scores: Scores,
  estimator: str,
  *,
  mechanism: StepMechanism,
  delta: float,
  thresholds: Thresholds,
  significance: float = 0.05,
) -> Estimate:
  """Estimates a lower limit of ε of a run, from the scores of its steps.

  Args:
    scores: with the canary as `observed`, without it as `unobserved`; any leading
      axes. They are independent given the steps before them.
    estimator: a key of `ESTIMATORS`.
    mechanism: of a score and of the run.
    delta: δ in (0, 1), of the step and of the run.
    thresholds: which scores choose the threshold.
    significance: in (0, 1). Of a bound, the probability (posterior probability for
      Bayesian ones) that it exceeds the true ε.

  Returns:
    ε >= 0 of the run: a bound with a confidence, or a point estimate if thresholds
    is 'same' or the method is an approximation.

  Raises:
    ValueError: the estimator or choice is unknown, or a setting is out of range.
  """
  if estimator not in ESTIMATORS:
    raise ValueError(
      f'estimator={estimator!r} is none of {", ".join(ESTIMATORS)}.'
    )
  method = ESTIMATORS[estimator]
  if thresholds not in method.thresholds:
    raise ValueError(
      f'thresholds={thresholds!r} does not fit {estimator}; give one of '
      f'{", ".join(method.thresholds)}.'
    )
  of_step = method.estimate(
    scores,
    mechanism,
    delta=delta,
    significance=significance,
    multiplicity=_MULTIPLICITY[thresholds],
  )
  compose = mechanism.compose
  if compose is None:
    return of_step
  values = np.asarray(of_step.epsilon, np.float64)
  composed = [compose(float(x), delta) for x in values.ravel()]
  assumes = of_step.assumes
  if of_step.is_shape_free:
    assumes = (*assumes, Assumption.FAMILY)
  return dataclasses.replace(
    of_step,
    epsilon=scalar_or_array(np.reshape(composed, values.shape)),
    method=f'{of_step.method}_of_steps',
    assumes=assumes,
  )


class _Step(NamedTuple):
  """Stands for a PLD in `families.algorithm_4`."""

  get_epsilon_for_delta: Callable[[float], float]


def _approximate(
  exact: tradeoff.MechanismFamily,
  make_lines: Callable[[Any], tradeoff.Lines],
) -> tradeoff.MechanismFamily:
  """The family with curves from some of its guarantees, from below."""

  def fnr(noise_multiplier, log_fpr):
    step = _Step(functools.partial(exact.epsilon, noise_multiplier))
    return make_lines(step).fnr(log_fpr)

  return exact._replace(name=f'{exact.name}_lines', fnr=fnr, is_gdp=False)


def _make_f_dp(
  gdp: Callable[..., Estimate], family: Callable[..., Estimate]
) -> Callable[..., Estimate]:
  """Uses the curve of a step: `gdp` for μ-GDP, `family` for any other."""

  def estimate(scores, mechanism, **settings):
    if mechanism.step.is_gdp:
      return gdp(scores, **settings)
    return family(scores, family=mechanism.step, **settings)

  return estimate


def _make_dp(
  bound: Callable[..., Estimate], **options
) -> Callable[..., Estimate]:
  """Assumes nothing of the mechanism."""

  def estimate(scores, mechanism, **settings):
    del mechanism
    return bound(scores, **options, **settings)

  return estimate


ESTIMATORS: dict[str, StepEstimator] = {
  'f_dp_cp': StepEstimator(
    'f-DP (CP)',
    ('same', 'held_out', 'band'),
    _make_f_dp(lower_bounds.gdp_bound, lower_bounds.family_bound),
  ),
  'f_dp_zb': StepEstimator(
    'f-DP (ZB)',
    ('same', 'held_out'),
    _make_f_dp(credible.gdp_credible, credible.family_credible),
  ),
  'dp_cp': StepEstimator(
    '(ε, δ)-DP (CP)',
    ('same', 'held_out', 'band'),
    _make_dp(lower_bounds.lower_bound, sides='both'),
  ),
  'dp_zb': StepEstimator(
    '(ε, δ)-DP (ZB)', ('same', 'held_out'), _make_dp(credible.epsilon_credible)
  ),
  'katz': StepEstimator(
    'ε-DP (Katz)',
    ('same', 'held_out'),
    _make_dp(uncorrected.katz_estimate),
  ),
}
"""The estimators of section 6.1, by name."""
