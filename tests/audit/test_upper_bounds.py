"""The ε that the mechanism allows each attacker, and what exceeds it."""

import dataclasses
import json
import math

import numpy as np
import pytest
from scipy import special

from epe_jax import accounting, typed_json
from epe_jax.accounting import Analytic, Mixture
from epe_jax.audit import (
  attackers,
  audit_json,
  evaluation,
  release,
  upper_bounds,
)
from epe_jax.audit.record_file import load_record, write_record
from epe_jax.epsilon import known_shifts, risks, tradeoff, types
from tests import recorded_runs

_DELTA = 1e-5


def _record(**settings):
  known = {'noise_multiplier': 1 / 3.0, 'periods': 1}
  return dataclasses.replace(recorded_runs.by_law(**settings), **known)


def test_every_attacker_of_a_run_has_a_limit_of_its_own():
  record = _record(rounds=20)
  limits = {
    model.key: model.analytic_epsilon(record, _DELTA)
    for model in attackers.THREAT_MODELS
  }
  assert None not in limits.values()
  known = accounting.epsilon_of_releases(1 / 3.0, delta=_DELTA)
  unknown = accounting.epsilon_of_allocation(1 / 3.0, delta=_DELTA, rounds=20)
  assert limits['own_round'] == limits['residual'] == known
  assert limits['maximum'] == limits['likelihood'] == unknown
  assert limits['final'].kind == 'expectation'
  assert limits['final'].epsilon < unknown.epsilon < known.epsilon


@pytest.mark.parametrize('momentum', [0.0, 0.5])
def test_the_final_model_of_a_linear_server_is_a_mixture_in_the_noise_of_all_rounds(
  momentum,
):
  run = recorded_runs.by_vectors(momentum=momentum, rounds=6, clients=0.0)
  record = dataclasses.replace(run.record, noise_multiplier=0.3, periods=1)
  found = upper_bounds.expect_final_model(record, 1e-3)
  # Each aggregate is added β^i times in the i-th round after its own.
  factor = [sum(momentum**i for i in range(6 - t)) for t in range(6)]
  noise = math.hypot(*(factor * record.rounds.noise_std))
  put_in = factor * record.rounds.canary_norm
  rounds = record.assigned[:, record.observed].argmax(axis=0)
  exact = known_shifts.epsilon_mixture(put_in[rounds] / noise, 1e-3)
  assert found.epsilon == pytest.approx(exact, rel=1e-5)


def test_what_is_not_known_gives_no_limit():
  record = _record()
  unknown = dataclasses.replace(record, noise_multiplier=None)
  # The final model's is by the noise that rounds had.
  limits = [
    m.analytic_epsilon(unknown, _DELTA) for m in attackers.THREAT_MODELS
  ]
  assert limits[2:] == [None] * 5
  assert None not in limits[:2]
  # By other schedules who does not know the rounds is allowed what one is who
  # does, and so is the final model of a server that is not SGD.
  scheduled = dataclasses.replace(
    record, periods=None, momentum=None, weight=None
  )
  for model in attackers.THREAT_MODELS:
    assert model.analytic_epsilon(scheduled, _DELTA) == model.analytic_epsilon(
      scheduled, _DELTA
    )._replace(kind='bound')
    assert model.analytic_epsilon(
      scheduled, _DELTA
    ) == attackers.RESIDUAL.analytic_epsilon(record, _DELTA)


def test_of_some_rounds_there_are_fewer_to_hide_in_and_the_model_has_no_limit():
  record = _record(rounds=20)
  some = release.restrict_to_rounds(record, np.arange(20) < 10)
  whole, part = (
    attackers.LIKELIHOOD.analytic_epsilon(x, _DELTA).epsilon
    for x in (record, some)
  )
  assert part > whole
  assert part == (
    accounting.epsilon_of_allocation(1 / 3.0, delta=_DELTA, rounds=10).epsilon
  )
  assert attackers.FINAL.analytic_epsilon(some, _DELTA) is None
  twice = dataclasses.replace(
    _record(rounds=20, repetitions=2, observed=20), periods=2
  )
  some = release.restrict_to_rounds(twice, np.arange(20) < 15)
  assert attackers.LIKELIHOOD.analytic_epsilon(some, _DELTA) == (
    attackers.RESIDUAL.analytic_epsilon(some, _DELTA)
  )


def _estimate(epsilon, interval=None, kind='point_estimate'):
  confidence = 0.95 if kind == 'confidence_bound' else None
  return types.Estimate(
    epsilon, _DELTA, 'method', confidence, kind, interval=interval
  )


