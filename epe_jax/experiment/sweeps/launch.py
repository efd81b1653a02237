"""Starts the points of a sweep: as processes of this machine, by Slurm, or by Ray.

An engine starts a process for each point and says when it has ended. A point's state is
in its files: whichever engine and machine started it, its run holds the lock of its
folder, resumes from its checkpoints, and has ended when it has a result.

A node imports this module for each point, so that it imports no JAX.
"""

from collections.abc import Callable, Mapping, Sequence
import contextlib
import functools
import json
import math
import os
import pathlib
import signal
import subprocess
import threading
import time
from typing import IO, Any, NamedTuple

from absl import logging

from epe_jax import extras, io, python_path
from epe_jax.experiment.sweeps import sweep_points

EXIT_LOST = -1000
"""The exit status of a lost process, whose machine is gone."""

EXIT_BUSY = 75
"""The exit status of one of several processes of a run that is made elsewhere."""

POINT = (
  'from epe_jax.experiment.sweeps import sweep_process; sweep_process.main()'
)
"""The code of the processes of a sweep."""

# Seconds between two looks at a process, and between two questions to Slurm's queue.
_INTERVAL = 0.2
_ASK_QUEUE_EVERY = 3.0
# Seconds that the queue has for an answer.
_MAX_ANSWER = 60.0
# Seconds that a job which left the queue has for its result to appear.
_GRACE = 30.0
_PARALLEL = 'slurm_array_parallelism'
_VISIBLE = 'CUDA_VISIBLE_DEVICES'
# What one process of JAX reserves of a GPU's memory.
_RESERVED = 0.75
_FRACTION = 'XLA_CLIENT_MEM_FRACTION'
_OLD_FRACTION = 'XLA_PYTHON_CLIENT_MEM_FRACTION'
_COUNT_GPUS = """
import jax
devices = jax.local_devices()
print(len(devices) if devices[0].platform == 'gpu' else 0)
"""


class JobSpec(NamedTuple):
  """A point to be run."""

  config: Mapping[str, Any]  # Every field of its config, for JSON.
  workdir: pathlib.Path  # That all machines of the engine see.
  log: pathlib.Path  # The file of its output.
  command: str  # That started the sweep, for messages.


class Job(NamedTuple):
  """A process that runs a point."""

  # Its exit status, below 0 if a signal ended it; None as long as it runs.
  poll: Callable[[], int | None]
  # Asks it to save and end, or takes it out of the queue.
  stop: Callable[[], object]


