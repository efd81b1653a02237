"""Starts the points of a sweep: as processes of this machine, by Slurm, or by Ray.

An engine starts a process for each point and says when it has ended. The state of a
point is in its files: whichever engine and machine started it, its run holds the lock
of its folder, resumes from its checkpoints, and has ended when it has a result.

A node imports this module for each point, so that it imports no JAX.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import json
import math
import os
import pathlib
import signal
import subprocess
import threading
import time
from typing import IO, Any, NamedTuple, Protocol, runtime_checkable

from absl import logging

from epe_jax import extras, io, python_path
from epe_jax.experiment.sweeps import sweep_points

ENGINES = ('local', 'slurm', 'ray')
"""What starts runs: this machine, or a cluster."""

EXIT_LOST = -1000
"""The exit status of a process that is unknown, as its machine is gone."""

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
# Some systems have no affinities.
_HAS_AFFINITY = hasattr(os, 'sched_setaffinity')
_FIND = """
import json, jax
devices = jax.local_devices()
version = devices[0].client.platform_version
is_cuda = devices[0].platform == 'gpu' and 'rocm' not in version
print(json.dumps(len(devices) if is_cuda else 0))
"""


class JobSpec(NamedTuple):
  """A point to be run.

  Attributes:
    config: every field of its config, for JSON.
    workdir: the folder of its run; for engines with several machines one that all of
      them see.
    log: the file of its output.
    command: the command that started the sweep, for messages.
  """

  config: Mapping[str, Any]
  workdir: pathlib.Path
  log: pathlib.Path
  command: str


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

  def start(self, specs: Sequence[JobSpec]) -> Sequence[Job]:
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
  if engine == 'local':
    if options:
      raise ValueError(
        f'launcher options {[*options]} are of clusters; give --launcher too.'
      )
    return _Local(make_slots(find_devices(), jobs, devices_per_job))
  with extras.explain_missing():
    if engine == 'slurm':
      submitit = pathlib.Path(folder, '.slurm')
      return _Cluster(_connect_slurm(submitit, jobs, devices_per_job, options))
    if engine == 'ray':
      return _Cluster(_connect_ray(devices_per_job, options), jobs)
  known = ', '.join(ENGINES)
  raise ValueError(f'launcher={engine!r}; give one of {known}.')


def check_counts(**counts: int | None) -> None:
  """Checks numbers of jobs or devices.

  Raises:
    ValueError: one is below 1.
  """
  for name, value in counts.items():
    if value is not None and value < 1:
      raise ValueError(f'{name}={value}; give 1 or more, or leave it out.')


# A process on this machine.


def start_process(
  code: str,
  arguments: Sequence[str],
  work: Any,
  *,
  environment: Mapping[str, str],
  stdout: IO[bytes] | int,
  stderr: int | None = None,
) -> subprocess.Popen[bytes]:
  """Starts a process that does some work, and ends with this one.

  Args:
    code: that it runs; it has the work on the first line of stdin, and calls
      `stopping.end_with_parent`.
    arguments: of the code.
    work: what it does, for JSON.
    environment: variables to set.
    stdout: as for `subprocess.Popen`.
    stderr: likewise.
  """
  process: subprocess.Popen[bytes] = subprocess.Popen(
    python_path.make_command(code, *arguments),
    env={**os.environ, **environment},
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


# Devices of runs side by side. A process of JAX takes every device that it sees, and
# three quarters of the memory of each.


class DeviceSlot(NamedTuple):
  """The devices of one run at a time.

  Attributes:
    environment: variables of its process.
    cores: numbers of its cores; empty for those of this process.
  """

  environment: Mapping[str, str]
  cores: Sequence[int] = ()


def find_devices() -> list[str]:
  """Finds the GPUs of this machine, as CUDA_VISIBLE_DEVICES names them; [] if none.

  JAX is asked in a process of its own, as it would keep what it finds. What
  JAX_PLATFORMS and CUDA_VISIBLE_DEVICES exclude is not found. A run takes all
  accelerators of another make.

  Raises:
    OSError: JAX finds no device at all.
  """
  if os.environ.get('JAX_PLATFORMS') == 'cpu':
    return []
  done = subprocess.run(
    python_path.make_command(_FIND),
    env=os.environ | {'XLA_PYTHON_CLIENT_PREALLOCATE': 'false'},
    capture_output=True,
    text=True,
    check=False,
  )
  if done.returncode:
    lines = done.stderr.strip().splitlines()
    raise OSError(f'JAX finds no device: {lines[-1] if lines else "no output"}')
  num = json.loads(done.stdout.splitlines()[-1])
  visible = os.environ.get(_VISIBLE)
  return visible.split(',')[:num] if visible else [str(i) for i in range(num)]


def make_slots(
  gpus: Sequence[str],
  jobs: int | None = None,
  devices_per_job: int | None = None,
) -> list[DeviceSlot]:
  """Shares devices among runs that run side by side.

  Args:
    gpus: as `find_devices` finds them; without any, cores are shared.
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
  names = gpus or [str(core) for core in _list_cores()]
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