def test_an_estimate_above_its_limit_is_named_for_what_it_is():
  bound = accounting.Analytic(5.0, ())
  expected = bound._replace(kind='expectation')
  certain = _estimate(5.1, kind='confidence_bound')
  assert upper_bounds.describe_excess(certain, bound) == 'violation'
  assert upper_bounds.describe_excess(certain, expected) == (
    'more_than_expected'
  )
  assert upper_bounds.describe_excess(_estimate(5.1), bound) == 'extrapolates'
  # Within its error it is in line.
  within = _estimate(5.1, (4.9, 5.3))
  assert upper_bounds.describe_excess(within, bound) is None
  assert upper_bounds.describe_excess(_estimate(5.1), bound, error=0.2) is None
  beyond = _estimate(5.6, (5.4, 5.8))
  assert upper_bounds.describe_excess(beyond, bound) == 'extrapolates'
  assert upper_bounds.describe_excess(_estimate(5.001), bound) is None
  assert upper_bounds.describe_excess(_estimate(math.inf), bound) == (
    'extrapolates'
  )
  unlimited = bound._replace(epsilon=math.inf)
  assert upper_bounds.describe_excess(_estimate(math.inf), unlimited) is None
  assert upper_bounds.describe_excess(certain, None) is None


def test_limits_stand_beside_estimates_and_are_kept_in_files(tmp_path):
  write_record(tmp_path / 'scores.npz', _record())
  record = load_record(tmp_path / 'scores.npz')
  assert (record.noise_multiplier, record.periods) == (1 / 3.0, 1)
  assert record.is_whole
  audit = evaluation.evaluate(record, floors=False)
  for attack in audit.attacks:
    assert attack.analytic == attack.threat_model.analytic_epsilon(
      record, record.delta
    )
  values = audit_json.to_json(audit)
  assert audit_json.from_json(values) == audit
  fitted = next(
    estimate
    for attack in values['attacks']
    for estimate in attack['estimates']
    if attack['threat_model'] == 'maximum'
    and estimate['method'] == 'two_gaussian_fitted'
  )
  assert fitted['excess'] == 'extrapolates'


@pytest.mark.parametrize(('noise', 'rounds'), [(0.5, 3), (1.0, 8)])
def test_the_curve_of_a_random_round_is_that_of_its_likelihood_ratio(
  noise, rounds
):
  analytic = accounting.epsilon_of_allocation(noise, delta=1e-3, rounds=rounds)
  assert not analytic.is_gaussian
  curve = upper_bounds.find_curve(analytic, 1e-3)
  rng, num = np.random.default_rng(0), 200_000
  ratios = []
  for took_part in (False, True):
    x = rng.standard_normal((num, rounds))
    x[:, 0] += took_part / noise
    ratios.append(np.sort(np.mean(np.exp(x / noise - 0.5 / noise**2), axis=1)))
  fpr = np.array([0.01, 0.1, 0.3, 0.6])
  at = ratios[0][(num * (1 - fpr)).astype(int)]
  fnr = np.searchsorted(ratios[1], at) / num
  allowed = curve(np.log(fpr))
  # No attack is below it; it is that of the best attack in both directions.
  slack = 6 / np.sqrt(num)
  assert np.all(allowed <= fnr + slack)
  assert np.all(allowed[:2] >= fnr[:2] - 0.15)


def test_known_rounds_are_gaussian():
  analytic = accounting.epsilon_of_releases(1.3, delta=1e-4, participations=2)
  rates = np.array([1e-6, 0.01, 0.5])
  expected = special.ndtr(-special.ndtri(rates) - np.sqrt(2) / 1.3)
  curve = upper_bounds.find_curve(analytic, 1e-4)
  np.testing.assert_allclose(curve(np.log(rates)), expected, rtol=1e-6)
  without = accounting.epsilon_of_releases(0.0, delta=1e-4)
  assert (
    upper_bounds.find_curve(without, 1e-4)(np.log(rates)).tolist() == [0] * 3
  )


def test_a_final_model_whose_canaries_weigh_alike_has_the_risks_of_its_mu():
  run = recorded_runs.by_vectors(momentum=0.0, rounds=6, clients=0.0)
  rounds = run.record.rounds
  level = np.ones_like(rounds.canary_norm)
  record = dataclasses.replace(
    run.record,
    rounds=rounds._replace(
      canary_norm=level, noise_std=level / (3 * math.sqrt(6))
    ),
    weight=np.ones_like(run.record.weight),
  )
  found = upper_bounds.expect_final_model(record, 1e-3)
  curve = upper_bounds.find_curve(found, 1e-3)
  of_curve = risks.compute_risks_of_curve(curve)
  # Two Gaussians that are 3 apart are told apart in 93.3 % of cases.
  np.testing.assert_allclose(of_curve, risks.compute_risks(3.0), rtol=1e-4)


