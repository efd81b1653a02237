"""What all benchmarks share: the program, its record, timing, processes, floors.

A benchmark is a function that returns figures; `run` makes it a program:

  if __name__ == '__main__':
    harness.run(measure, 'jax')
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import resource
import subprocess
import sys
import time
from typing import Any, NamedTuple

from absl import app, flags
import numpy as np

from epe_jax import __version__, io
from papers import origins

HERE = pathlib.Path(__file__).resolve().parent
RESULTS = HERE / 'results'


def run(measure: Callable[[bool], Mapping[str, Any]], *packages: str) -> None:
  """Runs a benchmark as the main program.

  Its flags are --quick, --out, --device and those that its module defines. The record has its
  figures, the machine, the versions and the load, and is also printed.

  Args:
    measure: returns the figures; its argument is --quick, for small sizes. What it
      has under 'machine' is added to the description of the machine.
    *packages: installed packages whose versions affect the figures.
  """
  name = pathlib.Path(sys.argv[0]).stem
  flags.DEFINE_bool('quick', False, 'Small sizes: does it run?')
  flags.DEFINE_string('out', f'{RESULTS}/{name}.json', 'File of the result.')
  flags.DEFINE_string(
    'device', None, 'cpu, cuda or tpu; JAX chooses by default.'
  )

  def main(argv: list[str]) -> None:
    if len(argv) > 1:
      raise app.UsageError(f'{argv[1]!r} is not a flag; see --help.')
    if flags.FLAGS.device is not None:
      choose_device(flags.FLAGS.device)
    load, quick = os.getloadavg()[0], flags.FLAGS.quick
    figures = dict(measure(quick))
    machine = describe_machine(*packages) | figures.pop('machine', {})
    record = {
      **figures,
      'quick': quick,
      'load_before': load,
      'load_after': os.getloadavg()[0],
      'machine': machine,
      'date': datetime.datetime.now(datetime.UTC).isoformat(timespec='seconds'),
    }
    path = pathlib.Path(flags.FLAGS.out)
    path.parent.mkdir(parents=True, exist_ok=True)
    io.write_json(path, record)
    print(json.dumps(record, indent=2))

  app.run(main)


def choose_device(platform: str) -> None:
  """Has this process and those that it starts compute on a platform of JAX.

  Its CPU stays at hand, for what is computed there anyway.
  """
  if platform != 'cpu':
    platform += ',cpu'
  os.environ['JAX_PLATFORMS'] = platform
  if 'jax' in sys.modules:
    sys.modules['jax'].config.update('jax_platforms', platform)


def describe_machine(*packages: str) -> dict[str, Any]:
  """The processor, versions, and the devices of JAX if it is among the packages."""
  device = {}
  if 'jax' in packages:
    import jax

    first = jax.devices()[0]
    device['device'] = f'{jax.device_count()} x {first.device_kind}'
    if first.platform != 'cpu':
      device['backend'] = first.client.platform_version.splitlines()[0]
      device |= _query_driver()
  return {
    'cpu': origins.find_processor(),
    'cores': len(os.sched_getaffinity(0)),
    **device,
    'python': platform.python_version(),
    **{name: importlib.metadata.version(name) for name in packages},
    # A checkout may be used without being installed.
    'epe_jax': __version__,
  }


def _query_driver() -> dict[str, str]:
  """The driver of the first NVIDIA device; nothing without nvidia-smi."""
  command = [
    'nvidia-smi',
    '--query-gpu=driver_version',
    '--format=csv,noheader',
  ]
  try:
    done = subprocess.run(
      command, capture_output=True, text=True, check=True, timeout=30
    )
  except (OSError, subprocess.SubprocessError):
    return {}
  return {'driver': done.stdout.splitlines()[0]}


class Timing(NamedTuple):
  """Seconds of the calls of one form: of the clock, and of all threads' CPU time."""

  wall: list[float]
  cpu: list[float]

  @property
  def best(self) -> float:
    return min(self.wall)

  @property
  def mean(self) -> float:
    return float(np.mean(self.wall))

  @property
  def median(self) -> float:
    return float(np.median(self.wall))

  def over(self, other: 'Timing') -> float:
    """Median ratio of the seconds of paired calls."""
    return float(np.median(np.divide(self.wall, other.wall)))


