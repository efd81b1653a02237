"""What a user's own observer scores reaches the estimates, and only those."""

import jax.numpy as jnp
import numpy as np
import pytest

from epe_jax import audit
from epe_jax.audit import (
  attackers,
  audited_algorithm,
  observers,
  release,
)
from epe_jax.experiment import audited_run, loop, run_result
from epe_jax.experiment.setup import build
from epe_jax.report import report, words
from tests import helpers

pytestmark = pytest.mark.usefixtures('quick_compilation')


def observe_signs(canary_set):
  """The signs of all updates of the model, added up."""

  def update(total, seen):
    return total + jnp.sign(seen.after - seen.before)

  def scores(total, params):
    del params
    return {'signs': observers.compute_cosines(canary_set, total)}

  init = lambda params: jnp.zeros(canary_set.dim, jnp.float32)
  return audit.Observer(init, update, scores)


def score_signs(record):
  return audit.score_cosines(SIGNS, record, view='signs of all updates')


SIGNS = audit.ThreatModel(
  'signs',
  score_signs,
)


@pytest.mark.integration
def test_an_observer_of_ones_own_is_estimated_beside_the_others(
  small_task, no_floors, coarse_figures, tmp_path
):
  result = audited_run.run(
    helpers.quick_digits(),
    tmp_path,
    observers={'mine': observe_signs},
    threat_models=(SIGNS, *audit.THREAT_MODELS),
  )
  first, *others = result.audit.attacks
  assert first.threat_model == SIGNS
  assert [a.threat_model for a in others] == list(
    attackers.OF_INDEPENDENT_NOISE
  )
  assert (first.num_observed, first.num_unobserved) == (20, 20)
  assert first.view == 'signs of all updates'
  # By how much taking part shifts a sign is not known, and so said.
  assert not first.is_calibrated
  assert first.bounds
  # A report knows of it what the file says, wherever it is made.
  read = run_result.load_result(tmp_path / 'result.json').audit.attacks[0]
  assert words.spell_name(read.threat_model) == 'signs'
  assert read.estimates == first.estimates
  # Only the process of the run can score it, so it has estimated all.
  assert SIGNS in {row.threat_model for row in result.leaks_by_round.each_round}
  again = run_result.load_result(tmp_path / 'result.json')
  assert again.leaks_by_round == result.leaks_by_round
  assert 'signs' in report.format_report(result)
  assert '| signs |' in report.write_report(tmp_path).read_text()
  record = audit.load_record(tmp_path / 'private/scores.npz')
  assert record.cosines['signs'].shape == (40,)
  # Canaries that took part are in what was seen.
  assert score_signs(record).scores.observed.mean() > 0


@pytest.mark.slow
def test_the_largest_cosines_alone_give_what_the_whole_trace_gives(
  small_task, no_floors, coarse_figures, tmp_path
):
  whole, largest = (
    audited_run.run(
      helpers.quick_digits(**{'audit.trace': trace}), tmp_path / str(trace)
    )
    for trace in (True, False)
  )
  kept = audit.load_record(tmp_path / 'False/private/scores.npz')
  assert {x.shape for x in kept.cosines.values()} == {(40,)}
  trace = audit.load_record(tmp_path / 'True/private/scores.npz').trace
  np.testing.assert_allclose(
    kept.cosines['max_aggregate'], trace.max(axis=0), atol=1e-6
  )
  of_both = [r.audit.find(attackers.MAXIMUM) for r in (whole, largest)]
  for one, other in zip(*(attack.estimates for attack in of_both)):
    assert one.method == other.method
    assert one.epsilon == pytest.approx(other.epsilon, rel=1e-3, abs=1e-3)
  models = [a.threat_model for a in largest.audit.attacks]
  assert models == [
    attackers.FINAL,
    attackers.CHANGE,
    attackers.MAXIMUM,
  ]
  text = report.write_report(tmp_path / 'False').read_text()
  assert 'attackers.png' in text
  assert 'by_round.png' not in text


def test_what_is_not_known_to_be_released_is_not_published(record):
  shown = release.redact_record(record)
  assert 'signs' in record.cosines
  assert record.cosines.keys() - shown.cosines.keys() == {'signs', 'residual'}


