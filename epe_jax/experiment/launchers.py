"""Where the points of a sweep run: processes of this machine, Slurm, or Ray.

An engine starts a process for each point and says when it has ended. How a point is,
its files say: whichever engine and machine started it, its run has the lock of its
folder, resumes from its checkpoints, and has ended when it has a result.
"""

from collections.abc import Callable, Mapping, Sequence
import contextlib
import math
import os
import pathlib
import subprocess
import time
from typing import Any, Protocol, runtime_checkable

from absl import logging

from epe_jax import extras
from epe_jax.experiment import placement, processes, sweep_points

LOST = -1000
"""The exit status of a process that is unknown, as its machine is gone."""

# Seconds between two questions to the queue of Slurm.
_ASK_QUEUE_EVERY = 3.0
# Seconds without an answer of the queue after which it is given up.
_MAX_SILENCE = 1800.0
# Seconds that the queue has for an answer.
_MAX_ANSWER = 60.0
# Seconds that a job which left the queue has for its result to appear.
_GRACE = 30.0
_PARALLEL = 'slurm_array_parallelism'


@runtime_checkable
class Job(Protocol):
  """A process that runs a point."""

  def poll(self) -> int | None:
    """Its exit status, below 0 if a signal ended it; None as long as it runs."""
    ...

  def terminate(self) -> None:
    """Asks it to save and end, or takes it out of the queue."""
    ...


@runtime_checkable
class Launcher(Protocol):
  """Starts points."""

  def start(self, works: Sequence[processes.Work]) -> Sequence[Job]:
    """Starts as many points as there is room for, from the first one on.

    Returns:
      A job for each point that was started.
    """
    ...

  def close(self) -> None:
    """Ends what has not ended, after an error."""
    ...


def make_launcher(
  engine: str,
  *,
  jobs: int | None = None,
  devices_per_job: int | None = None,
  options: Mapping[str, Any] = {},
  folder: str | os.PathLike[str] = '',
) -> Launcher:
  """Makes the launcher of an engine.

  Args:
    engine: one of `placement.ENGINES`.
    jobs: number of points at a time, >= 1; None for one on each accelerator, and for
      as many as a cluster has room for.
    devices_per_job: number of accelerators of each point, >= 1, locally also of
      cores; None for equal shares of this machine, and on a cluster for what options
      say.
    options: of the engine: parameters of a job of submitit, such as
      `slurm_partition='gpu'` and `timeout_min=600`; or of a task of Ray, such as
      `num_cpus=4`, and `address` of the cluster.
    folder: of the sweep.

  Raises:
    ValueError: an argument is out of range, or an option is none of the engine's.
    ModuleNotFoundError: the extra of the engine is not installed.
    OSError: there is no such engine here.
  """
  placement.check_counts(jobs=jobs, devices_per_job=devices_per_job)
  if engine == 'local':
    if options:
      raise ValueError(
        f'launcher options {[*options]} are of clusters; give --launcher too.'
      )
    devices = placement.find_devices()
    return Local(
      placement.make_slots(devices, jobs=jobs, devices_per_job=devices_per_job)
    )
  with extras.explain_missing():
    if engine == 'slurm':
      return Slurm(
        pathlib.Path(folder, '.slurm'),
        jobs=jobs,
        devices_per_job=devices_per_job,
        options=options,
      )
    if engine == 'ray':
      return Ray(jobs=jobs, devices_per_job=devices_per_job, options=options)
  known = ', '.join(placement.ENGINES)
  raise ValueError(f'launcher={engine!r}; give one of {known}.')


