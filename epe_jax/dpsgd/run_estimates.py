"""ε of a whole run from the scores of its steps, by the audits of two papers.

In a white-box game each step gives an observation without the canary and one with
it. Its scores say what one step leaks, at a rate at which the canary takes part;
what is reported is the ε of all steps, at the rate of training. `StepMechanism` has both
mechanisms, and `ESTIMATORS` is the one table of what scores are put through.

All assume that steps are alike: Gaussian mechanisms, with one noise multiplier.

Source: Nasr et al., "Tight auditing of differentially private machine learning"
(2023), sections 4, 5.5 and 6.1.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import functools
from typing import Any, Literal, NamedTuple

import numpy as np

from epe_jax.epsilon import (
  bayes,
  corrections,
  families,
  threshold_bound,
  tradeoff_curves,
)
from epe_jax.epsilon.types import (
  Assumption,
  Estimate,
  Scores,
  scalar_or_array,
)

Thresholds = Literal['same', 'held_out', 'band']
"""Which observations choose the threshold.

'same': those that are counted, for the largest result. The paper does so, and what
comes out is no bound. 'held_out': half of them, and the others are counted. 'band':
all of them, with one test of all thresholds together.
"""

_STRATEGIES: dict[str, corrections.Multiplicity] = {
  'same': corrections.Uncorrected(),
  'held_out': corrections.Split(seed=0),
  'band': corrections.Band(),
}


class StepMechanism(NamedTuple):
  """What one observation is of, and how its ε becomes the one that is reported.

  Attributes:
    step: the mechanisms, by their noise, that one observation is of.
    compose: (ε of one observation, δ) -> ε to report. It increases with ε.
    is_composed: whether the two differ.
  """

  step: tradeoff_curves.Family
  compose: Callable[[float, float], float]
  is_composed: bool


def make_step_mechanism(
  *,
  canary_probability: float = 1.0,
  sampling_probability: float | None = None,
  steps: int = 1,
  make_lines: Callable[[Any], tradeoff_curves.Lines] | None = None,
) -> StepMechanism:
  """Describes steps with Gaussian noise, whose observations are independent.

  Args:
    canary_probability: q_c, in (0, 1]: with which the canary joins the step of an
      observation that has it.
    sampling_probability: q, in (0, 1], of the run that is reported; None if it is
      that of the canary.
    steps: T >= 1 of the run that is reported.
    make_lines: of the curve of one observation, as `families.algorithm_4` makes
      them; None for the exact curve.

  Returns:
    The mechanism. The ε of a run is exact for T = 1 or q = 1 (μ √T), and otherwise that
    of the PLD of dp_accounting.

  Raises:
    ValueError: an argument is out of range.

  >>> mechanism = make_step_mechanism(steps=100)
  >>> epsilon = tradeoff_curves.epsilon_gdp(0.1, 1e-5)
  >>> round(mechanism.compose(epsilon, 1e-5), 4)  # That of μ = 0.1 √100.
  4.3772
  """
  q = (
    canary_probability if sampling_probability is None else sampling_probability
  )
  step = families.subsampled_gaussian_family(canary_probability)
  if canary_probability == 1:
    step = tradeoff_curves.gaussian_family()
  run = families.subsampled_gaussian_family(q, steps=steps)
  is_composed = steps > 1 or q != canary_probability

  def compose(epsilon: float, delta: float) -> float:
    if not is_composed or epsilon == 0 or np.isinf(epsilon):
      return epsilon
    noise_multiplier = families.noise_of_epsilon(
      epsilon, delta, sampling_probability=canary_probability
    )
    return run.epsilon(noise_multiplier, delta)

  if make_lines is not None:
    step = _approximate(step, make_lines)
  return StepMechanism(step, compose, is_composed)


def make_run_mechanism(
  *,
  sampling_probability: float,
  steps: int,
  make_lines: Callable[[Any], tradeoff_curves.Lines] | None = None,
) -> StepMechanism:
  """Describes whole runs, each of which gives one observation: its final model.

  Args:
    sampling_probability: q, in (0, 1], with which the canary is in a batch.
    steps: T >= 1 of a run, Gaussian mechanisms of one noise multiplier.
    make_lines: of the curve of a run, as `families.algorithm_4` makes them; None
      for as many as follow the curve of its privacy loss distribution.

  Returns:
    The mechanism. The ε of an observation is that of its run.

  Raises:
    ValueError: an argument is out of range.
  """
  run = families.subsampled_run_family(
    sampling_probability, steps=steps, make_lines=make_lines
  )
  return StepMechanism(run, lambda epsilon, delta: epsilon, is_composed=False)


class StepEstimator(NamedTuple):
  """An audit of single steps.

  Attributes:
    label: its name in the paper.
    thresholds: the choices of thresholds that it has.
    estimate: (scores, mechanism, *, delta, significance, multiplicity) -> ε of one
      observation.
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
  """The lower estimate of ε of a run, from the scores of its steps.

  Args:
    scores: observations with the canary as `observed`, without it as `unobserved`;
      any leading axes. They are independent given the steps before them.
    estimator: a key of `ESTIMATORS`.
    mechanism: what one observation is of, and what is reported.
    delta: δ, in (0, 1), of the step and of the run.
    thresholds: who chooses the threshold.
    significance: chance, or posterior probability, that the result exceeds the
      true ε if it is a bound; in (0, 1).

  Returns:
    ε >= 0 of the run. It is a bound of its confidence, or a point estimate where
    thresholds is 'same' or the method is an approximation.

  Raises:
    ValueError: there is no such estimator or choice, or a setting is out of range.
  """
  if estimator not in ESTIMATORS:
    raise ValueError(
      f'estimator={estimator!r} is none of {", ".join(ESTIMATORS)}.'
    )
  method = ESTIMATORS[estimator]
  if thresholds not in method.thresholds:
    raise ValueError(
      f'thresholds={thresholds!r} is no choice of {estimator}; give one of '
      f'{", ".join(method.thresholds)}.'
    )
  of_step = method.estimate(
    scores,
    mechanism,
    delta=delta,
    significance=significance,
    multiplicity=_STRATEGIES[thresholds],
  )
  if not mechanism.is_composed:
    return of_step
  values = np.asarray(of_step.epsilon, np.float64)
  composed = [mechanism.compose(float(x), delta) for x in values.ravel()]
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
  """What a step is to `families.algorithm_4`, in place of a PLD."""

  get_epsilon_for_delta: Callable[[float], float]


