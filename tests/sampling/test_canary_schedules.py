"""Canary schedules: how often canaries take part, and whom they replace."""

import itertools

import numpy as np
import pytest
from scipy import stats

from epe_jax.sampling import canary_schedules, client_schedules


@pytest.mark.parametrize(
  ('rounds', 'num', 'periods'),
  [(10, 30, 1), (10, 3, 1), (10, 30, 4), (7, 5, 7), (100, 0, 2)],
)
def test_each_canary_takes_part_once_in_each_period(rounds, num, periods):
  matrix = canary_schedules.once_per_period(
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
    canary_schedules.once_per_period(rng, rounds=5, num=3).astype(int)
    for _ in range(4000)
  )
  # Each cell is Binomial(4000, 1/5): std 25.3; 5.5 std fails by chance with
  # probability below 1e-6 over the 15 cells.
  assert np.abs(total - 800).max() < 5.5 * 25.3


def test_more_periods_than_rounds_are_refused():
  with pytest.raises(ValueError, match='periods=3'):
    canary_schedules.once_per_period(
      np.random.default_rng(0), rounds=2, num=1, periods=3
    )


def test_each_coin_is_fair_and_decides_alone():
  rng = np.random.default_rng(0)
  repeats, num = 2000, 8
  heads = np.zeros((repeats, num), bool)
  for i in range(repeats):
    assigned = canary_schedules.once_per_period(rng, rounds=5, num=num)
    matrix = canary_schedules.flip_coins(rng, assigned)
    heads[i] = matrix.any(axis=0)
    np.testing.assert_array_equal(matrix[:, heads[i]], assigned[:, heads[i]])
  # Binomial(2000, 1/2): std 22.4; 5.5 std fails by chance below 1e-6.
  assert np.abs(heads.sum(axis=0) - 1000).max() < 5.5 * 22.4
  total = heads.sum(axis=1)
  law = stats.binom(num, 0.5)
  # A fixed half of the canaries would have a variance of 0.
  assert abs(total.var() - law.var()) < 5.5 * law.var() * np.sqrt(2 / repeats)
  # No coin tells of another.
  correlations = np.corrcoef(heads.T)[np.triu_indices(num, 1)]
  assert np.abs(correlations).max() < 5.5 / np.sqrt(repeats)


def test_canaries_sampled_as_clients_share_the_rounds_with_them():
  rounds, num, real_clients = 40, 30, 70
  both = client_schedules.fixed_size(
    0, num_clients=num + real_clients, clients_per_round=20
  )
  matrix, real = client_schedules.as_clients(
    both, rounds=rounds, num=num, num_clients=real_clients
  )
  for t in range(rounds):
    canaries = np.flatnonzero(matrix[t])
    assert len(canaries) + len(real(t)) == 20
    assert set(both(t)) == {*real(t), *(canaries + real_clients)}
  # Binomial-like counts with mean 40 / 5 for canaries and clients alike.
  assert abs(matrix.sum() / num - 8) < 2


def test_a_replaced_client_sends_a_canary_in_all_its_rounds_and_nothing_else():
  rounds, clients = 20, 50
  schedule = client_schedules.shuffled_epochs(
    0, num_clients=clients, clients_per_round=9
  )
  matrix, real = client_schedules.replacing(
    np.random.default_rng(1),
    schedule,
    rounds=rounds,
    num=15,
    num_clients=clients,
  )
  appears = np.zeros((rounds, clients), int)
  for t in range(rounds):
    assert set(real(t)) <= set(schedule(t))
    assert len(real(t)) + matrix[t].sum() == len(schedule(t))
    appears[t, real(t)] = 1
  before = np.zeros((rounds, clients), int)
  for t in range(rounds):
    before[t, schedule(t)] = 1
  replaced = np.flatnonzero(~appears.any(axis=0))
  assert len(replaced) == 15
  # Each canary has the rounds of one replaced client, a different one each.
  columns = sorted(map(tuple, before[:, replaced].T.tolist()))
  assert sorted(map(tuple, matrix.T.astype(int).tolist())) == columns
  kept = np.setdiff1d(np.arange(clients), replaced)
  np.testing.assert_array_equal(appears[:, kept], before[:, kept])


def test_more_canaries_than_clients_cannot_replace_them():
  schedule = client_schedules.fixed_size(0, num_clients=4, clients_per_round=2)
  with pytest.raises(ValueError, match='num=5 canaries cannot replace 4'):
    client_schedules.replacing(
      np.random.default_rng(0), schedule, rounds=2, num=5, num_clients=4
    )
