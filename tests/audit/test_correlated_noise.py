"""An attacker who combines rounds undoes the correlation of their noise."""

import math

import numpy as np
import pytest
from scipy import stats

from epe_jax import accounting, audit
from epe_jax.audit import threat_models
from epe_jax.audit.threat_models import correlated_noise
from epe_jax.training.round_scalars import RoundScalars

ROUNDS, NOISE, DIM, DELTA = 40, 0.8, 10_000, 1e-5


def make_strategy(coefficients, rounds=ROUNDS):
  strategy = np.zeros((rounds, rounds))
  for lag, x in enumerate(coefficients):
    strategy += x * np.eye(rounds, k=-lag)
  return strategy


STRATEGY = make_strategy([1.0, 0.5, 0.375, 0.3125])


def make_record(strategy, *, num=3000, repetitions=1, seed=0):
  """A record of releases C⁻¹ Z, with num canaries in them and as many not."""
  rng = np.random.default_rng(seed)
  noise = np.linalg.solve(strategy, NOISE * rng.normal(size=(ROUNDS, 2 * num)))
  included = np.zeros((ROUNDS, 2 * num), bool)
  for j in range(num):
    included[rng.choice(ROUNDS, repetitions, replace=False), j] = True
  ones = np.ones(ROUNDS)
  norms = np.linalg.norm(np.linalg.inv(strategy), axis=1)
  norms *= NOISE * math.sqrt(DIM)
  return audit.make_record(
    {'residual': noise / norms[:, None]},
    RoundScalars(
      clip_norm=ones,
      canary_norm=ones,
      noise_std=NOISE * ones,
      num_clients=0 * ones,
      num_canaries=included.sum(axis=1),
      sum_norm=0 * ones,
      aggregate_norm=ones,
      residual_norm=norms,
      effective_dimension=DIM * ones,
    ),
    included=included,
    dim=DIM,
    delta=DELTA,
    noise_multiplier=NOISE,
  )


@pytest.mark.parametrize('repetitions', [1, 3])
def test_scores_are_those_of_a_gaussian_mechanism(repetitions):
  """Kolmogorov-Smirnov at 1e-4, of a fixed seed."""
  record = make_record(STRATEGY, repetitions=repetitions)
  scored = audit.combining_rounds(STRATEGY).score(record)
  assert scored is not None
  observed, unobserved = scored.scores.observed, scored.scores.unobserved
  shift = np.asarray(scored.scores.shift)
  columns = np.linalg.norm(STRATEGY @ record.included, axis=0)[record.observed]
  np.testing.assert_allclose(shift, columns / NOISE, rtol=1e-5)
  assert stats.kstest(observed - shift, 'norm').pvalue > 1e-4
  assert stats.kstest(unobserved, 'norm').pvalue > 1e-4


def test_rounds_taken_one_by_one_have_other_noise_than_is_claimed():
  scored = threat_models.RESIDUAL.score(make_record(STRATEGY))
  assert scored is not None
  (check,) = scored.contradictions
  assert check.key == 'noise_not_as_claimed'
  # Scores are in units of the noise that is there.
  assert stats.kstest(scored.scores.unobserved, 'norm').pvalue > 1e-4


def test_the_estimate_is_the_epsilon_of_the_whole_mechanism():
  record = make_record(STRATEGY)
  attacker = audit.combining_rounds(STRATEGY)
  (attack,) = audit.evaluate(
    record, threat_models=[attacker], floors=False
  ).attacks
  norm = np.linalg.norm(STRATEGY[:, 0])
  claimed = accounting.epsilon_of_releases(NOISE / norm, delta=DELTA).epsilon
  assert attack.analytic is not None
  assert attack.analytic.epsilon == pytest.approx(claimed, rel=1e-6)
  assert attack.first.interval is not None
  low, high = attack.first.interval
  # Columns of the last rounds are cut off: the mixture has a little less.
  assert low < 1.02 * claimed
  assert high > 0.9 * claimed
  alone = accounting.epsilon_of_releases(NOISE, delta=DELTA).epsilon
  assert low > alone


def test_independent_noise_gives_the_scores_of_the_own_round():
  record = make_record(np.eye(ROUNDS))
  one = audit.combining_rounds(np.eye(ROUNDS)).score(record)
  other = threat_models.RESIDUAL.score(record)
  assert one is not None
  assert other is not None
  np.testing.assert_allclose(
    one.scores.observed, other.scores.observed, rtol=1e-6
  )


def test_no_other_weights_of_the_rounds_tell_canaries_apart_better():
  record = make_record(STRATEGY)
  assert record.rounds is not None
  rng = np.random.default_rng(1)
  best = STRATEGY @ record.assigned[:, :1]
  separation = float(np.linalg.norm(best)) / NOISE
  inverse = np.linalg.inv(STRATEGY)
  for _ in range(20):
    weights = rng.normal(size=ROUNDS)
    std = NOISE * np.linalg.norm(weights @ inverse)
    assert abs(weights @ record.assigned[:, 0]) / std < separation


@pytest.mark.parametrize(
  ('strategy', 'message'),
  [
    (np.ones((2, 3)), r'shape \(2, 3\)'),
    (np.full((2, 2), np.nan), 'finite'),
    (np.ones((2, 2)), 'not lower triangular'),
    (np.diag([1.0, 0.0]), 'positive diagonal'),
  ],
)
def test_what_is_no_strategy_is_an_error(strategy, message):
  with pytest.raises(ValueError, match=message):
    audit.combining_rounds(strategy)


def test_a_strategy_of_other_rounds_is_an_error():
  record = make_record(np.eye(ROUNDS), num=10)
  with pytest.raises(ValueError, match=r'3 rows, but the record 40 rounds'):
    audit.combining_rounds(np.eye(3)).score(record)


def test_records_without_a_residual_have_no_scores():
  record = make_record(np.eye(ROUNDS), num=10)
  cosines = {'aggregate': record.cosines['residual']}
  assert record.rounds is not None
  other = audit.make_record(
    cosines, record.rounds, included=record.included, dim=DIM, delta=DELTA
  )
  assert correlated_noise.combining_rounds(np.eye(ROUNDS)).score(other) is None