class Local:
  """Processes of this machine, each on devices of its own."""

  def __init__(self, slots: Sequence[placement.Slot]):
    """Makes a launcher.

    Args:
      slots: as `placement.make_slots` makes them.
    """
    self._taken: list[tuple[placement.Slot, subprocess.Popen[bytes] | None]]
    self._taken = [(slot, None) for slot in slots]

  def start(self, works: Sequence[processes.Work]) -> Sequence[Job]:
    """Starts a process in each free slot, as `Launcher.start`."""
    started: list[subprocess.Popen[bytes]] = []
    for i, (slot, process) in enumerate(self._taken):
      is_free = process is None or process.poll() is not None
      if is_free and len(started) < len(works):
        _close(process)
        with placement.enter(slot):
          new = processes.start_point(works[len(started)], slot.environment)
        self._taken[i] = slot, new
        started.append(new)
    return started

  def close(self) -> None:
    """Ends its processes, whose parent is gone for them; as `Launcher.close`."""
    for _, process in self._taken:
      _close(process)


def _close(process: subprocess.Popen[bytes] | None) -> None:
  """Closes the pipe of a process, which ends it, and waits for it."""
  if process is not None:
    with process:
      pass


class _Cluster:
  """Jobs of an engine that go on without this process."""

  def __init__(self) -> None:
    self._jobs: list[Job] = []

  def close(self) -> None:
    """Cancels the jobs that have not ended, as `Launcher.close`."""
    for job in self._jobs:
      if job.poll() is None:
        job.terminate()


class _ClusterJob:
  """A job of such an engine, which ends once however often it is asked."""

  def __init__(self, log: pathlib.Path):
    self._log = log
    self._code: int | None = None

  def poll(self) -> int | None:
    """Its exit status, as `Job.poll`."""
    if self._code is None:
      self._code = self._find_code()
    return self._code

  def _find_code(self) -> int | None:
    raise NotImplementedError

  def _add_to_log(self, text: str) -> None:
    """Says in the log of the point what its process could not."""
    logging.warning('%s: %s', self._log.stem, text)
    with contextlib.suppress(OSError), self._log.open('a') as file:
      file.write(f'{text}\n')


class Slurm(_Cluster):
  """Jobs of one array of a Slurm cluster, by submitit."""

  def __init__(
    self,
    folder: pathlib.Path,
    *,
    jobs: int | None,
    devices_per_job: int | None,
    options: Mapping[str, Any],
  ):
    """Makes a launcher, as `make_launcher` does.

    Args:
      folder: of the files of submitit, which all nodes see.
      jobs: number of jobs of an array at a time; None for no limit.
      devices_per_job: number of GPUs of a job; None for what options say.
      options: parameters of submitit's executor, among them `timeout_min`. With
        several `nodes`, or `tasks_per_node`, a point is one run of as many processes.

    Raises:
      ModuleNotFoundError: submitit is not installed.
      FileNotFoundError: there is no `sbatch` here.
      ValueError: submitit has no such parameter, a job has no time limit, or its GPUs
        are no equal shares of its nodes, or not one for each of several processes.
    """
    import submitit

    super().__init__()
    try:
      self._executor = submitit.AutoExecutor(folder, cluster='slurm')
    except RuntimeError as error:
      raise FileNotFoundError(f'launcher=slurm: {error}') from error
    self._is_limited = jobs is not None or _PARALLEL in options
    parameters = _complete_options(options, devices_per_job)
    if jobs is not None:
      parameters[_PARALLEL] = jobs
    counts = (parameters.get(name, 1) for name in ('nodes', 'tasks_per_node'))
    self._is_distributed = math.prod(counts) > 1
    try:
      self._executor.update_parameters(**parameters)
    except (NameError, TypeError, AssertionError) as error:
      raise ValueError(f'launcher options {dict(options)}: {error}') from error
    self._queue = _Queue()

  def start(self, works: Sequence[processes.Work]) -> Sequence[Job]:
    """Submits all points as one array, as `Launcher.start`."""
    from submitit.core.utils import FailedJobError

    if not works:
      return []
    several = self._is_distributed
    if several and any(sweep_points.NUM_SEEDS in work.config for work in works):
      raise ValueError(
        'the seeds of a point are trained together, by one process; give '
        'nodes=1 and tasks_per_node=1, or an axis seed=0,1,... for --seeds.'
      )
    if not self._is_limited:
      self._executor.update_parameters(**{_PARALLEL: len(works)})
    try:
      with self._executor.batch():
        # Itself and no function that calls it, as submitit asks for `checkpoint`.
        submitted = [
          self._executor.submit(processes.OnNode(work, is_distributed=several))
          for work in works
        ]
    except FailedJobError as error:
      raise OSError(f'launcher=slurm refuses the jobs: {error}') from error
    jobs = [
      _SlurmJob(job, self._queue, work.log)
      for job, work in zip(submitted, works)
    ]
    self._jobs += jobs
    return jobs

  def close(self) -> None:
    """Cancels the jobs that have not ended, unless Slurm is silent, as `Launcher.close`."""
    if not self._queue.is_given_up:
      super().close()


