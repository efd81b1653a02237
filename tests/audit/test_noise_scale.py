"""Scores are in units of the noise that is there, and the claim is compared with it."""

import dataclasses

import numpy as np
import pytest
from scipy import linalg, stats

from benchmarks.bounds import conditions, simulated_runs
from epe_jax.audit import attackers, evaluation
from epe_jax.audit.attack_scores import COSINE
from epe_jax.audit.noise_scale import measure_noise
from epe_jax.epsilon import tradeoff
from epe_jax.report import audit_notes, checks
from tests import recorded_runs

DELTA, DIM, MU = 1e-3, 4000, 5.0


def simulate(rng, ratio=1.0, *, observed=200, rounds=20, dim=DIM, mu=MU):
  """A run whose noise is `ratio` times what it claims, and leaks 1/μ."""
  record = simulated_runs.simulate(
    rng,
    observed=observed,
    unobserved=observed,
    rounds=rounds,
    dim=dim,
    noise=1 / mu,
    delta=DELTA,
  ).record
  return claim(record, ratio)


def claim(record, ratio):
  noise_std = record.rounds.noise_std / ratio
  return dataclasses.replace(
    record,
    rounds=record.rounds._replace(noise_std=noise_std),
    noise_multiplier=record.noise_multiplier / float(np.mean(ratio)),
  )


@pytest.mark.integration
@pytest.mark.parametrize('ratio', [0.95, 1.0, 1.05, 1.12])
def test_bounds_hold_whatever_noise_is_claimed(ratio):
  rng, audits = np.random.default_rng(0), 25
  truth = float(tradeoff.epsilon_gdp(MU, DELTA))
  exceeded = {}
  for _ in range(audits):
    found = attackers.RESIDUAL.score(simulate(rng, ratio))
    for bound in found.bounds:
      estimate = bound(found.scores, delta=DELTA)
      exceeded.setdefault(estimate.method, []).append(estimate.epsilon > truth)
  assert exceeded.keys() >= {
    'clopper_pearson_bonferroni',
    'location_mixture_bound',
  }
  # A failure of one of three has probability 1e-6 at exact coverage.
  most = stats.binom.isf(3e-7, audits, 0.05)
  assert all(sum(above) <= most for above in exceeded.values()), exceeded


@pytest.mark.parametrize('ratio', [0.9, 1.1])
def test_the_estimate_is_of_the_noise_that_is_there(ratio):
  record = simulate(np.random.default_rng(1), ratio, observed=1000)
  audit = evaluation.evaluate(
    record, threat_models=[attackers.RESIDUAL], floors=False
  )
  (attack,) = audit.attacks
  low, high = attack.first.interval
  assert attack.is_calibrated
  assert low < tradeoff.epsilon_gdp(MU, DELTA) < high
  # And the run is not what it claims to be.
  (check,) = attack.contradictions
  text = checks.describe_check(check)
  assert measure_noise(record).ratio == pytest.approx(ratio, abs=0.01)
  assert 'times as long as the noise that is claimed' in text
  assert any(text in warning for warning in audit_notes.list_warnings(audit))
  serious = audit_notes.list_serious_warnings(audit, shown=())
  assert any(text in warning for warning in serious)


def test_noise_that_is_as_claimed_is_not_accused():
  rng = np.random.default_rng(2)
  for _ in range(50):
    noise = measure_noise(simulate(rng, observed=8))
    assert noise.is_as_claimed
    assert noise.is_steady
    assert noise.standard_error == pytest.approx(1 / np.sqrt(2 * DIM * 20))


def test_noise_that_varies_from_round_to_round_leaves_its_law_to_the_unobserved():
  ratio = np.where(np.arange(20) % 2, 1.2, 0.8)
  record = simulate(np.random.default_rng(3), ratio)
  assert not measure_noise(record).is_steady
  found = attackers.RESIDUAL.score(record)
  assert not found.scores.has_known_null
  assert [note.key for note in found.notes] == ['noise_varies']
  # A cosine with what is left has one law, however long that is.
  few = simulate(np.random.default_rng(3), ratio, observed=1)
  found = attackers.RESIDUAL.score(few)
  assert found.scores.has_known_null
  assert found.unit == COSINE


def test_of_noise_that_is_missing_nothing_is_left():
  record = simulate(np.random.default_rng(4))
  zero = np.zeros_like(record.rounds.residual_norm)
  record = dataclasses.replace(
    recorded_runs.replace_cosines(
      record, residual=np.zeros_like(record.cosines['residual'])
    ),
    rounds=record.rounds._replace(residual_norm=zero),
  )
  found = attackers.RESIDUAL.score(record)
  (check,) = found.contradictions
  assert 'is 0 times as long' in checks.describe_check(check)
  assert found.points[0](found.scores, delta=DELTA).epsilon > 100


