"""Attack statistics: each with its law, and in order of what attackers know."""

import numpy as np
import pytest
from scipy import stats

from epe_jax.audit import statistics
from epe_jax.sampling import canary_schedules


def test_readings_of_a_trace_by_hand():
  trace = np.array([[0.1, 0.5], [0.3, 0.2], [0.2, 0.4]])
  own = np.array([[1, 0], [0, 1], [1, 0]], bool)
  np.testing.assert_allclose(statistics.max_over_rounds(trace), [0.3, 0.5])
  np.testing.assert_allclose(
    statistics.score_own_round(trace, own), [0.3 / np.sqrt(2), 0.2]
  )
  some = np.array([[0, 1, 0, 0, 0], [0, 0, 0, 1, 0]], bool)
  np.testing.assert_array_equal(
    statistics.assign_held_out(some), [[1, 1, 0, 0, 1], [0, 0, 1, 1, 0]]
  )


def test_equal_canaries_of_the_same_rounds_overlap_by_the_square_of_their_cosine():
  overlap = statistics.measure_overlap(np.full(4, 0.2), np.full(4, 7), 100)
  assert overlap == pytest.approx((7 - 1) * 0.2**2)


DIM, K, T = 10**6, 4000, 20


def made_trace(shift, seed=0):
  """Null cosines in units of 1/sqrt(d), moved by `shift` in own rounds."""
  rng = np.random.default_rng(seed)
  own = np.pad(
    canary_schedules.once_per_period(rng, rounds=T, num=K), ((0, 0), (0, K))
  )
  return (rng.standard_normal((T, 2 * K)) + shift * own) / np.sqrt(DIM), own


def auc(scores):
  """Chance that an observed canary scores above an unobserved one."""
  return stats.mannwhitneyu(scores[:K], scores[K:]).statistic / K**2


def test_who_knows_more_tells_more():
  trace, own = made_trace(2.5)
  expected = np.full(T, 2.5 / np.sqrt(DIM))
  accuracies = [
    auc(statistics.max_over_rounds(trace)),
    auc(statistics.score_mixture(trace, expected, dim=DIM)),
    auc(statistics.score_own_round(trace, statistics.assign_held_out(own))),
  ]
  # The standard error of an AUC of 4000 + 4000 is below 0.006; the steps of
  # these are wider than ten of them but for the first.
  assert accuracies[0] < accuracies[1] < accuracies[2] - 0.06


def test_the_mixture_is_the_likelihood_ratio():
  trace, _ = made_trace(1.0)
  s = np.linspace(0.5, 1.5, T)
  x = trace * np.sqrt(DIM)
  density = stats.norm.pdf
  # By hand: the mean over rounds of the ratio of densities of all rounds.
  ratios = [density(x[t] - s[t]) / density(x[t]) for t in range(T)]
  np.testing.assert_allclose(
    statistics.score_mixture(trace, s / np.sqrt(DIM), dim=DIM),
    np.log(np.mean(ratios, axis=0)),
    rtol=1e-9,
  )
  # A likelihood ratio has mean 1 under the null: here 4000 of variance below
  # e^(1.5^2), so the mean is off by more than 0.25 with probability 1e-6.
  null = np.exp(statistics.score_mixture(trace, s / np.sqrt(DIM), dim=DIM))[K:]
  assert np.mean(null) == pytest.approx(1, abs=0.25)


def test_a_mixture_of_enormous_signals_does_not_overflow():
  trace, _ = made_trace(1000.0)
  scores = statistics.score_mixture(trace, np.full(T, 1.0), dim=DIM)
  assert np.all(np.isfinite(scores))
  assert scores[:K].min() > scores[K:].max()


def test_rounds_count_by_what_they_hold_of_a_canary():
  rng = np.random.default_rng(0)
  trace, own = rng.normal(size=(6, 50)), rng.random((6, 50)) < 0.5
  own[0] = True
  np.testing.assert_allclose(
    statistics.score_own_round(trace, 3.0 * own),
    statistics.score_own_round(trace, own),
  )
  # Scores of variance 1, furthest apart if rounds count by their signal.
  signal = 2.0 ** -np.arange(6)[:, None]
  seen = rng.standard_normal((6, K)) + signal
  for weights in (signal, np.ones((6, 1)), signal**3):
    scores = statistics.score_own_round(seen, np.broadcast_to(weights, (6, K)))
    expected = np.sum(weights * signal) / np.sqrt(np.sum(weights**2))
    assert scores.mean() == pytest.approx(expected, abs=5 / np.sqrt(K))
    assert scores.std() == pytest.approx(1, abs=5 / np.sqrt(2 * K))
    best = np.sqrt(np.sum(signal**2))
    assert (expected > best - 0.01) == (weights is signal)
  np.testing.assert_array_equal(
    statistics.assign_held_out(np.array([[0.5, 0.0, 2.0], [0.1, 0.0, 0.0]]))[
      :, 1
    ],
    [0.5, 0.1],
  )