class Launcher(NamedTuple):
  """Starts points."""

  # Starts as many points as there is room for, from the first one on.
  start: Callable[[Sequence[JobSpec]], Sequence[Job]]
  close: Callable[[], None]  # Ends what has not ended.


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
    engine: one of `ENGINES`.
    jobs: number of points at a time, >= 1; None for one on each GPU, and for as many
      as a cluster has room for.
    devices_per_job: number of GPUs of each point, >= 1, locally also of cores; None
      for equal shares of this machine, and on a cluster for what options say.
    options: of the engine: parameters of a job of submitit, such as
      `slurm_partition='gpu'` and `timeout_min=600`; or of a task of Ray, such as
      `num_cpus=4`, and `address` of the cluster.
    folder: of the sweep.

  Raises:
    ValueError: an argument is out of range, or an option is none of the engine's.
    ModuleNotFoundError: the extra of the engine is not installed.
    OSError: there is no such engine here.
  """
  check_counts(jobs=jobs, devices_per_job=devices_per_job)
  if engine not in ENGINES:
    raise ValueError(f'launcher={engine!r}; give one of {", ".join(ENGINES)}.')
  with extras.explain_missing():
    return ENGINES[engine](jobs, devices_per_job, options, pathlib.Path(folder))


def check_counts(**counts: int | None) -> None:
  """Refuses numbers of jobs or devices below 1."""
  for name, value in counts.items():
    if value is not None and value < 1:
      raise ValueError(f'{name}={value}; give 1 or more, or leave it out.')


# Processes of this machine. One of JAX takes every device that it sees, and three
# quarters of the memory of each.


def start_process(
  code: str,
  arguments: Sequence[str],
  work: Any,
  *,
  environment: Mapping[str, str],
  stdout: IO[bytes] | int,
  stderr: int | None = None,
) -> subprocess.Popen[bytes]:
  """Starts a process that does some work, for JSON, and ends with this one.

  The code that it runs has the work on the first line of stdin, and calls
  `stopping.end_with_parent`.
  """
  process: subprocess.Popen[bytes] = subprocess.Popen(
    python_path.make_command(code, *arguments),
    env=python_path.make_environment(**environment),
    stdin=subprocess.PIPE,
    # Ctrl-C in a terminal would reach it in addition to the signal that we send.
    start_new_session=True,
    stdout=stdout,
    stderr=stderr,
  )
  assert process.stdin is not None, 'it is a pipe'
  # A process that has ended at once reads nothing.
  with contextlib.suppress(BrokenPipeError):
    process.stdin.write(f'{json.dumps(io.spell_non_finite(work))}\n'.encode())
    process.stdin.flush()
  return process


def start_point(
  spec: JobSpec,
  environment: Mapping[str, str],
  *,
  is_distributed: bool = False,
) -> subprocess.Popen[bytes]:
  """Starts the process that runs a point, and that ends with this one."""
  task = 'run_distributed' if is_distributed else 'run'
  # What a run prints has the times of its rounds.
  with open(spec.log, 'ab', opener=io.open_private) as output:
    if output.tell():
      output.write(f'--- again, {time.strftime("%F %T")} ---\n'.encode())
      output.flush()
    return start_process(
      POINT,
      [task, str(spec.workdir), spec.command],
      spec.config,
      environment=environment,
      stdout=output,
      stderr=subprocess.STDOUT,
    )


class DeviceSlot(NamedTuple):
  """The devices of one run at a time."""

  environment: Mapping[str, str]  # Variables of its process.
  cores: Sequence[int] = ()  # Empty for those of this process.


def find_gpus() -> list[str]:
  """Finds the GPUs of this machine, as CUDA_VISIBLE_DEVICES names them.

  JAX is asked in a process of its own, as it would keep what it finds.

  Raises:
    OSError: JAX finds no device at all.
  """
  if os.environ.get('JAX_PLATFORMS') == 'cpu':
    return []
  done = subprocess.run(
    python_path.make_command(_COUNT_GPUS),
    env=python_path.make_environment(XLA_PYTHON_CLIENT_PREALLOCATE='false'),
    capture_output=True,
    text=True,
    check=False,
  )
  if done.returncode:
    lines = done.stderr.strip().splitlines()
    raise OSError(f'JAX finds no device: {lines[-1] if lines else "no output"}')
  num, visible = int(done.stdout.split()[-1]), os.environ.get(_VISIBLE)
  return visible.split(',')[:num] if visible else [*map(str, range(num))]


def make_slots(
  gpus: Sequence[str],
  jobs: int | None = None,
  devices_per_job: int | None = None,
) -> list[DeviceSlot]:
  """Assigns GPUs, or without any the cores, to runs side by side.

  Args:
    gpus: as `find_gpus` finds them.
    jobs: as for `make_launcher`; None for one on a CPU, as one run uses all cores.
    devices_per_job: likewise; None for one GPU each if jobs is None too.

  Returns:
    A slot for each run. If there are fewer GPUs than runs, several share one and its
    memory; if there are fewer cores than runs, all share them all.

  Raises:
    ValueError: the runs need more devices than there are.

  >>> slots = make_slots('0123', jobs=2)
  >>> [slot.environment['CUDA_VISIBLE_DEVICES'] for slot in slots]
  ['0,1', '2,3']
  """
  # Some systems have no affinities.
  has_affinity = hasattr(os, 'sched_getaffinity')
  cores = (
    os.sched_getaffinity(0) if has_affinity else range(os.cpu_count() or 1)
  )
  names = gpus or [*map(str, sorted(cores))]
  num = len(names)
  if devices_per_job is not None and devices_per_job * (jobs or 1) > num:
    raise ValueError(
      f'devices_per_job={devices_per_job} for {jobs or 1} jobs, but there are {num} '
      f'{"GPUs" if gpus else "cores"}; give smaller numbers, or no devices_per_job.'
    )
  is_alone = jobs is None and devices_per_job is None
  if not gpus and (is_alone or num < (jobs or 1)):
    return [DeviceSlot({})] * (jobs or 1)
  jobs = jobs or num // (devices_per_job or 1)
  size = devices_per_job or max(num // jobs, 1)
  shared = {}
  # What a user set has precedence.
  if jobs > num and not {_FRACTION, _OLD_FRACTION} & os.environ.keys():
    shared = {_FRACTION: f'{_RESERVED / math.ceil(jobs / num):.3f}'}
  # More runs than devices take them in turn.
  shares = [names[i * size % num :][:size] for i in range(jobs)]
  if gpus:
    return [DeviceSlot({_VISIBLE: ','.join(x), **shared}) for x in shares]
  return [DeviceSlot({}, [*map(int, x)]) for x in shares]


def _start_locally(
  jobs: int | None,
  devices_per_job: int | None,
  options: Mapping[str, Any],
  folder: pathlib.Path,
) -> Launcher:
  """Processes of this machine, each on devices of its own."""
  del folder
  if options:
    raise ValueError(
      f'launcher options {[*options]} are of clusters; give --launcher too.'
    )
  slots = make_slots(find_gpus(), jobs, devices_per_job)
  processes: dict[int, subprocess.Popen[bytes]] = {}

  def start(specs: Sequence[JobSpec]) -> list[Job]:
    free = [
      i
      for i in range(len(slots))
      if i not in processes or processes[i].poll() is not None
    ]
    started = []
    for i, spec in zip(free, specs):
      _end_process(processes.get(i))
      processes[i] = start_point(spec, slots[i].environment)
      if slots[i].cores and hasattr(os, 'sched_setaffinity'):
        os.sched_setaffinity(processes[i].pid, slots[i].cores)
      started.append(Job(processes[i].poll, processes[i].terminate))
    return started

  def close() -> None:
    for process in processes.values():
      _end_process(process)

  return Launcher(start, close)


def _end_process(process: subprocess.Popen[bytes] | None) -> None:
  """Closes the pipe of a process, which ends it, and waits for it."""
  if process is not None:
    with process:
      pass


# Clusters.


class NodeJob:
  """What a node of a cluster does: it runs a point in a process.

  That process saves when this one is told to stop, and however it ends, the engine's
  does not end with it. Slurm may interrupt a call (`checkpoint`), and then calls it
  again.
  """

  def __init__(self, spec: JobSpec, *, is_distributed: bool = False):
    """Keeps what is to be done, with other tasks of the same job if distributed."""
    self._spec, self._is_distributed = spec, is_distributed
    self._process: subprocess.Popen[bytes] | None = None

  def __call__(self) -> int:
    """Runs the point; returns the exit status of its process."""
    with start_point(
      self._spec, {}, is_distributed=self._is_distributed
    ) as self._process:
      # A cluster may signal the parent alone.
      is_main = threading.current_thread() is threading.main_thread()
      ask = lambda signum, frame: self._ask_to_stop()
      before = signal.signal(signal.SIGTERM, ask) if is_main else None
      try:
        self._await_end()
      except BaseException:
        # By which Ray cancels a task.
        self._ask_to_stop()
        self._await_end()
        raise
      finally:
        if is_main:
          signal.signal(signal.SIGTERM, before)
      return self._process.wait()

  def checkpoint(self) -> Any:
    """Lets the point save, and gives submitit what goes on with it."""
    import submitit

    if self._process is not None:
      self._ask_to_stop()
      self._await_end()
    again = NodeJob(self._spec, is_distributed=self._is_distributed)
    return submitit.helpers.DelayedSubmission(again)

  def _ask_to_stop(self) -> None:
    assert self._process is not None, 'it was started'
    assert self._process.stdin is not None, 'it is a pipe'
    # As `stopping.end_with_parent` has it.
    self._process.stdin.close()

  def _await_end(self) -> None:
    """Waits for the end of the process, and leaves its status to `Popen.wait`.

    That has a lock, and a handler that interrupts it may wait too. Ray interrupts
    this thread without a signal, which no system call would see.
    """
    assert self._process is not None, 'it was started'
    ended = os.WEXITED | os.WNOWAIT | os.WNOHANG
    # Of a process whose status was read.
    with contextlib.suppress(ChildProcessError):
      while os.waitid(os.P_PID, self._process.pid, ended) is None:
        time.sleep(_INTERVAL)


def run_point(spec: JobSpec) -> int:
  """Runs a point, as a call of `NodeJob` does, for engines that take a function."""
  return NodeJob(spec)()


def _follow(
  log: pathlib.Path,
  find_end: Callable[[], tuple[int, str] | None],
  stop: Callable[[], object],
) -> Job:
  """Follows a job of a cluster, which ends once however often it is polled.

  `find_end` gives its exit status, and what its process could not say in the log of
  the point; None as long as it runs.
  """
  code: int | None = None

  def poll() -> int | None:
    nonlocal code
    if code is None and (end := find_end()) is not None:
      code, text = end
      if text:
        logging.warning('%s: %s', log.stem, text)
        with contextlib.suppress(OSError), log.open('a') as file:
          file.write(f'{text}\n')
    return code

  return Job(poll, stop)


def _launch_jobs(
  submit: Callable[[Sequence[JobSpec]], list[Job]], max_jobs: int | None = None
) -> Launcher:
  """Jobs that go on without this process, so many at a time."""
  running: list[Job] = []

  def start(specs: Sequence[JobSpec]) -> list[Job]:
    running[:] = [job for job in running if job.poll() is None]
    room = len(specs) if max_jobs is None else max_jobs - len(running)
    started = submit(specs[:room]) if specs[:room] else []
    running.extend(started)
    return started

  def close() -> None:
    for job in running:
      if job.poll() is None:
        job.stop()

  return Launcher(start, close)


def _connect_slurm(
  jobs: int | None,
  devices_per_job: int | None,
  options: Mapping[str, Any],
  folder: pathlib.Path,
) -> Launcher:
  """Submits points as arrays of Slurm, by submitit.

  With several `nodes`, or `tasks_per_node`, a point is one run of as many processes.
  """
  import submitit
  from submitit.core.utils import FailedJobError

  try:
    executor = submitit.AutoExecutor(folder / '.slurm', cluster='slurm')
  except RuntimeError as error:
    raise FileNotFoundError(f'launcher=slurm: {error}') from error
  parameters = _complete_options(options, devices_per_job)
  if jobs is not None:
    parameters[_PARALLEL] = jobs
  counts = (parameters.get(name, 1) for name in ('nodes', 'tasks_per_node'))
  is_distributed = math.prod(counts) > 1
  try:
    executor.update_parameters(**parameters)
  except (NameError, TypeError, AssertionError) as error:
    raise ValueError(f'launcher options {dict(options)}: {error}') from error

  def submit(specs: Sequence[JobSpec]) -> list[Job]:
    if is_distributed and any(
      sweep_points.NUM_SEEDS in spec.config for spec in specs
    ):
      raise ValueError(
        'the seeds of a point are trained together, by one process; give '
        'nodes=1 and tasks_per_node=1, or an axis seed=0,1,... for --seeds.'
      )
    if jobs is None:
      executor.update_parameters(**{_PARALLEL: len(specs)})
    try:
      with executor.batch():
        # Itself and no function that calls it, as submitit asks for `checkpoint`.
        submitted = [
          executor.submit(NodeJob(spec, is_distributed=is_distributed))
          for spec in specs
        ]
    except FailedJobError as error:
      raise OSError(f'launcher=slurm refuses the jobs: {error}') from error
    return [_follow_slurm(job, x.log) for job, x in zip(submitted, specs)]

  return _launch_jobs(submit)


def _complete_options(
  options: Mapping[str, Any], devices_per_job: int | None
) -> dict[str, Any]:
  """Checks the options of a job of Slurm, and adds what follows from its GPUs."""
  if other := {'slurm_nodes', 'slurm_ntasks_per_node'} & {*options}:
    # By those names nobody here would know that several processes share a run.
    raise ValueError(
      f'launcher options {sorted(other)}; give nodes and tasks_per_node.'
    )
  for name in {'nodes', 'tasks_per_node'} & {*options}:
    if not isinstance(options[name], int) or options[name] < 1:
      raise ValueError(
        f'launcher option {name}={options[name]!r}; give an integer >= 1.'
      )
  if not {'timeout_min', 'slurm_time'} & {*options}:
    raise ValueError(
      'launcher options have no timeout_min, and submitit gives a job 5 minutes; '
      'give --launcher_option=timeout_min=600, say. A job whose time is up saves, '
      'and goes on in another one.'
    )
  parameters: dict[str, Any] = {'name': 'epe-jax', **options}
  if devices_per_job is None:
    return parameters
  nodes = parameters.get('nodes', 1)
  per_node, rest = divmod(devices_per_job, nodes)
  if nodes > 1:
    parameters.setdefault('tasks_per_node', per_node)
  tasks = parameters.get('tasks_per_node', 1)
  if rest or (nodes * tasks > 1 and tasks != per_node):
    # JAX gives each process of a job of Slurm one GPU.
    raise ValueError(
      f'devices_per_job={devices_per_job} with nodes={nodes} and tasks_per_node='
      f'{tasks}, and each process uses one GPU of a node; give a multiple of the '
      'nodes, and no tasks_per_node.'
    )
  parameters['gpus_per_node'] = per_node
  return parameters


@functools.lru_cache(maxsize=1)
def _list_queue(period: int) -> frozenset[str] | None:
  """The ids of this user's jobs that are queued or run; None without an answer.

  squeue is asked once in each period. submitit asks sacct, which clusters without
  accounting do not have.
  """
  del period
  try:
    done = subprocess.run(
      ['squeue', '--me', '--array', '--noheader', '--format=%i'],
      capture_output=True,
      text=True,
      check=True,
      timeout=_MAX_ANSWER,
    )
  except subprocess.SubprocessError as error:
    why = getattr(error, 'stderr', None) or error
    logging.log_every_n_seconds(logging.WARNING, 'squeue: %s', 60, why)
    return None
  return frozenset(done.stdout.split())


def _follow_slurm(job: Any, log: pathlib.Path) -> Job:
  """Follows a job of an array."""
  gone_since: float | None = None
  # Of several processes, the first one writes what the run is.
  first = job.task(0)

  def find_end() -> tuple[int, str] | None:
    nonlocal gone_since
    now = time.monotonic()
    queue = _list_queue(int(now / _ASK_QUEUE_EVERY))
    if queue is None or job.job_id in queue:
      gone_since = None
      return None
    if not first.paths.result_pickle.exists():
      # A file takes a while to appear on other machines, and a job that is put back
      # into the queue to be there again.
      gone_since = gone_since or now
      if now - gone_since < _GRACE:
        return None
      stderr = first.paths.stderr
      return EXIT_LOST, f'Slurm job {first.job_id} left no result; {stderr}'
    try:
      return int(first.result()), ''
    except Exception as error:  # Whatever went wrong on a node.
      # It was stopped too often, and has saved; or the point could not be started.
      code = EXIT_LOST if 'UncompletedJobError' in str(error) else 1
      return code, f'Slurm job {first.job_id}: {error}'

  return _follow(log, find_end, lambda: job.cancel(check=False))


def _connect_ray(
  jobs: int | None,
  devices_per_job: int | None,
  options: Mapping[str, Any],
  folder: pathlib.Path,
) -> Launcher:
  """Starts points as tasks of Ray."""
  del folder
  import ray

  given = dict(options)
  address = given.pop('address', 'auto')
  if devices_per_job is not None:
    given['num_gpus'] = devices_per_job
  try:
    task: Any = ray.remote(run_point).options(max_retries=0, **given)
    if not ray.is_initialized():
      ray.init(address=address, log_to_driver=False)
  except ConnectionError as error:
    raise ConnectionError(
      f'no Ray cluster at address={address!r}: {error}. Start one by `ray '
      'start --head`, or give --launcher_option=address=HOST:PORT.'
    ) from error
  return _launch_jobs(
    lambda specs: [_follow_ray(ray, task.remote(x), x.log) for x in specs], jobs
  )


def _follow_ray(ray: Any, reference: Any, log: pathlib.Path) -> Job:
  """Follows a task of Ray."""
  errors = ray.exceptions

  def find_end() -> tuple[int, str] | None:
    ready, _ = ray.wait([reference], timeout=0)
    if not ready:
      return None
    try:
      return int(ray.get(reference)), ''
    except errors.RayError as error:
      # A task that is cancelled before it starts has an error without a text.
      text = str(error).strip() or type(error).__name__
      # One that raised could not start the point; the others were lost.
      code = 1 if isinstance(error, errors.RayTaskError) else EXIT_LOST
      return code, f'Ray: {text.splitlines()[-1]}'

  def cancel() -> None:
    with contextlib.suppress(errors.RayError):
      ray.cancel(reference)

  return _follow(log, find_end, cancel)


ENGINES = {
  'local': _start_locally,
  'slurm': _connect_slurm,
  'ray': _connect_ray,
}
"""What starts runs, this machine or a cluster: name -> maker of its launcher."""