def _complete_options(
  options: Mapping[str, Any], devices_per_job: int | None
) -> dict[str, Any]:
  """Checks the options of a job of Slurm, and adds what follows from its GPUs."""
  if other := {'slurm_nodes', 'slurm_ntasks_per_node'} & {*options}:
    raise ValueError(
      f'launcher options {sorted(other)}; give nodes and tasks_per_node.'
    )
  if not {'timeout_min', 'slurm_time'} & {*options}:
    raise ValueError(
      'launcher options have no timeout_min, and submitit gives a job 5 minutes; '
      'give --launcher_option=timeout_min=600, say. A job whose time is up saves, '
      'and goes on in another one.'
    )
  parameters: dict[str, Any] = {'name': 'epe-jax', **options}
  counts = {
    name: parameters.get(name, 1) for name in ('nodes', 'tasks_per_node')
  }
  for name, count in counts.items():
    if not isinstance(count, int) or count < 1:
      raise ValueError(
        f'launcher option {name}={count!r}; give an integer >= 1.'
      )
  if devices_per_job is None:
    return parameters
  per_node, rest = divmod(devices_per_job, counts['nodes'])
  if rest:
    raise ValueError(
      f'devices_per_job={devices_per_job} over nodes={counts["nodes"]}; give a '
      'multiple of the nodes.'
    )
  if counts['nodes'] > 1:
    parameters.setdefault('tasks_per_node', per_node)
  tasks = parameters.get('tasks_per_node', 1)
  if counts['nodes'] * tasks > 1 and tasks != per_node:
    # JAX gives each process of a job of Slurm one GPU.
    raise ValueError(
      f'tasks_per_node={tasks} with {per_node} GPUs of a node, and each process '
      f'uses one; give tasks_per_node={per_node}, or leave it out.'
    )
  parameters['gpus_per_node'] = per_node
  return parameters


class _Queue:
  """The jobs that Slurm has in its queue or runs, asked for every few seconds."""

  def __init__(self) -> None:
    self._ids: frozenset[str] = frozenset()
    self._asked = -float('inf')
    self._answered = time.monotonic()
    self.is_given_up = False

  def has(self, job_id: str) -> bool:
    """Says whether a job is queued or runs; True as long as nobody knows."""
    now = time.monotonic()
    if now - self._asked >= _ASK_QUEUE_EVERY:
      self._asked = now
      ids, fault = _list_queue()
      if ids is not None:
        self._ids, self._answered = ids, now
      elif now - self._answered > _MAX_SILENCE:
        self.is_given_up = True
        raise TimeoutError(
          f'squeue has not answered for {_MAX_SILENCE / 60:g} minutes: {fault}. '
          'Points that run go on; repeat the command when Slurm is back.'
        )
      else:
        logging.log_every_n_seconds(logging.WARNING, 'squeue: %s', 60, fault)
        return True
    return self._answered < self._asked or job_id in self._ids


def _list_queue() -> tuple[frozenset[str] | None, str]:
  """The ids of this user's jobs, or None and why nobody knows."""
  try:
    done = subprocess.run(
      ['squeue', '--me', '--array', '--noheader', '--format=%i'],
      capture_output=True,
      text=True,
      check=False,
      timeout=_MAX_ANSWER,
    )
  except subprocess.TimeoutExpired as error:
    return None, str(error)
  if done.returncode:
    return None, done.stderr.strip()
  return frozenset(done.stdout.split()), ''


