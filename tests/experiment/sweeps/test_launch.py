"""Devices of runs side by side, processes of points, and jobs of clusters.

Each run of several has devices of its own. A point saves whichever signal reaches its
node, and a job ends once, whatever becomes of it; without Slurm and without Ray.
"""

import _thread
import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import types

import pytest

from epe_jax.experiment.sweeps import launch


def see(slots, variable):
  return [slot.environment[variable] for slot in slots]


@pytest.mark.parametrize(
  ('jobs', 'per_job', 'expected'),
  [
    (None, None, [*'01234567']),
    (2, None, ['0,1,2,3', '4,5,6,7']),
    (3, 2, ['0,1', '2,3', '4,5']),
    (None, 4, ['0,1,2,3', '4,5,6,7']),
    (1, None, ['0,1,2,3,4,5,6,7']),
  ],
)
def test_no_gpu_is_seen_by_two_runs(jobs, per_job, expected):
  slots = launch.make_slots('01234567', jobs, per_job)
  assert see(slots, 'CUDA_VISIBLE_DEVICES') == expected


def test_gpus_keep_the_names_that_a_scheduler_gave_them():
  slots = launch.make_slots(['GPU-3f', 'GPU-9a'])
  assert see(slots, 'CUDA_VISIBLE_DEVICES') == ['GPU-3f', 'GPU-9a']


@pytest.mark.parametrize(
  ('jobs', 'share'), [(3, 0.375), (4, 0.375), (8, 0.188)]
)
def test_runs_that_share_a_device_share_its_memory(jobs, share, monkeypatch):
  monkeypatch.delenv('XLA_CLIENT_MEM_FRACTION', raising=False)
  monkeypatch.delenv('XLA_PYTHON_CLIENT_MEM_FRACTION', raising=False)
  slots = launch.make_slots(['0', '1'], jobs)
  seen = see(slots, 'CUDA_VISIBLE_DEVICES')
  assert len(seen) == jobs
  assert abs(seen.count('0') - seen.count('1')) <= 1
  fractions = [*map(float, see(slots, 'XLA_CLIENT_MEM_FRACTION'))]
  assert fractions == [share] * jobs
  assert seen.count('0') * share < 0.8
  # What a user set has precedence.
  monkeypatch.setenv('XLA_PYTHON_CLIENT_MEM_FRACTION', '.1')
  slots = launch.make_slots(['0', '1'], jobs)
  assert {*slots[0].environment} == {'CUDA_VISIBLE_DEVICES'}


@pytest.mark.parametrize(
  ('jobs', 'per_job', 'expected'),
  [
    (None, None, [[]]),
    (1, None, [[4, 5, 6, 7]]),
    (2, None, [[4, 5], [6, 7]]),
    (None, 2, [[4, 5], [6, 7]]),
    (3, None, [[4], [5], [6]]),
    (5, None, [[]] * 5),
  ],
)
def test_no_core_has_two_runs_unless_cores_are_few(
  jobs, per_job, expected, monkeypatch
):
  monkeypatch.setattr(os, 'sched_getaffinity', lambda pid: {4, 5, 6, 7})
  slots = launch.make_slots([], jobs, per_job)
  assert [[*slot.cores] for slot in slots] == expected
  assert not any(slot.environment for slot in slots)


@pytest.mark.parametrize(
  ('gpus', 'jobs', 'per_job', 'message'),
  [
    ('01234567', 3, 3, 'devices_per_job=3 for 3 jobs, but there are 8 GPUs'),
    ('', None, 10**6, 'there are .* cores'),
  ],
)
def test_what_a_machine_does_not_have_is_refused(gpus, jobs, per_job, message):
  with pytest.raises(ValueError, match=message):
    launch.make_slots(gpus, jobs, per_job)
  with pytest.raises(ValueError, match='jobs=0; give 1 or more'):
    launch.make_launcher('local', jobs=0)


def test_a_platform_that_is_not_there_is_named(monkeypatch):
  monkeypatch.setenv('JAX_PLATFORMS', 'nowhere')
  with pytest.raises(OSError, match=r'no device: .*nowhere'):
    launch.find_gpus()


