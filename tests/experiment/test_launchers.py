"""Points end once and alike wherever they run, and whatever happens to their jobs.

Slurm is the real one, on the loopback, and so is Ray, with two nodes.
"""

import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest

from epe_jax.experiment import (
  finished_runs,
  launchers,
  sweep,
  sweep_points,
  workdirs,
)
from epe_jax.text import worded_json
from tests.experiment import test_own_tasks

pytestmark = [
  pytest.mark.integration,
  pytest.mark.usefixtures('quick_compilation'),
]

_DAEMONS = ('slurmctld', 'slurmd', 'munged', 'sbatch')
_SECONDS = 240


@pytest.fixture
def points(tmp_path, monkeypatch):
  """Points of a task in a file, which processes on nodes find."""
  (tmp_path / 'a_job.py').write_text(
    'from tests.experiment import test_own_tasks\nload = test_own_tasks.load\n'
  )
  root = pathlib.Path(__file__).parents[2]
  monkeypatch.setenv('PYTHONPATH', f'{root}{os.pathsep}{tmp_path}')
  monkeypatch.syspath_prepend(str(tmp_path))
  monkeypatch.chdir(tmp_path)
  config = test_own_tasks.make_config(task='a_job:load')
  return sweep_points.make_grid(config, [('data.seed', (0, 1, 2, 3))])


@pytest.fixture
def slurm(tmp_path, monkeypatch):
  """A cluster of this machine, with two slots; a function that starts its controller."""
  missing = [name for name in _DAEMONS if shutil.which(name) is None]
  if missing or os.geteuid():
    pytest.skip(f'Slurm needs {", ".join(missing) or "root"} here.')
  pytest.importorskip('submitit')
  if subprocess.run(
    ['munge', '-n'], capture_output=True, check=False
  ).returncode:
    os.makedirs('/run/munge', exist_ok=True)
    shutil.chown('/run/munge', 'munge', 'munge')
    subprocess.run(['munged'], user='munge', group='munge', check=True)
  host = socket.gethostname().partition('.')[0]
  ports = [_find_port(), _find_port()]
  lines = {
    'ClusterName': 'loopback',
    'SlurmctldHost': f'{host}(127.0.0.1)',
    'AuthType': 'auth/munge',
    'ProctrackType': 'proctrack/linuxproc',
    'TaskPlugin': 'task/none',
    'SlurmUser': 'root',
    'SlurmdUser': 'root',
    'StateSaveLocation': tmp_path / 'slurm-state',
    'SlurmdSpoolDir': tmp_path / 'slurm-spool',
    'SlurmctldPidFile': tmp_path / 'slurmctld.pid',
    'SlurmdPidFile': tmp_path / 'slurmd.pid',
    'SlurmctldLogFile': tmp_path / 'slurmctld.log',
    'SlurmdLogFile': tmp_path / 'slurmd.log',
    'SlurmctldPort': ports[0],
    'SlurmdPort': ports[1],
    'SelectType': 'select/cons_tres',
    'SelectTypeParameters': 'CR_Core',
    'ReturnToService': 2,
    # More slots than this machine may have cores.
    'SlurmdParameters': 'config_overrides',
  }
  text = ''.join(f'{name}={value}\n' for name, value in lines.items())
  text += f'NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN\n'
  text += (
    f'PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP\n'
  )
  (tmp_path / 'slurm.conf').write_text(text)
  for name in ('slurm-state', 'slurm-spool'):
    (tmp_path / name).mkdir()
  monkeypatch.setenv('SLURM_CONF', str(tmp_path / 'slurm.conf'))

  daemons = []

  def start(name):
    daemons.append(subprocess.Popen([name, '-D'], stderr=subprocess.DEVNULL))
    return daemons[-1]

  controller = start('slurmctld')
  start('slurmd')
  try:
    _wait_for(lambda: 'idle' in _run('sinfo', '--noheader'))
    yield controller, lambda: start('slurmctld')
  finally:
    _run('scancel', '--me', '--signal=KILL')
    for daemon in daemons:
      daemon.kill()
      daemon.wait()


def launch_on_slurm(tmp_path):
  return launchers.make_launcher(
    'slurm',
    options={'cpus_per_task': 1, 'timeout_min': 20},
    folder=tmp_path / 'slurm',
  )