def _list_cores() -> Sequence[int]:
  if _HAS_AFFINITY:
    return sorted(os.sched_getaffinity(0))
  return range(os.cpu_count() or 1)


@contextlib.contextmanager
def enter(slot: DeviceSlot) -> Iterator[None]:
  """Lets processes that are started within it run on the cores of a slot."""
  if not slot.cores or not _HAS_AFFINITY:
    yield
    return
  # Of this thread alone, and inherited by what it starts.
  before = os.sched_getaffinity(0)
  os.sched_setaffinity(0, slot.cores)
  try:
    yield
  finally:
    os.sched_setaffinity(0, before)


class _Local:
  """Processes of this machine, each on devices of its own."""

  def __init__(self, slots: Sequence[DeviceSlot]):
    self._taken: list[tuple[DeviceSlot, subprocess.Popen[bytes] | None]]
    self._taken = [(slot, None) for slot in slots]

  def start(self, specs: Sequence[JobSpec]) -> Sequence[Job]:
    """Starts a process in each free slot."""
    started: list[subprocess.Popen[bytes]] = []
    for i, (slot, process) in enumerate(self._taken):
      is_free = process is None or process.poll() is not None
      if is_free and len(started) < len(specs):
        _close(process)
        with enter(slot):
          new = start_point(specs[len(started)], slot.environment)
        self._taken[i] = slot, new
        started.append(new)
    return started

  def close(self) -> None:
    """Ends its processes, whose parent is gone for them."""
    for _, process in self._taken:
      _close(process)


def _close(process: subprocess.Popen[bytes] | None) -> None:
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
    """Keeps what is to be done; it can be pickled.

    Args:
      spec: the point.
      is_distributed: whether other tasks of the same job share the run.
    """
    self._spec, self._is_distributed = spec, is_distributed
    self._process: subprocess.Popen[bytes] | None = None
    self._is_asked = False

  def __call__(self) -> int:
    """Runs the point; returns the exit status of its process."""
    with (
      self._pass_on_sigterm(),
      start_point(
        self._spec, {}, is_distributed=self._is_distributed
      ) as self._process,
    ):
      try:
        self._await_end(self._process)
        return self._process.wait()
      except BaseException:
        # By which Ray cancels a task.
        self._is_asked = True
        self._await_end(self._process)
        raise

  @contextlib.contextmanager
  def _pass_on_sigterm(self) -> Iterator[None]:
    """Asks the process to stop too, as a cluster may signal its parent alone."""

    def ask(signum: int, frame: object) -> None:
      del signum, frame
      self._is_asked = True

    if threading.current_thread() is not threading.main_thread():
      yield
      return
    before = signal.signal(signal.SIGTERM, ask)
    try:
      yield
    finally:
      signal.signal(signal.SIGTERM, before)

  def checkpoint(self) -> Any:
    """Lets the point save, and gives submitit what goes on with it."""
    import submitit

    if self._process is not None:
      self._is_asked = True
      self._await_end(self._process)
    again = NodeJob(self._spec, is_distributed=self._is_distributed)
    return submitit.helpers.DelayedSubmission(again)

  def _await_end(self, process: subprocess.Popen[bytes]) -> None:
    """Waits for the end of a process, and asks it to stop once that is wanted.

    A signal can interrupt it, and its handler call it; so it leaves out `Popen.poll`,
    which has a lock.
    """
    ended = os.WEXITED | os.WNOWAIT | os.WNOHANG
    # Of a process whose status was read.
    with contextlib.suppress(ChildProcessError):
      while os.waitid(os.P_PID, process.pid, ended) is None:
        if self._is_asked:
          assert process.stdin is not None, 'it is a pipe'
          # As `stopping.end_with_parent` has it.
          process.stdin.close()
        time.sleep(_INTERVAL)


def run_point(spec: JobSpec) -> int:
  """Runs a point, as a call of `NodeJob` does, for engines that take a function."""
  return NodeJob(spec)()


class _ClusterJob:
  """A job of a cluster, which ends once however often it is asked."""

  def __init__(
    self,
    log: pathlib.Path,
    find_end: Callable[[], tuple[int, str] | None],
    terminate: Callable[[], object],
  ):
    """Makes a job.

    Args:
      log: of its point.
      find_end: gives its exit status, and what its process could not say in the log;
        None as long as it runs.
      terminate: as `Job.terminate`.
    """
    self._log, self._find_end, self._terminate = log, find_end, terminate
    self._code: int | None = None

  def poll(self) -> int | None:
    """Its exit status, as `Job.poll`."""
    if self._code is None and (end := self._find_end()) is not None:
      self._code, text = end
      if text:
        logging.warning('%s: %s', self._log.stem, text)
        with contextlib.suppress(OSError), self._log.open('a') as file:
          file.write(f'{text}\n')
    return self._code

  def terminate(self) -> None:
    """Cancels it, as `Job.terminate`."""
    self._terminate()


_Submit = Callable[[Sequence[JobSpec]], list[_ClusterJob]]


