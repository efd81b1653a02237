"""Output for terminals that lack the Greek letters of the tables, or are narrow."""

import codecs
import io
import os
import shutil
import sys
from typing import Any

from epe_jax.report import tables

_MIN_WIDTH = 40

_WORDS = [
  'ε',
  'eps',
  'δ',
  'delta',
  'μ',
  'mu',
  'σ',
  'sigma',
  'τ',
  'tau',
  'θ',
  'theta',
  'ρ',
  'rho',
  'π',
  'pi',
  'Σ',
  'sum',
  '√',
  'sqrt',
  '∞',
  'inf',
  '≥',
  '>=',
  '≤',
  '<=',
  '≈',
  '~',
  '±',
  '+-',
  '²',
  '^2',
  '·',
  '*',
  '×',
  'x',
  '→',
  '->',
  '–',
  '-',
  '—',
  '-',
  '…',
  '...',
  '█',
  '#',
  '“',
  '"',
  '”',
  '"',
]
_SPELLINGS = {
  **dict(zip(_WORDS[::2], _WORDS[1::2])),
  **dict.fromkeys('‘’', "'"),
  '\N{NO-BREAK SPACE}': ' ',
  '\N{COMBINING CIRCUMFLEX ACCENT}': '^',
}
_ERRORS = 'epe_jax.spell_out'


def spell_for_stdout(text: str) -> str:
  """The text, with what the encoding of stdout lacks spelt out."""
  encoding = getattr(sys.stdout, 'encoding', None) or 'utf-8'
  return text.encode(encoding, _ERRORS).decode(encoding)


def measure_width(stream: Any) -> int:
  """Columns of what is printed: 100, or fewer if it goes to a narrower terminal."""
  if not stream.isatty():
    return tables.WIDTH
  columns = shutil.get_terminal_size((tables.WIDTH, 24)).columns
  return max(_MIN_WIDTH, min(columns, tables.WIDTH))


def prepare_streams() -> None:
  """Has stdout and stderr spell out what their encoding lacks, and need no reader.

  A terminal whose encoding has all letters shows what it always did. What nobody reads,
  as the stream is closed or its reader has gone, is discarded: a command then does its
  work, and its exit status is as ever.
  """
  for name in ('stdout', 'stderr'):
    stream = getattr(sys, name)
    if stream is None:
      stream = open(os.devnull, 'w', encoding='utf-8')  # noqa: SIM115
    elif stream is getattr(sys, f'__{name}__') and not stream.isatty():
      stream.flush()
      outlet = _Outlet(stream.fileno(), 'w', closefd=False)
      at_once = stream.write_through
      stream = io.TextIOWrapper(
        outlet if at_once else io.BufferedWriter(outlet),
        stream.encoding,
        line_buffering=stream.line_buffering,
        write_through=at_once,
      )
    setattr(sys, name, stream)
    # Streams that others put in their place may have no encoding.
    if reconfigure := getattr(stream, 'reconfigure', None):
      reconfigure(errors=_ERRORS)


def discard_output() -> None:
  """Has what is printed to stdout, and waits to be written, discarded."""
  _discard(sys.stdout.fileno())


class _Outlet(io.FileIO):
  """A pipe whose reader may go."""

  def write(self, data: Any, /) -> int | None:
    try:
      return super().write(data)
    except BrokenPipeError:
      _discard(self.fileno())
      return super().write(data)
    except OSError as error:
      error.filename = {1: 'stdout', 2: 'stderr'}.get(self.fileno())
      raise


def _discard(descriptor: int) -> None:
  nowhere = os.open(os.devnull, os.O_WRONLY)
  os.dup2(nowhere, descriptor)
  os.close(nowhere)


def _spell_out(error: UnicodeError) -> tuple[str, int]:
  """Spells out what an encoding lacks, as a handler of such errors.

  >>> 'ε ≥ 2 at δ = 1e-5'.encode('ascii', _ERRORS)
  b'eps >= 2 at delta = 1e-5'
  """
  if not isinstance(error, UnicodeEncodeError):
    raise error
  text = error.object[error.start : error.end]
  spelt = ''.join(
    _SPELLINGS.get(x, x.encode('ascii', 'backslashreplace').decode())
    for x in text
  )
  return spelt, error.end


codecs.register_error(_ERRORS, _spell_out)
