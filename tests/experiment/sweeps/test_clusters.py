"""Points end once and alike wherever they run, and whatever happens to their jobs.

Slurm is the real one, on the loopback, and so is Ray, with two nodes.
"""

import importlib
import os
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest

from epe_jax.audit import record_file
from epe_jax.experiment import finished_runs, workdirs
from epe_jax.experiment.sweeps import launch, sweep, sweep_points
from epe_jax.report import first_page
from tests import clusters
from tests.experiment import test_own_tasks

pytestmark = [
  pytest.mark.integration,
  pytest.mark.usefixtures('quick_compilation'),
]

_SECONDS = 240


@pytest.fixture
def points(tmp_path, monkeypatch):
  """Points of a task in a file, which processes on nodes find."""
  (tmp_path / 'a_job.py').write_text(
    'from tests.experiment import test_own_tasks\nload = test_own_tasks.load\n'
  )
  root = pathlib.Path(__file__).parents[3]
  monkeypatch.setenv('PYTHONPATH', f'{root}{os.pathsep}{tmp_path}')
  monkeypatch.syspath_prepend(str(tmp_path))
  monkeypatch.chdir(tmp_path)
  config = test_own_tasks.make_config(task='a_job:load')
  return sweep_points.make_grid(config, [('data.seed', (0, 1, 2, 3))])


@pytest.fixture
def slurm(tmp_path):
  """A cluster of this machine, with two slots."""
  pytest.importorskip('submitit')
  try:
    with clusters.run_slurm(tmp_path) as cluster:
      yield cluster
  except clusters.Missing as missing:
    pytest.skip(f'{missing}.')


@pytest.fixture
def ray():
  """A cluster of this machine, with two nodes of a slot each."""
  try:
    with clusters.run_ray() as cluster:
      yield cluster
  except clusters.Missing as missing:
    pytest.skip(f'{missing}.')


def launch_on_slurm(tmp_path):
  return launch.make_launcher(
    'slurm',
    options={'cpus_per_task': 1, 'timeout_min': 20},
    folder=tmp_path / 'slurm',
  )


def run_on_slurm(points, tmp_path):
  return sweep.run_sweep(
    points, tmp_path / 'slurm', launch=lambda: launch_on_slurm(tmp_path)
  )


def run_on_ray(points, ray, tmp_path):
  options = {'address': ray.address, 'num_cpus': 1}
  return sweep.run_sweep(
    points,
    tmp_path / 'ray',
    launch=lambda: launch.make_launcher('ray', options=options),
  )


@pytest.fixture
def undisturbed(points, tmp_path):
  """What the points show where nothing happens."""
  outcome = sweep.run_sweep(points, tmp_path / 'local')
  assert len(outcome.finished) == len(points)
  return describe(outcome)


def test_slurm_gives_what_this_machine_gives(
  points, slurm, undisturbed, tmp_path
):
  outcome = run_on_slurm(points, tmp_path)
  assert describe(outcome) == undisturbed
  assert not outcome.failed


def test_a_point_on_slurm_may_be_a_run_of_several_processes(
  points, slurm, undisturbed, tmp_path, monkeypatch
):
  monkeypatch.setenv('JAX_NUM_CPU_DEVICES', '1')
  make_launcher = lambda: launch.make_launcher(
    'slurm',
    options={'tasks_per_node': 2, 'cpus_per_task': 1, 'timeout_min': 20},
    folder=tmp_path / 'slurm',
  )
  outcome = sweep.run_sweep(
    points[:2], tmp_path / 'slurm', launch=make_launcher
  )
  assert [*outcome.finished] == [*undisturbed][:2]
  for name, folder in outcome.finished.items():
    # Sums over processes round in another order.
    one, several = (
      record_file.load_record(workdirs.workdir_at(path).scores).cosines['final']
      for path in (tmp_path / 'local' / folder.name, folder)
    )
    np.testing.assert_allclose(several, one, rtol=1e-4, atol=1e-5, err_msg=name)


def test_ray_with_two_nodes_gives_what_this_machine_gives(
  points, ray, undisturbed, tmp_path
):
  outcome = run_on_ray(points, ray, tmp_path)
  assert describe(outcome) == undisturbed


