"""Tables of scores: CSV, TSV, columns of numbers, stdin."""

from collections.abc import Iterable, Sequence
import csv
import functools
import math
import os
import pathlib
import re
import sys
from typing import Literal, NamedTuple

from jaxtyping import Bool, Float
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


# The number of a line, and one of its cells.
_Cell = tuple[int, str]


class _Row(NamedTuple):
  line: int
  cells: Sequence[str]


class Roles(NamedTuple):
  """Which two columns of a table, or arrays of a file, are read.

  Attributes:
    kind: scores and labels of all canaries, or the scores of both groups.
    columns: their indices.
    titles: what messages call them.
    note: as in `Groups`.
  """

  kind: Literal['labelled', 'pair']
  columns: tuple[int, int]
  titles: tuple[str, str]
  note: str | None = None


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
  path, rows = _read_rows(path)
  if not rows:
    raise ValueError(f'{path} is empty. {_FORMS}')
  if any(map(_is_number, rows[0].cells)):
    roles = _choose_by_content(path, rows)
  else:
    _check_widths(path, rows)
    roles = choose_by_name(path, rows.pop(0).cells, higher)
  first, second = (_take_column(rows, column) for column in roles.columns)
  if roles.kind == 'labelled':
    took_part = _read_labels(path, roles.titles[1], second)
    scores = _read_numbers(path, roles.titles[0], first)
    return Groups(scores[took_part], scores[~took_part], roles.note)
  # One group may be smaller than the other.
  observed, unobserved = (
    _read_numbers(path, title, [cell for cell in column if cell[1]])
    for title, column in zip(roles.titles, (first, second))
  )
  return Groups(observed, unobserved, roles.note)


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
  path, rows = _read_rows(path)
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
  return _read_numbers(path, 'score', _take_column(rows, 0))


def _read_rows(
  path: str | os.PathLike,
) -> tuple[str | os.PathLike, list[_Row]]:
  """What messages call a file, and its lines that are not empty, in cells.

  Comments before the first of them are dropped, and so is a '#' of NumPy before names.
  """
  name = 'stdin' if str(path) == STDIN else path
  try:
    lines = _read_text(path).splitlines()
  except UnicodeDecodeError as error:
    raise ValueError(
      f'{name} is not in UTF-8 ({error}). Save it in this encoding, as '
      'iconv -f UTF-16 -t UTF-8 does of UTF-16, and -f LATIN1 of Latin-1.'
    ) from error
  start = 0
  while start < len(lines) and not _begins_table(lines[start:]):
    start += 1
  texts = lines[start:] or ['']
  texts[0] = texts[0].lstrip().removeprefix('#')
  delimiter = next((x for x in '\t,;' if x in texts[0]), None)
  if delimiter is None:
    split = map(str.split, texts)
  else:
    split = csv.reader(texts, delimiter=delimiter, skipinitialspace=True)
  rows = []
  try:
    for line, cells in enumerate(split, start + 1):
      if any(cells := [cell.strip() for cell in cells]):
        rows.append(_Row(line, cells))
  except csv.Error as error:
    raise ValueError(
      f'{name}, line {rows[-1].line + 1 if rows else start + 1}: not a CSV file '
      f'({error}). {_FORMS}'
    ) from error
  return name, rows


def _begins_table(lines: list[str]) -> bool:
  """Whether the first line is neither blank nor a comment, but a row or its names."""
  first, *others = lines
  if not first.lstrip().startswith('#'):
    return bool(first.strip())
  # Names are as many as the numbers in the next line.
  second = next(filter(str.strip, others), '')
  delimiter = next((x for x in '\t,;' if x in second), None)
  cells = second.split(delimiter)
  names = first.lstrip().removeprefix('#').split(delimiter)
  return len(names) == len(cells) and any(
    map(_is_number, map(str.strip, cells))
  )


def _read_text(path: str | os.PathLike) -> str:
  if str(path) != STDIN:
    return pathlib.Path(path).read_bytes().decode('utf-8-sig')
  buffer = getattr(sys.stdin, 'buffer', None)
  # A replacement of stdin may have only text.
  return (
    sys.stdin.read() if buffer is None else buffer.read().decode('utf-8-sig')
  )


def _take_column(rows: Iterable[_Row], column: int) -> list[_Cell]:
  """The cells of a column; the last columns of a row may be missing."""
  return [
    (line, cells[column] if column < len(cells) else '') for line, cells in rows
  ]


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


