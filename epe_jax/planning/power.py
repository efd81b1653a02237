"""How many canaries it takes to certify an ε.

The power of a bound is the probability that it is at least some ε₀ if the true ε
is larger; experiments are commonly planned for 80 %. The scores are those of the
best attack on a Gaussian mechanism, N(μ, 1) and N(0, 1), where μ has the true ε at
δ; any other attack needs more canaries.

A bound is at least ε₀ if and only if it rejects ε₀, so that no bound is computed,
and no score is drawn: counts above a rank suffice, and cost the same for a hundred
canaries and a million.
"""

from collections.abc import Callable
import functools
from typing import Literal, NamedTuple

from jaxtyping import Bool, Float, Int
import numpy as np
from scipy import special

from epe_jax.epsilon import (
  checks,
  lower_bounds,
  one_run_bounds,
  rank_bound,
  tradeoff,
)
from epe_jax.epsilon.checks import check_delta, check_significance

BoundName = Literal['lower_bound', 'gdp', 'gaussian', 'one_run', 'one_run_gdp']
_DRAWS = 20_000
_MIN_CANARIES, _MAX_CANARIES, _FACTOR, _PRECISION = 8, 1_000_000, 2**0.5, 0.01
_GAUSSIAN = tradeoff.gaussian_family()


class Power(NamedTuple):
  """A probability, and how accurately it is known.

  Attributes:
    probability: in [0, 1].
    error: its standard error if it is simulated; 0 if it is exact.
  """

  probability: float
  error: float


def compute_power(
  bound: BoundName,
  *,
  certified: float,
  truth: float,
  delta: float,
  num_observed: int,
  num_unobserved: int | None,
  significance: float = 0.05,
) -> Power:
  """The probability that a bound is at least ε₀ if the true ε is larger.

  It is exact for a known law and for 'gaussian'. For 'one_run' and 'one_run_gdp' every
  canary takes part with probability 1/2, and only the sum of both numbers matters.

  Args:
    bound: like all others but these, as in `min_canaries`.
    certified: see there.
    truth: see there.
    delta: see there.
    num_observed: number of canaries that take part, >= 1.
    num_unobserved: number of canaries that do not; None if their law is known
      exactly (`Scores.null`), but not of one run.
    significance: see there.

  >>> settings = dict(certified=3, truth=4, delta=1e-5, num_observed=200)
  >>> result = compute_power('gdp', **settings, num_unobserved=None)
  >>> round(result.probability, 2), result.error
  (0.76, 0.0)
  """
  test = _Test(
    certified,
    tradeoff.mu_of_epsilon(certified, delta),
    tradeoff.mu_of_epsilon(truth, delta),
    delta,
    significance,
  )
  return _POWERS[bound](test, num_observed, num_unobserved)


def min_canaries(
  bound: BoundName,
  *,
  certified: float,
  truth: float,
  delta: float,
  probability: float = 0.8,
  known_law: bool = False,
  significance: float = 0.05,
) -> int | None:
  """How many canaries of each kind certify ε₀ with this probability.

  Args:
    bound: 'lower_bound', or 'gdp' for `gdp_bound`, both with their default
      multiplicity; 'gaussian' for `gaussian_lower_bound` with std='common';
      'one_run' or 'one_run_gdp', with their default guesses.
    certified: ε₀ >= 0.
    truth: ε of the mechanism at δ, > ε₀.
    delta: δ, in (0, 1).
    probability: the required power, in (0, 1).
    known_law: whether the law of unobserved scores is known, so that none are
      needed; not for a bound of one run.
    significance: chance that the bound exceeds the truth, in (0, 1).

  Returns:
    k, for k observed and k unobserved canaries, or for 2k canaries of one run. It
    is at least 8 and accurate to 1 %. None if a million are too few, and for a
    bound of one run that reaches ε₀ with no number of canaries.

  Raises:
    ValueError: a setting is out of range.

  >>> min_canaries('gaussian', certified=3, truth=4, delta=1e-5)
  320
  """
  checks.check_choice('bound', bound, tuple(_POWERS))
  check_delta(delta)
  check_significance(significance)
  checks.check_number('probability', probability, '(0, 1)')
  checks.check_number('certified', certified, '[0, 1e6]')
  checks.check_number('truth', truth, '[0, 1e6]')
  if known_law and bound in ('one_run', 'one_run_gdp'):
    raise ValueError(
      'known_law=True, but a bound from one run compares canaries that were in with '
      'those that were out; leave it out.'
    )
  if certified >= truth:
    raise ValueError(
      f'certified={certified} is not below truth={truth}, but a bound certifies '
      'no more than is true. Give a smaller certified.'
    )

  def suffices(num):
    settings = dict(certified=certified, truth=truth, delta=delta)
    reached = compute_power(
      bound,
      **settings,
      num_observed=num,
      num_unobserved=None if known_law else num,
      significance=significance,
    )
    return reached.probability >= probability

  # Power may fall again, because the p-value of one run increases with δ times
  # the number of canaries.
  few, many = _MIN_CANARIES - 1, _MIN_CANARIES
  while not suffices(many):
    if many >= _MAX_CANARIES:
      return None
    few, many = many, min(_MAX_CANARIES, int(np.ceil(many * _FACTOR)))
  while many - few > max(1, _PRECISION * few):
    middle = (few + many) // 2
    few, many = (few, middle) if suffices(middle) else (middle, many)
  return many


