"""The run: its files, its results, its refusals."""

import functools
import json
import pathlib
import time

import numpy as np
import pytest

from epe_jax import io
from epe_jax.audit import attackers, evaluation
from epe_jax.audit.record_file import load_record
from epe_jax.data import cohort
from epe_jax.epsilon import diagnostics
from epe_jax.epsilon.types import Sphere
from epe_jax.experiment import (
  audited_run,
  finished_runs,
  metrics,
  run_result,
  workdirs,
)
from epe_jax.experiment.setup import build
from epe_jax.report import report
from epe_jax.tasks import digits as digits_task
from tests.helpers import count_traces, load_config, softmax_regression
from tests.sentences import find_sentences

pytestmark = pytest.mark.usefixtures('quick_compilation')

ROOT = pathlib.Path(__file__).parents[2]
DIM = 40_000


def train_wide(config, workdir):
  """A run of so many parameters that canaries stand out, compiled in no time."""
  task = softmax_regression(unused=DIM - 650)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(digits_task, 'task', lambda width: task)
    # Floors take most of the time.
    evaluate = functools.partial(evaluation.evaluate, floors=False)
    patch.setattr(evaluation, 'evaluate', evaluate)
    return workdir, audited_run.run(config, workdir)


@pytest.fixture(scope='session')
def finished(tmp_path_factory):
  workdir = tmp_path_factory.mktemp('runs') / 'smoke'
  return train_wide(load_config('digits'), workdir)


def test_a_run_writes_facts_and_no_english(finished):
  workdir, _ = finished
  assert not list(find_sentences(io.read_json(workdir / 'result.json')))


def test_a_run_writes_what_it_promises(finished):
  workdir, result = finished
  assert run_result.load_result(workdir / 'result.json') == result
  assert result.delta == pytest.approx(200**-1.1)
  assert result.dim == DIM
  audit = result.audit
  assert [attack.threat_model for attack in audit.attacks] == list(
    attackers.OF_INDEPENDENT_NOISE
  )
  assert [attack.view for attack in audit.attacks] == [
    'final_model',
    'initial_and_final_model',
    'all_iterates',
    'all_iterates',
    'all_iterates',
    'all_iterates_and_updates',
  ]
  for attack in audit.attacks:
    for estimate in attack.estimates:
      assert estimate.epsilon >= 0
      assert estimate.confidence in (None, 0.95)
  scores = load_record(workdir / 'private/scores.npz')
  assert scores.trace.shape == scores.cosines['residual'].shape == (6, 40)
  assert scores.included.shape == (6, 40)
  assert scores.expected.shape == (6,)
  assert (
    scores.cosines['final'].shape == scores.cosines['change'].shape == (40,)
  )
  assert scores.observed.sum() == 20
  lines = (workdir / 'private/metrics.jsonl').read_text().splitlines()
  assert [json.loads(line)['round'] for line in lines] == list(range(7))
  assert json.loads(lines[-1])['test_accuracy'] == result.accuracy
  spread = [json.loads(line)['effective_dimension'] for line in lines[1:]]
  dimension = result.effective_dimension
  assert (dimension.family, dimension.threshold) == ('sphere', None)
  assert dimension.min_round == min(spread)
  assert dimension.median_round == pytest.approx(np.median(spread))
  # Normal noise has d / 3, and nothing has more than d.
  assert result.dim / 30 < min(spread) <= max(spread) < result.dim
  assert 1 < dimension.final_model < result.dim
  assert 1 < dimension.change < result.dim


def test_observed_canaries_stand_out_in_their_own_round(finished):
  workdir, result = finished
  scores = load_record(workdir / 'private/scores.npz')
  root_d = np.sqrt(result.dim)
  own = scores.included
  # sqrt(d) cos has mean 1 / sigma_eff, about 5 for z = 0.2, and variance 1.
  assert (scores.trace[own] * root_d).mean() > 3
  # 220 null cosines: the mean of their squares is 1 up to 5 sqrt(2 / 220).
  null = scores.trace[~own] * root_d
  assert abs(np.mean(null**2) - 1) < 5 * np.sqrt(2 / null.size)


def test_a_finished_run_is_read_back_and_not_trained_again(
  finished, monkeypatch
):
  workdir, result = finished
  monkeypatch.setattr(build, 'build', pytest.fail)
  again = audited_run.run(load_config('digits'), workdir)
  assert again == result


def test_a_finished_run_is_found_by_its_config(finished, tmp_path):
  workdir, result = finished
  assert finished_runs.find_result(workdir, load_config('digits')) == result
  other = load_config('digits', seed=1)
  assert finished_runs.find_result(workdir, other) is None
  assert finished_runs.find_result(tmp_path, other) is None


