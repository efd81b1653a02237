"""Lower bounds of ε from one run, whose canaries independent coins included.

An attacker guesses "in" for the k₊ highest scores of m canaries and "out" for the k₋
lowest. Many right guesses reject a small ε, without a second model or an assumption
about the scores. Numbers of guesses are chosen before the scores are seen; if several
are tried, each is tested at an equal share of the significance (Bonferroni). Among
tied scores at the edge the wrong guesses are counted first.

How many right guesses a mechanism allows: any (ε, δ)-DP one (`one_run`); one with a
Gaussian trade-off curve (`one_run_gdp`); one whose canaries leak independently
(`one_run_independent`).

References: Steinke, Nasr, Jagielski, "Privacy auditing with one (1) training run"
(NeurIPS 2023), arXiv:2305.08846; Mahloujifar, Melis, Chaudhuri, "Auditing
f-differential privacy in one run" (ICML 2025), arXiv:2410.22235; Zihang Xiang, Tianhao
Wang, Di Wang, "Privacy audit as bits transmission: (im)possibilities for audit by one
run" (USENIX Security 2025); Xiang, T. Wang, H. Xiao, Y. Tian, D. Wang (2025),
arXiv:2509.08704.
"""

from collections.abc import Callable, Sequence
import functools
import operator
from typing import Any, TypeAlias

from jaxtyping import Float, Int
import numpy as np
from scipy import optimize, special

from epe_jax.epsilon import checks, tradeoff, two_gaussians
from epe_jax.epsilon.tradeoff import Curves
from epe_jax.epsilon.types import (
  Assumption,
  Estimate,
  Scores,
  check_scores,
  make_bound,
  scalar_or_array,
)

GuessesToTry: TypeAlias = Sequence[tuple[int, int]]
"""Pairs (k₊, k₋): how many guesses "in" and "out", chosen before scores are seen."""

# W lies between these quantiles, and the rest is counted against the bound.
_TAIL = 1e-20
_NODES, _GRID, _REFINEMENTS = 200, 200, 6
# The logarithm of the smallest rate that is told from 0.
_SMALLEST = -700.0


def one_run(
  scores: Scores,
  *,
  delta: float,
  significance: float = 0.05,
  guesses: GuessesToTry | None = None,
) -> Estimate:
  """Lower bound of the ε of any (ε, δ)-DP mechanism, by Steinke et al.

  It is the largest ε whose `p_value` is at most the significance.

  Args:
    delta: δ, in [0, 1).
    guesses: pairs (k₊, k₋); `choose_guesses` if None. Where coins are not fair, one
      of each pair is 0.

  Returns:
    A bound, at most about log(r/log(1/significance)) with r guesses.

  Raises:
    ValueError: also if the design is another, or canaries are fewer than guesses.

  >>> scores = Scores(np.ones(500), np.zeros(500), design='coin_flip')
  >>> round(one_run(scores, delta=1e-5, guesses=[(500, 500)]).epsilon, 2)
  5.78
  """
  check_scores(scores, significance=significance)
  delta = checks.check_number('delta', delta, '[0, 1)')

  def solve(num, pair, correct, level):
    prior = _prior_of_guess(pair, scores.inclusion_probability) or 0.5
    return _max_rejected(
      _excess_of_any, np.inf, level, delta, num, sum(pair), correct, prior
    )

  return make_bound(
    _best_bound(scores, significance, guesses, solve),
    delta,
    'one_run',
    significance=significance,
    assumes=(Assumption.COINS,),
  )


def one_run_gdp(
  scores: Scores,
  *,
  delta: float,
  significance: float = 0.05,
  guesses: GuessesToTry | None = None,
) -> Estimate:
  """Lower bound of the ε of a Gaussian mechanism, by Mahloujifar et al.

  It is the exact ε at δ of a lower bound of μ (`max_rejected_mu`). It is tighter than
  `one_run`, but no bound for a mechanism whose trade-off curve is not Gaussian.
  Arguments, result and errors are those of `one_run`; coins must be fair.
  """
  check_scores(scores, delta, significance=significance)
  if scores.inclusion_probability != 0.5:
    raise ValueError(
      f'inclusion_probability={scores.inclusion_probability}, but one_run_gdp is '
      'for canaries included with probability 1/2. Use one_run, or '
      'one_run_independent, if canaries leak independently.'
    )

  def solve(num, pair, correct, level):
    return _max_rejected(_excess_of_gdp, np.inf, level, num, sum(pair), correct)

  mu = _best_bound(scores, significance, guesses, solve)
  epsilon = two_gaussians.epsilon_two_gaussians(0.0, 1.0, mu, 1.0, delta)
  return make_bound(
    epsilon,
    delta,
    'one_run_gdp',
    significance=significance,
    assumes=(Assumption.COINS, Assumption.GAUSSIAN_CURVE),
  )


