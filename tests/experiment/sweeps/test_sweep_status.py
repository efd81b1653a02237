"""How far a sweep is can be read from its folder, whoever runs it."""

import json
import math
import os
import subprocess
import sys

from ml_collections import config_dict
import pytest

from epe_jax import io, locks
from epe_jax.experiment.sweeps import sweep, sweep_points, sweep_status
from epe_jax.experiment.sweeps.sweep_status import PointStatus
from epe_jax.report.comparisons import sweeps


@pytest.fixture
def make_point(tmp_path):
  """Makes the folder of a point as a run leaves it."""

  def make(name, *, done=0, rounds=10, seconds=2.0, is_started=True):
    folder = tmp_path / name
    (folder / 'private').mkdir(parents=True)
    if is_started:
      io.write_json(folder / 'config.json', {'rounds': rounds})
      lines = [{'round': i, 'seconds': seconds} for i in range(1, done + 1)]
      text = ''.join(json.dumps(line) + '\n' for line in lines)
      # A line that is being written.
      (folder / 'private/metrics.jsonl').write_text(text + '{"round": 9')
    else:
      (folder / 'private').rmdir()
    return folder

  return make


def find_states(folder):
  return {
    p.name: (p.state, p.rounds_done) for p in sweep_status.find_status(folder)
  }


def test_every_point_is_in_the_state_of_its_files(make_point, tmp_path):
  make_point('new', is_started=False)
  make_point('stopped', done=3)
  io.write_json(make_point('finished', done=10) / 'result.json', {})
  make_point('failed', done=4)
  (tmp_path / f'failed{sweep_status.FAILED}').write_text(
    'ended with 1: no memory'
  )
  (tmp_path / 'other').mkdir()
  (tmp_path / 'other/file').write_text('of nobody')
  running = make_point('running', done=5)
  with locks.hold(running / '.lock', max_wait=0):
    (running / '.lock').write_text('process 7 on node3')
    points = sweep_status.find_status(tmp_path)
    assert find_states(tmp_path) == {
      'new': ('not started', 0),
      'stopped': ('stopped', 3),
      'finished': ('finished', 10),
      'failed': ('failed', 4),
      'running': ('running', 5),
    }
  details = {point.name: point.detail for point in points if point.detail}
  assert details == {
    'failed': 'ended with 1: no memory',
    'running': 'process 7 on node3',
  }
  assert find_states(tmp_path)['running'] == ('stopped', 5)


def test_a_lock_of_a_killed_process_is_nobodys(make_point, tmp_path):
  folder = make_point('killed', done=2)
  code = (
    'import os, pathlib, sys\n'
    'from epe_jax import locks\n'
    'with locks.hold(pathlib.Path(sys.argv[1]), max_wait=0):\n'
    '  os._exit(9)\n'
  )
  lock = folder / '.lock'
  subprocess.run([sys.executable, '-c', code, str(lock)], check=False)
  assert lock.read_text().startswith('process ')
  assert locks.find_holder(lock) is None
  assert find_states(tmp_path) == {'killed': ('stopped', 2)}


def test_a_lock_that_was_looked_at_can_be_taken(tmp_path):
  assert locks.find_holder(tmp_path / 'none') is None
  assert not (tmp_path / 'none').exists()
  (tmp_path / 'lock').touch()
  assert locks.find_holder(tmp_path / 'lock') is None
  with locks.hold(tmp_path / 'lock', max_wait=0):
    holder = locks.find_holder(tmp_path / 'lock')
    assert holder.startswith(f'process {os.getpid()} on ')


def test_a_folder_without_points_is_refused(tmp_path):
  for folder in (tmp_path, tmp_path / 'missing'):
    with pytest.raises(FileNotFoundError, match='no points of a sweep'):
      sweep_status.find_status(folder)


def test_the_time_left_is_that_of_points_side_by_side():
  running = PointStatus('a', 'running', 4, 10, 2.0, '')
  queued = PointStatus('b', 'not started', 0, 0, math.nan, '')
  over = PointStatus('c', 'finished', 10, 10, 2.0, '')
  left = sweep_status.estimate_seconds_left
  assert left([running, over]) == 12
  # A point that never started has as many rounds as others.
  assert left([running, queued, over]) == 32
  assert left([running, running, queued, over]) == 22
  assert math.isnan(left([queued, over]))
  assert math.isnan(left([running._replace(seconds_per_round=math.nan)]))


@pytest.mark.integration
@pytest.mark.usefixtures('small_task')
def test_a_sweep_that_ended_is_shown_with_its_results(tmp_path, capsys):
  from epe_jax.cli import main
  from tests.scripts import test_sweep

  points = sweep_points.make_grid(test_sweep.tiny(), [('rounds', (1, 2))])
  assert isinstance(points[0].config, config_dict.ConfigDict)
  sweep.run_sweep(points, tmp_path)
  assert main(['sweep', f'--status={tmp_path}']) == 0
  said = capsys.readouterr().out
  assert said.startswith('2 points: 2 finished; 3 of 3 rounds\n')
  assert 'rounds=1' in said
  assert 'accuracy' in said
  assert sweeps.format_progress(tmp_path) == said.rstrip('\n')


def test_the_last_lines_of_a_long_log_are_quoted(make_point, tmp_path):
  make_point('a', done=1)
  (tmp_path / f'a{sweep_status.FAILED}').write_text('ended with 1: last')
  lines = [f'line {i}' for i in range(100_000)]
  (tmp_path / 'a.log').write_text('\n'.join(lines) + '\n\n')
  make_point('b', done=1)
  (tmp_path / f'b{sweep_status.FAILED}').write_text('ended by SIGKILL')
  text = sweeps.format_progress(tmp_path)
  quoted = '\n'.join(f'  {line}' for line in lines[-10:])
  assert f'\n\n{tmp_path}/a.log:\n{quoted}\n\n{tmp_path}/b.log:\n' in text
  assert text.endswith('  (no output)')