def test_without_both_numbers_nothing_is_compared():
  record = simulate(np.random.default_rng(5), observed=8)
  unknown = np.full(20, np.nan)
  for name in ('noise_std', 'residual_norm'):
    rounds = record.rounds._replace(**{name: unknown})
    assert measure_noise(dataclasses.replace(record, rounds=rounds)) is None
  assert measure_noise(dataclasses.replace(record, rounds=None)) is None


@pytest.mark.parametrize(('chance', 'is_steady'), [(3e-4, True), (3e-5, False)])
def test_two_rounds_are_called_unsteady_once_in_ten_thousand(chance, is_steady):
  record = simulate(np.random.default_rng(6), observed=8, rounds=2)
  # Of squares 1 ± x, which vary by 2 x² in units of 2/d: χ² of one degree.
  x = np.sqrt(stats.chi2.isf(chance, 1) / DIM)
  norms = record.rounds.noise_std * np.sqrt(DIM * np.array([1 - x, 1 + x]))
  rounds = record.rounds._replace(residual_norm=norms)
  noise = measure_noise(dataclasses.replace(record, rounds=rounds))
  assert noise.is_steady == is_steady
  assert noise.ratio == pytest.approx(1.0)


def simulate_correlated(rng, correlation, num=200):
  """Noise of unit size whose rounds correlate so at lags 0, 1, ...; see there."""
  return conditions.record_correlated(
    rng, linalg.toeplitz(correlation), num=num, dim=DIM, mu=MU
  )


# Autoregression of either sign, and a correlation at another lag alone.
CORRELATIONS = [
  0.1 ** np.arange(20),
  0.5 ** np.arange(20),
  (-0.3) ** np.arange(20),
  np.where(np.arange(20) == 3, 0.3, 0.0) + np.eye(20)[0],
  # A part of the noise that all rounds have in common.
  np.where(np.arange(20) == 0, 1.0, 0.035),
]


@pytest.mark.parametrize('correlation', CORRELATIONS)
def test_rounds_that_are_not_independent_leave_the_law_of_sums_to_the_unobserved(
  correlation,
):
  rng, exceeded = np.random.default_rng(7), 0
  for _ in range(8):
    record, truth = simulate_correlated(rng, correlation)
    found = attackers.RESIDUAL.score(record)
    assert not found.scores.has_known_null
    assert [note.key for note in found.notes] == ['noise_correlates']
    (check,) = found.contradictions
    assert check.key == 'noise_not_independent'
    lag = check.values['lag']
    if correlation[-1] < 0.03:
      assert lag == np.argmax(np.abs(correlation[1:])) + 1
    assert check.values['correlation'] == pytest.approx(
      correlation[max(lag, 1)], abs=0.08
    )
    bound = found.bounds[0](found.scores, delta=DELTA)
    assert bound.method == 'rank_test'
    exceeded += bound.epsilon > truth
  # More have a probability of 5e-4 at exact coverage.
  assert exceeded <= 3
  text = checks.describe_check(check)
  assert 'claimed to be independent' in text


def test_independent_rounds_are_called_correlated_once_in_a_thousand():
  rng = np.random.default_rng(8)
  called = sum(
    measure_noise(
      simulate_correlated(rng, np.eye(20)[0], num=num)[0]
    ).correlation
    != 0
    for num in (1, 4, 40)
    for _ in range(100)
  )
  # More have a probability of 3e-4 at the stated rate.
  assert called <= 3


def test_canaries_of_one_round_keep_their_law_and_the_claim_is_contradicted():
  record, _ = simulate_correlated(np.random.default_rng(9), CORRELATIONS[1])
  once = record.included & (np.cumsum(record.included, axis=0) == 1)
  record = dataclasses.replace(record, included=once, assigned=once)
  found = attackers.RESIDUAL.score(record)
  assert found.scores.has_known_null
  assert [check.key for check in found.contradictions] == [
    'noise_not_independent'
  ]


def test_without_unobserved_canaries_correlated_rounds_have_no_law():
  record, _ = simulate_correlated(np.random.default_rng(10), CORRELATIONS[1])
  alone = dataclasses.replace(
    record,
    cosines={n: x[:, :200] for n, x in record.cosines.items()},
    included=record.included[:, :200],
    assigned=record.assigned[:, :200],
  )
  assert attackers.RESIDUAL.score(alone) is None
