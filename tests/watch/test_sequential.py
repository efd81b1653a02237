"""Bounds that hold after every round, of runs of explicit vectors."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

from benchmarks.bounds import conditions, simulated_runs
from epe_jax.audit import attackers
from epe_jax.epsilon import tradeoff
from epe_jax.watch import sequential
from epe_jax.watch.sequential import bound_sequentially
from tests import recorded_runs

DELTA = 1e-5


def simulate(noise, *, seed=0, **settings):
  defaults = dict(
    observed=200, unobserved=200, rounds=100, dim=2000, clients=3.0
  )
  return simulated_runs.simulate(
    np.random.default_rng(seed), noise=noise, **defaults | settings
  ).record


@pytest.mark.parametrize('repetitions', [1, 3])
def test_bounds_rise_from_round_to_round_and_stay_below_the_truth(repetitions):
  record = simulate(0.8, repetitions=repetitions, dim=40_000)
  bounds = bound_sequentially(record, claim=100.0)
  truth = np.sqrt(repetitions) / 0.8
  epsilon = float(tradeoff.epsilon_gdp(truth, DELTA))
  assert bounds.threat_model == attackers.RESIDUAL
  assert bounds.num_canaries[-1] == 200
  assert np.all(np.diff(bounds.rounds) > 0)
  for rising in (bounds.mu, bounds.epsilon_gdp, bounds.epsilon):
    assert np.all(np.diff(rising) >= 0)
  assert 0.7 * truth < bounds.mu[-1] < truth
  assert bounds.epsilon_gdp[-1] < epsilon
  assert 0 < bounds.epsilon[-1] < epsilon
  assert bounds.test_claim().rejected_after is None
  # A claim below the bound is rejected, and in the same round as the bound passes.
  claim = float(bounds.epsilon_gdp[-1]) * 0.9
  rejected = bound_sequentially(record, claim=claim).test_claim().rejected_after
  assert rejected == bounds.rounds[np.argmax(bounds.epsilon_gdp > claim)]


def test_weaker_noise_than_is_stated_is_seen_in_spite_of_the_statement():
  actual = simulate(0.3 * 0.9, observed=205, rounds=205, dim=40_000)
  # The mechanism says that its noise is 0.3 clip norms.
  stated = actual.rounds._replace(noise_std=actual.rounds.noise_std / 0.9)
  record = dataclasses.replace(actual, rounds=stated, noise_multiplier=0.3)
  claim = float(tradeoff.epsilon_gdp(1 / 0.3, DELTA))
  assert (
    0
    < bound_sequentially(record, claim=claim).test_claim().rejected_after
    <= 205
  )
  honest = simulate(0.3, observed=205, rounds=205, dim=40_000)
  assert (
    bound_sequentially(honest, claim=claim).test_claim().rejected_after is None
  )


@pytest.mark.parametrize('repetitions', [1, 3])
def test_later_rounds_change_nothing_that_was_known_before(repetitions):
  record = simulate(0.5, momentum=0.0, repetitions=repetitions)
  whole = bound_sequentially(record, claim=9.0)
  part = bound_sequentially(record, rounds=80, claim=9.0)
  num = len(part.rounds)
  assert part.rounds[-1] <= 80 < whole.rounds[num]
  for name in ('rounds', 'num_canaries', 'mu', 'log_evidence'):
    np.testing.assert_allclose(
      getattr(part, name), getattr(whole, name)[:num], rtol=1e-9, err_msg=name
    )


def test_without_the_rest_of_the_updates_the_own_round_is_read():
  record = simulate(0.5)
  bounds = bound_sequentially(
    recorded_runs.replace_cosines(record, residual=None)
  )
  assert bounds.threat_model == attackers.OWN
  assert 0 < bounds.mu[-1] < bound_sequentially(record).mu[-1]
  assert bounds.claim is bounds.log_evidence is bounds.test_claim() is None


def test_where_no_law_is_known_nothing_is_said():
  record = simulate(0.5)
  silent = recorded_runs.replace_cosines(record, residual=None, aggregate=None)
  assert bound_sequentially(silent) is None
  # Of several rounds, without the residual.
  twice = recorded_runs.replace_cosines(
    simulate(0.5, repetitions=2), residual=None
  )
  assert bound_sequentially(twice) is None
  # Held-out canaries that are no random directions.
  residual = record.cosines['residual'] + 2 / np.sqrt(record.dim)
  assert (
    bound_sequentially(recorded_runs.replace_cosines(record, residual=residual))
    is None
  )


def test_nothing_is_known_before_a_second_canary_has_ended():
  record = simulate(0.5, repetitions=3)
  assert bound_sequentially(record, rounds=20) is None


@pytest.mark.parametrize(
  ('name', 'wrong'),
  [
    ('claim', (-1e-9, -1.0, np.inf, np.nan)),
    ('delta', (0.0, 1.0, np.nan)),
    ('significance', (0.0, 1.0, np.nan)),
  ],
)
def test_a_setting_that_is_out_of_range_is_refused(name, wrong):
  record = simulate(0.5)
  for value in wrong:
    with pytest.raises(ValueError, match=f'{name}='):
      bound_sequentially(record, **{name: value})


def test_a_claim_that_nothing_leaks_is_rejected_if_something_does():
  tests = [
    bound_sequentially(simulate(noise), claim=0.0).test_claim()
    for noise in (1e6, 0.5)
  ]
  assert [test.rejected_after is None for test in tests] == [True, False]


@pytest.mark.integration
def test_true_claims_are_seldom_rejected_by_many_canaries_of_one_round():
  claim = float(tradeoff.epsilon_gdp(1 / 0.2, DELTA))
  settings = dict(observed=300, unobserved=8, rounds=1, dim=300)
  alarms = [
    bound_sequentially(simulate(0.2, seed=seed, **settings), claim=claim)
    .test_claim()
    .rejected_after
    for seed in range(60)
  ]
  # A failure has probability 1e-6 at exact coverage.
  assert sum(alarm is not None for alarm in alarms) <= 12


def test_a_round_that_all_canaries_share_rejects_no_true_claim():
  """Its noise is as short as once in 10,000 runs, and in 100 rounds shortest."""
  dim, mu = 300, 3.0
  record = conditions.record_sharing_round(
    np.random.default_rng(1), num=1000, rounds=101, dim=dim, mu=mu
  )
  norms = record.rounds.residual_norm.copy()
  norms[0] = record.rounds.noise_std[0] * np.sqrt(stats.chi2.ppf(1e-4, dim))
  rounds = record.rounds._replace(residual_norm=norms)
  record = dataclasses.replace(record, rounds=rounds)
  claim = float(tradeoff.epsilon_gdp(mu, DELTA))
  bounds = bound_sequentially(record, claim=claim)
  assert bounds.test_claim().rejected_after is None
  assert 0.75 * mu < bounds.mu[-1] < mu
  # The bound and the claim agree as well as those of single rounds do.
  low = 0.9 * float(bounds.epsilon_gdp[-1])
  test = bound_sequentially(record, claim=low).test_claim()
  assert (
    test.rejected_after == bounds.rounds[np.argmax(bounds.epsilon_gdp > low)]
  )


@pytest.mark.parametrize('dim', [30, 4000, 10**8])
def test_shifts_are_stretched_by_the_shortest_noise_of_all_rounds(dim):
  stretch = sequential._stretch_shifts(dim, 50, 5e-4)
  below = stats.chi2.cdf(dim / stretch**2, dim)
  assert 50 * below == pytest.approx(5e-4, rel=1e-3)


def test_of_sums_over_rounds_that_are_correlated_nothing_is_said():
  record, _ = conditions.record_correlated(
    np.random.default_rng(2),
    np.eye(20) + 0.3 * (np.eye(20, k=1) + np.eye(20, k=-1)),
    num=100,
    dim=4000,
    mu=5.0,
  )
  assert bound_sequentially(record, claim=1.0) is None


@pytest.mark.slow
def test_true_claims_of_whole_runs_are_seldom_rejected():
  claim = float(tradeoff.epsilon_gdp(1 / 0.5, DELTA))
  alarms = [
    bound_sequentially(
      simulate(0.5, seed=seed, observed=60, unobserved=60, rounds=30, dim=5000),
      claim=claim,
    )
    .test_claim()
    .rejected_after
    for seed in range(40)
  ]
  # A failure has probability 1e-5 at exact coverage.
  assert sum(alarm is not None for alarm in alarms) <= 10
