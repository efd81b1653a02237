"""Stopping a run: Ctrl-C and SIGTERM let it finish its round and save.

The first signal is a request, which `audited_run` reads between rounds; a second
one ends the process at once, as if nobody listened.
"""

from collections.abc import Callable, Iterator
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
# Seconds between two looks for a request, where no signal wakes the main thread.
_INTERVAL = 0.2
_PROGRAM = 'epe-jax'
_threads: list[threading.Thread] = []


class Stopped(KeyboardInterrupt):
  """A run ended because it was asked to.

  Attributes:
    signum: the signal that asked.
    is_abrupt: whether the signal itself raised it, whatever went on.
  """

  def __init__(
    self, message: str, signum: int | None = None, *, is_abrupt: bool = False
  ):
    super().__init__(message)
    # Of several processes some are told by the first one, and by no signal.
    self.signum = signal.SIGTERM if signum is None else signum
    self.is_abrupt = is_abrupt


class Requests:
  """Whether this process was asked to stop.

  Attributes:
    signum: the signal that asked; None if none did.
    can_defer: whether there is something to finish first. Until there is, a
      signal raises `Stopped` where it comes.
    has_work: whether what goes on is finished, and not given up at once.
  """

  def __init__(self):
    self.signum: int | None = None
    self.can_defer = False
    self.has_work = True

  def raise_if_stopped(self, message: str) -> None:
    """Raises `Stopped` if this process was asked to stop.

    Args:
      message: what was done and what is kept.
    """
    if self.signum is not None:
      raise Stopped(message, self.signum)

  def wait_for(self, function: Callable[[], T], message: str) -> T:
    """Calls a function in a thread, and stops waiting for it when asked to stop.

    For what takes long and leaves nothing to save, such as a compilation, which
    no signal reaches. The thread goes on until the function returns.

    Args:
      function: what is called.
      message: of `Stopped`, if this process is asked to stop meanwhile.

    Returns:
      What the function returns. What it raises is raised.
    """
    return self.start(function)(message)

  def start(self, function: Callable[[], T]) -> Callable[[str | None], T]:
    """Calls a function in a thread, for which a caller may wait later.

    Args:
      function: what is called.

    Returns:
      A function that waits as `wait_for` does, given the message of `Stopped`; given
      None it waits until the thread has ended, whatever is asked.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def call() -> None:
      try:
        results.append(function())
      except BaseException as error:
        errors.append(error)

    # No daemon: a compiler that is at work does not survive the end of Python.
    thread = threading.Thread(target=call, name='work')
    thread.start()
    _threads[:] = [t for t in (*_threads, thread) if t.is_alive()]

    def wait(message: str | None) -> T:
      self.has_work = message is None
      while thread.is_alive():
        if self.signum is not None and message is not None:
          raise Stopped(message, self.signum)
        thread.join(_INTERVAL)
      self.has_work = True
      if errors:
        raise errors[0]
      return results[0]

    return wait


@contextlib.contextmanager
def listen(announcement: str) -> Iterator[Requests]:
  """Takes the first Ctrl-C or SIGTERM within for a request to stop.

  Signals reach the main thread alone; elsewhere nothing is ever requested. A signal
  is deferred once `can_defer` is set.

  Args:
    announcement: what is printed when it comes, if there is work to finish.
  """
  requests = Requests()
  if threading.current_thread() is not threading.main_thread():
    yield requests
    return

  def handle(signum: int, frame: object) -> None:
    del frame
    if not requests.can_defer:
      raise Stopped('Stopped before the first round.', signum, is_abrupt=True)
    requests.signum = signum
    for other in _SIGNALS:
      signal.signal(other, signal.SIG_DFL)
    if not requests.has_work:
      return
    # If the signal came while a line was being written, there is none of this.
    with contextlib.suppress(RuntimeError):
      print(f'\n{announcement}', file=sys.stderr, flush=True)

  before = {signum: signal.signal(signum, handle) for signum in _SIGNALS}
  try:
    yield requests
  finally:
    for signum, handler in before.items():
      signal.signal(signum, handler)


def wait_for(function: Callable[[], T]) -> T:
  """Calls a function as `Requests.wait_for` does, which the first signal gives up.

  For all that trains or computes for long, and is resumed from what it has written.
  """
  with listen('') as requests:
    requests.can_defer = True
    return requests.wait_for(function, 'Stopped.')


def _raise_stopped(signum: int, frame: object) -> NoReturn:
  del frame
  raise Stopped('Stopped.', signum, is_abrupt=True)


def end_with_parent() -> None:
  """Ends this process as SIGTERM does when the one that started it is gone.

  That one has to hold the other end of the pipe that is stdin here, and to write
  nothing more into it: however it ends, the pipe ends with it.
  """

  def follow() -> None:
    # No buffer of Python, whose lock would be missed at its end.
    while os.read(0, 1024):
      pass
    os.kill(os.getpid(), signal.SIGTERM)

  threading.Thread(target=follow, daemon=True).start()


def name_command() -> str:
  """The command of this process, as short as a shell takes it.

  An installed program is run by an interpreter that nobody typed, and from a folder
  of the search path its name is enough.
  """
  command = [*sys.orig_argv]
  if pathlib.Path(sys.argv[0]).name == _PROGRAM and sys.argv[0] in command:
    command = command[command.index(sys.argv[0]) :]
    found = shutil.which(_PROGRAM)
    if found is not None and os.path.samefile(found, command[0]):
      command[0] = _PROGRAM
  return shlex.join(command)


def _name_own_command() -> str:
  """How to resume a program that is resumed by its own command."""
  return f'To go on: {name_command()}'


def end_politely(
  main: Callable[P, T], explain_resuming: Callable[[], str] = _name_own_command
) -> Callable[P, T]:
  """Wraps the main function of a program, which then ends without a traceback.

  Where it was asked to stop, it says what is kept and how to go on, and exits with
  128 plus the number of the signal, as shells have it: 130 after Ctrl-C, 143 after
  SIGTERM. Signals reach the main thread alone.

  Args:
    main: the function.
    explain_resuming: gives the sentence on how to go on. By default it names the
      command of this process.
  """

  @functools.wraps(main)
  def ending(*args: P.args, **kwargs: P.kwargs) -> T:
    is_main = threading.current_thread() is threading.main_thread()
    # Unlike the default, this runs what ends the processes that were started.
    before = signal.signal(signal.SIGTERM, _raise_stopped) if is_main else None
    try:
      return main(*args, **kwargs)
    except KeyboardInterrupt as stop:
      message = str(stop) or 'Stopped.'
      code = 128 + getattr(stop, 'signum', signal.SIGINT)
      is_abrupt = getattr(stop, 'is_abrupt', True)
    finally:
      if before is not None:
        signal.signal(signal.SIGTERM, before)
    print(f'{message} {explain_resuming()}', file=sys.stderr, flush=True)
    # Where JAX compiles or computes, the end of Python would wait for it or crash.
    is_at_work = is_abrupt and 'jax' in sys.modules
    if is_at_work or any(thread.is_alive() for thread in _threads):
      sys.stdout.flush()
      os._exit(code)
    raise SystemExit(code)

  return ending