class _Test(NamedTuple):
  """The test of a bound that rejects ε₀.

  Attributes:
    certified: ε₀.
    min_mu: μ of the Gaussian mechanism with ε₀ at δ.
    mu: μ of the mechanism.
    delta: δ.
    significance: level of the test.
  """

  certified: float
  min_mu: float
  mu: float
  delta: float
  significance: float


class _Curves(NamedTuple):
  """How a test of thresholds depends on the curves that it tests.

  Attributes:
    statistic: (test, n1, n0) -> the statistic of the counts above ranks.
    curve: test -> the curves.
    strength: test -> the strength of the curve with ε₀.
    log_fpr: (test, FNR) -> log of the FPR up to which ε₀ is rejected.
  """

  statistic: Callable[[_Test, int, int], rank_bound.Statistic]
  curve: Callable[[_Test], tradeoff.Curves]
  strength: Callable[[_Test], float]
  log_fpr: Callable[[_Test, Float[np.ndarray, ' n']], Float[np.ndarray, ' n']]


_ANY_MECHANISM = _Curves(
  lambda test, n1, n0: rank_bound.log_ratio_statistic(n1, n0, test.delta, 'in'),
  lambda test: tradeoff.approximate_dp_curves(test.delta),
  lambda test: test.certified,
  lambda test, fnr: np.log(1 - test.delta - fnr) - test.certified,
)
_GAUSSIAN_MECHANISM = _Curves(
  lambda test, n1, n0: rank_bound.shift_statistic(n1, n0),
  lambda test: tradeoff.family_curves(_GAUSSIAN),
  lambda test: test.min_mu,
  lambda test, fnr: special.log_ndtr(-test.min_mu - special.ndtri(fnr)),
)


def _summarize(rejected: Bool[np.ndarray, 'draws']) -> Power:
  share = float(np.mean(rejected))
  return Power(share, float(np.sqrt(share * (1 - share) / len(rejected))))


def _of_thresholds(
  curves: _Curves, test: _Test, num: int, num_null: int | None
) -> Power:
  """The power of `rank_test`; with a known law, that of the band."""
  if num_null is None:
    return _of_known_law(curves, test, num)
  statistic = curves.statistic(test, num, num_null)
  counts = rank_bound.draw_counts(
    # Other draws than those by which the test is calibrated.
    np.random.default_rng(1),
    lambda log_fpr: tradeoff.fnr_gdp(test.mu, log_fpr),
    statistic,
    _DRAWS,
  )
  p_values = rank_bound.p_value(
    statistic.value(counts),
    curves.curve(test),
    curves.strength(test),
    statistic,
    test.significance,
  )
  return _summarize(np.asarray(p_values) <= test.significance)


def _of_known_law(curves: _Curves, test: _Test, num: int) -> Power:
  """The exact power; a score of some rank with too small an FPR rejects ε₀."""
  false_negatives = np.arange(num)
  fnr = np.asarray(
    lower_bounds.band_upper(false_negatives, num, test.significance)
  )
  # Of counts with the same limit the largest is rejected first.
  last = np.append(np.diff(fnr) > 0, True) & (fnr < 1 - test.delta)
  false_negatives, fnr = false_negatives[last], fnr[last]
  coverage = lower_bounds.band_coverage(
    num,
    false_negatives + 1,
    tradeoff.fnr_gdp(test.mu, curves.log_fpr(test, fnr)),
  )
  return Power(float(np.clip(1 - coverage, 0.0, 1.0)), 0.0)