def test_a_node_of_ray_that_is_gone_loses_nothing(
  points, ray, undisturbed, tmp_path, monkeypatch
):
  killed = []

  def kill(*_, **__):
    # Once both nodes are at work.
    if not killed and len([*tmp_path.glob('ray/*/.lock')]) == 2:
      killed.extend(ray.second)
      for pid in killed:
        os.kill(pid, signal.SIGKILL)

  do_before(monkeypatch, importlib.import_module('ray'), 'wait', kill)
  outcome = run_on_ray(points, ray, tmp_path)
  assert len(killed) == 1
  assert describe(outcome) == undisturbed


def test_a_job_that_is_killed_is_started_again(
  points, slurm, undisturbed, tmp_path, monkeypatch
):
  monkeypatch.setattr(launch, '_GRACE', 1.0)
  killed = []

  def kill(period):
    del period
    running = list_running()
    if not killed and running:
      killed.append(running[0])
      clusters.ask('scancel', '--signal=KILL', '--full', running[0])

  do_before(monkeypatch, launch, '_list_queue', kill)
  outcome = run_on_slurm(points, tmp_path)
  assert killed
  assert describe(outcome) == undisturbed


def test_a_controller_that_restarts_loses_nothing(
  points, slurm, undisturbed, tmp_path, monkeypatch
):
  list_queue, again = launch._list_queue, []

  def restart(period):
    if not again:
      slurm.kill('slurmctld')
      # Nobody answers, and nothing is taken for lost.
      assert list_queue(-1) is None
      slurm.start('slurmctld')
      again.append(period)
      clusters.wait_for(lambda: clusters.ask('squeue') != '')

  do_before(monkeypatch, launch, '_list_queue', restart)
  outcome = run_on_slurm(points, tmp_path)
  assert again
  assert describe(outcome) == undisturbed


@pytest.mark.parametrize('signum', [signal.SIGUSR2, signal.SIGTERM])
def test_a_job_that_is_told_to_stop_saves_and_goes_on(
  signum, points, slurm, undisturbed, tmp_path, monkeypatch
):
  """Its first process alone is told, as with cgroups."""
  told = []

  def preempt(period):
    del period
    if not told and any(tmp_path.glob('slurm/*/private/metrics.jsonl')):
      # As Slurm does before it takes a job its node, its time is up or it is cancelled.
      told.extend(
        clusters.find_processes(b'submitit.core._submit', b'SLURM_STEP_ID=')
      )
      os.kill(told[0], signum)

  do_before(monkeypatch, launch, '_list_queue', preempt)
  outcome = run_on_slurm(points, tmp_path)
  logs = [path.read_text() for path in tmp_path.glob('slurm/.slurm/*_log.out')]
  is_put_back = any('Requeued job' in log for log in logs)
  assert is_put_back == (signum == signal.SIGUSR2)
  stopped = [path.read_text() for path in tmp_path.glob('slurm/*.log')]
  assert any('Stopped' in log for log in stopped)
  assert describe(outcome) == undisturbed
  check_made_once(outcome)


def test_a_node_of_slurm_that_is_gone_loses_nothing(
  points, slurm, undisturbed, tmp_path, monkeypatch
):
  monkeypatch.setattr(launch, '_GRACE', 5.0)
  lost = []

  def lose(period):
    del period
    if not lost and any(tmp_path.glob('slurm/*/private/metrics.jsonl')):
      lost.extend(list_running())
      slurm.kill_node()
      clusters.wait_for(lambda: 'down' in clusters.ask('sinfo', '--noheader'))
      slurm.start('slurmd')

  do_before(monkeypatch, launch, '_list_queue', lose)
  outcome = run_on_slurm(points, tmp_path)
  assert lost
  assert describe(outcome) == undisturbed
  check_made_once(outcome)


