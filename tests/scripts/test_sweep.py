"""Grids of runs: every combination, each finished once."""

import pathlib

from ml_collections import config_dict
import numpy as np
import pytest

from epe_jax import io, typed_json
from epe_jax.audit import attackers
from epe_jax.experiment import audited_run
from epe_jax.experiment.sweeps import (
  seed_sweep,
  sweep,
  sweep_points,
  sweep_process,
)
from epe_jax.report.comparisons import labelled_runs, sweeps

pytestmark = pytest.mark.usefixtures('quick_compilation')

ROOT = pathlib.Path(__file__).parents[2]


def base():
  return config_dict.create(
    task='none', rounds=3, canaries=dict(repetitions=1), seed=0
  )


def test_a_grid_has_every_combination_once():
  axes = [('rounds', (1, 2, 3)), ('canaries.repetitions', (1, 4))]
  points = sweep_points.make_grid(base(), axes)
  found = [(p.config.rounds, p.config.canaries.repetitions) for p in points]
  assert found == [(1, 1), (1, 4), (2, 1), (2, 4), (3, 1), (3, 4)]
  assert len({p.name for p in points}) == 6
  assert points[3].settings == {'rounds': 2, 'canaries.repetitions': 4}


def test_fields_can_change_together():
  points = sweep_points.make_grid(
    base(), [(('rounds', 'seed'), ((1, 7), (2, 8)))]
  )
  assert [(p.config.rounds, p.config.seed) for p in points] == [(1, 7), (2, 8)]


def test_the_base_stays_as_it_is():
  config = base()
  sweep_points.make_grid(config, [('canaries.repetitions', (5,))])
  assert config.canaries.repetitions == 1


@pytest.mark.parametrize(
  ('axes', 'message'),
  [
    ([('round', (1,))], "no field 'round'"),
    ([('canaries', (1,))], "'canaries' is a group of fields; give"),
    ([('rounds', ())], "'rounds' has no values"),
    ([('rounds', (1,)), ('rounds', (2,))], 'two axes set rounds'),
    ([('rounds', (1, 1))], 'make one point twice'),
    ([(('rounds', 'seed'), ((1,),))], 'a value for each field'),
    (
      [('rounds', (1, 'many'))],
      "axis 'rounds' has the value 'many', which is of type str, and not int as "
      'rounds=3 of the config; give values of that type',
    ),
  ],
)
def test_a_grid_that_makes_no_sense_is_refused(axes, message):
  with pytest.raises(ValueError, match=message):
    sweep_points.make_grid(base(), axes)


@pytest.mark.integration
def test_what_failed_is_told_and_tried_again_only_when_asked(tmp_path):
  # Whether a run diverges nobody knows beforehand.
  points = sweep_points.make_grid(tiny(), [('client.learning_rate', (1e30,))])
  (name,) = [point.name for point in points]
  outcome = sweep.run_sweep(points, tmp_path)
  assert outcome.finished == {}
  assert 'ended with 1: FloatingPointError' in outcome.failed[name]
  log = tmp_path / f'{name}.log'
  log.write_text('untouched')
  assert sweep.run_sweep(points, tmp_path).failed == outcome.failed
  assert log.read_text() == 'untouched'
  assert sweep.run_sweep(points, tmp_path, retry=True).failed == outcome.failed
  assert log.read_text().startswith('untouched--- again, ')


@pytest.mark.usefixtures('small_task')
def test_every_point_is_checked_and_every_fault_is_found():
  axes = [
    ('participation.kind', ('shuffled', 'log')),
    ('canaries.repetitions', (1, 2, 3)),
    ('canaries.observed', (8, 1, 1000)),
  ]
  points = sweep_points.make_grid(tiny(), axes)
  faults = sweep_process.find_faults({p.name: p.config for p in points})
  for point in points:
    kind, repetitions, observed = point.settings.values()
    # 1000 canaries in 2 rounds of 4 clients: those that are added to a round
    # take no slot of it. The model has 650 parameters.
    expected = (
      'canaries.observed=1; give at least 2'
      if observed == 1
      else "participation.kind='log' with participation.log=None"
      if kind == 'log'
      else 'canaries.repetitions=3, but there are 2 rounds'
      if repetitions == 3
      else 'has dim=650 parameters'
      if observed == 1000
      else None
    )
    assert (point.name in faults) == (expected is not None)
    assert expected is None or expected in faults[point.name]