def one_run_independent(
  scores: Scores,
  *,
  delta: float,
  significance: float = 0.05,
  guesses: GuessesToTry | None = None,
  family: tradeoff.MechanismFamily | None = None,
) -> Estimate:
  """Lower bound of ε for canaries that leak independently.

  `one_run` holds for a mechanism that errs on all canaries at once, and is far below
  ε where what the attacker sees of one canary tells nothing of the others, as with
  Gaussian noise in orthogonal directions. Then the number of wrong guesses has an
  exact law (`independent_p_value`). Where canaries are not independent the bound
  fails: docs/coverage.md shows it.

  Args:
    guesses: as in `one_run`, like the errors.
    family: of trade-off curves; that of (ε, δ)-DP at this δ if None, which every
      mechanism keeps. The curve of the mechanism itself gives most.

  Returns:
    A bound; inf if the scores reject every member of the family. Its method ends in
    the name of the family.

  >>> scores = Scores(np.ones(500), np.zeros(500), design='coin_flip')
  >>> bound = one_run_independent(scores, delta=1e-5, guesses=[(500, 500)])
  >>> round(bound.epsilon, 2)
  5.81
  """
  check_scores(scores, delta, significance=significance)
  method = 'one_run_independent'
  assumes = Assumption.COINS, Assumption.INDEPENDENT
  if family is None:
    curve = tradeoff.approximate_dp_curves(float(delta))
  else:
    curve = tradeoff.family_curves(family)
    method = f'{method}_{family.name}'
    assumes += (Assumption.FAMILY,)

  def solve(num, pair, correct, level):
    strength = _max_rejected(
      _excess_of_independent,
      curve.limit,
      level,
      curve,
      num,
      pair,
      correct,
      scores.inclusion_probability,
    )
    if family is None:
      return strength
    return float(tradeoff.epsilon_of_strength(family, strength, delta))

  return make_bound(
    _best_bound(scores, significance, guesses, solve),
    delta,
    method,
    significance=significance,
    assumes=assumes,
  )


def choose_guesses(
  num_canaries: int, inclusion_probability: float = 0.5
) -> tuple[tuple[int, int], ...]:
  """Three numbers of guesses: 3/4, 1/4 and 1/16 of those that may be right.

  Many guesses detect a shift of all scores best, few guesses a leak of few
  canaries. Of canaries that seldom take part only guesses "in" are worth something,
  of those that nearly always do only guesses "out".

  Returns:
    Pairs (k₊, k₋), the largest first. For fair coins half of the guesses are "in";
    otherwise all are on one side.

  >>> choose_guesses(2000)
  ((750, 750), (250, 250), (62, 62))
  """
  right = min(inclusion_probability, 1 - inclusion_probability) * num_canaries
  counts = [int(part * right) for part in (3 / 4, 1 / 4, 1 / 16)]
  if inclusion_probability == 0.5:
    return tuple((k, k) for k in counts if k) or ((1, 0),)
  distinct = dict.fromkeys(max(k, 1) for k in counts)
  is_seldom = inclusion_probability < 0.5
  return tuple((k, 0) if is_seldom else (0, k) for k in distinct)


def count_correct(
  scores: Scores, guesses: tuple[int, int]
) -> Int[np.ndarray, '*batch']:
  """How many of k₊ + k₋ guesses are right; among tied scores wrong ones count first."""
  k_plus, k_minus = guesses
  correct_in = _count_highest(scores.observed, scores.unobserved, k_plus)
  correct_out = _count_highest(-scores.unobserved, -scores.observed, k_minus)
  return np.asarray(correct_in + correct_out)