def test_a_disk_that_is_full_loses_nothing(points, undisturbed, tmp_path):
  folder = tmp_path / 'full'
  folder.mkdir()
  mount = ['mount', '-t', 'tmpfs', '-o', 'size=64m', 'tmpfs', str(folder)]
  if subprocess.run(mount, capture_output=True, check=False).returncode:
    pytest.skip('No file system of a given size can be made here.')
  try:
    with open(folder / 'others', 'wb') as file:
      file.write(bytes(64 * 1024**2 - 100 * 1024))
    outcome = sweep.run_sweep(points, folder)
    assert not outcome.finished
    for why in outcome.failed.values():
      assert 'No space left on device' in why
    (folder / 'others').unlink()
    outcome = sweep.run_sweep(points, folder, retry=True)
    assert describe(outcome) == undisturbed
    check_made_once(outcome)
  finally:
    subprocess.run(['umount', str(folder)], check=True)


def do_before(monkeypatch, owner, name, act):
  """Lets something happen before each call of a method, with its arguments."""
  method = getattr(owner, name)

  def call(*args, **kwargs):
    act(*args, **kwargs)
    return method(*args, **kwargs)

  monkeypatch.setattr(owner, name, call)


def list_running():
  """The ids of jobs that run."""
  return clusters.ask(
    'squeue', '-r', '--noheader', '--states=R', '--format=%i'
  ).split()


def start_sweep(tmp_path, launch):
  """Starts the sweep of `points` in another process."""
  code = (
    'import pathlib, sys\n'
    'from tests.experiment import test_own_tasks\n'
    'from tests.experiment.sweeps import test_clusters as t\n'
    'from epe_jax.experiment import stopping\n'
    'from epe_jax.experiment.sweeps import sweep, sweep_points\n'
    "config = test_own_tasks.make_config(task='a_job:load')\n"
    "points = sweep_points.make_grid(config, [('data.seed', (0, 1, 2, 3))])\n"
    'main = stopping.exit_on_signal(\n'
    f"  lambda: sweep.run_sweep(points, 'slurm', launch={launch})\n"
    ')\n'
    'main()\n'
  )
  return subprocess.Popen([sys.executable, '-c', code], cwd=tmp_path)


def check_made_once(outcome):
  for folder in outcome.finished.values():
    text = workdirs.workdir_at(folder).metrics.read_text()
    assert text.count('"round": 1,') == 1


def test_two_sweeps_share_the_points_and_make_none_twice(
  points, slurm, undisturbed, tmp_path
):
  other = start_sweep(tmp_path, None)
  outcome = run_on_slurm(points, tmp_path)
  assert other.wait(timeout=_SECONDS) == 0
  assert describe(outcome) == undisturbed
  check_made_once(outcome)


@pytest.mark.parametrize('signum', [signal.SIGKILL, signal.SIGTERM])
def test_a_sweep_that_is_ended_is_taken_up_by_another(
  signum, points, slurm, undisturbed, tmp_path
):
  launch = 'lambda: t.launch_on_slurm(pathlib.Path.cwd())'
  other = start_sweep(tmp_path, launch)
  clusters.wait_for(lambda: any(tmp_path.glob('slurm/*/result.json')))
  other.send_signal(signum)
  code = other.wait(timeout=_SECONDS)
  if signum == signal.SIGTERM:
    assert code == 128 + signum
    # What it told the jobs to do takes Slurm a moment.
    clusters.wait_for(lambda: not clusters.ask('squeue', '--noheader'))
  outcome = run_on_slurm(points, tmp_path)
  assert describe(outcome) == undisturbed
  check_made_once(outcome)


@pytest.mark.parametrize(
  ('engine', 'options', 'error', 'message'),
  [
    (
      'slurm',
      {'partitions': 'gpu', 'timeout_min': 9},
      ValueError,
      'partitions',
    ),
    ('ray', {'num_gpu': 1}, ValueError, 'num_gpu'),
    ('local', {'num_cpus': 1}, ValueError, 'are of clusters'),
    ('pbs', {}, ValueError, "launcher='pbs'; give one of local, slurm, ray"),
  ],
)
def test_what_an_engine_does_not_know_is_refused(
  engine, options, error, message, request, tmp_path
):
  if engine == 'slurm':
    request.getfixturevalue('slurm')
  if engine == 'ray':
    pytest.importorskip('ray')
  with pytest.raises(error, match=message):
    launch.make_launcher(engine, options=options, folder=tmp_path)


def describe(outcome):
  """The estimates of each point, to the last digit."""
  return {
    name: first_page.describe_in_json(finished_runs.load_result(folder).audit)
    for name, folder in outcome.finished.items()
  }