class _Cluster:
  """Jobs that go on without this process."""

  def __init__(self, submit: _Submit, max_jobs: int | None = None):
    self._submit, self._max_jobs = submit, max_jobs
    self._jobs: list[_ClusterJob] = []

  def start(self, specs: Sequence[JobSpec]) -> Sequence[Job]:
    """Submits as many points as there may be jobs at a time."""
    self._jobs = [job for job in self._jobs if job.poll() is None]
    room = len(specs)
    if self._max_jobs is not None:
      room = min(room, self._max_jobs - len(self._jobs))
    jobs = self._submit(specs[:room]) if room else []
    self._jobs += jobs
    return jobs

  def close(self) -> None:
    """Cancels the jobs that have not ended."""
    for job in self._jobs:
      if job.poll() is None:
        job.terminate()


def _connect_slurm(
  folder: pathlib.Path,
  jobs: int | None,
  devices_per_job: int | None,
  options: Mapping[str, Any],
) -> _Submit:
  """Makes the function that submits points as one array of Slurm, by submitit.

  With several `nodes`, or `tasks_per_node`, a point is one run of as many processes.
  """
  import submitit
  from submitit.core.utils import FailedJobError

  try:
    executor = submitit.AutoExecutor(folder, cluster='slurm')
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
  queue = _Queue()

  def submit(specs: Sequence[JobSpec]) -> list[_ClusterJob]:
    if is_distributed and any(
      sweep_points.NUM_SEEDS in x.config for x in specs
    ):
      raise ValueError(
        'the seeds of a point are trained together, by one process; give '
        'nodes=1 and tasks_per_node=1, or an axis seed=0,1,... for --seeds.'
      )
    if _PARALLEL not in parameters:
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
    return [
      _follow_slurm(job, queue, spec.log) for job, spec in zip(submitted, specs)
    ]

  return submit


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
  nodes = parameters.get('nodes', 1)
  for name in ('nodes', 'tasks_per_node'):
    count = parameters.get(name, 1)
    if not isinstance(count, int) or count < 1:
      raise ValueError(
        f'launcher option {name}={count!r}; give an integer >= 1.'
      )
  if devices_per_job is None:
    return parameters
  per_node, rest = divmod(devices_per_job, nodes)
  if rest:
    raise ValueError(
      f'devices_per_job={devices_per_job} over nodes={nodes}; give a multiple of '
      'the nodes.'
    )
  if nodes > 1:
    parameters.setdefault('tasks_per_node', per_node)
  tasks = parameters.get('tasks_per_node', 1)
  if nodes * tasks > 1 and tasks != per_node:
    # JAX gives each process of a job of Slurm one GPU.
    raise ValueError(
      f'tasks_per_node={tasks} with {per_node} GPUs of a node, and each process '
      f'uses one; give tasks_per_node={per_node}, or leave it out.'
    )
  parameters['gpus_per_node'] = per_node
  return parameters


class _Queue:
  """The jobs that Slurm has queued or runs, by squeue, asked every few seconds.

  submitit asks sacct, which clusters without accounting do not have.
  """

  def __init__(self) -> None:
    self._ids: frozenset[str] | None = None
    self._asked = -float('inf')

  def has(self, job_id: str) -> bool:
    """Says whether a job is queued or runs; True as long as nobody knows."""
    now = time.monotonic()
    if now - self._asked >= _ASK_QUEUE_EVERY:
      self._asked, self._ids = now, _list_queue()
    return self._ids is None or job_id in self._ids


def _list_queue() -> frozenset[str] | None:
  """The ids of this user's jobs; None if Slurm does not answer."""
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


def _follow_slurm(job: Any, queue: _Queue, log: pathlib.Path) -> _ClusterJob:
  """Follows a job of an array."""
  gone_since: float | None = None

  def find_end() -> tuple[int, str] | None:
    nonlocal gone_since
    if queue.has(job.job_id):
      gone_since = None
      return None
    # Of several processes, the first one writes what the run is.
    first = job.task(0)
    if not first.paths.result_pickle.exists():
      # A file takes a while to appear on other machines, and a job that is put back
      # into the queue to be there again.
      gone_since = gone_since or time.monotonic()
      if time.monotonic() - gone_since < _GRACE:
        return None
      stderr = first.paths.stderr
      return EXIT_LOST, f'Slurm job {first.job_id} left no result; {stderr}'
    try:
      return int(first.result()), ''
    except Exception as error:  # Whatever went wrong on a node.
      # It was stopped too often, and has saved; or the point could not be started.
      code = EXIT_LOST if 'UncompletedJobError' in str(error) else 1
      return code, f'Slurm job {first.job_id}: {error}'

  return _ClusterJob(log, find_end, lambda: job.cancel(check=False))


def _connect_ray(
  devices_per_job: int | None, options: Mapping[str, Any]
) -> _Submit:
  """Makes the function that starts points as tasks of Ray."""
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
  return lambda specs: [
    _follow_ray(ray, task.remote(spec), spec.log) for spec in specs
  ]


def _follow_ray(ray: Any, reference: Any, log: pathlib.Path) -> _ClusterJob:
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

  return _ClusterJob(log, find_end, cancel)
