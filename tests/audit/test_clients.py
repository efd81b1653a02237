"""Clients who take part more often than canaries, against simulation and runs."""

import dataclasses
import math

import numpy as np
import pytest
from studies import simulated_runs

from epe_jax import accounting
from epe_jax.audit import clients, evaluation, threat_models
from epe_jax.epsilon.trade_offs import tradeoff_curves
from epe_jax.text import summary_table
from tests import recorded_runs

_DELTA = 1e-3


def _participations(canaries, of_clients, limit=math.inf):
  return clients.Participations(canaries, of_clients, limit)


@pytest.mark.parametrize('agree', [True, False])
def test_shifts_of_a_client_add_up_in_the_model_of_a_linear_server(agree):
  rng, rounds, z, n, m, d, num = (
    np.random.default_rng(0),
    12,
    1.5,
    9,
    3,
    40,
    40_000,
  )
  basis = np.linalg.qr(rng.normal(size=(d, d)))[0]
  canary = basis[0]
  updates = np.tile(canary, (n, 1)) if agree else basis[:n]
  noise = z * math.sqrt(rounds) * rng.normal(size=(num, d))

  def measure_mu(put_in):
    # The best test of a known sum in Gaussian noise.
    direction = put_in / np.linalg.norm(put_in)
    out, took_part = noise @ direction, (noise + put_in) @ direction
    return (took_part.mean() - out.mean()) / out.std()

  mu = measure_mu(m * canary)
  found = dict(
    zip((False, True), clients.scale_shift(mu, _participations(m, n)))
  )
  assert found[agree] == pytest.approx(
    measure_mu(updates.sum(axis=0)), rel=0.03
  )


def test_a_run_with_more_participations_finds_what_is_expected_of_agreeing_updates():
  once, often = (
    evaluation.evaluate(
      simulated_runs.simulate(
        np.random.default_rng(1),
        observed=60,
        unobserved=400,
        rounds=12,
        dim=20_000,
        noise=1.5,
        clients=0.0,
        momentum=0.0,
        coins=False,
        repetitions=repetitions,
      ).record,
      delta=_DELTA,
      floors=False,
    ).find(threat_models.CHANGE)
    for repetitions in (1, 4)
  )
  expected = clients.expect_client(
    dataclasses.replace(once, is_calibrated=True), _participations(1, 4)
  )
  mus = [
    tradeoff_curves.mu_of_epsilon(float(e), _DELTA)
    for e in (*once.first.interval, *often.first.interval)
  ]
  # Intervals of four times the one and of the other meet.
  assert 4 * mus[0] <= mus[3]
  assert mus[2] <= 4 * mus[1]
  assert expected.orthogonal < expected.agreeing
  # Measured of as many rounds: a client whose updates agree is the canary.
  same = clients.expect_client(
    dataclasses.replace(often, is_calibrated=True), _participations(4, 4)
  )
  assert same.agreeing == pytest.approx(float(often.first.epsilon), rel=1e-4)
  assert same.orthogonal < same.agreeing


def test_no_more_is_expected_of_a_client_than_it_is_allowed():
  audit = evaluation.evaluate(
    recorded_runs.by_vectors(momentum=0.0).record, delta=_DELTA, floors=False
  )
  attack = audit.find(threat_models.FINAL)
  limit = float(attack.first.epsilon) / 2
  found = clients.expect_client(attack, _participations(1, 9, limit))
  assert found == (limit, limit)
  # Who sees every round has the analytic ε alone.
  own = audit.find(threat_models.OWN)
  assert clients.expect_client(own, _participations(1, 9)) is None


def test_what_was_not_measured_is_what_a_linear_server_is_expected_to_leave():
  audit = evaluation.evaluate(
    recorded_runs.by_vectors(momentum=0.0).record, delta=_DELTA, floors=False
  )
  attack = dataclasses.replace(
    audit.find(threat_models.CHANGE),
    is_calibrated=False,
    analytic=accounting.Analytic(2.0, (), 'expectation'),
  )
  found = clients.expect_client(attack, _participations(1, 4))
  mu = tradeoff_curves.mu_of_epsilon(2.0, _DELTA)
  assert found.agreeing == tradeoff_curves.epsilon_gdp(4 * mu, _DELTA)
  assert found.orthogonal == tradeoff_curves.epsilon_gdp(2 * mu, _DELTA)


def test_nothing_is_expected_from_canaries_of_different_numbers_of_rounds():
  audit = evaluation.evaluate(
    recorded_runs.by_vectors(momentum=0.0).record, delta=_DELTA, floors=False
  )
  final = audit.find(threat_models.FINAL)
  same = _participations(3, 3, limit=9.0)
  vary = same._replace(canaries_vary=True)
  assert not same.differ
  assert clients.expect_client(final, same) is not None
  assert vary.differ
  assert clients.expect_client(final, vary) is None
  assert summary_table.format_client(final, vary) == '≤ 9.00'


def test_a_bound_of_sums_over_rounds_has_its_reason():
  for repetitions, is_noted in ((1, False), (4, True)):
    record = recorded_runs.by_law(repetitions=repetitions)
    own = threat_models.OWN.score(record)
    assert any(note.key == 'sum_over_rounds' for note in own.notes) == is_noted
