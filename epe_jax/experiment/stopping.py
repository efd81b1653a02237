"""Stopping: the first Ctrl-C or SIGTERM sets a flag, and a second one kills.

Work within `listen` finishes its round and saves, once it reads the flag. A program
that `exit_on_signal` wraps is stopped elsewhere too, wherever the signal arrives.
Signals reach the main thread alone; in others nothing is ever requested.
"""

from collections.abc import Callable, Iterator
from concurrent import futures
import contextlib
import functools
import os
import pathlib
import shlex
import shutil
import signal
import sys
import threading
import time
from typing import Any, NoReturn, ParamSpec, TypeVar

P = ParamSpec('P')
T = TypeVar('T')

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Seconds between two looks at the flag while the main thread waits.
_INTERVAL = 0.2
# Seconds within which the signals to all processes of a job arrive.
_TOGETHER = 1.0
_PROGRAM = 'epe-jax'
# The flag: the signals that have asked and that nobody has answered. An exception alone
# would not do, as Python discards what a handler raises in a destructor.
_asked: list[int] = []


class Stopped(KeyboardInterrupt):
  """A run ended because it was asked to."""

  def __init__(
    self, message: str, signum: int | None = None, *, is_abrupt: bool = False
  ):
    """Tells what was done and what is kept.

    Args:
      message: says so.
      signum: the signal that asked; None for the first process's, of several.
      is_abrupt: whether work goes on in a thread, or stopped in the middle of
        anything.
    """
    super().__init__(message)
    self.signum = signal.SIGTERM if signum is None else signum
    self.is_abrupt = is_abrupt


class Requests:
  """Whether this process was asked to stop.

  Attributes:
    announcement: printed on a request if there is work to finish; '' for nothing.
    signum: the signal that asked; None if there was none.
  """

  def __init__(self, announcement: str = ''):
    self.announcement = announcement
    self.signum: int | None = None

  def raise_if_stopped(self, message: str, *, is_abrupt: bool = False) -> None:
    """Raises `Stopped` with these arguments if this process was asked to stop."""
    if self.signum is not None:
      raise Stopped(message, self.signum, is_abrupt=is_abrupt)

  def wait_for(self, function: Callable[[], T], message: str) -> T:
    """Calls a function in a thread, and stops waiting for it on request.

    For work that takes long and leaves nothing to save, such as a compilation,
    which signals do not reach. Its exceptions are raised.
    """
    pool = futures.ThreadPoolExecutor(1, 'work')
    future = pool.submit(function)
    pool.shutdown(wait=False)
    while not futures.wait([future], _INTERVAL).done:
      self.raise_if_stopped(message, is_abrupt=True)
    return future.result()


@contextlib.contextmanager
def listen(announcement: str = '') -> Iterator[Requests]:
  """Takes the first Ctrl-C or SIGTERM in this context as a request to stop.

  Raises:
    Stopped: this program was asked before.
  """
  requests = Requests(announcement)

  def handle(signum: int, frame: object) -> None:
    del frame
    _asked.append(signum)
    requests.signum = signum
    for other in _SIGNALS:
      signal.signal(other, signal.SIG_DFL)
    # stderr refuses, if the signal arrived while it was written to.
    with contextlib.suppress(RuntimeError):
      if requests.announcement:
        print(f'\n{requests.announcement}', file=sys.stderr, flush=True)

  with _handle_signals(handle):
    if _asked:
      raise Stopped('Stopped.', _asked[0], is_abrupt=True)
    yield requests


@contextlib.contextmanager
def _handle_signals(handler: Callable[[int, Any], object]) -> Iterator[None]:
  is_main = threading.current_thread() is threading.main_thread()
  before = {x: signal.signal(x, handler) for x in _SIGNALS if is_main}
  try:
    yield
  finally:
    _asked.clear()
    for signum, handler_before in before.items():
      signal.signal(signum, handler_before)


def wait_for(function: Callable[[], T], message: str = 'Stopped.') -> T:
  """Calls a function as `Requests.wait_for` does, until the first signal."""
  with listen() as requests:
    return requests.wait_for(function, message)


def end_with_parent() -> None:
  """Ends this process as SIGTERM does when its parent is gone, or asks it to.

  The parent must hold the other end of the pipe that is stdin here: it closes it to
  ask, and however it ends, the pipe ends with it. That counts unless a signal has
  asked, as a second signal stops at once: a cluster sends them to some of the
  processes of a job, or to all.
  """

  def follow() -> None:
    # Unbuffered, because Python would wait for the lock of a buffer at its end.
    while os.read(0, 1024):
      pass
    time.sleep(_TOGETHER)
    if not _asked:
      os.kill(os.getpid(), signal.SIGTERM)

  threading.Thread(target=follow, daemon=True).start()


def command_line() -> str:
  """Gives the command of this process for a shell, as a person would type it."""
  program, *arguments = sys.argv
  if pathlib.Path(program).name != _PROGRAM:
    return shlex.join(sys.orig_argv)
  found = shutil.which(_PROGRAM)
  if found is not None and os.path.samefile(found, program):
    program = _PROGRAM
  return shlex.join([program, *arguments])


def _explain_resuming() -> str:
  return f'To resume: {command_line()}'


def _raise_stopped(signum: int, frame: object) -> NoReturn:
  del frame
  _asked.append(signum)
  raise Stopped('Stopped.', signum, is_abrupt=True)


def exit_on_signal(
  main: Callable[P, T], explain_resuming: Callable[[], str] = _explain_resuming
) -> Callable[P, T]:
  """Wraps the main function of a program, so that signals cause no traceback.

  If it is asked to stop, the program says what is kept and how to resume, and exits
  with 128 plus the number of the signal, as in shells: 130 after Ctrl-C, 143 after
  SIGTERM.

  Args:
    main: the function.
    explain_resuming: gives the sentence on how to resume. By default it names the
      command of this process.
  """

  @functools.wraps(main)
  def ending(*args: P.args, **kwargs: P.kwargs) -> T:
    try:
      # Unlike the default handlers, it remembers the request, and after SIGTERM too
      # the code runs that ends child processes.
      with _handle_signals(_raise_stopped):
        return main(*args, **kwargs)
    except KeyboardInterrupt as stop:
      message = str(stop) or 'Stopped.'
      code = 128 + getattr(stop, 'signum', signal.SIGINT)
      is_abrupt = getattr(stop, 'is_abrupt', True)
    print(f'{message} {explain_resuming()}', file=sys.stderr, flush=True)
    # While JAX compiles or computes, the end of Python would wait for it or crash.
    if is_abrupt and 'jax' in sys.modules:
      sys.stdout.flush()
      os._exit(code)
    raise SystemExit(code)

  return ending
