"""The processes of a sweep, started: by the sweep, or on a node of a cluster.

An engine that starts a point on a node imports this for each of them, and so it
imports little: JAX is for the process that runs the point.
"""

from collections.abc import Iterator, Mapping
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import threading
import time
from typing import IO, Any, NamedTuple

from epe_jax import io, python_path

SWEEP = 'from epe_jax.experiment import sweep_process; sweep_process.main()'
"""The code of the processes of a sweep."""

# Seconds between two looks at a process.
_INTERVAL = 0.2


class Work(NamedTuple):
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


def start_process(
  code: str,
  arguments: list[str],
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
  work: Work, environment: Mapping[str, str], *, is_distributed: bool = False
) -> subprocess.Popen[bytes]:
  """Starts the process that runs a point, and that ends with this one."""
  task = 'run_distributed' if is_distributed else 'run'
  # What a run prints has the times of its rounds.
  with open(work.log, 'ab', opener=io.open_private) as output:
    if output.tell():
      output.write(f'--- again, {time.strftime("%F %T")} ---\n'.encode())
      output.flush()
    return start_process(
      SWEEP,
      [task, str(work.workdir), work.command],
      work.config,
      environment=environment,
      stdout=output,
      stderr=subprocess.STDOUT,
    )


class OnNode:
  """What a node of a cluster does: it runs a point in a process.

  That process saves when this one is told to stop, and however it ends, the engine's
  does not end with it. Slurm may interrupt a call (`checkpoint`), and then calls it
  again.
  """

  def __init__(self, work: Work, *, is_distributed: bool = False):
    """Keeps what is to be done; it can be pickled.

    Args:
      work: the point.
      is_distributed: whether other tasks of the same job share the run.
    """
    self._work, self._is_distributed = work, is_distributed
    self._process: subprocess.Popen[bytes] | None = None
    self._is_asked = False

  def __getstate__(self) -> dict[str, Any]:
    return {**self.__dict__, '_process': None}

  def __call__(self) -> int:
    """Runs the point.

    Returns:
      The exit status of its process.
    """
    with (
      self._pass_on_signals(),
      start_point(
        self._work, {}, is_distributed=self._is_distributed
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
  def _pass_on_signals(self) -> Iterator[None]:
    """Asks the process to stop on SIGTERM, which a cluster may send to its parent alone."""

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
    again = OnNode(self._work, is_distributed=self._is_distributed)
    return submitit.helpers.DelayedSubmission(again)

  def _await_end(self, process: subprocess.Popen[bytes]) -> None:
    """Waits for the end of a process, and asks it to stop once that is wanted.

    A signal can interrupt it, and its handler call it.
    """
    while not _has_ended(process):
      if self._is_asked:
        # Again and again, as what arrives before the process listens is lost.
        _ask_to_stop(process)
      time.sleep(_INTERVAL)


def run_point(work: Work) -> int:
  """Runs a point, as a call of `OnNode` does, for engines that take a function."""
  return OnNode(work)()


def _ask_to_stop(process: subprocess.Popen[bytes]) -> None:
  """Asks it by its pipe: see `stopping.end_with_parent`."""
  assert process.stdin is not None, 'it is a pipe'
  with contextlib.suppress(BrokenPipeError):
    os.write(process.stdin.fileno(), b'stop\n')


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
  """Says whether a process has ended, without the lock of `Popen`.

  A signal's handler would wait for that lock if it interrupted code that holds it.
  """
  if not hasattr(os, 'waitid'):
    return process.poll() is not None
  try:
    options = os.WEXITED | os.WNOWAIT | os.WNOHANG
    return os.waitid(os.P_PID, process.pid, options) is not None
  except ChildProcessError:
    # Its status was read.
    return True
