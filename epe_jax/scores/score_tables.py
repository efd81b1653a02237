"""Tables of scores: CSV, TSV, columns of numbers, stdin."""

from collections.abc import Callable, Sequence
import csv
import functools
import math
import operator
import os
import pathlib
import re
import sys
from typing import NamedTuple

from jaxtyping import Float
import numpy as np

from epe_jax import io

STDIN = '-'
"""The path that stands for stdin."""

PAIRS = (
  ('observed', 'unobserved'),
  ('in_canary_scores', 'out_canary_scores'),
  ('in', 'out'),
  ('in_score', 'out_score'),
  ('in_scores', 'out_scores'),
  ('included', 'excluded'),
  ('member', 'nonmember'),
  ('member', 'non_member'),
  ('members', 'nonmembers'),
  ('members', 'non_members'),
  ('member_scores', 'nonmember_scores'),
  ('member_scores', 'non_member_scores'),
  ('train', 'test'),
)
"""Names of two columns or arrays: canaries that took part, and others."""

SCORES = (
  'score',
  'scores',
  'y_score',
  'statistic',
  'confidence',
  'cosine',
  'loss',
)
"""Names of a column with the scores of all canaries."""

LABELS = (
  'observed',
  'label',
  'labels',
  'member',
  'membership',
  'memberships',
  'is_member',
  'is_in',
  'in_train',
  'is_train',
  'included',
  'challenge_bit',
  'y_true',
)
"""Names of a column that says which canaries took part."""

_YES = {'1', 'true', 'in', 'yes', 'member', 'train'}
_NO = {'0', '-1', 'false', 'out', 'no', 'nonmember', 'non-member', 'test'}
_FORMS = (
  'Give columns in and out, member and nonmember, or score and label (1: took '
  'part, 0 or -1: did not), or two such columns without a header.'
)
_TWO_FILES = (
  'With a file for each group, give --in_scores=FILE and --out_scores=FILE.'
)


class Groups(NamedTuple):
  """The scores of a table.

  Attributes:
    observed: [n1] of canaries that took part.
    unobserved: [n0] of canaries that did not.
    note: how columns without names were read; None of those that have names.
  """

  observed: Float[np.ndarray, ' n1']
  unobserved: Float[np.ndarray, ' n0']
  note: str | None


class _Row(NamedTuple):
  line: int
  cells: Sequence[str]


def read_table(path: str | os.PathLike, *, higher: str | None = None) -> Groups:
  """Reads a table with a row for each canary, or a column for each group.

  Cells are separated by tabs, commas, semicolons or blanks, as the first line is. A
  column of a group may end in empty cells.

  Args:
    path: a file in UTF-8, or `STDIN`.
    higher: which group scores higher, 'in' or 'out', which a column of losses needs;
      None if that was not given.

  Raises:
    ValueError: the columns are none of these, a line has more fields than the
      header, or a cell is no score or label.
  """
  rows = _read_rows(path)
  path = _name_input(path)
  if not rows:
    raise ValueError(f'{path} is empty. {_FORMS}')
  if any(map(_is_number, rows[0].cells)):
    return _read_nameless(path, rows)
  _check_widths(path, rows)
  names = [_normalize(cell) for cell in rows[0].cells]
  kind, columns = _choose_columns(path, names, rows[0].cells, higher)
  width, take = max(columns) + 1, operator.itemgetter(*columns)
  body = [
    _Row(line, take(cells if len(cells) >= width else [*cells, *width * ['']]))
    for line, cells in rows[1:]
  ]
  titles = [rows[0].cells[i].strip() for i in columns]
  read = _read_labelled if kind == 'labelled' else _read_pair
  observed, unobserved = read(path, body, titles)
  return Groups(observed, unobserved, None)


