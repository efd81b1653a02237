"""The devices of each run of several that run side by side on one machine.

A process of JAX takes every device that it sees, and three quarters of the memory of
each. So each run sees its own: accelerators by the variables that drivers read, cores
by the affinity that a process inherits.
"""

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import json
import math
import os
import subprocess
from typing import NamedTuple

from epe_jax import python_path

ENGINES = ('local', 'slurm', 'ray')
"""What starts runs: this machine, or a cluster (`launchers`)."""

# Some systems have no affinities.
_HAS_AFFINITY = hasattr(os, 'sched_setaffinity')
_VISIBLE = {
  'cuda': 'CUDA_VISIBLE_DEVICES',
  'rocm': 'HIP_VISIBLE_DEVICES',
  'tpu': 'TPU_VISIBLE_CHIPS',
}
# Number of chips -> their arrangement, for chips that are neighbours in that order.
_CHIP_BOUNDS = {1: '1,1,1', 2: '1,2,1', 4: '2,2,1', 8: '2,4,1'}
# What one process of JAX reserves of an accelerator's memory.
_RESERVED = 0.75
_FRACTION = 'XLA_CLIENT_MEM_FRACTION'
_OLD_FRACTION = 'XLA_PYTHON_CLIENT_MEM_FRACTION'
_TIMEOUT = 120.0
_FIND = """
import json, jax
devices = jax.local_devices()
kind = devices[0].platform
if kind == 'gpu':
  kind = 'rocm' if 'rocm' in devices[0].client.platform_version else 'cuda'
# A chip of a TPU may be several devices.
chips = {str(getattr(d, 'coords', d.id)) for d in devices}
print(json.dumps([kind, len(chips)]))
"""


class Devices(NamedTuple):
  """What a machine has to run on.

  Attributes:
    kind: 'cpu', 'cuda', 'rocm' or 'tpu'.
    names: of its accelerators, as the variable of visible devices takes them; of a
      CPU the numbers of the cores that this process may use.
  """

  kind: str
  names: Sequence[str]


class Slot(NamedTuple):
  """Where one run at a time has its place.

  Attributes:
    environment: variables of its process.
    cores: numbers of its cores; empty for those of this process.
  """

  environment: Mapping[str, str]
  cores: Sequence[int] = ()


def find_devices() -> Devices:
  """Finds the devices of this machine, without taking them.

  JAX is asked in a process of its own, as it would keep what it finds. What
  JAX_PLATFORMS and the variables of visible devices exclude is not found.

  Raises:
    OSError: JAX finds none, or does not answer in two minutes.
  """
  if os.environ.get('JAX_PLATFORMS') == 'cpu':
    return Devices('cpu', _list_cores())
  try:
    done = subprocess.run(
      python_path.make_command(_FIND),
      env=os.environ | {'XLA_PYTHON_CLIENT_PREALLOCATE': 'false'},
      capture_output=True,
      text=True,
      check=True,
      timeout=_TIMEOUT,
    )
  except subprocess.TimeoutExpired as error:
    raise TimeoutError(
      f'JAX did not say in {_TIMEOUT:g} s which devices there are; set '
      'JAX_PLATFORMS=cpu to do without an accelerator.'
    ) from error
  except subprocess.CalledProcessError as error:
    lines = error.stderr.strip().splitlines()
    raise OSError(
      f'JAX finds no device: {lines[-1] if lines else "no output"}'
    ) from error
  kind, num = json.loads(done.stdout.splitlines()[-1])
  if kind not in _VISIBLE:
    return Devices('cpu', _list_cores())
  visible = os.environ.get(_VISIBLE[kind])
  names = visible.split(',')[:num] if visible else [str(i) for i in range(num)]
  return Devices(kind, names)


def make_slots(
  devices: Devices,
  *,
  jobs: int | None = None,
  devices_per_job: int | None = None,
) -> list[Slot]:
  """Shares devices among runs that run side by side.

  Args:
    devices: as `find_devices` finds them.
    jobs: number of runs at a time, >= 1; None for as many as there are accelerators
      for, and one on a CPU, as one run uses all cores.
    devices_per_job: number of accelerators, or of cores, of each, >= 1; None for
      equal shares, and one accelerator each if jobs is None too.

  Returns:
    A slot for each run. If there are fewer accelerators than runs, several share one
    and its memory; if there are fewer cores than runs, all share them all.

  Raises:
    ValueError: an argument is out of range, or the runs need more devices than there
      are.

  >>> slots = make_slots(Devices('cuda', '0123'), jobs=2)
  >>> [slot.environment['CUDA_VISIBLE_DEVICES'] for slot in slots]
  ['0,1', '2,3']
  """
  check_counts(jobs=jobs, devices_per_job=devices_per_job)
  num = len(devices.names)
  if devices_per_job is not None and devices_per_job * (jobs or 1) > num:
    raise ValueError(
      f'devices_per_job={devices_per_job} for {jobs or 1} jobs, but there are {num} '
      f'devices of kind {devices.kind}; give smaller numbers, or no devices_per_job.'
    )
  is_cpu = devices.kind == 'cpu'
  if jobs is None:
    if is_cpu and devices_per_job is None:
      return [Slot({})]
    jobs = num // (devices_per_job or 1)
  if is_cpu and num < jobs:
    return [Slot({})] * jobs
  sharing = math.ceil(jobs / num)
  size = devices_per_job or max(num // jobs, 1)
  slots = []
  for i in range(jobs):
    # More runs than devices take them in turn.
    start = i * size if sharing == 1 else i % num
    names = devices.names[start : start + size]
    slots.append(
      Slot({}, [int(name) for name in names])
      if is_cpu
      else Slot(_make_environment(devices.kind, names, sharing))
    )
  return slots


def check_counts(**counts: int | None) -> None:
  """Checks numbers of jobs or devices.

  Raises:
    ValueError: one is below 1.
  """
  for name, value in counts.items():
    if value is not None and value < 1:
      raise ValueError(f'{name}={value}; give 1 or more, or leave it out.')


@contextlib.contextmanager
def enter(slot: Slot) -> Iterator[None]:
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


def _list_cores() -> list[str]:
  cores = (
    os.sched_getaffinity(0) if _HAS_AFFINITY else range(os.cpu_count() or 1)
  )
  return [str(core) for core in sorted(cores)]


def _make_environment(
  kind: str, names: Sequence[str], sharing: int
) -> dict[str, str]:
  """Makes the variables by which a process sees the named accelerators alone."""
  environment = {_VISIBLE[kind]: ','.join(names)}
  if kind == 'tpu':
    if sharing > 1:
      raise ValueError(
        'more jobs than chips, but one process alone can have a chip of a TPU; give '
        'fewer jobs.'
      )
    if len(names) not in _CHIP_BOUNDS:
      raise ValueError(
        f'devices_per_job={len(names)} chips; give one of {[*_CHIP_BOUNDS]}.'
      )
    environment |= {
      'TPU_CHIPS_PER_PROCESS_BOUNDS': _CHIP_BOUNDS[len(names)],
      'TPU_PROCESS_BOUNDS': '1,1,1',
    }
  # What a user set has precedence.
  elif sharing > 1 and not {_FRACTION, _OLD_FRACTION} & os.environ.keys():
    environment[_FRACTION] = f'{_RESERVED / sharing:.3f}'
  return environment
