"""Client schedules: who takes part, how often, and from what it follows."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from epe_jax.sampling import client_schedules

SCHEDULES = {
  'shuffled': lambda seed: client_schedules.shuffled_epochs(
    seed, num_clients=50, clients_per_round=7
  ),
  'one order': lambda seed: client_schedules.shuffled_epochs(
    seed, num_clients=50, clients_per_round=7, reshuffle=False
  ),
  'fixed size': lambda seed: client_schedules.fixed_size(
    seed, num_clients=50, clients_per_round=7
  ),
  'poisson': lambda seed: client_schedules.poisson(
    seed, num_clients=50, expected_clients=7
  ),
  'limited': lambda seed: client_schedules.limited(
    seed,
    rounds=60,
    num_clients=50,
    clients_per_round=7,
    min_separation=3,
    max_participations=12,
  ),
}


@pytest.mark.parametrize('name', SCHEDULES)
def test_a_round_follows_from_seed_and_round_alone(name):
  make = SCHEDULES[name]
  late = make(1)(33)
  first = make(1)
  for t in range(33):
    first(t)
  np.testing.assert_array_equal(first(33), late)
  assert not np.array_equal(make(2)(33), late)


@pytest.mark.parametrize('name', SCHEDULES)
def test_a_round_has_each_client_once_at_most(name):
  schedule = SCHEDULES[name](0)
  for t in range(60):
    found = schedule(t)
    assert len(set(found)) == len(found)
    assert set(found) <= set(range(50))
    assert len(found) == 7 or name == 'poisson'


@pytest.mark.parametrize('name', SCHEDULES)
def test_participations_counts_what_the_schedule_does(name):
  schedule = SCHEDULES[name](0)
  counts = client_schedules.count_participations(
    schedule, rounds=60, num_clients=50
  )
  slow = [sum(i in schedule(t) for t in range(60)) for i in range(50)]
  np.testing.assert_array_equal(counts, slow)


@pytest.mark.parametrize('reshuffle', [True, False])
def test_an_epoch_is_a_partition_and_the_next_is_reshuffled_or_not(reshuffle):
  cohort = client_schedules.shuffled_epochs(
    0, num_clients=12, clients_per_round=4, reshuffle=reshuffle
  )
  epochs = [
    np.concatenate([cohort(3 * e + i) for i in range(3)]) for e in range(3)
  ]
  for epoch in epochs:
    assert sorted(epoch) == list(range(12))
  assert np.array_equal(epochs[0], epochs[1]) == (not reshuffle)


def test_fixed_size_rounds_are_uniform_and_independent():
  schedule = client_schedules.fixed_size(0, num_clients=20, clients_per_round=5)
  rounds = [frozenset(map(int, schedule(t))) for t in range(4000)]
  counts = np.bincount([i for r in rounds for i in r], minlength=20)
  # Binomial(4000, 1/4): std 27.4; 5.5 std for 20 clients fails by chance with
  # probability below 1e-6.
  assert np.abs(counts - 1000).max() < 5.5 * 27.4
  # The overlap of two rounds in a row is hypergeometric with mean 25 / 20.
  overlap = [len(a & b) for a, b in itertools.pairwise(rounds)]
  law = stats.hypergeom(20, 5, 5)
  assert abs(np.mean(overlap) - law.mean()) < 5.5 * law.std() / math.sqrt(3999)


def test_poisson_clients_take_part_independently():
  schedule = client_schedules.poisson(0, num_clients=20, expected_clients=5)
  rounds = 4000
  taken = np.zeros((rounds, 20))
  for t in range(rounds):
    taken[t, schedule(t)] = 1
  assert np.abs(taken.sum(axis=0) - 1000).max() < 5.5 * 27.4
  sizes = taken.sum(axis=1)
  law = stats.binom(20, 1 / 4)
  assert abs(sizes.mean() - law.mean()) < 5.5 * law.std() / math.sqrt(rounds)
  # The variance of a sum of independent ones; of fixed-size rounds it is 0.
  assert abs(sizes.var() - law.var()) < 5.5 * law.var() * math.sqrt(2 / rounds)
  correlations = np.corrcoef(taken.T)[np.triu_indices(20, 1)]
  assert np.abs(correlations).max() < 5.5 / math.sqrt(rounds)


@pytest.mark.parametrize(('separation', 'most'), [(4, None), (1, 4), (3, 9)])
def test_clients_rest_and_stop_as_limited(separation, most):
  rounds = 12
  schedule = client_schedules.limited(
    0,
    rounds=rounds,
    num_clients=40,
    clients_per_round=10,
    min_separation=separation,
    max_participations=most,
  )
  taken = np.zeros((rounds, 40), int)
  for t in range(rounds):
    taken[t, schedule(t)] = 1
  assert taken.sum(axis=0).max() <= (most or rounds)
  for i in range(40):
    gaps = np.diff(np.flatnonzero(taken[:, i]))
    assert (gaps >= separation).all()
  # Where 10 of 40 are asked for, four rounds apart is as far as it goes.
  if separation == 4:
    assert (np.diff(np.flatnonzero(taken[:, 0])) == 4).all()


@pytest.mark.parametrize(
  ('limits', 'message'),
  [
    ({'min_separation': 5}, '0 of 40 clients may take part in round 5'),
    ({'max_participations': 1}, '0 of 40 clients may take part in round 5'),
    ({'min_separation': 0}, 'min_separation=0'),
    ({'max_participations': 0}, 'max_participations=0'),
  ],
)
def test_limits_that_leave_nobody_are_refused(limits, message):
  with pytest.raises(ValueError, match=message):
    client_schedules.limited(
      0, rounds=12, num_clients=40, clients_per_round=10, **limits
    )


@pytest.mark.parametrize('clients_per_round', [0, 11])
def test_cohorts_larger_than_the_data_are_refused(clients_per_round):
  for make in (client_schedules.shuffled_epochs, client_schedules.fixed_size):
    with pytest.raises(ValueError, match=f'={clients_per_round}, but'):
      make(0, num_clients=10, clients_per_round=clients_per_round)
  with pytest.raises(ValueError, match=f'={clients_per_round}, but'):
    client_schedules.poisson(
      0, num_clients=10, expected_clients=clients_per_round
    )
