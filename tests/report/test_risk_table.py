"""The table of what a leak means for a person."""

import dataclasses

import numpy as np
import pytest

from epe_jax.audit import attack_risks, estimates, threat_models
from epe_jax.epsilon import tradeoff_curves
from epe_jax.report import risk_table
from tests import recorded_runs


@pytest.fixture(scope='module')
def audit():
  record = recorded_runs.by_vectors(momentum=0.0).record
  record = dataclasses.replace(record, noise_multiplier=0.3)
  return estimates.evaluate(record, floors=False)


def test_risks_of_an_attacker_are_those_of_its_estimate_and_its_limits(audit):
  attack = audit.find(threat_models.RESIDUAL)
  risks = attack_risks.compute_attack_risks(attack)
  for found, epsilon in (
    (risks.estimate, attack.first.epsilon),
    (risks.interval[0], attack.first.interval[0]),
    (risks.interval[1], attack.first.interval[1]),
    (risks.allowed, attack.analytic.epsilon),
  ):
    mu = tradeoff_curves.mu_of_epsilon(float(epsilon), attack.first.delta)
    expected = 2 * found.accuracy - 1
    assert found.advantage == pytest.approx(expected, abs=1e-12)
    family = tradeoff_curves.gaussian_family()
    fnr = family.fnr(1 / mu, np.log([attack_risks.FPR]))[0]
    assert found.tpr == pytest.approx(1 - fnr, rel=1e-9)
  for low, value, high in zip(
    risks.interval[0], risks.estimate, risks.interval[1]
  ):
    assert low <= value <= high


def test_attackers_without_a_calibrated_estimate_have_no_line(audit):
  table = risk_table.make_table(audit.attacks)
  names = [line[0] for line in table.body]
  assert names == [
    attack.threat_model.name for attack in audit.attacks if attack.is_calibrated
  ]
  assert 'likelihood over rounds' not in names
  doubted = [attack._replace(is_calibrated=False) for attack in audit.attacks]
  assert risk_table.make_table(doubted) is None


def test_a_limit_that_is_expected_is_not_called_allowed(audit):
  # Whether a test rejects the scores of one attacker is chance.
  attacks = [attack._replace(is_calibrated=True) for attack in audit.attacks]
  lines = {line[0]: line for line in risk_table.make_table(attacks).body}
  assert all('; expected ' in cell for cell in lines['final model'][1:])
  assert all('; allowed ' in cell for cell in lines['own round'][1:])


def test_what_a_mu_misstates_is_said_for_each_attacker_who_is_not_gaussian(
  audit,
):
  text = risk_table.explain_regret(audit.attacks)
  wrong, exact = text.split('They are exact for ')
  assert 'may be wrong by up to (the regret): 0.' in wrong
  assert 'for final model, ' in wrong
  assert exact == 'own round; own round, others removed.'
  assert risk_table.explain_regret(audit.attacks[-2:]) is None
