"""Schedules: who takes part, how often, and from what it follows."""

import itertools

import numpy as np
import pytest

from epe_jax import schedules


@pytest.mark.parametrize(
  ('rounds', 'num', 'periods'),
  [(10, 30, 1), (10, 3, 1), (10, 30, 4), (7, 5, 7), (100, 0, 2)],
)
def test_each_canary_takes_part_once_in_each_period(rounds, num, periods):
  matrix = schedules.once_per_period(
    np.random.default_rng(0), rounds=rounds, num=num, periods=periods
  )
  assert matrix.shape == (rounds, num)
  edges = np.arange(periods + 1) * rounds // periods
  for start, stop in itertools.pairwise(edges):
    part = matrix[start:stop]
    np.testing.assert_array_equal(part.sum(axis=0), 1)
    per_round = part.sum(axis=1)
    assert per_round.max() - per_round.min() <= 1


def test_every_round_is_equally_likely_for_a_canary():
  rng = np.random.default_rng(0)
  total = sum(
    schedules.once_per_period(rng, rounds=5, num=3).astype(int)
    for _ in range(4000)
  )
  # Each cell is Binomial(4000, 1/5): std 25.3; 5.5 std fails by chance with
  # probability below 1e-6 over the 15 cells.
  assert np.abs(total - 800).max() < 5.5 * 25.3


def test_more_periods_than_rounds_are_refused():
  with pytest.raises(ValueError, match='periods=3'):
    schedules.once_per_period(
      np.random.default_rng(0), rounds=2, num=1, periods=3
    )


def test_an_epoch_is_a_partition_and_the_next_is_reshuffled():
  cohort = schedules.shuffled_epochs(0, num_clients=12, clients_per_round=4)
  epochs = [
    np.concatenate([cohort(3 * e + i) for i in range(3)]) for e in range(3)
  ]
  for epoch in epochs:
    assert sorted(epoch) == list(range(12))
  assert not np.array_equal(epochs[0], epochs[1])


def test_a_round_follows_from_seed_and_round_alone():
  make = lambda seed: schedules.shuffled_epochs(
    seed, num_clients=50, clients_per_round=7
  )
  late = make(1)(33)
  first = make(1)
  for t in range(33):
    first(t)
  np.testing.assert_array_equal(first(33), late)
  assert not np.array_equal(make(2)(33), late)


@pytest.mark.parametrize(
  ('rounds', 'n', 'm'), [(10, 23, 5), (4, 5, 5), (9, 9, 2)]
)
def test_most_participations_is_what_the_schedule_does(rounds, n, m):
  cohort = schedules.shuffled_epochs(0, num_clients=n, clients_per_round=m)
  counts = np.zeros(n, int)
  for t in range(rounds):
    assert len(set(cohort(t))) == m
    counts[cohort(t)] += 1
  bound = schedules.most_participations(
    rounds=rounds, num_clients=n, clients_per_round=m
  )
  assert counts.max() <= bound
  assert bound <= counts.max() + 1


@pytest.mark.parametrize('clients_per_round', [0, 11])
def test_cohorts_larger_than_the_data_are_refused(clients_per_round):
  with pytest.raises(ValueError, match=f'={clients_per_round}, but'):
    schedules.shuffled_epochs(
      0, num_clients=10, clients_per_round=clients_per_round
    )
