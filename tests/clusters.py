"""Clusters of this machine: Slurm with two slots, and Ray with two nodes."""

from collections.abc import Iterator
import contextlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time
from typing import NamedTuple
from unittest import mock

_DAEMONS = ('slurmctld', 'slurmd', 'munged', 'sbatch')
_SECONDS = 240
_RAY = (sys.executable, '-m', 'ray.scripts.scripts')


class Missing(Exception):
  """What this machine lacks, in words."""


class Slurm(NamedTuple):
  """A cluster of one node.

  Attributes:
    folder: of its files.
    daemons: 'slurmctld' and 'slurmd' -> process.
  """

  folder: pathlib.Path
  daemons: dict[str, subprocess.Popen[bytes]]

  def start(self, name: str) -> None:
    """Starts a daemon."""
    # In a session of its own, so that Ctrl-C reaches the sweep alone.
    self.daemons[name] = subprocess.Popen(
      [name, '-D'], stderr=subprocess.DEVNULL, start_new_session=True
    )

  def kill(self, name: str) -> None:
    """Kills a daemon."""
    self.daemons[name].kill()
    self.daemons[name].wait()

  def kill_node(self) -> None:
    """Kills all that runs on the node, as a loss of power does."""
    self.kill('slurmd')
    controller = self.daemons['slurmctld'].pid
    mark = f'SLURM_CONF={self.folder / "slurm.conf"}'.encode()
    for pid in find_processes(mark, b'SLURM_JOB_ID='):
      if pid not in (controller, os.getpid()):
        with contextlib.suppress(ProcessLookupError):
          os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def run_slurm(folder: pathlib.Path) -> Iterator[Slurm]:
  """Runs Slurm with two slots; this process and its children use it.

  Args:
    folder: for its files.

  Raises:
    Missing: it is not installed, or this is not root.
  """
  missing = [name for name in _DAEMONS if shutil.which(name) is None]
  if missing or os.geteuid():
    raise Missing(f'Slurm needs {", ".join(missing) or "root"} here')
  if subprocess.run(
    ['munge', '-n'], capture_output=True, check=False
  ).returncode:
    os.makedirs('/run/munge', exist_ok=True)
    shutil.chown('/run/munge', 'munge', 'munge')
    subprocess.run(['munged'], user='munge', group='munge', check=True)
  host = socket.gethostname().partition('.')[0]
  lines = {
    'ClusterName': 'loopback',
    'SlurmctldHost': f'{host}(127.0.0.1)',
    'AuthType': 'auth/munge',
    # A job that is put back into the queue waits for so long.
    'AuthInfo': 'cred_expire=5',
    'ProctrackType': 'proctrack/linuxproc',
    'TaskPlugin': 'task/none',
    'SlurmUser': 'root',
    'SlurmdUser': 'root',
    'StateSaveLocation': folder / 'slurm-state',
    'SlurmdSpoolDir': folder / 'slurm-spool',
    'SlurmctldPidFile': folder / 'slurmctld.pid',
    'SlurmdPidFile': folder / 'slurmd.pid',
    'SlurmctldLogFile': folder / 'slurmctld.log',
    'SlurmdLogFile': folder / 'slurmd.log',
    'SlurmctldPort': find_port(),
    'SlurmdPort': find_port(),
    'SlurmdTimeout': 10,
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
  (folder / 'slurm.conf').write_text(text)
  for name in ('slurm-state', 'slurm-spool'):
    (folder / name).mkdir()
  cluster = Slurm(folder, {})
  with mock.patch.dict(os.environ, SLURM_CONF=str(folder / 'slurm.conf')):
    try:
      for name in ('slurmctld', 'slurmd'):
        cluster.start(name)
      wait_for(lambda: 'idle' in ask('sinfo', '--noheader'))
      yield cluster
    finally:
      ask('scancel', '--me', '--signal=KILL')
      for name in cluster.daemons:
        cluster.kill(name)


class Ray(NamedTuple):
  """A cluster of two nodes with a slot each.

  Attributes:
    address: host:port of the first one.
    second: process ids of the daemon of the second one.
  """

  address: str
  second: list[int]


@contextlib.contextmanager
def run_ray() -> Iterator[Ray]:
  """Runs Ray with two nodes.

  Raises:
    Missing: it is not installed.
  """
  try:
    import ray
  except ModuleNotFoundError as error:
    raise Missing('Ray is not installed') from error
  address = f'127.0.0.1:{find_port()}'
  start = [*_RAY, 'start', '--num-cpus=1', '--disable-usage-stats']
  head = [*start, '--head', f'--port={address.partition(":")[2]}']

  def call(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=_SECONDS)

  try:
    call(*head, '--include-dashboard=false')
    first = find_processes(b'raylet/raylet\0')
    call(*start, f'--address={address}')
    second = [*{*find_processes(b'raylet/raylet\0')} - {*first}]
    yield Ray(address, second)
  finally:
    ray.shutdown()
    stop = [*_RAY, 'stop', '--force']
    subprocess.run(stop, capture_output=True, check=False)


def find_processes(*marks: bytes) -> list[int]:
  """Finds processes that have all marks in their command or environment."""
  found = []
  for path in pathlib.Path('/proc').glob('[0-9]*'):
    try:
      text = (path / 'cmdline').read_bytes() + (path / 'environ').read_bytes()
    except OSError:
      continue
    if all(mark in text for mark in marks):
      found.append(int(path.name))
  return found


def ask(*command: str) -> str:
  """What a command prints; '' if it fails."""
  done = subprocess.run(command, capture_output=True, text=True, check=False)
  return done.stdout


def wait_for(condition) -> None:
  """Waits for a minute until a condition holds."""
  deadline = time.monotonic() + 60
  while not condition():
    assert time.monotonic() < deadline, 'the cluster does not answer'
    time.sleep(0.2)


def find_port() -> int:
  """Finds a free port."""
  with socket.socket() as sock:
    sock.bind(('127.0.0.1', 0))
    return sock.getsockname()[1]