@pytest.mark.integration
def test_the_report_of_a_run_is_drawn_from_its_files(finished, coarse_figures):
  workdir, _ = finished
  text = report.write_report(workdir).read_text()
  assert 'last model' in text.lower()
  for name in ('densities', 'trace', 'accuracy'):
    assert (workdir / f'{name}.png').read_bytes().startswith(b'\x89PNG')


@pytest.fixture(scope='session')
def flipped(tmp_path_factory):
  workdir = tmp_path_factory.mktemp('runs') / 'coins'
  config = load_config(
    'digits',
    **{
      'canaries.schedule': 'coin_flip',
      'canaries.observed': 100,
      'canaries.unobserved': 100,
      'audit.delta': 1e-5,
    },
  )
  return train_wide(config, workdir)


@pytest.mark.integration
def test_by_coins_every_reading_has_bounds_from_one_run(flipped, finished):
  _, result = flipped
  analytic = result.analytic_epsilon
  for attack in result.audit.attacks:
    for method in ('one_run', 'one_run_gdp'):
      bound = attack.find(method)
      assert bound.confidence == 0.95
      assert 0 <= bound.epsilon <= analytic
      if attack.threat_model == attackers.OWN:
        assert bound.epsilon > 1
  for attack in finished[1].audit.attacks:
    assert not any(e.method.startswith('one_run') for e in attack.estimates)


@pytest.mark.integration
def test_by_coins_scores_say_so_and_the_report_too(flipped):
  workdir, result = flipped
  scores = load_record(workdir / 'private/scores.npz')
  assert scores.design == 'coin_flip'
  np.testing.assert_array_equal(scores.assigned.sum(axis=0), 1)
  np.testing.assert_array_equal(
    scores.included, scores.assigned & scores.observed
  )
  assert result.num_observed == scores.observed.sum()
  text = ' '.join(report.format_report(result).split())
  assert f'{result.num_observed:,} canaries took part' in text
  assert 'rounds of a canary: one round, each with probability 1/2' in text


def test_a_canary_whose_coin_says_no_has_null_cosines(flipped):
  scores = load_record(flipped[0] / 'private/scores.npz')
  away = ~scores.observed
  for name, cosines in (
    ('own round', scores.trace[scores.assigned & away]),
    ('final', scores.cosines['final'][away]),
    ('change', scores.cosines['change'][away]),
    ('residual', scores.cosines['residual'][scores.assigned & away]),
  ):
    test = diagnostics.anderson_darling_null(cosines, null=Sphere(scores.dim))
    # A wrong alarm once in 10,000 runs for each.
    assert test.p_value > 1e-4, name
  own = scores.trace[scores.included]
  test = diagnostics.anderson_darling_null(own, null=Sphere(scores.dim))
  assert test.p_value < 1e-4


@pytest.mark.integration
@pytest.mark.usefixtures('unestimated')
def test_a_whole_run_is_traced_once(tmp_path, monkeypatch):
  traces = count_traces(monkeypatch)
  config = load_config('digits', **{'canaries.family': 'hadamard'})
  audited_run.run(config, tmp_path / 'run')
  # A batch, and the half of one.
  assert sorted(traces) == [4, 8]


@pytest.mark.integration
@pytest.mark.usefixtures('small_task', 'unestimated')
def test_a_run_says_how_long_it_waited_for_data(tmp_path, monkeypatch):
  gather = cohort.gather

  def slow(*a, **k):
    time.sleep(0.2)
    return gather(*a, **k)

  monkeypatch.setattr(cohort, 'gather', slow)
  result = audited_run.run(load_config('digits'), tmp_path / 'run')
  lines = (tmp_path / 'run' / 'private/metrics.jsonl').read_text().splitlines()
  records = [json.loads(line) for line in lines][1:]
  # Each cohort is made in 0.2 s: a round and the wait for it last longer.
  assert sum(r['waited'] + r['seconds'] for r in records) > 0.2 * 6
  waited = sum(r['waited'] for r in records[1:])
  seconds = sum(r['seconds'] for r in records)
  assert result.waited_share == pytest.approx(waited / (waited + seconds))


