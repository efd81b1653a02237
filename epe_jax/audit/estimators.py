"""Which estimators suit which scores, chosen by design before any score is seen."""

import functools

from epe_jax.epsilon import (
  bayes,
  coin_flip,
  coin_flip_independent,
  corrections,
  gaussian,
  maximum,
  mixture,
  noise_floor,
  threshold,
  threshold_bound,
  tradeoff_curves,
)
from epe_jax.epsilon.types import Scores

Estimator = noise_floor.Estimator

MIXTURE: Estimator = mixture.location_mixture
MOST_EXPOSED: Estimator = mixture.most_exposed
FITTED: Estimator = functools.partial(gaussian.two_gaussian, std='fitted')
NULL_STD: Estimator = functools.partial(gaussian.two_gaussian, std='null')
COUNTED: Estimator = functools.partial(
  threshold.max_threshold, rates='empirical'
)


def _make_counted_bound(multiplicity: corrections.Multiplicity) -> Estimator:
  return functools.partial(
    threshold_bound.lower_bound, multiplicity=multiplicity
  )


_BAND = _make_counted_bound(corrections.Band())
_FEW = _make_counted_bound(corrections.Bonferroni())
_INDEPENDENT_COINS: tuple[Estimator, ...] = (
  coin_flip_independent.one_run_independent,
  functools.partial(
    coin_flip_independent.one_run_independent,
    family=tradeoff_curves.gaussian_family(),
  ),
)
FAIR_COINS: tuple[Estimator, ...] = (
  coin_flip.one_run,
  coin_flip.one_run_gdp,
  *_INDEPENDENT_COINS,
)
"""Bounds for canaries that fair coins include, the pre-declared one first."""

_BIASED_COINS = (coin_flip.one_run, *_INDEPENDENT_COINS)

SHIFT_AWARE: tuple[Estimator, ...] = (MIXTURE, MOST_EXPOSED)
"""Estimators that use by how much each canary is shifted."""


def has_interval(estimator: Estimator) -> bool:
  """Whether an estimator has an interval of its own, and takes its confidence."""
  function = getattr(estimator, 'func', estimator)
  return function in (*SHIFT_AWARE, maximum.maximum_over_rounds)


MORE_POINTS: tuple[Estimator, ...] = (
  COUNTED,
  _make_counted_bound(corrections.Uncorrected()),
)
"""Point estimates that `epe-jax estimate --all` shows besides those of a report."""

MORE_BOUNDS: tuple[Estimator, ...] = (
  _FEW,
  _make_counted_bound(corrections.Split(seed=0)),
  _make_counted_bound(corrections.MultiSplit(seed=0)),
  threshold_bound.gdp_bound,
  functools.partial(
    bayes.epsilon_credible, multiplicity=corrections.Split(seed=0)
  ),
  functools.partial(bayes.gdp_credible, multiplicity=corrections.Split(seed=0)),
)
"""Bounds that `epe-jax estimate --all` shows besides those of a report."""


def choose_bounds(scores: Scores) -> tuple[Estimator, ...]:
  """Bounds from counts alone, chosen by design before any score is seen.

  The first is the tightest for its design in most cases of docs/coverage.md.
  """
  if scores.design == 'coin_flip':
    is_fair = scores.inclusion_probability == 0.5
    return *(FAIR_COINS if is_fair else _BIASED_COINS), _BAND
  return (_BAND,) if scores.dim is None else (_FEW, _BAND)


def choose_exact_bound(scores: Scores) -> Estimator:
  """A bound for any significance: one that simulates nothing, however small it is."""
  return FAIR_COINS[0] if scores.design == 'coin_flip' else _FEW


def choose_points(first: Estimator, has_spread: bool) -> tuple[Estimator, ...]:
  """Point estimators; those that fit a spread only where there is one."""
  if has_spread:
    return first, FITTED, threshold.max_threshold, threshold.eps_lo
  return first, COUNTED, threshold.eps_lo
