"""What a node of a cluster does with a point: which signals reach it, and when it ends."""

import _thread
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest

from epe_jax.experiment import processes

# A run that saves for a second when it is asked to stop, and dies of a second signal.
_RUN = """
import sys, time
from epe_jax.experiment import stopping

sys.stdin.readline()
with stopping.listen('saving') as requests:
  requests.can_defer = True
  stopping.end_with_parent()
  print('ready', flush=True)
  while requests.signum is None:
    time.sleep(0.05)
  time.sleep(1.5)
print('saved', flush=True)
sys.exit(143)
"""


@pytest.fixture
def work(tmp_path, monkeypatch):
  """A point whose process is `_RUN`."""

  def start(work, environment, *, is_distributed=False):
    with open(work.log, 'wb') as log:
      process = subprocess.Popen(
        [sys.executable, '-c', _RUN],
        cwd=pathlib.Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=log,
        start_new_session=True,
      )
    process.stdin.write(b'{}\n')
    process.stdin.flush()
    started.append(process)
    return process

  started = []
  monkeypatch.setattr(processes, 'start_point', start)
  work = processes.Work({}, tmp_path, tmp_path / 'log', '')
  yield work, started
  for process in started:
    process.kill()


def act_once_ready(work, act):
  """Does something once the run of a point listens."""

  def watch():
    while not (work.log.exists() and 'ready' in work.log.read_text()):
      time.sleep(0.05)
    act()

  threading.Thread(target=watch, daemon=True).start()


@pytest.mark.parametrize('whole_job', [False, True])
def test_a_signal_to_the_engine_lets_a_point_save_whether_it_has_it_too(
  whole_job, work
):
  """Slurm signals the processes of a job, or with cgroups its first one alone."""
  work, started = work

  def tell():
    if whole_job:
      started[0].terminate()
    os.kill(os.getpid(), signal.SIGTERM)

  before = signal.getsignal(signal.SIGTERM)
  act_once_ready(work, tell)
  assert processes.OnNode(work)() == 143
  assert 'saved' in work.log.read_text()
  assert signal.getsignal(signal.SIGTERM) == before


def test_a_task_that_is_cancelled_ends_once_its_point_has_saved(work):
  work, started = work
  act_once_ready(work, _thread.interrupt_main)
  with pytest.raises(KeyboardInterrupt):
    processes.run_point(work)
  assert started[0].returncode == 143
  assert 'saved' in work.log.read_text()


def test_a_job_that_is_put_back_lets_its_point_save(work):
  submitit = pytest.importorskip('submitit')
  work, _ = work
  task, put_back = processes.OnNode(work), []
  act_once_ready(work, lambda: put_back.append(task.checkpoint()))
  assert task() == 143
  while not put_back:
    time.sleep(0.05)
  assert 'saved' in work.log.read_text()
  assert isinstance(put_back[0], submitit.helpers.DelayedSubmission)


def test_only_its_owner_reads_what_a_point_prints(tmp_path, monkeypatch):
  done = subprocess.Popen([sys.executable, '-c', ''])
  monkeypatch.setattr(processes, 'start_process', lambda *_, **__: done)
  work = processes.Work({}, tmp_path, tmp_path / 'log', '')
  with processes.start_point(work, {}):
    pass
  assert work.log.stat().st_mode & 0o777 == 0o600
