"""Hours of items: their runs are those that are trained, and their time adds up."""

import pathlib

import pytest

from epe_jax.experiment import config_files, sweep, sweep_points
from epe_jax.papers import grid, registry, run_hours
from epe_jax.papers.item import Workspace
from epe_jax.planning import devices, training_costs

STACKOVERFLOW = ('stackoverflow', 'densities', 'bars')
DEVICES = ['cpu', *devices.SHEETS]


def plan(*names, scale='paper', jobs=1, device='h100', **fields):
  return run_hours.plan_items(
    names, scale, jobs=jobs, device=device, fields=fields
  )


@pytest.mark.parametrize('scale', ['smoke', 'small', 'paper'])
def test_the_runs_of_an_experiment_are_those_of_its_grid(scale):
  settings = config_files.load_config(f'paper:{scale}')
  planned = plan(*run_hours.list_grids(scale), scale=scale).items
  for experiment in {x.experiment for x in planned}:
    base = grid.make_base_config(
      settings[experiment], Workspace(pathlib.Path(), synthetic=True)
    )
    points = sweep_points.make_grid(base, settings[experiment].axes)
    runs = [x.runs for x in planned if x.experiment == experiment]
    assert sum(runs) == len(points)


def test_what_is_planned_is_what_would_be_trained(monkeypatch, tmp_path):
  started = {}

  def stop(points, *_, **__):
    started.update({x.name: x.config for x in points})
    raise InterruptedError

  monkeypatch.setattr(sweep, 'run_sweep', stop)
  settings = config_files.load_config('paper:paper')
  item = registry.ITEMS['accuracy']
  with pytest.raises(InterruptedError):
    item.make(
      settings.accuracy, Workspace(tmp_path, {'stackoverflow': tmp_path})
    )
  (planned,) = plan('accuracy').items
  assert planned.runs == len(started)
  assert {x.rounds for x in started.values()} == {planned.training.rounds}
  assert {x.clients_per_round for x in started.values()} == {
    planned.training.clients
  }


def test_shared_runs_are_counted_once():
  planned = plan(*STACKOVERFLOW)
  assert [(x.runs, x.shared) for x in planned.items] == [
    (4, 0),
    (12, 4),
    (0, 16),
  ]
  assert planned.items[2].device_seconds == planned.items[2].seconds == 0
  (alone,) = plan('bars').items
  assert planned.device_seconds == pytest.approx(alone.device_seconds)
  other_order = plan(*reversed(STACKOVERFLOW)).items
  assert [x.runs for x in other_order] == [16, 0, 0]
  # The same config, but in another folder.
  both = plan('emnist', 'emnist_accuracy').items
  assert [x.shared for x in both] == [0, 0]


def test_a_field_that_differs_between_the_runs_has_the_given_value_alone():
  z = {'noise_multiplier': 0.0496}
  assert [x.runs for x in plan('bars', **z).items] == [4]
  assert [x.runs for x in plan('accuracy', **z).items] == [2]
  both = z | {'canaries.repetitions': 2}
  # A table of canaries of one round, too.
  assert [x.runs for x in plan('stackoverflow', **both).items] == [1]
  with pytest.raises(ValueError, match='leave it out'):
    plan('accuracy', **{'canaries.unobserved': 10})


@pytest.mark.parametrize('jobs', [1, 2, 3, 5, 8, 100])
def test_devices_save_time_and_at_most_their_share(jobs):
  planned = plan('accuracy', *STACKOVERFLOW, jobs=jobs)
  for x in (planned, *planned.items):
    assert x.seconds <= x.device_seconds <= jobs * x.seconds * (1 + 1e-9)
  accuracy = planned.items[0]
  waves = -(-accuracy.runs // jobs)
  assert accuracy.seconds == pytest.approx(waves * accuracy.seconds_of_run)
  if jobs == 1:
    assert planned.seconds == planned.device_seconds


@pytest.mark.parametrize('device', DEVICES)
def test_time_is_proportional_to_rounds(device):
  once = plan('emnist', device=device, rounds=400)
  twice = plan('emnist', device=device, rounds=800)
  assert twice.seconds == pytest.approx(2 * once.seconds)


def test_a_floor_is_below_what_was_measured():
  names = ('stackoverflow', 'emnist', 'emnist_5x34')
  sheet = training_costs.choose_sheet('cpu')
  for x in plan(*names, device='cpu').items:
    assert x.measured is not None
    floor = x.training.rounds * training_costs.compute_floor(x.training, sheet)
    assert floor < x.seconds_of_run


def test_a_floor_stands_where_nothing_like_it_was_measured():
  # Of batches that were not measured.
  (other,) = plan('emnist', device='cpu', **{'client.batch_size': 8}).items
  assert other.measured is None
  assert other.seconds_of_run > 0


def test_a_cap_of_examples_is_that_of_the_table():
  (free,) = plan('emnist').items
  assert free.training.examples == pytest.approx(671_585 / 3_400)
  (capped,) = plan('emnist', **{'client.max_examples': 16}).items
  assert capped.training.examples == 16
  (digits,) = plan('emnist', **{'data.only_digits': True}).items
  assert digits.training.examples == pytest.approx(341_873 / 3_383)
  assert digits.training.dim < free.training.dim


def test_what_is_no_grid_is_not_planned_and_says_why():
  planned = plan('emnist', 'algorithm1', 'canife', 'runs', 'tight:table1')
  assert planned.not_planned == {
    'algorithm1': 'no_training',
    'canife': 'no_grid',
    'runs': 'no_grid',
    'tight:table1': 'no_grid',
  }
  assert 'not planned, as their runs are no grid of configs: canife' in (
    ' '.join(str(planned).split()).lower()
  )
  small = plan('emnist', 'bars', scale='medium')
  assert small.not_planned == {'emnist': 'other_scale'}
  assert plan('canife').seconds == 0
  assert 'canife' in str(plan('canife'))


def test_a_table_says_what_its_times_are():
  floor, measured = (str(plan('emnist', device=x)) for x in ('h100', 'cpu'))
  assert 'Floor: no run is faster' in floor
  assert 'Measured:' not in floor
  assert 'Measured:' in measured
  assert 'Floor:' not in measured
  for text in (floor, measured):
    assert 'Training alone' in text
    assert 'client.max_examples' in text