@pytest.mark.integration
def test_a_run_evaluates_on_as_many_examples_as_asked_for():
  for asked, found in ((10, 10), (None, 359), (1000, 359)):
    config = load_config('digits', evaluate_examples=asked)
    assert build.build(config).test.num_examples == found


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'clients_per_round': 201}, 'clients_per_round=201, but .* 200'),
    ({'server.optimizer': 'adam'}, r'with server\.momentum=0\.9'),
    ({'canaries.observed': 1}, r'canaries\.observed=1; give at least 2'),
    ({'canaries.observed': 0}, '=0; give at least 2.*without an audit give 0'),
    ({'canaries.unobserved': 1}, r'canaries\.unobserved=1 says nothing'),
    ({'canaries.repetitions': 7}, 'repetitions=7, but there are 6 rounds'),
    ({'canaries.unobserved': 60_000}, 'dim=55210'),
    (
      {'noise_multiplier': 100.0},
      r'clipping\.count_noise=0\.05, a share .* more than \d.*fixed',
    ),
    (
      {'audit.claim': 5.0, 'audit.trace': False},
      r'audit\.claim=5\.0 .* audit\.trace=False keeps none',
    ),
    (
      {
        'audit.claim': 5.0,
        'canaries.observed': 0,
        'canaries.unobserved': 0,
      },
      r'audit\.claim=5\.0 is tested by canaries',
    ),
    ({'data.num_clients': 5000}, 'num_clients=5000'),
  ],
)
def test_bad_settings_are_refused_before_training(tmp_path, changes, message):
  config = load_config('digits', **changes)
  with pytest.raises(ValueError, match=message):
    audited_run.run(config, tmp_path / 'run')
  assert not (tmp_path / 'run' / 'config.json').exists()


def test_a_workdir_of_another_config_is_refused(finished):
  workdir, _ = finished
  config = load_config('digits', noise_multiplier=0.5)
  with pytest.raises(
    ValueError, match=r'another config: noise_multiplier was 0\.2 and is 0\.5'
  ):
    audited_run.run(config, workdir)


def test_a_folder_of_other_things_is_refused(tmp_path):
  (tmp_path / 'thesis.tex').write_text('x')
  with pytest.raises(ValueError, match=r'no config\.json'):
    audited_run.run(load_config('digits'), tmp_path)


def test_emnist_needs_a_path(tmp_path):
  with pytest.raises(ValueError, match=r'data\.path'):
    audited_run.run(load_config('emnist'), tmp_path / 'run')


@pytest.mark.integration
@pytest.mark.usefixtures('small_task', 'undrawn', 'no_floors')
def test_zero_noise_has_an_infinite_analytic_epsilon(tmp_path):
  config = load_config('digits', noise_multiplier=0.0, rounds=2)
  config.client.update(epochs=1, max_examples=8)
  config.canaries.update(family='hadamard', observed=8, unobserved=8)
  result = audited_run.run(config, tmp_path / 'run')
  assert result.analytic_epsilon == float('inf')
  stored = run_result.load_result(tmp_path / 'run' / 'result.json')
  assert stored == result
  text = report.write_report(tmp_path / 'run').read_text()
  assert '| limit of canaries and clients | ∞: ' in text
  assert 'Without noise there is no limit' in text
  scores = load_record(tmp_path / 'run' / 'private/scores.npz')
  assert report.format_estimates(evaluation.evaluate(scores, more=True))


@pytest.mark.integration
@pytest.mark.usefixtures('small_task')
def test_a_diverged_run_stops_with_what_to_change(tmp_path):
  config = load_config('digits')
  config.client.learning_rate = 1e38
  config.simulation = False
  run = tmp_path / 'run'
  with pytest.raises(FloatingPointError, match=r'client\.learning_rate=1e\+38'):
    audited_run.run(config, run)
  assert (run / 'config.json').exists()
  assert (run / 'private' / 'secret').exists()
  # No round was made, so the config that mends it may have its place.
  mended, files = load_config('digits', rounds=2), workdirs.workdir_at(run)
  workdirs.reserve(run, mended)
  with workdirs.lock(files):
    workdirs.clear_other_run(files, mended)
  assert not files.config.exists()
  assert not files.secret.exists()


@pytest.mark.parametrize(
  'what', ['checkpoint', 'result', 'rows', 'private/rows']
)
def test_a_run_that_has_begun_keeps_its_place(tmp_path, what):
  config, files = load_config('digits'), workdirs.workdir_at(tmp_path)
  files.private.mkdir()
  io.write_json(files.config, config.to_dict())
  metrics.append_line(files.metrics, {'round': 0})
  workdirs.reserve(tmp_path, load_config('digits', rounds=7))
  if what == 'checkpoint':
    files.checkpoints.mkdir()
    (files.checkpoints / '25.npz').touch()
  else:
    io.write_json(tmp_path / f'{what}.json', {})
  with pytest.raises(ValueError, match='rounds was 6 and is 7'):
    workdirs.reserve(tmp_path, load_config('digits', rounds=7))
  workdirs.reserve(tmp_path, config)