def choose_by_name(
  path: str | os.PathLike,
  given: Sequence[str],
  higher: str | None,
  *,
  what: str = 'column',
) -> Roles:
  """Chooses two of several columns or arrays by their names.

  Args:
    path: the file that errors name.
    given: the names.
    higher: as in `read_table`.
    what: what has the names.

  Raises:
    ValueError: no two of them, or more, are scores of one audit.
  """
  names = [re.sub(r'[-\s]+', '_', name.strip().lower()) for name in given]
  labels = [name for name in LABELS if name in names]
  scores = [name for name in SCORES if name in names]
  pairs = [pair for pair in PAIRS if set(pair) <= set(names)]
  if scores and pairs:
    raise ValueError(
      f'{path} has a {what} for each group, {" and ".join(pairs[0])}, and also '
      f'one for all scores, {scores[0]}; remove the {what}s that are not meant.'
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
    raise ValueError(
      f'{path} has no two of known names, but one {what}, {given[0]!r}. '
      f'{_TWO_FILES}'
    )
  else:
    some = f'of {len(pairs)} audits' if pairs else 'and no two of known names'
    raise ValueError(f'{path} has the {what}s {list(given)}, {some}. {_FORMS}')
  for name in chosen:
    if names.count(name) > 1:
      raise ValueError(f'{path} has two {what}s {name!r}; leave one of them.')
  columns = names.index(chosen[0]), names.index(chosen[1])
  return Roles(kind, columns, (given[columns[0]], given[columns[1]]))


def _choose_one(
  path: str | os.PathLike, names: list[str], usual: str, role: str
) -> str:
  if len(names) > 1 and usual not in names:
    raise ValueError(
      f'{path} has the columns {names}, each of which {role}; leave one of '
      f'them, or name it {usual}.'
    )
  return usual if usual in names else names[0]


def _choose_by_content(path: str | os.PathLike, rows: list[_Row]) -> Roles:
  """Chooses between two columns without names, as what is in them tells."""
  width = max(len(row.cells) for row in rows)
  if width == 1:
    raise ValueError(f'{path} has one column of scores. {_TWO_FILES}')
  if width > 2:
    raise ValueError(f'{path} has {width} columns without names. {_FORMS}')
  are_labels = [
    all(_parse_label(text) is not None for _, text in _take_column(rows, i))
    for i in (0, 1)
  ]
  if all(are_labels):
    raise ValueError(
      f'{path} has no header, and both of its columns may say who took part. '
      'Write a first line, such as score,label or in,out.'
    )
  titles = 'column 1', 'column 2'
  if not any(are_labels):
    return Roles(
      'pair',
      (0, 1),
      titles,
      'no header: column 1 is read as the scores of canaries that took part, '
      'column 2 as those of others',
    )
  columns = 0, 1
  if are_labels[0]:
    columns, titles = (1, 0), (titles[1], titles[0])
  return Roles(
    'labelled',
    columns,
    titles,
    f'no header: {titles[0]} is read as scores, {titles[1]} as labels (1: took '
    'part)',
  )


def _read_labels(
  path: str | os.PathLike, name: str, cells: Iterable[_Cell]
) -> Bool[np.ndarray, ' n']:
  labels, numbers = [], set()
  for line, text in cells:
    label = _parse_label(text)
    if label is None:
      raise ValueError(f'{path}, line {line}: {name}={text!r}; write 1 or 0.')
    if _is_number(text):
      numbers.add(float(text))
    if {0, -1} <= numbers:
      raise ValueError(
        f'{path}, line {line}: {name} has both 0 and -1; write one of them for '
        'canaries that did not take part.'
      )
    labels.append(label)
  return np.array(labels, bool)


def _read_numbers(
  path: str | os.PathLike, name: str, cells: Iterable[_Cell]
) -> Float[np.ndarray, ' n']:
  numbers = []
  for line, text in cells:
    if not _is_number(text):
      cure = 'Fix the cell, or remove the row.'
      if _is_number(text.replace(',', '.')):
        cure = 'Use a point as the decimal mark.'
      raise ValueError(
        f'{path}, line {line}: {name}={text!r} is not a number. {cure}'
      )
    if not math.isfinite(number := float(text)):
      raise ValueError(
        f'{path}, line {line}: {name}={text!r} is not finite. Remove the row, or '
        'fix what wrote it.'
      )
    numbers.append(number)
  return np.array(numbers, np.float64)


@functools.lru_cache(64)
def _parse_label(text: str) -> bool | None:
  word = text.lower()
  if word in _YES | _NO:
    return word in _YES
  if _is_number(word) and float(word) in (0, 1, -1):
    return float(word) == 1
  return None


@functools.lru_cache(64)
def _is_number(text: str) -> bool:
  try:
    float(text)
  except ValueError:
    return False
  # As Python writes them, and nobody else.
  return '_' not in text