def test_what_all_rounds_made_is_not_shown_by_some(record):
  some = release.restrict_to_rounds(record, np.arange(6) != 5)
  assert some.cosines.keys() == {'final', 'change', 'aggregate', 'residual'}
  early = release.truncate_after(record, 5)
  assert early.cosines.keys() == {'aggregate', 'residual'}
  last = release.truncate_after(record, 6)
  assert last.cosines.keys() == record.cosines.keys()


@pytest.fixture
def record():
  rng = np.random.default_rng(0)
  included = np.zeros((6, 12), bool)
  included[np.arange(6), np.arange(6)] = True
  row, rows = rng.normal(size=12), rng.normal(size=(6, 12))
  names = ('final', 'change', 'signs', 'max_server_update')
  cosines = dict.fromkeys(names, row)
  return audit.make_record(
    {**cosines, 'aggregate': rows, 'residual': rows},
    audited_algorithm.RoundScalars(
      *[np.ones(6)] * len(audited_algorithm.RoundScalars._fields)
    ),
    included=included,
    dim=1000,
    delta=1e-3,
  )


def test_two_observers_cannot_score_one_name(small_task):
  twice = {'one': observe_signs, 'two': observe_signs}
  with pytest.raises(ValueError, match=r"'two' scores \['signs'\]"):
    build.build(helpers.quick_digits(), observers=twice)


@pytest.mark.usefixtures('types_unchecked')
def test_cosines_of_another_run_are_refused(record):
  rounds = record.rounds
  with pytest.raises(ValueError, match=r"'final' has shape \(3,\)"):
    audit.make_record(
      {'final': np.zeros(3)},
      rounds,
      included=record.included,
      dim=1000,
      delta=1e-3,
    )
  with pytest.raises(ValueError, match='rounds has 6 rounds'):
    audit.make_record(
      {}, rounds, included=record.included[:5], dim=1000, delta=1e-3
    )


def observe_pairs(canary_set):
  """As `observe_signs`, with a state of another shape."""
  signs = observe_signs(canary_set)
  init = lambda params: jnp.zeros((2, canary_set.dim), jnp.float32)
  return signs._replace(init=init)


def observe_others(canary_set):
  """As `observe_signs`, with scores of another name."""
  signs = observe_signs(canary_set)
  return signs._replace(scores=lambda *a: {'others': signs.scores(*a)['signs']})


def stop(*_, **__):
  raise RuntimeError('stopped')


def read_files(folder):
  return {p: p.read_bytes() for p in folder.rglob('*') if p.is_file()}


@pytest.mark.integration
def test_a_run_resumes_with_the_observers_it_began_with_or_not_at_all(
  small_task, tmp_path, monkeypatch
):
  signs = {'signs': observe_signs}
  monkeypatch.setattr(loop.evaluation, 'evaluate', stop)
  with pytest.raises(RuntimeError, match='stopped'):
    audited_run.run(helpers.quick_digits(rounds=2), tmp_path, observers=signs)
  files = read_files(tmp_path)
  for observers_now, message in (
    (None, "observer 'signs' changed since this run began"),
    (
      signs | {'others': observe_others},
      "observer 'others' changed since this run began",
    ),
    ({'signs': observe_pairs}, "observer 'signs' changed since this run began"),
  ):
    with pytest.raises(ValueError, match=f'^{message}, by the digests in'):
      audited_run.run(
        helpers.quick_digits(rounds=2), tmp_path, observers=observers_now
      )
  # Nothing is lost: those it began with take it to its end.
  assert read_files(tmp_path) == files
  monkeypatch.setattr(loop.evaluation, 'evaluate', helpers.no_estimates)
  audited_run.run(helpers.quick_digits(rounds=2), tmp_path, observers=signs)


@pytest.mark.integration
def test_observers_may_change_until_a_round_has_been_made(
  small_task, tmp_path, monkeypatch
):
  def observe_wrongly(canary_set):
    return observe_pairs(canary_set)._replace(update=stop)

  config = helpers.quick_digits(rounds=2)
  with pytest.raises(RuntimeError, match='stopped'):
    audited_run.run(config, tmp_path, observers={'signs': observe_wrongly})
  monkeypatch.setattr(loop.evaluation, 'evaluate', helpers.no_estimates)
  audited_run.run(config, tmp_path, observers={'signs': observe_signs})