def _approximate(
  exact: tradeoff_curves.Family,
  make_lines: Callable[[Any], tradeoff_curves.Lines],
) -> tradeoff_curves.Family:
  """The family with curves from some of its guarantees, which are not higher."""

  def fnr(noise_multiplier, log_fpr):
    step = _Step(functools.partial(exact.epsilon, noise_multiplier))
    return make_lines(step).fnr(log_fpr)

  return exact._replace(name=f'{exact.name}_lines', fnr=fnr)


def _make_f_dp(
  gdp: Callable[..., Estimate], family: Callable[..., Estimate]
) -> Callable[..., Estimate]:
  """An audit of the curve of a step: `gdp` of μ-GDP, `family` of any other."""

  def estimate(scores, mechanism, **settings):
    if mechanism.step.name == 'gdp':
      return gdp(scores, **settings)
    return family(scores, family=mechanism.step, **settings)

  return estimate


def _make_dp(
  bound: Callable[..., Estimate], **options
) -> Callable[..., Estimate]:
  """An audit of (ε, δ) alone, whatever the mechanism is."""

  def estimate(scores, mechanism, **settings):
    del mechanism
    return bound(scores, **options, **settings)

  return estimate


ESTIMATORS: dict[str, StepEstimator] = {
  'f_dp_cp': StepEstimator(
    'f-DP (CP)',
    ('same', 'held_out', 'band'),
    _make_f_dp(threshold_bound.gdp_bound, threshold_bound.family_bound),
  ),
  'f_dp_zb': StepEstimator(
    'f-DP (ZB)',
    ('same', 'held_out'),
    _make_f_dp(bayes.gdp_credible, bayes.family_credible),
  ),
  'dp_cp': StepEstimator(
    '(ε, δ)-DP (CP)',
    ('same', 'held_out', 'band'),
    _make_dp(threshold_bound.lower_bound, sides='both'),
  ),
  'dp_zb': StepEstimator(
    '(ε, δ)-DP (ZB)', ('same', 'held_out'), _make_dp(bayes.epsilon_credible)
  ),
  'katz': StepEstimator(
    'ε-DP (Katz)',
    ('same', 'held_out'),
    _make_dp(threshold_bound.lower_bound, interval='katz', sides='both'),
  ),
}
"""The audits of section 6.1, by name: curve, and how the rates are limited."""