@pytest.mark.integration
def test_a_process_has_the_cores_of_its_slot_and_this_one_keeps_its_own(
  work, monkeypatch
):
  work, started = work
  before = os.sched_getaffinity(0)
  core = min(before)
  monkeypatch.setattr(launch, 'find_gpus', list)
  monkeypatch.setattr(
    launch, 'make_slots', lambda *_: [launch.DeviceSlot({}, [core])]
  )
  launcher = launch.make_launcher('local')
  with contextlib.closing(launcher):
    # There is one slot.
    (job,) = launcher.start([work, work])
    assert os.sched_getaffinity(started[0].pid) == {core}
    assert not launcher.start([work])
    assert job.poll() is None
    act_once_ready(work, job.stop)
    while job.poll() is None:
      time.sleep(0.05)
    assert len(launcher.start([work])) == 1
  # The second one has saved, as the pipe from its parent was closed.
  assert [process.returncode for process in started] == [143, 143]
  assert os.sched_getaffinity(0) == before


# A run that saves for a second when it is asked to stop, and dies of a second signal.
_RUN = """
import sys, time
from epe_jax.experiment import stopping

sys.stdin.readline()
with stopping.listen('saving') as requests:
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
        cwd=pathlib.Path(__file__).parents[3],
        stdin=subprocess.PIPE,
        stdout=log,
        start_new_session=True,
      )
    process.stdin.write(b'{}\n')
    process.stdin.flush()
    started.append(process)
    return process

  started = []
  monkeypatch.setattr(launch, 'start_point', start)
  work = launch.JobSpec({}, tmp_path, tmp_path / 'log', '')
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


@pytest.mark.integration
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
  assert launch.NodeJob(work)() == 143
  assert 'saved' in work.log.read_text()
  assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.integration
def test_a_task_that_is_cancelled_ends_once_its_point_has_saved(work):
  work, started = work
  act_once_ready(work, _thread.interrupt_main)
  with pytest.raises(KeyboardInterrupt):
    launch.run_point(work)
  assert started[0].returncode == 143
  assert 'saved' in work.log.read_text()


@pytest.mark.integration
def test_a_job_that_is_put_back_lets_its_point_save(work):
  submitit = pytest.importorskip('submitit')
  work, _ = work
  task, put_back = launch.NodeJob(work), []
  act_once_ready(work, lambda: put_back.append(task.checkpoint()))
  assert task() == 143
  while not put_back:
    time.sleep(0.05)
  assert 'saved' in work.log.read_text()
  assert isinstance(put_back[0], submitit.helpers.DelayedSubmission)


def test_only_its_owner_reads_what_a_point_prints(tmp_path, monkeypatch):
  done = subprocess.Popen([sys.executable, '-c', ''])
  monkeypatch.setattr(launch, 'start_process', lambda *_, **__: done)
  work = launch.JobSpec({}, tmp_path, tmp_path / 'log', '')
  with launch.start_point(work, {}):
    pass
  assert work.log.stat().st_mode & 0o777 == 0o600


TIME = {'timeout_min': 60}


def make_job(tmp_path, monkeypatch, *, result, tasks=1):
  """A job that has left the queue, and the log of its point."""
  monkeypatch.setattr(launch, '_list_queue', lambda period: frozenset())

  def ask_each():
    raise AssertionError('it has several tasks')

  def get():
    if isinstance(result, Exception):
      raise result
    return result

  pickle = tmp_path / 'result.pkl'
  if result is not None:
    pickle.touch()
  paths = types.SimpleNamespace(result_pickle=pickle, stderr=tmp_path / 'err')
  first = types.SimpleNamespace(result=get, paths=paths, job_id='7')
  job = types.SimpleNamespace(
    job_id='7',
    task=lambda i: first,
    result=get if tasks == 1 else ask_each,
    paths=types.SimpleNamespace(result_pickle=tmp_path / 'of no task'),
  )
  log = tmp_path / 'point.log'
  return launch._follow_slurm(job, log), log


@pytest.mark.parametrize('tasks', [1, 2])
@pytest.mark.parametrize('code', [0, 1])
def test_the_first_process_of_a_job_says_how_it_ended(
  code, tasks, tmp_path, monkeypatch
):
  job, _ = make_job(tmp_path, monkeypatch, result=code, tasks=tasks)
  assert job.poll() == code


@pytest.mark.parametrize(
  ('fault', 'code'),
  [
    ("ModuleNotFoundError: No module named 'epe_jax'", 1),
    (
      'UncompletedJobError: not requeued because: timed-out too many times',
      -1000,
    ),
  ],
)
def test_what_went_wrong_on_a_node_is_in_the_log_of_its_point(
  fault, code, tmp_path, monkeypatch
):
  job, log = make_job(tmp_path, monkeypatch, result=Exception(fault))
  assert job.poll() == code
  assert job.poll() == code
  assert log.read_text() == f'Slurm job 7: {fault}\n'


def test_a_job_that_left_no_word_is_lost_and_says_where_to_look(
  tmp_path, monkeypatch
):
  job, log = make_job(tmp_path, monkeypatch, result=None)
  assert job.poll() is None
  monkeypatch.setattr(launch, '_GRACE', 0.0)
  assert job.poll() == launch.EXIT_LOST
  assert log.read_text().rstrip().endswith(str(tmp_path / 'err'))


@pytest.mark.parametrize('hangs', [False, True])
def test_jobs_count_as_queued_while_slurm_does_not_answer(hangs, monkeypatch):
  def run(command, *, timeout, **kwargs):
    if hangs:
      raise subprocess.TimeoutExpired(command, timeout)
    raise subprocess.CalledProcessError(1, command, '', 'no controller')

  monkeypatch.setattr(launch.subprocess, 'run', run)
  launch._list_queue.cache_clear()
  assert launch._list_queue(7) is None


@pytest.mark.parametrize(
  ('options', 'devices', 'message'),
  [
    ({}, None, 'no timeout_min'),
    ({'slurm_nodes': 2, **TIME}, None, "slurm_nodes'.*give nodes"),
    ({'nodes': 0, **TIME}, 4, 'nodes=0; give an integer'),
    ({'nodes': 2, **TIME}, 3, 'a multiple of the nodes'),
    ({'nodes': 2, 'tasks_per_node': 2, **TIME}, 16, 'no tasks_per_node'),
  ],
)
def test_jobs_that_would_waste_devices_or_have_no_time_are_refused(
  options, devices, message
):
  with pytest.raises(ValueError, match=message):
    launch._complete_options(options, devices)


@pytest.mark.parametrize(
  ('options', 'devices', 'tasks', 'gpus'),
  [
    ({'slurm_time': '1:0:0'}, None, None, None),
    (TIME, 2, None, 2),
    ({'nodes': 2, **TIME}, 16, 8, 8),
    ({'tasks_per_node': 2, **TIME}, 2, 2, 2),
    ({'tasks_per_node': 2, **TIME}, None, 2, None),
  ],
)
def test_each_process_of_a_job_has_a_device(options, devices, tasks, gpus):
  found = launch._complete_options(options, devices)
  assert found.get('tasks_per_node') == tasks
  assert found.get('gpus_per_node') == gpus


class RayError(Exception):
  """As Ray's: that of a task cancelled before it starts has no text."""


class RayTaskError(RayError):
  """As Ray's: what a task raised."""


@pytest.mark.parametrize(
  ('error', 'says', 'code'),
  [
    (RayError(), 'Ray: RayError', launch.EXIT_LOST),
    (RayError('at\nnode died\n'), 'node died', launch.EXIT_LOST),
    (RayTaskError("in task\nNo module 'epe_jax'"), "No module 'epe_jax'", 1),
  ],
)
def test_a_job_that_ends_with_an_error_says_why_in_the_log_of_its_point(
  error, says, code, tmp_path
):
  def get(reference):
    raise error

  ray = types.SimpleNamespace(
    wait=lambda references, timeout: (references, []),
    get=get,
    exceptions=types.SimpleNamespace(
      RayError=RayError, RayTaskError=RayTaskError
    ),
  )
  log = tmp_path / 'point.log'
  assert launch._follow_ray(ray, 'task', log).poll() == code
  assert says in log.read_text()