def test_data_that_are_not_there_are_a_fault_of_each_point(tmp_path):
  config = load('emnist')['get_config']('smoke')
  config.data.path = str(tmp_path / 'emnist.sqlite')
  points = sweep_points.make_grid(config, [('noise_multiplier', (0.1, 0.2))])
  faults = sweep_process.find_faults({p.name: p.config for p in points})
  assert len(faults) == 2
  assert all('emnist.sqlite does not exist' in x for x in faults.values())


@pytest.mark.integration
def test_no_point_starts_if_one_cannot_be_run(tmp_path):
  axes = [('canaries.repetitions', (1, 3)), ('rounds', (1, 2, 0))]
  with pytest.raises(ValueError, match='4 of 6 points cannot be run') as error:
    sweep.run_sweep(sweep_points.make_grid(tiny(), axes), tmp_path)
  message = str(error.value)
  assert 'canaries.repetitions=3,rounds=2\n    canaries.rep' in message
  assert message.count('rounds=0; give an integer') == 1
  assert not list(tmp_path.iterdir())


@pytest.mark.integration
def test_the_repetitions_of_the_paper_fit_the_default_job():
  """Canaries that are added to a round are not limited by its clients."""
  axes = load('grids')['get_config']('repetitions').axes
  config = load('digits')['get_config']('full')
  points = sweep_points.make_grid(config, axes)
  assert len(points) == 16
  assert not sweep_process.find_faults({p.name: p.config for p in points})


def test_what_is_finished_is_not_made_again(tmp_path):
  points = sweep_points.make_grid(base(), [('rounds', (1, 2))])
  for point in points:
    folder = tmp_path / point.name
    folder.mkdir()
    io.write_json(folder / 'config.json', point.config.to_dict())
    io.write_json(folder / 'result.json', {})
  outcome = sweep.run_sweep(points, tmp_path)
  assert list(outcome.finished) == [point.name for point in points]
  assert not list(tmp_path.glob('*.log'))


def test_the_folder_of_another_config_is_refused_before_any_work(tmp_path):
  first, second = sweep_points.make_grid(base(), [('rounds', (1, 2))])
  folder = tmp_path / second.name
  folder.mkdir()
  io.write_json(folder / 'config.json', first.config.to_dict())
  io.write_json(folder / 'result.json', {})
  with pytest.raises(ValueError, match='rounds was 1 and is 2'):
    sweep.run_sweep([first, second], tmp_path)
  assert not list(tmp_path.glob('*.log'))


def load(name):
  spec = {}
  exec((ROOT / 'configs' / f'{name}.py').read_text(), spec)
  return spec


def test_every_grid_fits_every_config():
  grids = load('grids')
  for task in ('digits', 'emnist', 'stackoverflow'):
    base = load(task)['get_config']()
    for name in grids['_AXES']:
      # The LSTM has sizes of its own.
      if (task, name) != ('stackoverflow', 'dimension'):
        axes = grids['get_config'](name).axes
        assert len(sweep_points.make_grid(base, axes)) >= 2, (task, name)


def tiny():
  config = load('digits')['get_config']('smoke')
  config.rounds, config.clients_per_round, config.model.width = 2, 4, 2
  config.client.epochs = 1
  config.canaries.observed = config.canaries.unobserved = 8
  config.audit.buffer = 2
  return config