def _count_highest(group, others, k):
  """How many of the k highest scores are of the group; ties count against it."""
  batch = group.shape[:-1]
  if k == 0:
    return np.zeros(batch, dtype=np.int64)
  pooled = np.concatenate([group, others], axis=-1)
  edge = np.partition(pooled, pooled.shape[-1] - k, axis=-1)
  edge = edge[..., pooled.shape[-1] - k, None]
  above = np.sum(group > edge, axis=-1)
  return np.maximum(above, k - np.sum(others >= edge, axis=-1))


def _best_bound(
  scores: Scores,
  significance: float,
  guesses: GuessesToTry | None,
  solve: Callable[[int, tuple[int, int], int, float], float],
) -> float | Float[np.ndarray, '...']:
  """The largest of the bounds of all pairs (k₊, k₋) of guesses.

  `solve` is (number of canaries, pair, correct guesses, significance) -> bound.
  """
  if scores.design != 'coin_flip':
    raise ValueError(
      'one_run needs canaries included by independent coins, but '
      f"design={scores.design!r}. Audit with design='coin_flip', or use a bound "
      'on thresholds, which takes any design.'
    )
  num = scores.observed.shape[-1] + scores.unobserved.shape[-1]
  if guesses is None:
    pairs = choose_guesses(num, scores.inclusion_probability)
  else:
    pairs = _validate_pairs(guesses, num, scores.inclusion_probability)
  best = np.zeros(scores.observed.shape[:-1])
  for pair in pairs:
    values, inverse = np.unique(
      count_correct(scores, pair), return_inverse=True
    )
    level = significance / len(pairs)
    limits = [solve(num, pair, int(v), level) for v in values]
    best = np.maximum(best, np.array(limits)[inverse].reshape(best.shape))
  return scalar_or_array(best)


def _validate_pairs(guesses: Any, num: int, prior: float) -> GuessesToTry:
  try:
    pairs = [tuple(map(operator.index, pair)) for pair in guesses]
  except TypeError:
    pairs = []
  if not pairs or any(len(pair) != 2 for pair in pairs):
    raise ValueError(
      f'guesses={guesses!r}; give one or more pairs of integers (k₊, k₋), as '
      '[(100, 100)].'
    )
  for pair in pairs:
    if min(pair) < 0 or not 0 < sum(pair) <= num:
      raise ValueError(
        f'guesses has (k₊, k₋) = {pair}; each must be >= 0 and their sum '
        f'between 1 and the {num} canaries.'
      )
    if min(pair) and prior != 0.5:
      raise ValueError(
        f'guesses has (k₊, k₋) = {pair}, but canaries take part with '
        f'inclusion_probability={prior}; give pairs with a 0, as '
        f'({sum(pair)}, 0).'
      )
  return [(k_plus, k_minus) for k_plus, k_minus in pairs]


def _prior_of_guess(guesses, inclusion_probability):
  """The chance that a one-sided guess is right before any score is seen, or None.

  A guess "out" is the mirror image of a guess "in" of the other coins.
  """
  k_plus, k_minus = guesses
  if k_minus == 0:
    return inclusion_probability
  return 1 - inclusion_probability if k_plus == 0 else None


# Audits of a study, or rounds of a run, often have equal counts.
@functools.lru_cache(maxsize=3 * 4096)
def _max_rejected(
  excess: Callable[..., float], limit: float, *settings
) -> float:
  """The largest privacy level at which an excess is positive, found from below.

  Any rejected level is a lower bound at the same confidence: what satisfies a privacy
  guarantee satisfies all weaker ones. It is 0 if none is rejected, and inf if the
  limit is, beyond which all are equal.
  """
  if excess(0.0, *settings) <= 0:
    return 0.0
  high = 1.0
  while excess(high, *settings) > 0:
    if high >= limit:
      return np.inf
    high *= 2
  root = optimize.root_scalar(
    excess,
    settings,
    bracket=(0.0, high),
    method='brentq',
    xtol=1e-10,
    rtol=1e-10,
  ).root
  return max(root * (1 - 1e-9) - 1e-9, 0.0)


def _excess_of_any(epsilon, level, delta, num, num_guesses, correct, prior):
  return level - p_value(
    epsilon,
    delta,
    num_canaries=num,
    num_guesses=num_guesses,
    correct=correct,
    prior=prior,
  )


