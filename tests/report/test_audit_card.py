"""audit_card.json: its schema, what it says, and what it does not."""

import copy
import dataclasses
import hashlib
import json
import math

import numpy as np
import pytest

from epe_jax import io
from epe_jax.audit import attack_results, evaluation, release
from epe_jax.report import audit_card, provenance
from tests import recorded_runs


@pytest.fixture(scope='module')
def record():
  return recorded_runs.by_law()


@pytest.fixture(scope='module')
def card(record):
  audit = evaluation.evaluate(record)
  result = recorded_runs.result(audit=audit)
  belongs_to = provenance.identify_run(result)
  return audit_card.make_card(result, belongs_to)


def test_a_card_is_read_as_it_was_written(card, tmp_path):
  path = tmp_path / audit_card.FILE
  audit_card.write_card(path, card)
  assert audit_card.load_card(path) == audit_card.load_card(tmp_path) == card
  with pytest.raises(FileNotFoundError, match='epe-jax report'):
    audit_card.load_card(tmp_path / 'none')


def test_a_card_has_the_headline_of_the_audit(card, record):
  attack, bound, _ = evaluation.evaluate(record, floors=False).headline
  headline = card['audit']['headline']
  assert headline['epsilon'] == bound.epsilon
  assert headline['confidence'] == 0.95
  assert headline['threat_model'] == attack.threat_model.key
  floor = headline['point_estimate']['floor']
  assert 0 <= floor['q05'] <= floor['q95']
  assert f'≥ {bound.epsilon:.1f}' in audit_card.format_cards([card])
  assert card['analytic']['canaries']['epsilon'] == 35.5
  assert card['delta'] == 1e-5


@pytest.mark.parametrize(
  ('field', 'damage'),
  [
    ('delta', lambda c: c.update(delta=1.5)),
    ('canaries.observed', lambda c: c['canaries'].update(observed='many')),
    (
      'audit.headline.epsilon',
      lambda c: c['audit']['headline'].update(epsilon=-1.0),
    ),
    ('record.sha256', lambda c: c['record'].update(sha256='x')),
    ("'software' is a required", lambda c: c.pop('software')),
    ('secret', lambda c: c.update(secret='abc')),
    ('schema_version=1', lambda c: c.update(schema_version=1)),
    ('KeyError', lambda c: c['audit']['attacks'][0].pop('rates')),
  ],
)
def test_a_card_that_is_wrong_is_refused_by_the_name_of_its_field(
  card, tmp_path, field, damage
):
  wrong = copy.deepcopy(card)
  damage(wrong)
  path = tmp_path / 'card.json'
  io.write_sealed(path, wrong)
  with pytest.raises(ValueError, match=field.replace('.', r'\.')) as error:
    audit_card.load_card(path)
  assert str(path) in str(error.value)
  with pytest.raises(ValueError, match=r'is not an audit card|schema_version'):
    audit_card.write_card(tmp_path / 'other.json', wrong)
  assert not (tmp_path / 'other.json').exists()


def test_a_card_belongs_to_a_run_a_model_a_record_and_a_day(record, tmp_path):
  audit = evaluation.evaluate(record, floors=False)
  model = tmp_path / 'model.npz'
  cards = []
  for content in (b'one', b'one', b'other'):
    model.write_bytes(content)
    result = recorded_runs.result(
      audit=audit,
      model_sha256=io.hash_file(model),
      record_sha256=release.hash_record(record),
    )
    belongs_to = provenance.identify_run(result, model=model)
    cards.append(audit_card.make_card(result, belongs_to))
    assert f'2026-11-24, run {belongs_to.run_id}, model ' in str(belongs_to)
  first, same, other = cards
  assert first['date'] == '2026-11-24'
  assert first['model'] == {'sha256': hashlib.sha256(b'one').hexdigest()}
  assert first['record'] == {'sha256': release.hash_record(record)}
  # A run that is repeated bit for bit is the same run.
  assert first['run_id'] == same['run_id'] != other['run_id']
  # Of a result alone that is not known.
  alone = audit_card.make_card(result, provenance.Provenance(result.date))
  assert alone['run_id'] is alone['model'] is alone['record'] is None
  audit_card.write_card(tmp_path / 'card.json', alone)


def test_the_hash_is_of_what_may_be_published(record):
  digest = release.hash_record(record)
  trace = record.trace.copy()
  trace[0, 0] = np.nextafter(trace[0, 0], np.float32(1))
  name = record.sees
  changed = recorded_runs.replace_cosines(record, **{name: trace})
  assert release.hash_record(changed) != digest
  # What noise does not hide is not part of it, and cannot be guessed from it.
  secret = recorded_runs.replace_cosines(record, residual=None)
  assert release.hash_record(secret) == digest


def test_a_card_without_noise_spells_infinity():
  audit = evaluation.evaluate(recorded_runs.by_law(), floors=False)
  result = recorded_runs.result(
    audit=audit, analytic_epsilon=math.inf, clients_analytic_epsilon=math.inf
  )
  card = audit_card.make_card(result)
  assert card['analytic']['canaries']['epsilon'] == 'Infinity'
  assert card['record'] is None
  json.dumps(card, allow_nan=False)
  assert '∞' in audit_card.format_cards([card])


def test_cards_stand_side_by_side(card):
  other = copy.deepcopy(card)
  for attack in other['audit']['attacks']:
    attack['estimates'] = attack['estimates'][:1]
  lines = audit_card.format_cards({'one': card, 'two': other}).splitlines()
  assert lines[0].split() == ['one', 'two']
  (bound,) = [line for line in lines if line.startswith('lower bound')]
  assert bound.split()[-1] == '-'
  (delta,) = [line for line in lines if line.startswith('δ')]
  assert delta.split() == ['δ', '1e-5', '1e-5']
  with pytest.raises(ValueError, match='one or more'):
    audit_card.format_cards([])


def test_a_run_without_an_audit_has_no_card():
  result = recorded_runs.result(num_observed=0, audit=attack_results.Audit(()))
  with pytest.raises(ValueError, match='was not audited'):
    audit_card.make_card(result)


def test_nothing_of_the_machine_is_on_a_card():
  audit = evaluation.evaluate(recorded_runs.by_law(), floors=False)
  result = dataclasses.replace(
    recorded_runs.result(audit=audit), data='files of /home/ada/data/emnist'
  )
  assert 'ada' not in json.dumps(audit_card.make_card(result))


def test_a_card_says_what_is_expected_of_a_client(record):
  audit = evaluation.evaluate(record, floors=False)
  result = recorded_runs.result(
    audit=audit,
    clients_participations=9,
    clients_shifts=recorded_runs.client_shifts(record, 9),
  )
  card = audit_card.make_card(result)
  client = card['client']
  assert client['participations'] == 9
  assert client['expected_epsilon'].keys() == {'final', 'change'}
  for expected in client['expected_epsilon'].values():
    assert 0 <= expected['orthogonal'] <= expected['agreeing']
  text = audit_card.format_cards([card])
  assert 'rounds of a client' in text
  assert 'ε of a client, final model' in text
