"""The law that results hold keys and numbers, and words are made last."""

import pytest

from epe_jax import io
from epe_jax.audit import by_round, evaluation
from epe_jax.experiment import run_result
from epe_jax.fact import Fact
from epe_jax.report import audit_card
from tests import recorded_runs
from tests.sentences import find_sentences


def _make_record(kind):
  match kind:
    case 'models':
      return recorded_runs.by_vectors(momentum=0.9).record
    case 'no noise':
      return recorded_runs.by_vectors(momentum=0.0, noise=0.0).record
    case 'crowded':
      return recorded_runs.by_law(dim=5000, observed=400, unobserved=400)
    case 'several rounds':
      return recorded_runs.by_law(repetitions=3)
    case _:
      return recorded_runs.by_law(design=kind)


@pytest.mark.parametrize(
  'kind',
  ['fixed', 'coin_flip', 'several rounds', 'crowded', 'models', 'no noise'],
)
def test_results_and_cards_hold_no_english(tmp_path, kind):
  record = _make_record(kind)
  audit = evaluation.evaluate(record, floors=False)
  audit = by_round.add_rounds(audit, record)
  result = recorded_runs.result(
    audit=audit,
    amplification=Fact('no_tight_analysis', {'kind': 'fixed_size'}),
  )
  path = tmp_path / 'result.json'
  run_result.write_result(path, result)
  assert run_result.load_result(path) == result
  audit_card.write_card(
    tmp_path / audit_card.FILE, audit_card.make_card(result)
  )
  for name in ('result.json', audit_card.FILE):
    assert not list(find_sentences(io.read_json(tmp_path / name)))


def test_a_sentence_in_a_result_is_found(tmp_path):
  audit = evaluation.evaluate(recorded_runs.by_law(), floors=False)
  path = tmp_path / 'result.json'
  run_result.write_result(path, recorded_runs.result(audit=audit))
  values = io.read_json(path)
  assert not list(find_sentences(values))
  values['audit']['attacks'][1]['estimates'][0]['kind'] = 'point estimate'
  values['audit']['by what'] = 1
  assert list(find_sentences(values)) == [
    '.audit.attacks[1].estimates[0].kind: point estimate',
    '.audit.by what',
  ]
