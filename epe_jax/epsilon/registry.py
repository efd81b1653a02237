"""The estimators that an audit chooses from: a line each.

A new estimator is a function and an `Entry` in `ENTRIES`, by which tables and figures know
its name. In `choose_points` or `choose_bounds` it is among those of every audit.
"""

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import numpy as np

from epe_jax.epsilon import (
  gaussian_bound,
  known_shifts,
  lower_bounds,
  maximum,
  noise_floor,
  one_run_bounds,
  paper_estimates,
  tradeoff,
  two_gaussians,
)
from epe_jax.epsilon.lower_bounds import Band, Bonferroni, Split
from epe_jax.epsilon.types import Kind, Scores

Estimator = noise_floor.Estimator

# Shifts that differ by less than this share are taken to be equal.
_UNIFORM_WITHIN = 0.05


class Entry(NamedTuple):
  """An estimator with its settings.

  Attributes:
    function: the estimator.
    labels: method of its estimates -> a few words, distinct from all others.
    kind: of its estimates, if no test rejects what they assume.
    is_extra: also shown, for any scores, when all estimates are asked for.
    has_interval: it takes a `confidence`, and has an interval of its own.
    uses_shift: its estimates, and their floor, depend on `Scores.shift`.
    is_of_most_exposed: ε of the canary that is shifted most, not of a random one.
  """

  function: Estimator
  labels: Mapping[str, str]
  kind: Kind = 'confidence_bound'
  is_extra: bool = False
  has_interval: bool = False
  uses_shift: bool = False
  is_of_most_exposed: bool = False


_POINT: Kind = 'point_estimate'

MIXTURE: Estimator = known_shifts.location_mixture
MOST_EXPOSED: Estimator = known_shifts.most_exposed
NULL_STD: Estimator = partial(two_gaussians.two_gaussian, std='null')
FITTED: Estimator = partial(two_gaussians.two_gaussian, std='fitted')
COUNTED: Estimator = partial(paper_estimates.max_threshold, rates='empirical')
INDEPENDENT_GDP: Estimator = partial(
  one_run_bounds.one_run_independent, family=tradeoff.gaussian_family()
)
FEW: Estimator = partial(lower_bounds.lower_bound, multiplicity=Bonferroni())
BAND: Estimator = partial(lower_bounds.lower_bound, multiplicity=Band())
SPLIT: Estimator = partial(lower_bounds.lower_bound, multiplicity=Split(seed=0))
GAUSSIAN: Estimator = gaussian_bound.gaussian_lower_bound

ENTRIES: tuple[Entry, ...] = (
  Entry(
    MIXTURE,
    {'location_mixture': 'Gaussians, shifts known'},
    _POINT,
    has_interval=True,
    uses_shift=True,
  ),
  Entry(
    MOST_EXPOSED,
    {'most_exposed': 'Gaussians, most exposed canary'},
    _POINT,
    has_interval=True,
    uses_shift=True,
    is_of_most_exposed=True,
  ),
  Entry(
    maximum.maximum_over_rounds,
    {'maximum_over_rounds': 'law of a maximum'},
    _POINT,
    has_interval=True,
  ),
  Entry(
    NULL_STD, {'two_gaussian_null': 'two Gaussians, std of the null'}, _POINT
  ),
  Entry(FITTED, {'two_gaussian_fitted': 'two Gaussians, std fitted'}, _POINT),
  Entry(
    paper_estimates.max_threshold,
    {'max_threshold_gaussian': 'best threshold, Gaussian rates'},
    _POINT,
  ),
  Entry(
    COUNTED,
    {'max_threshold_empirical': 'best threshold, counted rates'},
    _POINT,
    is_extra=True,
  ),
  Entry(
    paper_estimates.eps_lo, {'eps_lo': "the paper's ε_lo (no bound)"}, _POINT
  ),
  Entry(one_run_bounds.one_run, {'one_run': 'from one run, Bernoulli'}),
  Entry(
    one_run_bounds.one_run_gdp, {'one_run_gdp': 'one run, if f is Gaussian'}
  ),
  Entry(
    one_run_bounds.one_run_independent,
    {'one_run_independent': 'one run, leaks independent'},
  ),
  Entry(
    INDEPENDENT_GDP,
    {'one_run_independent_gdp': 'one run, independent, Gaussian'},
  ),
  Entry(
    FEW,
    {'clopper_pearson_bonferroni': 'a few thresholds, Bonferroni'},
    is_extra=True,
  ),
  Entry(
    BAND,
    {
      'rank_test': 'all thresholds, one test',
      'clopper_pearson_band': 'best threshold under a band',
    },
  ),
  Entry(
    known_shifts.location_mixture_bound,
    {
      'location_mixture_bound': 'Gaussians, shifts known, bound',
      'location_mixture_bound_rejected': 'Gaussians, bound rejected',
    },
    uses_shift=True,
  ),
  Entry(
    GAUSSIAN,
    {
      'gaussian_lower_bound': 'both Gaussians, spread free',
      'gaussian_lower_bound_rejected': 'both Gaussians, rejected',
    },
  ),
  Entry(
    SPLIT,
    {'clopper_pearson_split': 'threshold from half of scores'},
    is_extra=True,
  ),
  Entry(
    lower_bounds.gdp_bound,
    {
      'gdp_rank_test': 'all thresholds, if f is Gaussian',
      'gdp_clopper_pearson_band': 'under a band, if f is Gaussian',
    },
    is_extra=True,
  ),
)
"""All estimators that audits know, in the order in which they are shown."""