def read_column(path: str | os.PathLike) -> np.ndarray:
  """Reads the scores of one group: a number in each line, or an array [n] in .npy.

  Args:
    path: a file, or `STDIN`. Its first line may be a name.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: it is no such file.
  """
  if str(path) != STDIN and not pathlib.Path(path).is_file():
    raise FileNotFoundError(f'{path} does not exist; give a file of scores.')
  if pathlib.Path(path).suffix == '.npy':
    return np.atleast_1d(np.squeeze(io.read_array(path)))
  rows = _read_rows(path)
  path = _name_input(path)
  if rows and not any(map(_is_number, rows[0].cells)):
    del rows[0]
  for row in rows:
    if len(row.cells) != 1:
      raise ValueError(
        f'{path}, line {row.line}: {len(row.cells)} columns; give one score in '
        'each line, or one file with both groups.'
      )
  if not rows:
    raise ValueError(f'{path} has no scores; give one in each line.')
  return np.array([_read_number(path, row, 0, 'score') for row in rows])


def _read_rows(path: str | os.PathLike) -> list[_Row]:
  """The lines that are not empty, in cells; a '#' of NumPy before names is dropped."""
  line = 1
  try:
    lines = _read_text(path).splitlines()
    first = next((text for text in lines if text.strip()), '')
    reader, rows = _choose_reader(first), []
    for line, text in enumerate(lines, 1):
      if not rows and text.lstrip().startswith('#'):
        text = text.lstrip().removeprefix('#')
      if text and not text.isspace():
        rows.append(_Row(line, list(map(str.strip, reader(text)))))
    return rows
  except (csv.Error, UnicodeDecodeError) as error:
    raise ValueError(
      f'{path}, line {line}: not a CSV file in UTF-8 ({error}). {_FORMS}'
    ) from error


def _name_input(path: str | os.PathLike) -> str | os.PathLike:
  """What messages call a file."""
  return 'stdin' if str(path) == STDIN else path


def _check_widths(path: str | os.PathLike, rows: list[_Row]) -> None:
  """Refuses lines with more fields than the header, unless those are empty."""
  width = len(rows[0].cells)
  for row in rows[1:]:
    if any(row.cells[width:]):
      raise ValueError(
        f'{path}: line {row.line} has {len(row.cells)} fields, but the header has '
        f'{width}. If a comma is the decimal mark, use a point instead; otherwise '
        'correct the line or the header.'
      )


def _read_text(path: str | os.PathLike) -> str:
  if str(path) != STDIN:
    return pathlib.Path(path).read_bytes().decode('utf-8-sig')
  buffer = getattr(sys.stdin, 'buffer', None)
  # A replacement of stdin may have only text.
  return (
    sys.stdin.read() if buffer is None else buffer.read().decode('utf-8-sig')
  )


def _choose_reader(first: str) -> Callable[[str], list[str]]:
  for delimiter in ('\t', ',', ';'):
    if delimiter in first:
      return functools.partial(_split, delimiter)
  return str.split


def _split(delimiter: str, text: str) -> list[str]:
  # Only quotes need a reader, which is slow to make for each line.
  if '"' not in text:
    return text.split(delimiter)
  return next(csv.reader([text], delimiter=delimiter, skipinitialspace=True))


def _normalize(name: str) -> str:
  return re.sub(r'[-\s]+', '_', name.strip().lower())


def _choose_columns(
  path: str | os.PathLike,
  names: Sequence[str],
  cells: Sequence[str],
  higher: str | None,
) -> tuple[str, tuple[int, int]]:
  """Which columns are read: scores and labels, or those of both groups."""
  labels = [name for name in LABELS if name in names]
  scores = [name for name in SCORES if name in names]
  pairs = [pair for pair in PAIRS if set(pair) <= set(names)]
  if scores and pairs:
    raise ValueError(
      f'{path} has a column for each group, {" and ".join(pairs[0])}, and also '
      f'one for all scores, {scores[0]}; remove the columns that are not meant.'
    )
  if scores and labels:
    # A table of ours may have more columns.
    label = _choose_one(path, labels, 'observed', 'may say who took part')
    score = _choose_one(path, scores, 'score', 'may be the scores')
    if score == 'loss' and higher is None:
      raise ValueError(
        f'{path} has losses, which are lower for what was trained on. Say so with '
        '--higher=out, or say --higher=in if they are negated.'
      )
    kind, chosen = 'labelled', (score, label)
  elif len(pairs) == 1:
    kind, (chosen,) = 'pair', pairs
  elif len(names) == 1:
    raise ValueError(f'{path} has one column, {cells[0]!r}. {_TWO_FILES}')
  else:
    raise ValueError(f'{path} has the columns {list(cells)}. {_FORMS}')
  for name in chosen:
    if names.count(name) > 1:
      raise ValueError(f'{path} has two columns {name!r}; leave one of them.')
  return kind, (names.index(chosen[0]), names.index(chosen[1]))