@pytest.mark.slow
def test_seeds_of_a_point_are_the_runs_of_these_seeds(tmp_path):
  config = tiny()
  points = sweep_points.make_grid(config, [('noise_multiplier', (0.3,))])
  points = sweep_points.add_seeds(points, 2)
  outcome = sweep.run_sweep(points, tmp_path / 'sweep')
  path = outcome.finished[points[0].name] / 'rows.json'
  rows = seed_sweep.read_rows(path)
  assert [row.seed for row in rows] == [0, 1]
  config.noise_multiplier, config.seed = 0.3, 1
  alone = audited_run.run(config, tmp_path / 'alone')
  own = alone.audit.find(attackers.OWN).find('location_mixture').epsilon
  row = rows[1]
  assert row.epsilon['own_round'] == pytest.approx(own, rel=1e-3)
  run = labelled_runs.load_point('z', path.parent, points[0].settings)
  ((noise, num, *_),) = sweeps.make_settings_table([run]).body
  assert (noise, num) == ('0.3', '2')
  text = sweeps.write_sweep(tmp_path / 'sweep', points, outcome)
  assert 'How much ε varies between runs' in text
  status = sweeps.format_progress(tmp_path / 'sweep')
  assert status.startswith('1 point: 1 finished; 2 of 2 rounds\n')
  # Again: read and not run.
  path.write_text('[]')
  assert sweep.run_sweep(points, tmp_path / 'sweep') == outcome
  assert path.read_text() == '[]'
  # Seeds that had ended before a stop are kept.
  path.unlink()
  io.write_json(
    path.parent / 'private/rows.json', [typed_json.to_plain(rows[0])]
  )
  sweep.run_sweep(points, tmp_path / 'sweep')
  assert seed_sweep.read_rows(path)[0] == rows[0]
  assert seed_sweep.read_rows(path)[1].accuracy == rows[1].accuracy
  assert not (path.parent / 'private/rows.json').exists()


@pytest.mark.integration
def test_seeds_of_a_point_without_canaries_have_their_accuracy(tmp_path):
  config = tiny()
  config.canaries.observed = config.canaries.unobserved = 0
  grid = sweep_points.make_grid(config, [('noise_multiplier', (0.3,))])
  (point,) = sweep_points.add_seeds(grid, 2)
  seed_sweep.run_seeds(point.config, tmp_path)
  rows = seed_sweep.read_rows(tmp_path / 'rows.json')
  assert [row.seed for row in rows] == [0, 1]
  assert all(0 < row.accuracy < 1 and not row.epsilon for row in rows)
  text = sweeps.write_sweep(
    tmp_path, [point], sweep.SweepResult({point.name: tmp_path}, {})
  )
  assert f'{100 * np.mean([row.accuracy for row in rows]):.1f}' in text


def test_seeds_and_an_axis_of_seeds_exclude_each_other():
  points = sweep_points.make_grid(tiny(), [('seed', (0, 1))])
  with pytest.raises(ValueError, match='an axis sets the seed'):
    sweep_points.add_seeds(points, 2)


@pytest.mark.integration
@pytest.mark.usefixtures('small_task')
def test_points_without_canaries_stand_beside_those_with(tmp_path):
  config = tiny()
  both = ('canaries.observed', 'canaries.unobserved')
  points = sweep_points.make_grid(config, [(both, ((0, 0), (8, 8)))])
  for point in points:
    audited_run.run(point.config, tmp_path / point.name)
  outcome = sweep.run_sweep(points, tmp_path)
  text = sweeps.write_sweep(tmp_path, points, outcome)
  without, with_canaries = text.splitlines()[1:3]
  assert 'not of this sweep' not in text
  assert without.split()[-6:-1] == ['-'] * 5, 'only a limit'
  assert '[' in with_canaries
  assert (tmp_path / 'sweep.png').read_bytes()[:4] == b'\x89PNG'
  # A sweep of fewer points into the same folder says that there are more.
  outcome = sweep.run_sweep(points[1:], tmp_path)
  sweeps.write_sweep(tmp_path, points[1:], outcome)
  written = (tmp_path / 'sweep.md').read_text()
  assert 'Points of the folder that are not of this sweep: 1.' in written