def run_on_slurm(points, tmp_path):
  return sweep.run_sweep(
    points, tmp_path / 'slurm', launch=lambda: launch_on_slurm(tmp_path)
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


def test_ray_with_two_nodes_gives_what_this_machine_gives(
  points, undisturbed, tmp_path
):
  pytest.importorskip('ray')
  address = f'127.0.0.1:{_find_port()}'
  start = [
    *(sys.executable, '-m', 'ray.scripts.scripts', 'start', '--num-cpus=1'),
    '--disable-usage-stats',
  ]
  options = dict(check=True, capture_output=True, timeout=_SECONDS)
  try:
    head = [*start, '--head', f'--port={address.partition(":")[2]}']
    subprocess.run([*head, '--include-dashboard=false'], **options)
    subprocess.run([*start, f'--address={address}'], **options)
    outcome = sweep.run_sweep(
      points,
      tmp_path / 'ray',
      launch=lambda: launchers.make_launcher(
        'ray', options={'address': address, 'num_cpus': 1}
      ),
    )
  finally:
    import ray

    ray.shutdown()
    stop = [sys.executable, '-m', 'ray.scripts.scripts', 'stop', '--force']
    subprocess.run(stop, capture_output=True, check=False)
  assert describe(outcome) == undisturbed


def test_a_job_that_is_killed_is_started_again(
  points, slurm, undisturbed, tmp_path, monkeypatch
):
  monkeypatch.setattr(launchers, '_GRACE', 1.0)
  killed = []
  seen = launchers._Queue.has

  def has(self, job_id):
    running = _run(
      'squeue', '-r', '--noheader', '--states=R', '--format=%i'
    ).split()
    if not killed and running:
      killed.append(running[0])
      _run('scancel', '--signal=KILL', '--full', running[0])
    return seen(self, job_id)

  monkeypatch.setattr(launchers._Queue, 'has', has)
  outcome = run_on_slurm(points, tmp_path)
  assert killed
  assert describe(outcome) == undisturbed


def test_a_controller_that_restarts_loses_nothing(
  points, slurm, undisturbed, tmp_path, monkeypatch
):
  controller, start_controller = slurm
  seen, again = launchers._Queue.has, []

  def has(self, job_id):
    if not again:
      controller.kill()
      controller.wait()
      self._asked = -float('inf')
      # Nobody answers, and nothing is taken for lost.
      assert seen(self, job_id)
      again.append(start_controller())
      _wait_for(lambda: _run('squeue') != '')
    return seen(self, job_id)

  monkeypatch.setattr(launchers._Queue, 'has', has)
  outcome = run_on_slurm(points, tmp_path)
  assert again
  assert describe(outcome) == undisturbed


def start_sweep(tmp_path, launch):
  """Starts the sweep of `points` in another process."""
  code = (
    'import pathlib, sys\n'
    'from tests.experiment import test_launchers as t, test_own_tasks\n'
    'from epe_jax.experiment import stopping, sweep, sweep_points\n'
    "config = test_own_tasks.make_config(task='a_job:load')\n"
    "points = sweep_points.make_grid(config, [('data.seed', (0, 1, 2, 3))])\n"
    'main = stopping.end_politely(\n'
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
  _wait_for(lambda: any(tmp_path.glob('slurm/*/result.json')))
  other.send_signal(signum)
  code = other.wait(timeout=_SECONDS)
  if signum == signal.SIGTERM:
    assert code == 128 + signum
    # What it told the jobs to do takes Slurm a moment.
    _wait_for(lambda: not _run('squeue', '--noheader'))
  outcome = run_on_slurm(points, tmp_path)
  assert describe(outcome) == undisturbed
  check_made_once(outcome)


@pytest.mark.parametrize(
  ('engine', 'options', 'error', 'message'),
  [
    ('slurm', {'partitions': 'gpu'}, ValueError, 'partitions'),
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
    launchers.make_launcher(engine, options=options, folder=tmp_path)


def describe(outcome):
  """The estimates of each point, to the last digit."""
  return {
    name: worded_json.describe_in_json(finished_runs.load_result(folder).audit)
    for name, folder in outcome.finished.items()
  }


def _run(*command):
  done = subprocess.run(command, capture_output=True, text=True, check=False)
  return done.stdout


def _wait_for(condition):
  deadline = time.monotonic() + 60
  while not condition():
    assert time.monotonic() < deadline, 'the cluster does not answer'
    time.sleep(0.2)


def _find_port():
  with socket.socket() as sock:
    sock.bind(('127.0.0.1', 0))
    return sock.getsockname()[1]
