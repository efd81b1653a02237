"""Jobs of Slurm, whatever becomes of them; without Slurm."""

import subprocess
import types

import pytest

from epe_jax.experiment import launchers

TIME = {'timeout_min': 60}


class Left(launchers._Queue):
  """A queue that no job is in."""

  def has(self, job_id):
    return False


def make_job(tmp_path, *, result, tasks=1):
  """A job that has left the queue, and the log of its point."""

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
  return launchers._SlurmJob(job, Left(), log), log


@pytest.mark.parametrize('tasks', [1, 2])
@pytest.mark.parametrize('code', [0, 1])
def test_the_first_process_of_a_job_says_how_it_ended(code, tasks, tmp_path):
  job, _ = make_job(tmp_path, result=code, tasks=tasks)
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
  fault, code, tmp_path
):
  job, log = make_job(tmp_path, result=Exception(fault))
  assert job.poll() == code
  assert job.poll() == code
  assert log.read_text() == f'Slurm job 7: {fault}\n'


def test_a_job_that_left_no_word_is_lost_and_says_where_to_look(
  tmp_path, monkeypatch
):
  job, log = make_job(tmp_path, result=None)
  assert job.poll() is None
  monkeypatch.setattr(launchers, '_GRACE', 0.0)
  assert job.poll() == launchers.LOST
  assert log.read_text().rstrip().endswith(str(tmp_path / 'err'))


class Silent(launchers.Slurm):
  """A launcher whose Slurm answers nothing."""

  def __init__(self, jobs):
    self._jobs, self._queue = jobs, launchers._Queue()


@pytest.mark.parametrize('hangs', [False, True])
def test_jobs_are_left_alone_when_slurm_does_not_answer(hangs, monkeypatch):
  def run(command, *, timeout, **kwargs):
    if hangs:
      raise subprocess.TimeoutExpired(command, timeout)
    return subprocess.CompletedProcess(command, 1, '', 'no controller')

  monkeypatch.setattr(launchers.subprocess, 'run', run)
  cancelled = []
  job = types.SimpleNamespace(
    poll=lambda: None, terminate=lambda: cancelled.append(1)
  )
  slurm = Silent([job])
  # Once it is silent, jobs count as queued.
  assert slurm._queue.has('7')
  slurm.close()
  assert cancelled == [1]
  monkeypatch.setattr(launchers, '_MAX_SILENCE', -1.0)
  slurm._queue._asked = -float('inf')
  with pytest.raises(TimeoutError, match='Points that run go on'):
    slurm._queue.has('7')
  slurm.close()
  assert cancelled == [1]


@pytest.mark.parametrize(
  ('options', 'devices', 'message'),
  [
    ({}, None, 'no timeout_min'),
    ({'slurm_nodes': 2, **TIME}, None, "slurm_nodes'.*give nodes"),
    ({'nodes': 0, **TIME}, 4, 'nodes=0'),
    ({'nodes': 2, **TIME}, 3, 'multiple of the nodes'),
    ({'nodes': 2, 'tasks_per_node': 2, **TIME}, 16, 'give tasks_per_node=8'),
  ],
)
def test_jobs_that_would_waste_devices_or_have_no_time_are_refused(
  options, devices, message
):
  with pytest.raises(ValueError, match=message):
    launchers._complete_options(options, devices)


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
  found = launchers._complete_options(options, devices)
  assert found.get('tasks_per_node') == tasks
  assert found.get('gpus_per_node') == gpus
