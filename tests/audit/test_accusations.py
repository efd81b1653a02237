"""A run is accused only at a level that counts all tests of its audit."""

import dataclasses

import pytest

from epe_jax.audit import attackers, audit_json, evaluation, results
from epe_jax.report import audit_notes, first_page, leaks
from tests import recorded_runs

ACCUSES = 'does not match its claim'


def evaluate(noise_of_one):
  """A run in which a canary is shifted by two, of other noise than it claims."""
  record = dataclasses.replace(
    recorded_runs.by_law(shift=2.0, observed=200, unobserved=200),
    noise_multiplier=noise_of_one / 2.0,
    periods=1,
  )
  models = (
    attackers.MAXIMUM,
    attackers.OWN,
    attackers.RESIDUAL,
  )
  return evaluation.evaluate(record, threat_models=models, floors=False)


@pytest.fixture(scope='module')
def correct():
  return evaluate(1.0)


def with_bounds(audit, *, own, joint):
  """The same audit, whose strongest attacker has other bounds."""
  *others, attack = audit.attacks
  limit = attack.analytic.epsilon
  bound, *rest = attack.bounds
  bounds = [
    dataclasses.replace(bound, epsilon=share * limit) for share in (own, joint)
  ]
  points = [e for e in attack.estimates if e.kind == 'point_estimate']
  changed = dataclasses.replace(
    attack, estimates=(*points, bounds[0], *rest), joint_bound=bounds[1]
  )
  return audit._replace(attacks=(*others, changed))


def test_the_maximum_of_a_correct_run_is_not_accused_by_its_estimate(correct):
  attack = correct.find(attackers.MAXIMUM)
  low, high = attack.first.interval
  assert low < attack.analytic.epsilon < high
  first = dataclasses.replace(
    attack.first, epsilon=1.02 * attack.analytic.epsilon
  )
  above = dataclasses.replace(attack, estimates=(first, *attack.estimates[1:]))
  text = ' '.join(audit_notes.list_notes(results.Audit((above,))))
  assert 'is above' in text
  assert 'Chance explains this' in text
  assert ACCUSES not in text


@pytest.mark.integration
def test_a_run_of_a_third_of_its_noise_is_accused():
  audit = evaluate(3.0)
  said = ' '.join(audit_notes.format_notes(audit))
  assert ACCUSES in said
  assert audit.attacks[-1].is_violated
  alarms = first_page.list_alarms(
    recorded_runs.result(audit=audit),
    leaks.find_leaks(recorded_runs.result(audit=audit)),
  )
  assert any(ACCUSES in text for text in alarms)
  read = audit_json.from_json(audit_json.to_json(audit))
  assert [a.is_violated for a in read.attacks] == [
    a.is_violated for a in audit.attacks
  ]


def test_a_bound_that_is_above_at_its_own_level_alone_accuses_nobody(correct):
  by_chance = with_bounds(correct, own=1.1, joint=0.9)
  result = recorded_runs.result(audit=by_chance)
  assert first_page.list_alarms(result, leaks.find_leaks(result)) == []
  (said,) = audit_notes.list_warnings(by_chance)
  assert 'chance explains this' in said
  assert ACCUSES not in said
  # The first page does not say it, so the appendix does.
  others = first_page.list_other_notes(result, leaks.find_leaks(result))
  assert any('chance explains' in text for text in others)
  certain = with_bounds(correct, own=1.3, joint=1.1)
  result = recorded_runs.result(audit=certain)
  assert any(
    ACCUSES in text
    for text in first_page.list_alarms(result, leaks.find_leaks(result))
  )


def test_the_level_counts_all_by_which_an_audit_may_accuse(correct):
  num = round(results.SIGNIFICANCE / correct.significance_of_one)
  # A bound and an interval of each attacker, and two agreements with norms.
  assert num == 8