def time_in_turn(
  forms: Mapping[str, Callable[[], Any]],
  repetitions: int,
  *,
  warm_up: int = 1,
) -> dict[str, Timing]:
  """Times several forms of one computation in turn, within this process.

  Args:
    forms: name -> call; JAX arrays that it returns are waited for.
    repetitions: calls of each form that count.
    warm_up: earlier calls of each form, which do not count.
  """
  timings = {name: Timing([], []) for name in forms}
  for repetition in range(-warm_up, repetitions):
    for name, call in forms.items():
      wall, cpu = time.perf_counter(), time.process_time()
      result = call()
      if 'jax' in sys.modules:
        sys.modules['jax'].block_until_ready(result)
      if repetition >= 0:
        timings[name].wall.append(time.perf_counter() - wall)
        timings[name].cpu.append(time.process_time() - cpu)
  return timings


def time_call(call: Callable[[], Any], repetitions: int = 5) -> Timing:
  """Times one computation, after a call to warm up."""
  return time_in_turn({'': call}, repetitions)['']


def summarize(
  timings: Mapping[str, Timing], of: str = 'best'
) -> dict[str, float]:
  """One number of each timing: 'best', 'mean' or 'median'."""
  return {name: getattr(timing, of) for name, timing in timings.items()}


def matmul_flops_per_second(
  size: int = 3000, precision: str = 'float32'
) -> float:
  """Flops per second of a product of two matrices, `size` x `size` each.

  Args:
    size: of both.
    precision: 'float32', 'tensorfloat32' or 'bfloat16'.
  """
  import jax
  import jax.numpy as jnp

  dtype = jnp.bfloat16 if precision == 'bfloat16' else jnp.float32
  x = jnp.ones((size, size), dtype)
  product = jax.jit(lambda x: jnp.matmul(x, x, precision=precision))
  return 2 * size**3 / time_call(lambda: product(x)).best


def pass_seconds(size: int, repetitions: int = 20) -> float:
  """Seconds of one pass over a float32 vector, the sum of its squares."""
  import jax
  import jax.numpy as jnp

  x, square = jnp.ones(size, jnp.float32), jax.jit(lambda x: jnp.sum(x * x))
  return time_call(lambda: square(x), repetitions).best


def count_parameters(params: Any) -> int:
  """d, the number of parameters of a model."""
  import jax

  return sum(x.size for x in jax.tree.leaves(params))


def max_resident_bytes() -> int:
  """Maximum memory that this process has had so far."""
  # VmHWM, because ru_maxrss is inherited from the parent process.
  status = pathlib.Path('/proc/self/status').read_text()
  return int(status.split('VmHWM:')[1].split()[0]) * 1024


def call_in_process(
  function: str,
  *arguments: Any,
  environment: Mapping[str, str] | None = None,
  timeout: float | None = None,
) -> Any:
  """Calls a function of a benchmark in a process of its own.

  Args:
    function: 'MODULE:FUNCTION', imported from the checkout; it must not read flags.
    *arguments: of the function, and what it returns, are JSON values.
    environment: variables besides those of this process.
    timeout: seconds after which the process is killed.

  Raises:
    subprocess.CalledProcessError: the process failed.
    subprocess.TimeoutExpired: it took too long.
  """
  code = (
    'import importlib, json, sys; module, name, arguments = json.loads(sys.argv[1]);'
    'function = getattr(importlib.import_module(module), name);'
    'print(json.dumps(function(*arguments)))'
  )
  path = os.pathsep.join([str(HERE.parent), *filter(None, sys.path)])
  done = subprocess.run(
    [
      sys.executable,
      '-P',  # Otherwise the working directory precedes the path that is given.
      '-c',
      code,
      json.dumps([*function.split(':'), arguments]),
    ],
    env={**os.environ, 'PYTHONPATH': path, **(environment or {})},
    stdout=subprocess.PIPE,
    text=True,
    check=True,
    timeout=timeout,
  )
  return json.loads(done.stdout.splitlines()[-1])


@contextlib.contextmanager
def time_program(
  command: Sequence[str], **settings: Any
) -> Iterator[tuple[subprocess.Popen, dict[str, float]]]:
  """Starts a program; on exit waits for it and fills in seconds and cpu_seconds.

  Args:
    command: of the program.
    **settings: of `subprocess.Popen`.

  Raises:
    RuntimeError: the program failed.
  """
  before = resource.getrusage(resource.RUSAGE_CHILDREN)
  begun, times = time.monotonic(), {}
  with subprocess.Popen(command, **settings) as process:
    yield process, times
  times['seconds'] = time.monotonic() - begun
  if process.returncode:
    raise RuntimeError(f'{command} ended with {process.returncode}')
  after = resource.getrusage(resource.RUSAGE_CHILDREN)
  times['cpu_seconds'] = (
    after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
  )
