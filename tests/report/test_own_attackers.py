"""An attacker that is defined in one place shows up wherever attackers are shown."""

import json

import numpy as np
import pytest

from epe_jax import audit
from epe_jax.audit import evaluation, release
from epe_jax.audit.record_file import write_record
from epe_jax.experiment import (
  finished_runs,
  own_attacker_scores,
  run_result,
)
from epe_jax.report import report, words
from epe_jax.report.comparisons import comparison, labelled_runs
from epe_jax.report.figures import comparison as figures
from epe_jax.report.figures import of_audit, style
from epe_jax.watch import by_round
from tests import recorded_runs

pytestmark = pytest.mark.usefixtures('quick_compilation')

MINE = audit.ThreatModel(
  key='mine',
  name='my own attack',
  score=lambda record: audit.score_cosines(
    MINE, record, view='what I saw', shift=record.weight
  ),
  analytic_epsilon=audit.bound_unknown_rounds,
)


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """A finished run, whose result.json no longer knows how MINE scores."""
  folder = tmp_path_factory.mktemp('mine')
  (folder / 'private').mkdir()
  record = recorded_runs.by_vectors(momentum=0.9).record
  record = recorded_runs.replace_cosines(record, mine=record.cosines['change'])
  found = evaluation.evaluate(
    record, threat_models=(*audit.THREAT_MODELS, MINE), floors=False
  )
  write_record(folder / 'private/scores.npz', record)
  own_attacker_scores.add_attack_scores(folder / 'private/scores.npz', found)
  config = recorded_runs.result().config
  result = recorded_runs.result(
    audit=found,
    leaks_by_round=by_round.evaluate_rounds(record, found),
    config=config | {'clients_per_round': 3, 'audit': {}},
  )
  result = recorded_runs.fit_result(result, record)
  run_result.write_result(folder / 'result.json', result)
  lines = [json.dumps(r) + '\n' for r in recorded_runs.metrics(12)]
  (folder / 'private/metrics.jsonl').write_text(''.join(lines))
  return folder


@pytest.fixture(scope='module')
def run(folder):
  return finished_runs.load_finished_run(folder)


def test_it_is_read_back_with_its_scores(run):
  attack = run.result.audit.find(MINE)
  np.testing.assert_array_equal(
    attack.scores.observed, MINE.score(run.record).scores.observed
  )
  assert attack.scores.null == MINE.score(run.record).scores.null
  assert words.spell_statistic(attack.threat_model) == words.spell_statistic(
    MINE
  )
  # Of the attackers of this package the record has all.
  assert all(a.scores is not None for a in run.result.audit.attacks)


def test_its_rounds_are_read_back(run):
  rows = [
    x for x in run.result.leaks_by_round.each_round if x.threat_model == MINE
  ]
  assert rows
  everything = by_round.evaluate_by_round(
    run.record,
    rounds=sorted({x.round for x in run.result.leaks_by_round.each_round}),
    models=(*audit.THREAT_MODELS, MINE),
  )
  assert rows == [x for x in everything if x.threat_model == MINE]
  # Adding them changes no row of another attacker.
  others = [x for x in everything if x.threat_model != MINE]
  assert others == [
    x for x in run.result.leaks_by_round.each_round if x.threat_model != MINE
  ]


@pytest.mark.integration
def test_it_is_in_the_report(folder):
  text = report.write_report(folder).read_text()
  assert '| my own attack |' in text
  page = (folder / 'report.html').read_text()
  assert 'my own attack' in page


def test_it_is_in_every_figure_of_attackers(run):
  drawn = of_audit.draw_run(run.result, run.record, run.history)
  for name in ('overview', 'densities', 'tradeoff'):
    titles = [axes.get_title() for axes in drawn[f'{name}.png'].axes]
    assert any(title.startswith('my own attack') for title in titles), name
  (axes,) = drawn['attackers.png'].axes
  assert 'my own attack' in [x.get_text() for x in axes.get_yticklabels()]
  for axes in drawn['by_round.png'].axes:
    assert 'my own attack' in axes.get_legend_handles_labels()[1]
  (axes,) = drawn['delta.png'].axes
  assert 'my own attack' in axes.get_legend_handles_labels()[1]


def test_it_is_compared_between_runs(run):
  runs = [labelled_runs.label_run(label, run.result) for label in 'ab']
  names = [line[0] for line in comparison.make_table(runs).body]
  assert names.count('my own attack') == 2
  upper, _ = figures.draw_comparison(
    runs, labelled_runs.subtract_first(runs)
  ).axes
  assert 'my own attack' in upper.get_legend_handles_labels()[1]


def test_attackers_of_one_figure_look_different():
  others = [audit.ThreatModel(key) for key in ('one', 'two', 'three')]
  styles = style.assign_styles([*others, *audit.THREAT_MODELS])
  assert len(set(styles.values())) == len(styles)
  assert {*others, *audit.THREAT_MODELS} == styles.keys()
  assert style._STYLES.keys() == {x.key for x in audit.THREAT_MODELS}
  # What others are drawn does not change how those of this package look.
  assert styles.items() >= style.assign_styles([]).items()


def test_what_may_not_be_published_has_no_scores(run):
  """Nothing shows that an observer of a user follows from what was released."""
  shown = release.redact_record(run.record)
  assert MINE.score(shown) is None
