"""The estimators that an audit chooses from: a line each.

A new estimator is a module with its function, and an `Entry` in `ENTRIES`. Audits then
take it for the scores that it suits, and tables and figures know its name. An estimator
is chosen by what is known of the scores in advance (`Traits`), never by its result: the
first bound that suits is the headline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
import inspect
from typing import Literal, NamedTuple

import numpy as np

from epe_jax.epsilon import (
  gaussian_bound,
  maximum,
  noise_floor,
  threshold,
  two_gaussians,
)
from epe_jax.epsilon import lower_bounds as threshold_bound
from epe_jax.epsilon import one_run_bounds as approximate_dp
from epe_jax.epsilon import one_run_bounds as f_dp
from epe_jax.epsilon import one_run_bounds as independent
from epe_jax.epsilon import shift as mixture
from epe_jax.epsilon import tradeoff as tradeoff_curves
from epe_jax.epsilon.lower_bounds import Band, Bonferroni, Split
from epe_jax.epsilon.types import Kind, Scores

Estimator = noise_floor.Estimator

# Shifts that differ by less than this share are taken to be equal.
_UNIFORM_WITHIN = 0.05


class Traits(NamedTuple):
  """What is known of scores before any of them is looked at.

  Attributes:
    is_coin_flip: independent coins decided which canaries took part.
    is_fair: these coins have probability 1/2.
    is_null_known: the law of unobserved scores is known.
    shift: whether it is known by how much taking part shifts each canary, and
      whether all are shifted alike.
    has_spread: scores differ, so that a spread can be fitted.
    is_external: scores of another system; nothing else is known of it.
    is_rejected: a test rejected what the point estimate assumes.
  """

  is_coin_flip: bool
  is_fair: bool
  is_null_known: bool
  shift: Literal['unknown', 'equal', 'unequal']
  has_spread: bool
  is_external: bool
  is_rejected: bool


class Entry(NamedTuple):
  """An estimator with its settings.

  Attributes:
    function: the estimator.
    labels: method of its estimates -> a few words, distinct from all others.
    suits: whether an audit takes it for scores of given traits.
    kind: of its estimates, if no test rejects what they assume.
    is_extra: also shown, for any scores, when all estimates are asked for.
    uses_shift: its estimates, and their floor, depend on `Scores.shift`.
    is_of_most_exposed: ε of the canary that is shifted most, not of a random one.
  """

  function: Estimator
  labels: Mapping[str, str]
  suits: Callable[[Traits], bool] = lambda traits: False
  kind: Kind = 'confidence_bound'
  is_extra: bool = False
  uses_shift: bool = False
  is_of_most_exposed: bool = False


_POINT: Kind = 'point_estimate'
_GDP = tradeoff_curves.gaussian_family()

# Those that some attackers choose themselves.
MIXTURE: Estimator = mixture.location_mixture
MOST_EXPOSED: Estimator = mixture.most_exposed
NULL_STD: Estimator = partial(two_gaussians.two_gaussian, std='null')
FITTED: Estimator = partial(two_gaussians.two_gaussian, std='fitted')
COUNTED: Estimator = partial(threshold.max_threshold, rates='empirical')
_FEW: Estimator = partial(
  threshold_bound.lower_bound, multiplicity=Bonferroni()
)

ENTRIES: tuple[Entry, ...] = (
  # Point estimates. The first that suits is the one to believe.
  Entry(
    MIXTURE,
    {'location_mixture': 'Gaussians, shifts known'},
    lambda x: x.shift != 'unknown',
    kind=_POINT,
    uses_shift=True,
  ),
  Entry(
    MOST_EXPOSED,
    {'most_exposed': 'Gaussians, most exposed canary'},
    lambda x: x.shift == 'unequal',
    kind=_POINT,
    uses_shift=True,
    is_of_most_exposed=True,
  ),
  Entry(
    maximum.maximum_over_rounds,
    {'maximum_over_rounds': 'law of a maximum'},
    kind=_POINT,
  ),
  Entry(
    NULL_STD,
    {'two_gaussian_null': 'two Gaussians, std of the null'},
    # Of external scores without a spread there may be no null to fit.
    lambda x: (
      x.shift == 'unknown'
      and (x.has_spread or x.is_null_known or not x.is_external)
    ),
    kind=_POINT,
  ),
  Entry(
    FITTED,
    {'two_gaussian_fitted': 'two Gaussians, std fitted'},
    lambda x: x.has_spread,
    kind=_POINT,
  ),
  Entry(
    threshold.max_threshold,
    {'max_threshold_gaussian': 'best threshold, Gaussian rates'},
    lambda x: x.has_spread,
    kind=_POINT,
  ),
  Entry(
    COUNTED,
    {'max_threshold_empirical': 'best threshold, counted rates'},
    lambda x: not x.has_spread,
    kind=_POINT,
    is_extra=True,
  ),
  Entry(
    threshold.eps_lo,
    {'eps_lo': "the paper's ε_lo (no bound)"},
    lambda x: True,
    kind=_POINT,
  ),
  # Bounds. The first that suits is the headline: in most cases of docs/coverage.md
  # it is the tightest for its design.
  Entry(
    approximate_dp.one_run,
    {'one_run': 'from one run, Bernoulli(1/2)'},
    lambda x: x.is_coin_flip,
  ),
  Entry(
    f_dp.one_run_gdp,
    {'one_run_gdp': 'one run, if f is Gaussian'},
    lambda x: x.is_coin_flip and x.is_fair,
  ),
  Entry(
    independent.one_run_independent,
    {'one_run_independent': 'one run, leaks independent'},
    lambda x: x.is_coin_flip,
  ),
  Entry(
    partial(independent.one_run_independent, family=_GDP),
    {'one_run_independent_gdp': 'one run, independent, Gaussian'},
    lambda x: x.is_coin_flip,
  ),
  Entry(
    _FEW,
    {'clopper_pearson_bonferroni': 'a few thresholds, Bonferroni'},
    lambda x: x.is_null_known and not x.is_coin_flip,
    is_extra=True,
  ),
  Entry(
    partial(threshold_bound.lower_bound, multiplicity=Band()),
    {
      'rank_test': 'all thresholds, one test',
      'clopper_pearson_band': 'best threshold under a band',
    },
    lambda x: True,
  ),
  Entry(
    mixture.location_mixture_bound,
    {
      'location_mixture_bound': 'Gaussians, shifts known, bound',
      'location_mixture_bound_rejected': 'Gaussians, bound rejected',
    },
    lambda x: x.shift != 'unknown' and not x.is_rejected,
    uses_shift=True,
  ),
  Entry(
    gaussian_bound.gaussian_lower_bound,
    {
      'gaussian_lower_bound': 'both Gaussians, spread free',
      'gaussian_lower_bound_rejected': 'both Gaussians, rejected',
    },
    lambda x: x.is_external and x.has_spread,
  ),
  Entry(
    partial(threshold_bound.lower_bound, multiplicity=Split(seed=0)),
    {'clopper_pearson_split': 'threshold from half of scores'},
    is_extra=True,
  ),
  Entry(
    threshold_bound.gdp_bound,
    {
      'gdp_rank_test': 'all thresholds, if f is Gaussian',
      'gdp_clopper_pearson_band': 'under a band, if f is Gaussian',
    },
    is_extra=True,
  ),
)
"""All estimators that audits know, in the order in which they are shown."""


def describe(
  scores: Scores,
  *,
  has_spread: bool = True,
  is_external: bool = False,
  is_rejected: bool = False,
) -> Traits:
  """The traits of scores.

  Args:
    scores: of one attacker.
    has_spread: as in `Traits`, like the others.
    is_external: see above.
    is_rejected: see above.
  """
  shift = 'unknown'
  if scores.shift is not None:
    is_equal = np.ptp(scores.shift) <= _UNIFORM_WITHIN * np.max(scores.shift)
    shift = 'equal' if is_equal else 'unequal'
  return Traits(
    is_coin_flip=scores.design == 'coin_flip',
    is_fair=scores.inclusion_probability == 0.5,
    is_null_known=scores.has_known_null,
    shift=shift,
    has_spread=has_spread,
    is_external=is_external,
    is_rejected=is_rejected,
  )


def choose_points(traits: Traits) -> tuple[Estimator, ...]:
  """Point estimators for scores of these traits, the one to believe first."""
  return _choose(traits, is_point=True)


def choose_bounds(traits: Traits) -> tuple[Estimator, ...]:
  """Lower bounds for scores of these traits, the headline first."""
  return _choose(traits, is_point=False)


def choose_exact_bound(scores: Scores) -> Estimator:
  """A bound for any significance: it simulates nothing, however small that is."""
  return approximate_dp.one_run if scores.design == 'coin_flip' else _FEW


def list_extra(*, is_point: bool) -> tuple[Estimator, ...]:
  """What is shown besides, for any scores, when all estimates are asked for."""
  return tuple(
    entry.function
    for entry in ENTRIES
    if entry.is_extra and (entry.kind == _POINT) == is_point
  )


def find(method: str) -> Entry | None:
  """The entry whose estimates have a method; None if there is none."""
  return next((entry for entry in ENTRIES if method in entry.labels), None)


def uses_shift(estimator: Estimator) -> bool:
  """Whether estimates of a function depend on `Scores.shift`."""
  return any(x.uses_shift for x in ENTRIES if x.function == estimator)


def takes(estimator: Estimator, setting: str) -> bool:
  """Whether a function has a setting, such as the confidence of an interval."""
  return setting in inspect.signature(estimator).parameters


def _choose(traits: Traits, *, is_point: bool) -> tuple[Estimator, ...]:
  return tuple(
    entry.function
    for entry in ENTRIES
    if (entry.kind == _POINT) == is_point and entry.suits(traits)
  )