def test_the_risks_of_a_mixture_are_those_of_simulated_attacks():
  shifts = np.array([0.3, 1.0, 4.0])
  curve = upper_bounds.find_curve(
    accounting.Analytic(
      1.0, (), 'expectation', law=accounting.Mixture(tuple(shifts), (1, 1, 2))
    ),
    1e-3,
  )
  rng, num = np.random.default_rng(0), 400_000
  seen = rng.choice(shifts, num, p=(0.25, 0.25, 0.5)) + rng.normal(size=num)
  of_curve = risks.compute_risks_of_curve(curve, fpr=0.01, baseline=0.001)
  for rate, found in ((0.01, of_curve.tpr), (0.001, of_curve.reconstruction)):
    tpr = np.mean(seen > -special.ndtri(rate))
    assert found == pytest.approx(tpr, abs=5 / math.sqrt(num))
  grid = np.linspace(0.0, 4.0, 400)
  told = [(np.mean(seen > x) + special.ndtr(x)) / 2 for x in grid]
  assert of_curve.accuracy == pytest.approx(max(told), abs=3e-3)


@pytest.mark.parametrize(('noise', 'rounds'), [(0.2, 100), (0.7, 5)])
def test_the_risks_of_a_random_round_are_those_of_simulated_attacks(
  noise, rounds
):
  analytic = accounting.epsilon_of_allocation(noise, delta=1e-3, rounds=rounds)
  curve = upper_bounds.find_curve(analytic, 1e-3)
  rng, num = np.random.default_rng(1), 40_000
  ratios = []
  for took_part in (False, True):
    x = rng.standard_normal((num, rounds))
    x[:, 0] += took_part / noise
    log_ratio = x / noise - 0.5 / noise**2
    ratios.append(np.sort(special.logsumexp(log_ratio, axis=1)))
  of_curve = risks.compute_risks_of_curve(curve, fpr=0.01, baseline=0.01)
  at = ratios[0][int(num * 0.99)]
  tpr = np.mean(ratios[1] > at)
  # Never below, but for chance, and above by no more than chance.
  assert of_curve.tpr == pytest.approx(tpr, abs=0.012)
  assert of_curve.reconstruction == of_curve.tpr
  both = np.concatenate(ratios)
  right = [
    (np.mean(ratios[1] > x) + np.mean(ratios[0] <= x)) / 2
    for x in np.quantile(both, np.linspace(0.01, 0.99, 99))
  ]
  assert of_curve.accuracy == pytest.approx(max(right), abs=0.005)


def test_of_a_law_that_is_not_known_there_is_a_limit():
  exact = accounting.epsilon_of_releases(1.0, delta=1e-3)
  limit = accounting.Analytic(exact.epsilon, ())
  log_fpr = np.log([1e-4, 0.01, 0.3])
  assert np.all(
    upper_bounds.find_curve(limit, 1e-3)(log_fpr)
    <= upper_bounds.find_curve(exact, 1e-3)(log_fpr)
  )


def test_the_law_of_a_limit_is_kept_in_files():
  for analytic in (
    accounting.epsilon_of_allocation(0.5, delta=1e-3, rounds=7, periods=2),
    upper_bounds.expect_final_model(_record(rounds=20), 1e-3),
  ):
    text = json.dumps(typed_json.to_plain(analytic))
    assert typed_json.from_plain(Analytic, json.loads(text)) == analytic


def test_the_most_exposed_canary_is_compared_with_its_own_expectation():
  shifts = (0.1, 0.5)
  expected = Analytic(
    float(known_shifts.epsilon_mixture(np.array(shifts), _DELTA)),
    (),
    kind='expectation',
    law=Mixture(shifts, (1.0, 1.0)),
  )
  own = float(tradeoff.epsilon_gdp(0.5, _DELTA))
  assert expected.epsilon < own

  def compare(low):
    estimate = types.Estimate(
      1.1 * low,
      _DELTA,
      'most_exposed',
      None,
      interval=(low, 1.2 * low),
    )
    limit = upper_bounds.find_limit(estimate, expected)
    assert limit.epsilon == own
    return upper_bounds.describe_excess(estimate, expected)

  # Above that of a random canary it is in line; above its own it is named.
  assert compare(0.99 * own) is None
  assert compare(1.02 * own) == 'more_than_expected'