def _choose_one(
  path: str | os.PathLike, names: list[str], usual: str, role: str
) -> str:
  if len(names) > 1 and usual not in names:
    raise ValueError(
      f'{path} has the columns {names}, each of which {role}; leave one of '
      f'them, or name it {usual}.'
    )
  return usual if usual in names else names[0]


def _read_nameless(path: str | os.PathLike, rows: list[_Row]) -> Groups:
  """Reads two columns without names, as what is in them tells."""
  width = max(len(row.cells) for row in rows)
  if width == 1:
    raise ValueError(f'{path} has one column of scores. {_TWO_FILES}')
  if width > 2:
    raise ValueError(f'{path} has {width} columns without names. {_FORMS}')
  body = [_Row(row.line, [*row.cells, ''][:2]) for row in rows]
  are_labels = [
    all(_parse_label(row.cells[i]) is not None for row in body) for i in (0, 1)
  ]
  if all(are_labels):
    raise ValueError(
      f'{path} has no header, and both of its columns may say who took part. '
      'Write a first line, such as score,label or in,out.'
    )
  if not any(are_labels):
    names = ['column 1', 'column 2']
    observed, unobserved = _read_pair(path, body, names)
    return Groups(
      observed,
      unobserved,
      'no header: column 1 is read as the scores of canaries that took part, '
      'column 2 as those of others',
    )
  label = are_labels.index(True)
  body = [
    _Row(row.line, [row.cells[1 - label], row.cells[label]]) for row in body
  ]
  names = [f'column {2 - label}', f'column {label + 1}']
  observed, unobserved = _read_labelled(path, body, names)
  return Groups(
    observed,
    unobserved,
    f'no header: {names[0]} is read as scores, {names[1]} as labels (1: took part)',
  )


def _read_labelled(path, rows, names):
  read: dict[bool, list[float]] = {True: [], False: []}
  numbers, texts = set(), set()
  for row in rows:
    took_part = _parse_label(row.cells[1])
    if took_part is None:
      raise ValueError(
        f'{path}, line {row.line}: {names[1]}={row.cells[1]!r}; write 1 or 0.'
      )
    if (text := row.cells[1]) not in texts:
      texts.add(text)
      if _is_number(text):
        numbers.add(float(text))
    if {0, -1} <= numbers:
      raise ValueError(
        f'{path}, line {row.line}: {names[1]} has both 0 and -1; write one of '
        'them for canaries that did not take part.'
      )
    read[took_part].append(_read_number(path, row, 0, names[0]))
  return np.array(read[True]), np.array(read[False])


def _read_pair(path, rows, names):
  read: list[list[float]] = [[], []]
  for row in rows:
    for i, group in enumerate(read):
      # One group may be smaller than the other.
      if row.cells[i]:
        group.append(_read_number(path, row, i, names[i]))
  return np.array(read[0]), np.array(read[1])


@functools.lru_cache(64)
def _parse_label(text: str) -> bool | None:
  word = text.strip().lower()
  if word in _YES | _NO:
    return word in _YES
  if _is_number(word) and float(word) in (0, 1, -1):
    return float(word) == 1
  return None


def _is_number(text: str) -> bool:
  try:
    float(text)
  except ValueError:
    return False
  return True


def _read_number(path, row, i, name):
  text = row.cells[i]
  number = float(text) if _is_number(text) else math.nan
  if math.isfinite(number):
    return number
  where = f'{path}, line {row.line}: {name}={text!r}'
  if _is_number(text):
    raise ValueError(
      f'{where} is not finite. Remove the row, or fix what wrote it.'
    )
  cure = ' Fix the cell, or remove the row.'
  if _is_number(text.replace(',', '.')):
    cure = ' Use a point as the decimal mark.'
  raise ValueError(f'{where} is not a number.{cure}')
