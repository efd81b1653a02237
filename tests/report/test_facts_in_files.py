"""The law that results hold keys and numbers, and words are made last."""

import pytest

from epe_jax import io, planning
from epe_jax.audit import evaluation
from epe_jax.experiment import run_result
from epe_jax.fact import Fact
from epe_jax.planning import plans
from epe_jax.report import plans as plan_words
from epe_jax.watch import by_round
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
def test_results_hold_no_english(tmp_path, kind):
  record = _make_record(kind)
  audit = evaluation.evaluate(record, floors=False)
  result = recorded_runs.result(
    audit=audit,
    leaks_by_round=by_round.evaluate_rounds(record, audit),
    amplification=Fact('no_tight_analysis', {'kind': 'fixed_size'}),
  )
  path = tmp_path / 'result.json'
  run_result.write_result(path, result)
  assert run_result.load_result(path) == result
  values = io.read_json(path)
  assert not list(find_sentences(values))
  values['audit']['attacks'][0]['estimates'][0]['kind'] = 'point estimate'
  values['audit']['by what'] = 1
  assert list(find_sentences(values)) == [
    '.audit.attacks[0].estimates[0].kind: point estimate',
    '.audit.by what',
  ]


@pytest.mark.parametrize(
  'changes',
  [
    {'num_observed': 20, 'num_unobserved': 40, 'initial_norm': 1.0},
    {'client_participations': 9},
    {'noise_multiplier': 50.0},
    {'num_observed': 300, 'num_unobserved': 0, 'repetitions': 10},
    {'noise_multiplier': 0.0},
  ],
)
def test_plans_hold_no_english_and_every_key_has_words(changes):
  sizes = {
    'dim': 2000,
    'rounds': 20,
    'clients_per_round': 20,
    'noise_multiplier': 0.7,
    'delta': 1e-5,
    'client_agreement': 0.0,
  }
  plan = planning.plan(planning.PlannedRun(**sizes | changes))
  assert not list(find_sentences(io.spell_non_finite(plan.to_json())))
  assert plan.warnings
  assert {fact.key for fact in plan.warnings} <= {*plan_words.WARNINGS}
  for warning, text in zip(plan.warnings, plans.describe_warnings(plan)):
    assert warning.key.replace('_', ' ') not in text
    assert '_' not in text.replace('client_participations', '')