def _of_means(test: _Test, num: int, num_null: int | None) -> Power:
  """The exact power; the gap of the means is normal, or a t variable."""
  if num_null is None:
    z = -special.ndtri(test.significance)
    shift = (test.mu - test.min_mu) * np.sqrt(num)
    return Power(float(special.ndtr(shift - z)), 0.0)
  unit, df = np.sqrt(1 / num + 1 / num_null), num + num_null - 2
  if df < 1:
    return Power(0.0, 0.0)
  # Here and not above: it takes most of a second to import.
  from scipy import stats

  critical = stats.nct.isf(test.significance, df, test.min_mu / unit)
  return Power(float(stats.nct.sf(critical, df, test.mu / unit)), 0.0)


def _of_guesses(
  rejects: Callable[..., bool], test: _Test, num: int, num_null: int | None
) -> Power:
  """Whether ε₀ is rejected by one of the default guesses, in many runs."""
  assert num_null is not None, 'one run has both'
  total = num + num_null
  pairs = one_run_bounds.choose_guesses(total)
  level = test.significance / len(pairs)
  rejected = np.zeros(_DRAWS, dtype=bool)
  for pair, correct in zip(pairs, _correct_guesses(test.mu, pairs, total)):
    sizes = dict(num_canaries=total, num_guesses=sum(pair))
    low, high = -1, sum(pair) + 1
    while high - low > 1:
      middle = (low + high) // 2
      if rejects(test, level, correct=middle, **sizes):
        high = middle
      else:
        low = middle
    rejected |= correct >= high
  return _summarize(rejected)


def _rejects_epsilon(test: _Test, level: float, **counts: int) -> bool:
  p_value = one_run_bounds.p_value(test.certified, test.delta, **counts)
  return p_value <= level


def _rejects_mu(test: _Test, level: float, **counts: int) -> bool:
  mu = one_run_bounds.max_rejected_mu(**counts, significance=level)
  return mu > test.min_mu


_POWERS: dict[str, Callable[[_Test, int, int | None], Power]] = {
  'lower_bound': functools.partial(_of_thresholds, _ANY_MECHANISM),
  'gdp': functools.partial(_of_thresholds, _GAUSSIAN_MECHANISM),
  'gaussian': _of_means,
  'one_run': functools.partial(_of_guesses, _rejects_epsilon),
  'one_run_gdp': functools.partial(_of_guesses, _rejects_mu),
}


def _correct_guesses(
  mu: float, pairs: one_run_bounds.GuessesToTry, num: int
) -> Int[np.ndarray, 'pairs draws']:
  """Numbers of correct guesses about m canaries, each in with probability 1/2.

  Scores are quantiles of the mixture of both laws. Between the order statistics
  at the edges of the guesses they are independent, and so is membership.
  """
  rng = np.random.default_rng(2)
  edges = {k for k_plus, k_minus in pairs for k in (k_plus, num - k_minus)}
  edges = np.array(sorted(edges - {0, num}))
  steps = np.append(np.diff(edges, prepend=0), num + 1 - edges[-1])
  sums = np.cumsum(rng.standard_gamma(steps, (_DRAWS, len(steps))), axis=-1)
  shares = sums[:, :-1] / sums[:, -1:]
  at, above = _mixture(mu, shares)
  # The edge itself is the last of the scores up to it.
  of_edge = special.expit(mu * at - mu**2 / 2)
  between = np.diff(above, prepend=0.0) / np.diff(shares, prepend=0.0)
  between = np.clip(between, 0.0, 1.0)
  inside = rng.binomial(np.diff(edges, prepend=0) - 1, between)
  inside = np.cumsum(inside + (rng.random(at.shape) < of_edge), axis=-1)
  rest = (0.5 - above[:, -1]) / (1 - shares[:, -1])
  total = inside[:, -1] + rng.binomial(num - edges[-1], np.clip(rest, 0, 1))

  def up_to(edge):
    if edge == 0:
      return np.zeros(_DRAWS, dtype=np.int64)
    return total if edge == num else inside[:, np.searchsorted(edges, edge)]

  return np.array(
    [
      up_to(k_plus) + k_minus - (total - up_to(num - k_minus))
      for k_plus, k_minus in pairs
    ]
  )


def _mixture(mu, shares):
  """Scores exceeded with these probabilities, and P(in and above them)."""
  grid = np.linspace(-12.0, mu + 12.0, 20_001)
  inside = special.ndtr(mu - grid) / 2
  exceeded = inside + special.ndtr(-grid) / 2
  at = np.interp(-shares, -exceeded, grid)
  return at, special.ndtr(mu - at) / 2
