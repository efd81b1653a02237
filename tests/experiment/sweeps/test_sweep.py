"""When a point of a sweep has ended, whatever its job says of it."""

import functools

import pytest

from epe_jax import io
from epe_jax.experiment.sweeps import launch, sweep, sweep_points
from tests.helpers import load_config


class Jobs:
  """Jobs that have the exit statuses that they are given, one by one."""

  def __init__(self, codes, *, late=0):
    self._codes, self._late = [*codes], late
    self.started = []

  def launch(self):
    return launch.Launcher(self.start, lambda: None)

  def start(self, specs):
    self.started += [spec.workdir.name for spec in specs]
    return [
      launch.Job(functools.partial(self.poll, spec), lambda: None)
      for spec in specs
    ]

  def poll(self, spec):
    if self._codes:
      return self._codes.pop(0)
    self._late -= 1
    if self._late < 0:
      # The file of another machine appears a while after its process has ended.
      io.write_json(spec.workdir / 'config.json', dict(spec.config))
      (spec.workdir / 'result.json').touch()
    return 0


@pytest.fixture
def point(monkeypatch):
  monkeypatch.setattr(sweep, 'check_points', lambda points: None)
  monkeypatch.setattr(sweep, '_INTERVAL', 0.01)
  monkeypatch.setattr(sweep, '_CHECK_EVERY', 0.01)
  return sweep_points.Point('a', {}, load_config('digits'))


def test_a_point_without_a_result_is_started_again(point, tmp_path):
  jobs = Jobs([], late=2)
  outcome = sweep.run_sweep([point], tmp_path, launch=jobs.launch)
  assert jobs.started == ['a', 'a', 'a']
  assert [*outcome.finished] == ['a']


@pytest.mark.parametrize(
  'code', [launch.EXIT_LOST, 143, -15, -9, launch.EXIT_BUSY]
)
def test_what_did_not_fail_by_itself_is_started_again(code, point, tmp_path):
  jobs = Jobs([None, code])
  outcome = sweep.run_sweep([point], tmp_path, launch=jobs.launch)
  assert jobs.started == ['a', 'a']
  assert [*outcome.finished] == ['a']


def test_what_failed_by_itself_is_not(point, tmp_path):
  jobs = Jobs([1])
  outcome = sweep.run_sweep([point], tmp_path, launch=jobs.launch)
  assert jobs.started == ['a']
  assert outcome.failed == {'a': 'ended with 1: no output'}
