"""Progress bars for terminals, notebooks, pipes and logs, and waiting that ends.

In a terminal, tqdm redraws a bar of the terminal's width. If standard error is not a
terminal, as in a pipe or the log of a CI job, a line is printed from time to time,
without carriage returns. Nothing is coloured, so NO_COLOR has nothing to switch off.
"""

from collections.abc import Iterator
from concurrent import futures
import contextlib
import re
import sys
import threading
from typing import Any, TypeVar
import warnings

import tqdm

T = TypeVar('T')

MAX_WAIT = 3600.0
"""Seconds after which what another thread makes is not waited for any longer."""

LINE_EVERY = 15.0
"""Seconds between two lines if standard error is not a terminal."""

_PATIENCE = 2.0
# tqdm would otherwise draw a bar when it is made.
_SOON = 1e-6
_LINE = (
  '{desc}: {n_fmt} of {total_fmt} {unit}, {elapsed} so far, '
  '{remaining} left{postfix}'
)
_LINE_WITHOUT_TOTAL = '{desc}: {n_fmt} {unit}, {elapsed} so far{postfix}'
_PHASE = '{desc}, {elapsed_s:.0f} s so far'


class _Lines:
  """A file for tqdm that writes each state on its own line.

  What cannot be written is not said, as below a log on a full disk: tqdm keeps the lock
  of all bars if a file raises an error, and then the work waits for it.
  """

  def __init__(self, file: Any):
    self._file = file
    self._last = ''
    self.encoding = getattr(file, 'encoding', 'utf-8')

  def write(self, text: str) -> None:
    # Carriage returns, and the steps up and down between several bars.
    line = ' '.join(re.sub(r'\x1b\[A|[\r\n]', '', text).split())
    if line and line != self._last:
      self._last = line
      with contextlib.suppress(OSError):
        self._file.write(f'{line}\n')

  def flush(self) -> None:
    with contextlib.suppress(OSError):
      self._file.flush()


def bar(*iterables: Any, **options: Any) -> tqdm.tqdm:
  """Makes a progress bar.

  Args:
    *iterables: at most one, to iterate over.
    **options: of `tqdm.tqdm`, such as total, unit, desc, initial and disable.

  Returns:
    A bar with `update`, `set_postfix` and `close`, to be used in a `with` or a
    `for` statement.
  """
  if _is_notebook():
    return _notebook_bar()(*iterables, **options)
  file = sys.stderr
  if file is not None and file.isatty():
    return tqdm.tqdm(*iterables, file=file, dynamic_ncols=True, **options)
  has_total = options.get('total') is not None or any(
    hasattr(x, '__len__') for x in iterables
  )
  line = _LINE if has_total else _LINE_WITHOUT_TOTAL
  lines: dict[str, Any] = {
    'file': file and _Lines(file),
    'bar_format': line,
    'mininterval': LINE_EVERY,
    # No line before that, not even one of no progress.
    'delay': _PATIENCE,
  }
  return tqdm.tqdm(*iterables, **{**lines, **options})


def set_done(shown: tqdm.tqdm, done: int) -> None:
  """Sets how much is done, which may be less than it was: work may be repeated.

  Args:
    shown: a bar.
    done: of its total.
  """
  # The time that is left is that of what was done since the bar began.
  shown.initial = min(shown.initial, done)
  shown.update(done - shown.n)


@contextlib.contextmanager
def phase(text: str, *, disable: bool = False) -> Iterator[None]:
  """Shows the duration of work of unknown length, after two seconds.

  Args:
    text: the work, such as 'compiling the round'.
    disable: whether to show nothing.
  """
  if disable:
    yield
    return
  ended = threading.Event()

  def tick() -> None:
    if ended.wait(_PATIENCE):
      return
    with bar(desc=text, bar_format=_PHASE, leave=False, delay=_SOON) as shown:
      # The bar is made after the work began.
      shown.start_t -= _PATIENCE
      every = 1.0 if _is_live() else LINE_EVERY
      shown.refresh()
      while not ended.wait(every):
        shown.refresh()

  thread = threading.Thread(target=tick, name='progress', daemon=True)
  thread.start()
  try:
    yield
  finally:
    ended.set()
    thread.join()


class Stalled(Exception):
  """Something that is waited for does not come: it hangs, and so do its threads."""


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
      f'{name} has not ended within {MAX_WAIT / 60:g} min: a disk, a device or another '
      'process hangs.'
    )
  return future.result()


def _is_live() -> bool:
  return _is_notebook() or (sys.stderr is not None and sys.stderr.isatty())


def _is_notebook() -> bool:
  """Whether this process is the kernel of a notebook."""
  ipython = sys.modules.get('IPython')
  shell = ipython.get_ipython() if ipython is not None else None
  return shell is not None and 'IPKernelApp' in shell.config


def _notebook_bar() -> type[tqdm.tqdm]:
  with warnings.catch_warnings():
    # Without widgets it falls back to text, as it should.
    warnings.simplefilter('ignore')
    from tqdm import autonotebook
  return autonotebook.tqdm
