"""An attacker who combines rounds undoes the correlation of their noise."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

from epe_jax import accounting, audit, io
from epe_jax.audit import release
from epe_jax.audit.attackers import DECORRELATED, RESIDUAL
from epe_jax.epsilon import tradeoff
from epe_jax.report import checks
from epe_jax.training.round_scalars import RoundScalars
from epe_jax.watch import sequential

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
    strategy=strategy,
  )


@pytest.mark.parametrize('repetitions', [1, 3])
def test_scores_are_those_of_a_gaussian_mechanism(repetitions):
  """Kolmogorov-Smirnov at 1e-4, of a fixed seed."""
  record = make_record(STRATEGY, repetitions=repetitions)
  scored = DECORRELATED.score(record)
  assert scored is not None
  observed, unobserved = scored.scores.observed, scored.scores.unobserved
  shift = np.asarray(scored.scores.shift)
  columns = np.linalg.norm(STRATEGY @ record.included, axis=0)[record.observed]
  np.testing.assert_allclose(shift, columns / NOISE, rtol=1e-5)
  assert stats.kstest(observed - shift, 'norm').pvalue > 1e-4
  assert stats.kstest(unobserved, 'norm').pvalue > 1e-4


@pytest.mark.parametrize('repetitions', [1, 3])
def test_own_rounds_alone_tell_less_and_their_noise_is_as_claimed(repetitions):
  record = make_record(STRATEGY, repetitions=repetitions)
  alone, combined = RESIDUAL.score(record), DECORRELATED.score(record)
  assert alone is not None
  assert combined is not None
  assert alone.contradictions == ()
  shift = np.asarray(alone.scores.shift)
  assert np.all(shift < np.asarray(combined.scores.shift))
  assert stats.kstest(alone.scores.unobserved, 'norm').pvalue > 1e-4
  assert stats.kstest(alone.scores.observed - shift, 'norm').pvalue > 1e-4


@pytest.mark.parametrize(
  ('stated', 'actual'),
  [
    (STRATEGY, np.eye(ROUNDS)),
    (STRATEGY, make_strategy([1.0, -0.5, 0.2])),
    # Of nearly the same size in each round.
    (make_strategy([1.0, 0.3]), make_strategy([1.0, -0.3])),
  ],
)
def test_noise_that_is_not_correlated_as_stated_is_told_from_its_size(
  stated, actual
):
  record = make_record(actual, repetitions=3)
  for model in (DECORRELATED, RESIDUAL):
    scored = model.score(dataclasses.replace(record, strategy=stated))
    assert scored is not None
    (check,) = scored.contradictions
    assert check.key == 'noise_not_of_strategy'
    text = checks.describe_check(check)
    assert 'does not match the stated strategy' in text
    assert not scored.scores.has_known_null
    assert [note.key for note in scored.notes] == ['noise_correlates']


def test_the_estimate_is_the_epsilon_of_the_whole_mechanism():
  record = make_record(STRATEGY)
  (attack,) = audit.evaluate(
    record, threat_models=[DECORRELATED], floors=False
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


def test_a_true_claim_stands_and_a_lower_one_is_rejected_before_the_end():
  record = make_record(STRATEGY, num=400, repetitions=2)
  norms = np.linalg.norm(STRATEGY @ record.included, axis=0)[record.observed]
  mu = norms.max() / NOISE
  claimed = float(tradeoff.epsilon_gdp(mu, DELTA))
  bounds = sequential.bound_sequentially(record, claim=claimed)
  assert bounds.threat_model == DECORRELATED
  assert bounds.test_claim().rejected_after is None
  assert 0.85 * norms.mean() / NOISE < bounds.mu[-1] < mu
  alone = float(tradeoff.epsilon_gdp(0.7 * mu, DELTA))
  test = sequential.bound_sequentially(record, claim=alone).test_claim()
  assert 1 < test.rejected_after < ROUNDS
  # The noise of a round is taken back in the three rounds after it.
  last = ROUNDS - record.included[::-1].argmax(axis=0)[record.observed]
  assert bounds.rounds[0] == min(last.min() + 3, ROUNDS)
  assert bounds.num_canaries[0] == np.sum(last == last.min())


def test_a_claim_is_of_the_noise_that_is_measured():
  record = make_record(STRATEGY, num=400)
  mu = np.linalg.norm(STRATEGY[:, 0]) / NOISE
  claim = float(tradeoff.epsilon_gdp(mu, DELTA))
  assert sequential.bound_sequentially(record, claim=claim) is not None
  stated = record.rounds._replace(noise_std=record.rounds.noise_std / 0.7)
  wrong = dataclasses.replace(record, rounds=stated)
  low = float(tradeoff.epsilon_gdp(0.7 * mu, DELTA))
  for same in (record, wrong):
    bounds = sequential.bound_sequentially(same, claim=low)
    assert bounds.test_claim().rejected_after is not None
  # Without those that show that the noise is correlated so.
  observed = release.replace_views(record)
  kept = record.observed
  alone = dataclasses.replace(
    observed,
    cosines={n: x[:, kept] for n, x in record.cosines.items()},
    included=record.included[:, kept],
    assigned=record.assigned[:, kept],
  )
  assert sequential.bound_sequentially(alone) is None


def test_independent_noise_gives_the_scores_of_the_own_round():
  record = make_record(np.eye(ROUNDS))
  one = DECORRELATED.score(record)
  other = RESIDUAL.score(dataclasses.replace(record, strategy=None))
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
    (np.eye(3), r'shape \(3, 3\)'),
    (np.full((ROUNDS, ROUNDS), np.nan), 'finite'),
    (np.ones((ROUNDS, ROUNDS)), 'not lower triangular'),
    (np.eye(ROUNDS) - np.eye(ROUNDS)[0], 'positive diagonal'),
  ],
)
def test_what_is_no_strategy_is_an_error(strategy, message, tmp_path):
  record = make_record(np.eye(ROUNDS), num=10)
  assert record.rounds is not None
  with pytest.raises(ValueError, match=message):
    audit.make_record(
      record.cosines,
      record.rounds,
      included=record.included,
      dim=DIM,
      delta=DELTA,
      strategy=strategy,
    )
  path = tmp_path / 'scores.npz'
  audit.write_record(path, record)
  io.write_arrays(path, io.read_arrays(path) | {'strategy': strategy})
  with pytest.raises(ValueError, match=f'damaged: strategy.*{message}'):
    audit.load_record(path)


def test_a_record_is_read_with_its_strategy(tmp_path):
  record = make_record(STRATEGY, num=10)
  audit.write_record(tmp_path / 'scores.npz', record)
  strategy = audit.load_record(tmp_path / 'scores.npz').strategy
  np.testing.assert_array_equal(strategy, STRATEGY)


@pytest.mark.parametrize('num', [7, ROUNDS])
def test_the_first_rounds_alone_are_a_mechanism_of_as_many(num):
  """Its attacker is the one of a run that ends there."""
  record = make_record(STRATEGY)
  part = release.truncate_after(record, num)
  assert part.strategy is not None
  np.testing.assert_array_equal(part.strategy, STRATEGY[:num, :num])
  scored = DECORRELATED.score(part)
  assert scored is not None
  assert stats.kstest(scored.scores.unobserved, 'norm').pvalue > 1e-4


def test_of_some_rounds_the_attacker_undoes_what_correlation_is_left():
  record = make_record(STRATEGY)
  shown = np.arange(ROUNDS) % 3 == 0
  part = release.restrict_to_rounds(record, shown)
  scored = DECORRELATED.score(part)
  assert scored is not None
  shift = np.asarray(scored.scores.shift)
  assert stats.kstest(scored.scores.unobserved, 'norm').pvalue > 1e-4
  assert stats.kstest(scored.scores.observed - shift, 'norm').pvalue > 1e-4
  # Rounds that are not shown would help.
  assert shift.max() < np.linalg.norm(STRATEGY[:, 0]) / NOISE
