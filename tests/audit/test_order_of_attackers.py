"""Nothing that an audit says of its worst case depends on the order of attackers."""

import itertools

import pytest

from epe_jax import audit
from epe_jax.audit import attackers, audit_json, evaluation
from epe_jax.report import first_page, report
from tests import recorded_runs


def make_attacker(**settings):
  """One of a user, who reads the final model without knowing rounds or others."""
  mine = audit.ThreatModel(
    'mine',
    lambda record: audit.score_cosines(mine, record, view='signs'),
    **settings,
  )
  return mine


@pytest.fixture(scope='module')
def record():
  record = recorded_runs.by_law()
  return recorded_runs.replace_cosines(record, mine=record.cosines['final'])


def evaluate(record, models):
  return evaluation.evaluate(record, threat_models=models, floors=False)


def say(found):
  """All that the report says first."""
  line = first_page.state_headline_of(found)
  result = recorded_runs.result(audit=found)
  return line, report.format_summary(result)


def test_an_attacker_of_a_user_leaves_headline_and_verdict_wherever_it_stands(
  record,
):
  mine = make_attacker()
  ours = (attackers.FINAL, attackers.OWN, attackers.RESIDUAL)
  alone = evaluate(record, ours)
  for models in ((mine, *ours), (*ours, mine), (*ours[:2], mine, *ours[2:])):
    found = evaluate(record, models)
    attack, bound, _ = found.headline
    assert attack.threat_model == attackers.RESIDUAL
    assert bound == alone.headline[1]
    assert attack.agreement == alone.headline[0].agreement
    assert found.find(mine) is not None
    assert say(found) == say(alone)


def test_the_order_of_attackers_changes_nothing(record):
  three = (attackers.FINAL, attackers.OWN, attackers.RESIDUAL)
  said = [
    say(evaluate(record, models)) for models in itertools.permutations(three)
  ]
  assert all(one == said[0] for one in said)


def test_a_user_may_declare_the_worst_case(record):
  worst = make_attacker(is_worst_case=True)
  for models in (
    (worst, *attackers.THREAT_MODELS),
    (*attackers.THREAT_MODELS, worst),
  ):
    found = evaluate(record, models)
    assert found.headline[0].threat_model == worst
    # And a report that is made from the file says so too.
    read = audit_json.from_json(audit_json.to_json(found))
    assert read.headline[0].threat_model.key == 'mine'
