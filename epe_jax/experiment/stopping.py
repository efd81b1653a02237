"""Stopping: the first Ctrl-C or SIGTERM sets a flag, and a second one kills.

Work within `listen` finishes its round and saves, once it reads the flag. A program
that `exit_on_signal` wraps is stopped elsewhere too, wherever the signal arrives.
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
from typing import NoReturn, ParamSpec, TypeVar

P = ParamSpec('P')
T = TypeVar('T')

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Seconds between two looks at the flag while the main thread waits.
_INTERVAL = 0.2
# Seconds within which the signals to all processes of a job arrive.
_TOGETHER = 1.0
_PROGRAM = 'epe-jax'
# The signals that have asked and that nobody has answered. Python discards what their
# handler raises in a destructor.
_asked: list[int] = []
# Whether any signal ever has.
_was_asked = threading.Event()


class Stopped(KeyboardInterrupt):
  """A run ended because it was asked to.

  Attributes:
    signum: the signal that asked.
    is_abrupt: whether work goes on in a thread, or stopped in the middle of anything.
  """

  def __init__(
    self, message: str, signum: int | None = None, *, is_abrupt: bool = False
  ):
    super().__init__(message)
    # Some of several processes are stopped by the first one, and by no signal.
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
    """Raises `Stopped` if this process was asked to stop.

    Args:
      message: what was done and what is kept.
      is_abrupt: as `Stopped` has it.
    """
    if self.signum is not None:
      raise Stopped(message, self.signum, is_abrupt=is_abrupt)

  def wait_for(self, function: Callable[[], T], message: str) -> T:
    """Calls a function in a thread, and stops waiting for it on request.

    For work that takes long and leaves nothing to save, such as a compilation,
    which signals do not reach.

    Args:
      function: what is called. Its exceptions are raised.
      message: of `Stopped`, if this process is asked to stop in the meantime.
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

  Signals reach the main thread alone; elsewhere nothing is ever requested.

  Raises:
    Stopped: this program was asked before.
  """
  requests = Requests(announcement)
  if threading.current_thread() is not threading.main_thread():
    yield requests
    return

  def handle(signum: int, frame: object) -> None:
    del frame
    _asked.append(signum)
    _was_asked.set()
    requests.signum = signum
    for other in _SIGNALS:
      signal.signal(other, signal.SIG_DFL)
    # stderr refuses, if the signal arrived while it was written to.
    with contextlib.suppress(RuntimeError):
      if requests.announcement:
        print(f'\n{requests.announcement}', file=sys.stderr, flush=True)

  before = {signum: signal.signal(signum, handle) for signum in _SIGNALS}
  try:
    if _asked:
      raise Stopped('Stopped.', _asked[0], is_abrupt=True)
    yield requests
  finally:
    _asked.clear()
    for signum, handler in before.items():
      signal.signal(signum, handler)


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
    if not _was_asked.wait(_TOGETHER):
      os.kill(os.getpid(), signal.SIGTERM)

  threading.Thread(target=follow, daemon=True).start()


def command_line() -> str:
  """Gives the command of this process, in the shortest form for a shell.

  The interpreter of an installed program is left out, and so is the folder of one
  on the search path.
  """
  command = [*sys.orig_argv]
  if pathlib.Path(sys.argv[0]).name == _PROGRAM and sys.argv[0] in command:
    command = command[command.index(sys.argv[0]) :]
    found = shutil.which(_PROGRAM)
    if found is not None and os.path.samefile(found, command[0]):
      command[0] = _PROGRAM
  return shlex.join(command)


def _explain_resuming() -> str:
  return f'To resume: {command_line()}'


def _raise_stopped(signum: int, frame: object) -> NoReturn:
  del frame
  _asked.append(signum)
  _was_asked.set()
  raise Stopped('Stopped.', signum, is_abrupt=True)


def exit_on_signal(
  main: Callable[P, T], explain_resuming: Callable[[], str] = _explain_resuming
) -> Callable[P, T]:
  """Wraps the main function of a program, so that signals cause no traceback.

  If it is asked to stop, the program says what is kept and how to resume, and exits
  with 128 plus the number of the signal, as in shells: 130 after Ctrl-C, 143 after
  SIGTERM. Signals reach the main thread alone.

  Args:
    main: the function.
    explain_resuming: gives the sentence on how to resume. By default it names the
      command of this process.
  """

  @functools.wraps(main)
  def ending(*args: P.args, **kwargs: P.kwargs) -> T:
    is_main = threading.current_thread() is threading.main_thread()
    # Unlike the default handlers, it remembers the request, and after SIGTERM too
    # the code runs that ends child processes.
    before = {
      signum: signal.signal(signum, _raise_stopped)
      for signum in _SIGNALS
      if is_main
    }
    try:
      return main(*args, **kwargs)
    except KeyboardInterrupt as stop:
      message = str(stop) or 'Stopped.'
      code = 128 + getattr(stop, 'signum', signal.SIGINT)
      is_abrupt = getattr(stop, 'is_abrupt', True)
    finally:
      _asked.clear()
      for signum, handler in before.items():
        signal.signal(signum, handler)
    print(f'{message} {explain_resuming()}', file=sys.stderr, flush=True)
    # While JAX compiles or computes, the end of Python would wait for it or crash.
    if is_abrupt and 'jax' in sys.modules:
      sys.stdout.flush()
      os._exit(code)
    raise SystemExit(code)

  return ending