def p_value(
  epsilon: float,
  delta: float,
  *,
  num_canaries: int,
  num_guesses: int,
  correct: int,
  prior: float = 0.5,
) -> float:
  """Largest probability of v or more correct guesses under (ε, δ)-DP.

  It is P(W >= v) + 2 m δ max_i P(v > W >= v - i)/i, over i = 1..v, where W is the
  number of correct guesses out of r if each is correct with probability
  e^ε/(1 + e^ε).

  With coins of probability π, and guesses of one side, it is P(W >= v) + m π δ, with
  π e^ε/(π e^ε + 1 - π) as the probability. For let P and Q be the laws of the output
  with a canary in and out, given the other coins. P = P' + E with P' <= e^ε Q and
  ∫E <= δ. Say that a canary that is in is revealed with probability E/P: that has
  probability π δ at most, and one that is not revealed is in with at most the
  probability above, whatever the other coins were.

  Args:
    epsilon: ε >= 0.
    delta: δ, in [0, 1).
    num_canaries: m >= 1; each was included independently.
    num_guesses: r, in [0, m].
    correct: v, in [0, r].
    prior: π, in (0, 1). If it is not 1/2, all guesses are of one side.

  References: Steinke et al., Theorem 5.2 (in appendix D for the form with a maximum).

  >>> round(p_value(0.0, 0.0, num_canaries=9, num_guesses=3, correct=3), 3)
  0.125
  """
  # Here and not above: it takes most of a second to import.
  from scipy import stats

  right = special.expit(epsilon + special.logit(prior))
  pure = float(stats.binom.sf(correct - 1, num_guesses, right))
  if delta == 0 or correct == 0:
    return min(pure, 1.0)
  if prior != 0.5:
    return min(pure + num_canaries * prior * delta, 1.0)
  # The mean of P(W = v - j), j = 1..i, falls once v - i is in the lower tail,
  # and terms far above the mode add nothing: a window around it is enough.
  mode = num_guesses * right
  width = 12 * np.sqrt(mode * (1 - right)) + 40
  last = int(min(correct - 1, mode + 4 * width))
  first = int(max(0, min(mode, last) - width))
  counts = np.arange(last, first - 1, -1)
  mass = np.cumsum(stats.binom.pmf(counts, num_guesses, right))
  steepest = np.max(mass / (correct - counts))
  return min(float(pure + 2 * num_canaries * delta * steepest), 1.0)


def max_rejected_mu(
  *, num_canaries: int, num_guesses: int, correct: int, significance: float
) -> float:
  """Largest μ for which μ-Gaussian DP makes v of r correct guesses too improbable.

  With p_i the probability of i correct guesses out of r, let R_i = Σ_{j>=i} j p_j/m
  and H_i = Σ_{j>=i} (r - j) p_j/m: the probabilities that a random canary is guessed
  correctly, or wrongly, and that i or more guesses are correct. Moving that canary
  in or out turns the first event into the second with one correct guess less, so
  R_{i+1} <= f̄(H_i) with f̄(x) = Φ(Φ⁻¹(x) + μ). If v or more correct guesses had more
  than the given probability, recursion from i = v down to 0 gives lower limits of
  H_0 and R_0. If these add up to more than r/m, which is their sum, μ is rejected.

  Returns:
    μ >= 0; 0 if nothing is rejected.

  References: Mahloujifar et al., the algorithm for at most r guesses, with an
  alphabet of two and f of Dong, Roth, Su (2022), equation (6).
  """
  if num_guesses == 0:
    return 0.0
  return _max_rejected(
    _excess_of_gdp, np.inf, significance, num_canaries, num_guesses, correct
  )


def _excess_of_gdp(mu, level, num_canaries, num_guesses, correct):
  """Lower limit of H_0 + R_0, less r/m, in units of r/m: positive if rejected."""
  unit = num_guesses / num_canaries
  right = level * correct / num_guesses
  wrong = level * (num_guesses - correct) / num_guesses
  for i in range(correct - 1, -1, -1):
    moved = special.ndtr(special.ndtri(right * unit) - mu) / unit
    # Leaving out small terms only lowers the limit.
    if moved - wrong <= 1e-13 * wrong or right + wrong > 2:
      break
    right += (moved - wrong) * i / (num_guesses - i)
    right = min(right, 1.0 / unit)
    wrong = moved
  return float(right + wrong - 1)


def _excess_of_independent(strength, level, curve, num, pair, correct, prior):
  return level - independent_p_value(
    curve,
    strength,
    num_canaries=num,
    guesses=pair,
    wrong=sum(pair) - correct,
    inclusion_probability=prior,
  )


