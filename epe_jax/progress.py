"""Progress by tqdm, a line that moves or lines of a log, and waiting that ends."""

from collections.abc import Iterator
from concurrent import futures
import contextlib
import sys
import threading
from typing import Any, TypeVar

from tqdm import tqdm

T = TypeVar('T')

MAX_WAIT = 3600.0
"""Seconds for which the result of another thread is waited for."""

LINE_EVERY = 15.0
"""Seconds between two lines of a log."""

_PATIENCE = 2.0
_NOTEBOOK_COLUMNS = 88


class _Lines:
  """A log as a file for tqdm, whose states are lines without escapes.

  Write errors are ignored: tqdm would keep the lock of all bars after one.
  """

  def __init__(self, file: Any):
    self._file, self._last = file, ''
    self.encoding = getattr(file, 'encoding', 'utf-8')

  def write(self, text: str) -> None:
    # tqdm moves up and down between several bars.
    line = text.replace('\x1b[A', '').strip()
    if line and line != self._last:
      self._last = line
      with contextlib.suppress(OSError):
        self._file.write(f'{line}\n')

  def flush(self) -> None:
    with contextlib.suppress(OSError):
      self._file.flush()


def bar(*iterables: Any, **options: Any) -> tqdm:
  """Makes a progress bar of `tqdm.tqdm`, with its arguments."""
  if _is_notebook():
    # One line for all bars: a notebook has no cursor that moves up.
    fixed = {'ncols': _NOTEBOOK_COLUMNS, 'position': 0}
    return tqdm(*iterables, **{**fixed, **options})
  if _is_terminal():
    return tqdm(*iterables, **{'dynamic_ncols': True, **options})
  log = {'mininterval': LINE_EVERY, 'delay': _PATIENCE}
  file = sys.stderr and _Lines(sys.stderr)
  return tqdm(*iterables, file=file, **{**log, **options})


def set_done(shown: tqdm, done: int) -> None:
  """Sets how much is done, which may be less than it was: work may be repeated."""
  # The time that is left is that of what was done since the bar began.
  shown.initial = min(shown.initial, done)
  shown.update(done - shown.n)


@contextlib.contextmanager
def phase(text: str, *, disable: bool = False) -> Iterator[None]:
  """Shows the duration of work of unknown length, after two seconds."""
  if disable:
    yield
    return
  ended = threading.Event()
  form = '{desc}: still running after {elapsed_s:.0f} s'
  every = 1.0 if _is_terminal() or _is_notebook() else LINE_EVERY
  with bar(desc=text, bar_format=form, leave=False, delay=_PATIENCE) as shown:

    def tick() -> None:
      wait = _PATIENCE
      while not ended.wait(wait):
        shown.refresh()
        # Only what tqdm knows to be shown is cleared at the end.
        shown.delay, wait = 0, every

    thread = threading.Thread(target=tick, name='progress', daemon=True)
    thread.start()
    try:
      yield
    finally:
      ended.set()
      thread.join()


class Stalled(Exception):
  """A background task timed out."""


def await_result(future: futures.Future[T], name: str) -> T:
  """Waits for the result of another thread, for `MAX_WAIT` seconds at most.

  Args:
    future: the result.
    name: what ends with it, as the subject of a sentence.

  Raises:
    Stalled: there is no result by then.
  """
  if not futures.wait([future], MAX_WAIT).done:
    raise Stalled(
      f'{name} has not ended within {MAX_WAIT / 60:g} min: a disk, a device or '
      'another process hangs.'
    )
  return future.result()


def _is_terminal() -> bool:
  return sys.stderr is not None and sys.stderr.isatty()


def _is_notebook() -> bool:
  return type(sys.stderr).__module__.startswith('ipykernel.')