class _SlurmJob(_ClusterJob):
  """A job of an array."""

  def __init__(self, job: Any, queue: _Queue, log: pathlib.Path):
    super().__init__(log)
    self._job, self._queue = job, queue
    self._left: float | None = None

  def _find_code(self) -> int | None:
    if self._queue.has(self._job.job_id):
      self._left = None
      return None
    # Of several processes, the first one writes what the run is.
    job = self._job.task(0)
    if not job.paths.result_pickle.exists():
      # A file takes a while to appear on other machines, and a job that is put back
      # into the queue to be there again.
      now = time.monotonic()
      self._left = now if self._left is None else self._left
      if now - self._left < _GRACE:
        return None
      self._add_to_log(
        f'Slurm job {job.job_id} ended without a word; {job.paths.stderr}'
      )
      return LOST
    try:
      return int(job.result())
    except Exception as error:  # Whatever went wrong on a node.
      self._add_to_log(f'Slurm job {job.job_id}: {error}')
      # It was stopped too often, and has saved; or the point could not be started.
      return LOST if 'UncompletedJobError' in str(error) else 1

  def terminate(self) -> None:
    """Cancels it, as `Job.terminate`."""
    self._job.cancel(check=False)


class Ray(_Cluster):
  """Tasks of a Ray cluster."""

  def __init__(
    self,
    *,
    jobs: int | None,
    devices_per_job: int | None,
    options: Mapping[str, Any],
  ):
    """Makes a launcher, as `make_launcher` does.

    Args:
      jobs: number of tasks at a time; None for as many as there is room for.
      devices_per_job: number of GPUs of a task; None for what options say.
      options: of a task; and address, of the cluster.

    Raises:
      ModuleNotFoundError: Ray is not installed.
      ConnectionError: there is no cluster at the address.
      ValueError: a task of Ray has no such option.
    """
    import ray

    super().__init__()
    self._ray, self._max_jobs = ray, jobs
    given = dict(options)
    address = given.pop('address', 'auto')
    if devices_per_job is not None:
      given['num_gpus'] = devices_per_job
    try:
      self._run: Callable[[processes.Work], Any] = (
        ray.remote(processes.run_point).options(max_retries=0, **given).remote
      )
      if not ray.is_initialized():
        ray.init(address=address, log_to_driver=False)
    except ConnectionError as error:
      raise ConnectionError(
        f'no Ray cluster at address={address!r}: {error}. Start one by `ray '
        'start --head`, or give --launcher_option=address=HOST:PORT.'
      ) from error

  def start(self, works: Sequence[processes.Work]) -> Sequence[Job]:
    """Starts a task for each point, as `Launcher.start`."""
    self._jobs = [job for job in self._jobs if job.poll() is None]
    room = len(works)
    if self._max_jobs is not None:
      room = min(room, self._max_jobs - len(self._jobs))
    jobs = [
      _RayJob(self._ray, self._run(work), work.log) for work in works[:room]
    ]
    self._jobs += jobs
    return jobs


class _RayJob(_ClusterJob):
  """A task of Ray."""

  def __init__(self, ray: Any, reference: Any, log: pathlib.Path):
    super().__init__(log)
    self._ray, self._reference = ray, reference

  def _find_code(self) -> int | None:
    ready, _ = self._ray.wait([self._reference], timeout=0)
    if not ready:
      return None
    errors = self._ray.exceptions
    try:
      return int(self._ray.get(self._reference))
    except errors.RayError as error:
      # A task that is cancelled before it starts has an error without a text.
      text = str(error).strip() or type(error).__name__
      self._add_to_log(f'Ray: {text.splitlines()[-1]}')
      # One that raised could not start the point; the others were lost.
      return 1 if isinstance(error, errors.RayTaskError) else LOST

  def terminate(self) -> None:
    """Cancels it, as `Job.terminate`."""
    with contextlib.suppress(self._ray.exceptions.RayError):
      self._ray.cancel(self._reference)