def independent_p_value(
  curve: Curves,
  strength: float,
  *,
  num_canaries: int,
  guesses: tuple[int, int],
  wrong: int,
  inclusion_probability: float = 0.5,
) -> float:
  """Largest probability of so few wrong guesses, if canaries leak independently.

  The best attacker sees a draw of the pair of laws that attains f for each canary,
  and guess i is wrong with its posterior probability γ_i, independently over i. With
  r guesses about n canaries, W the (r+1)-th smallest quantile of γ and γ̄(w) the mean
  of γ below the quantile w, the number T of wrong guesses has

    P(T <= u) <= E[BinCDF(u; r, γ̄(W))],   W ~ Beta(r + 1, n - r),

  where W = 1 if r = n. The attack "in if the ratio of likelihoods exceeds t" and its
  mirror image, both of false rate α, guess a fraction w = α + 1 - f(α) of canaries
  and α of them wrongly, so that γ̄(w) = α/w. If only "in" is guessed and canaries take
  part with probability π, w = (1-π) α + π (1 - f(α)) and γ̄(w) = (1-π) α/w.

  Args:
    curve: trade-off curves f, symmetric in the two rates.
    strength: of the leak.
    num_canaries: n >= 1; each was included independently.
    guesses: k₊ guesses "in" and k₋ guesses "out", at most n and at least 1.
    wrong: u, in [0, k₊ + k₋].
    inclusion_probability: π, in (0, 1); 1/2 for guesses of both sides.

  Returns:
    The p-value, with a relative error of about 1e-4.

  References: Xiang et al. (2025), whose released code gives the same values;
  Blackwell (1953); Dong, Roth, Su (2022), Theorem 2.10.
  """
  num_guesses = sum(guesses)
  prior = _prior_of_guess(guesses, inclusion_probability)

  def fractions(log_rates):
    """Which fractions of canaries are guessed, and which are so wrongly."""
    rates = np.exp(log_rates)
    right = 1 - curve.fnr(strength, log_rates)
    if prior is None:
      return rates + right, rates
    return (1 - prior) * rates + prior * right, (1 - prior) * rates

  # All are guessed where both rates are equal, or every guess is "in".
  top = np.log(0.5) if prior is None else 0.0
  if num_guesses == num_canaries:
    guessed, wrongly = fractions(np.array([_invert(fractions, 1.0, top)]))
    return float(special.bdtr(wrong, num_guesses, (wrongly / guessed)[0]))
  shape = num_guesses + 1.0, float(num_canaries - num_guesses)
  low = _invert(fractions, special.betaincinv(*shape, _TAIL), top)
  high = _invert(fractions, special.betainccinv(*shape, _TAIL), top)
  # Dense in rates and in their logarithms, as some canaries may be given away.
  rates = np.linspace(np.exp(low), np.exp(high), _NODES + 1)[1:]
  log_rates = np.union1d(np.linspace(low, high, _NODES), np.log(rates))
  guessed, wrongly = fractions(log_rates)
  errors = np.divide(
    wrongly, guessed, out=np.zeros_like(guessed), where=guessed > 0
  )
  few = special.bdtr(wrong, num_guesses, np.minimum(errors, 1.0))
  guessed = np.clip(guessed, 0.0, 1.0)
  # The lower tail, or from the middle on the upper one, so that each has its digits.
  split = np.searchsorted(guessed, num_guesses / num_canaries)
  below = special.betainc(*shape, guessed[:split])
  above = special.betaincc(*shape, guessed[split:])
  mass = np.diff(np.concatenate([below, 1 - above]))
  mass[split:] = -np.diff(above)
  inner = np.sum(mass * (few[1:] + few[:-1]) / 2)
  outside = special.betainc(*shape, guessed[0])
  outside += few[-1] * special.betaincc(*shape, guessed[-1])
  return min(float(outside + inner), 1.0)


def _invert(fractions, target: float, top: float) -> float:
  """The largest log rate, up to `top`, at which no more than the target is guessed."""
  low, high = _SMALLEST, top
  for _ in range(_REFINEMENTS):
    log_rates = np.linspace(low, high, _GRID)
    few = np.searchsorted(fractions(log_rates)[0], target, side='right')
    low, high = log_rates[max(few - 1, 0)], log_rates[min(few, _GRID - 1)]
  return float(low)
