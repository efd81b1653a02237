"""When a point of a sweep has ended, whatever its job says of it."""

import contextlib

import pytest

from epe_jax import io
from epe_jax.experiment.sweeps import launchers, sweep, sweep_points
from tests.helpers import load_config


class Jobs:
  """A launcher whose jobs have the exit statuses that it is given, one by one."""

  def __init__(self, codes, *, late=0):
    self._codes, self._late = [*codes], late
    self.started = []

  def start(self, works):
    self.started += [work.workdir.name for work in works]
    return [Job(self, work) for work in works]

  def close(self):
    pass

  def poll(self, work):
    if self._codes:
      return self._codes.pop(0)
    self._late -= 1
    if self._late < 0:
      # The file of another machine appears a while after its process has ended.
      io.write_json(work.workdir / 'config.json', dict(work.config))
      (work.workdir / 'result.json').touch()
    return 0


class Job:
  def __init__(self, jobs, work):
    self._jobs, self._work = jobs, work

  def poll(self):
    return self._jobs.poll(self._work)

  def terminate(self):
    pass


@pytest.fixture
def point(monkeypatch):
  monkeypatch.setattr(sweep, 'check_points', lambda points: None)
  monkeypatch.setattr(sweep, '_INTERVAL', 0.01)
  monkeypatch.setattr(sweep, '_CHECK_EVERY', 0.01)
  return sweep_points.Point('a', {}, load_config('digits'))


def test_a_point_without_a_result_is_started_again(point, tmp_path):
  jobs = Jobs([], late=2)
  outcome = sweep.run_sweep([point], tmp_path, launch=lambda: jobs)
  assert jobs.started == ['a', 'a', 'a']
  assert [*outcome.finished] == ['a']


@pytest.mark.parametrize(
  'code', [launchers.EXIT_LOST, 143, -15, -9, launchers.EXIT_BUSY]
)
def test_what_did_not_fail_by_itself_is_started_again(code, point, tmp_path):
  jobs = Jobs([None, code])
  outcome = sweep.run_sweep([point], tmp_path, launch=lambda: jobs)
  assert jobs.started == ['a', 'a']
  assert [*outcome.finished] == ['a']


def test_what_failed_by_itself_is_not(point, tmp_path):
  jobs = Jobs([1])
  outcome = sweep.run_sweep([point], tmp_path, launch=lambda: jobs)
  assert jobs.started == ['a']
  assert outcome.failed == {'a': 'ended with 1: no output'}


@pytest.mark.parametrize('faults', [1, 2])
def test_tables_that_cannot_be_written_stop_no_run(faults, point, tmp_path):
  def watch(outcome):
    told.append([*outcome.finished])
    if len(told) <= faults:
      raise OSError('no space left')

  told = []
  points = [point, point._replace(name='b')]
  # The last of two writes is what the sweep leaves.
  fails = faults == 2
  with (
    pytest.raises(OSError, match='no space')
    if fails
    else contextlib.nullcontext()
  ):
    sweep.run_sweep(points, tmp_path, launch=lambda: Jobs([]), watch=watch)
  assert told[-1] == ['a', 'b']