def choose_points(
  scores: Scores, *, has_spread: bool = True, can_fit_null: bool = True
) -> tuple[Estimator, ...]:
  """The point estimators of scores, the most trusted first.

  Args:
    scores: of one attacker.
    has_spread: scores differ, so that a spread can be fitted.
    can_fit_null: the null law is known or can be fitted.
  """
  first = (NULL_STD,) if can_fit_null else ()
  if scores.shift is not None:
    is_equal = np.ptp(scores.shift) <= _UNIFORM_WITHIN * np.max(scores.shift)
    first = (MIXTURE,) if is_equal else (MIXTURE, MOST_EXPOSED)
  by_rates = (
    (FITTED, paper_estimates.max_threshold) if has_spread else (COUNTED,)
  )
  return (*first, *by_rates, paper_estimates.eps_lo)


def choose_bounds(
  scores: Scores, *, is_rejected: bool = False
) -> tuple[Estimator, ...]:
  """The lower bounds of scores, the headline first.

  In most cases of docs/coverage.md it is the tightest for its design. It is chosen by
  what is known of scores in advance, never by its result.

  Args:
    scores: of one attacker.
    is_rejected: a test rejected what bounds assume that know the shift.
  """
  if scores.design == 'coin_flip':
    is_fair = scores.inclusion_probability == 0.5
    first = (
      one_run_bounds.one_run,
      *((one_run_bounds.one_run_gdp,) if is_fair else ()),
      one_run_bounds.one_run_independent,
      INDEPENDENT_GDP,
    )
  else:
    first = (FEW,) if scores.has_known_null else ()
  knows_shift = scores.shift is not None and not is_rejected
  last = (known_shifts.location_mixture_bound,) if knows_shift else ()
  return (*first, BAND, *last)


def choose_exact_bound(scores: Scores) -> Estimator:
  """A bound for any significance: it simulates nothing, however small that is."""
  return one_run_bounds.one_run if scores.design == 'coin_flip' else FEW


def find(method: str) -> Entry | None:
  """The entry whose estimates have a method; None if there is none."""
  return next((entry for entry in ENTRIES if method in entry.labels), None)


def uses_shift(estimator: Estimator) -> bool:
  """Whether estimates of a function depend on `Scores.shift`."""
  return any(x.uses_shift for x in ENTRIES if x.function == estimator)


def list_extra(kind: Kind) -> tuple[Estimator, ...]:
  """Estimators of a kind that are shown when all estimates are asked for."""
  return tuple(
    entry.function for entry in ENTRIES if entry.is_extra and entry.kind == kind
  )


def has_interval(estimator: Estimator) -> bool:
  """Whether a point estimator has a `confidence`, and an interval of its own."""
  # An attacker binds what it alone knows.
  function = getattr(estimator, 'func', estimator)
  return any(x.has_interval for x in ENTRIES if x.function == function)
