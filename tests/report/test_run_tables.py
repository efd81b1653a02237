"""The tables of a run: what a leak means for a person."""

import dataclasses

import numpy as np
import pytest

from epe_jax.audit import attackers, evaluation
from epe_jax.epsilon import risks, tradeoff
from epe_jax.experiment import client_rounds
from epe_jax.report import cells, clients, run_tables, words
from tests import recorded_runs

_ALIKE = client_rounds.Participations(1, 1, 12.0)


@pytest.fixture(scope='module')
def audit():
  record = recorded_runs.by_vectors(momentum=0.0).record
  record = dataclasses.replace(record, noise_multiplier=0.3)
  return evaluation.evaluate(record, floors=False)


def test_risks_of_an_attacker_are_those_of_its_estimate_and_its_limits(audit):
  attack = audit.find(attackers.RESIDUAL)
  found_risks = clients.compute_attack_risks(attack, _ALIKE)
  for found, epsilon in (
    (found_risks.estimate, attack.first.epsilon),
    (found_risks.interval[0], attack.first.interval[0]),
    (found_risks.interval[1], attack.first.interval[1]),
    (found_risks.limit, attack.analytic.epsilon),
  ):
    mu = tradeoff.mu_of_epsilon(float(epsilon), attack.first.delta)
    expected = 2 * found.accuracy - 1
    assert found.advantage == pytest.approx(expected, abs=1e-12)
    family = tradeoff.gaussian_family()
    fnr = family.fnr(1 / mu, np.log([clients.FPR]))[0]
    assert found.tpr == pytest.approx(1 - fnr, rel=1e-9)
  for low, value, high in zip(
    found_risks.interval[0],
    found_risks.estimate,
    found_risks.interval[1],
  ):
    assert low <= value <= high


def test_attackers_without_a_calibrated_estimate_have_no_line(audit):
  table = run_tables.make_risk_table(audit.attacks, _ALIKE)
  names = [line[0] for line in table.body]
  assert names == [
    words.spell_name(attack.threat_model)
    for attack in audit.attacks
    if attack.is_calibrated
  ]
  assert 'every round (likelihood)' not in names
  doubted = [
    dataclasses.replace(attack, is_calibrated=False) for attack in audit.attacks
  ]
  assert run_tables.make_risk_table(doubted, _ALIKE) is None


def test_a_limit_that_is_expected_is_not_called_allowed(audit):
  # Whether a test rejects the scores of one attacker is chance.
  attacks = [
    dataclasses.replace(attack, is_calibrated=True) for attack in audit.attacks
  ]
  lines = {
    line[0]: line for line in run_tables.make_risk_table(attacks, _ALIKE).body
  }
  assert all('; expected ' in cell for cell in lines['last model only'][1:])
  assert all('; at most ' in cell for cell in lines['every round'][1:])


def test_the_risks_are_of_a_client_and_not_of_a_canary_of_fewer_rounds(audit):
  attacks = [
    dataclasses.replace(attack, is_calibrated=True) for attack in audit.attacks
  ]
  record = recorded_runs.by_vectors(momentum=0.0).record
  shifts = recorded_runs.client_shifts(record, 9)
  often = client_rounds.Participations(1, 9, 300.0, shifts=shifts)
  lines = {
    line[0]: line[1:]
    for line in run_tables.make_risk_table(attacks, often).body
  }
  limit = f'at most {cells.format_share(1.0)}'
  for name in ('every round', 'worst case', 'every round (maximum)'):
    # At ε = 300 nothing is hidden.
    assert [lines[name][i] for i in (0, 1, 3)] == [limit] * 3
  change = audit.find(attackers.CHANGE)
  mu = tradeoff.mu_of_epsilon(float(change.first.epsilon), 1e-5)
  low, high = (
    cells.format_share(float(risks.compute_risks(times * mu).accuracy))
    for times in (3, 9)
  )
  assert change.first.delta == 1e-5
  assert lines['first and last model'][0] == f'expected {low} to {high}'
