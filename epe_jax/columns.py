"""Columns of a file that a person or a program wrote: a table, JSON or Parquet.

Whatever the format, a cell is text with the number of its line or entry, so that all
are read alike and an error names what is wrong.
"""

import collections
from collections.abc import Callable, Iterator, Sequence
import csv
import itertools
import json
import os
import pathlib
import re
import sys
from typing import Any, NamedTuple

from epe_jax import extras, io

STDIN = '-'
"""The path that stands for a table on stdin."""

SUFFIXES = ('.csv', '.tsv', '.txt', '.json', '.jsonl', '.ndjson', '.parquet')
"""Of files that `read` takes."""

Cell = tuple[int, str]
"""The number of a line or entry, from 1, and the text there."""


class Columns(NamedTuple):
  """Named columns.

  Attributes:
    where: what errors call the file.
    names: as they are written; two may be equal.
    values: of each; JSON may have columns of different lengths.
    numbers: of the lines, or None if entries are counted from 1.
  """

  where: str
  names: list[str]
  values: list[Sequence[Any]]
  numbers: list[int] | None = None

  def take(self, name: str) -> list[Cell]:
    """The cells of a column, '' where there is none."""
    values = self.values[self.names.index(name)]
    numbers = self.numbers or range(1, len(values) + 1)
    return [(n, '' if x is None else str(x)) for n, x in zip(numbers, values)]

  def describe_place(self, number: int) -> str:
    """The file and the place in it."""
    return f'{self.where}, {"line" if self.numbers else "entry"} {number}'

  def find(self, name: str) -> str | None:
    """The column of a name, as it is written or but for case, blanks and hyphens.

    Raises:
      ValueError: there are two.
    """
    for spell in (str, normalize):
      found = [x for x in self.names if spell(x) == spell(name)]
      if len(found) > 1:
        raise ValueError(
          f'{self.where} has two columns {name!r}; leave one of them.'
        )
      if found:
        return found[0]
    return None


def normalize(name: str) -> str:
  """A name but for case, blanks and hyphens."""
  return re.sub(r'[-\s]+', '_', name.strip().lower())


def read(path: str | os.PathLike, *, cure: str = '') -> Columns:
  """Reads the columns of a file.

  Args:
    path: .csv, .tsv or .txt in UTF-8, or '-' for such a table on stdin, with names in
      the first line and cells separated by tabs, commas, semicolons, bars or blanks, as
      the names are; .json with lists or objects, whose names are joined by points; .jsonl
      or .ndjson with an object in each line; or .parquet.
    cure: what an error about its form ends with.

  Raises:
    FileNotFoundError: there is no such file.
    ModuleNotFoundError: it is Parquet, and pyarrow is missing.
    ValueError: it is no such file, or a line has more or fewer cells than names.
  """
  suffix = pathlib.Path(path).suffix.lower()
  if suffix == '.parquet':
    return _read_parquet(path)
  if suffix in ('.json', '.jsonl', '.ndjson'):
    text = read_text(path)
    lines = split_lines(text)
    # Lines, whatever the file is called.
    if suffix != '.json' or (len(lines) > 1 and _is_object(lines[0][1])):
      return _read_json_lines(name_file(path), lines, cure)
    return _flatten(name_file(path), _parse_json(path, text, cure))
  return _read_table(path, cure)


def read_text(path: str | os.PathLike) -> str:
  """The text of a file, or of stdin, without a mark of the order of bytes.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: it is not in UTF-8.
  """
  try:
    if str(path) == STDIN:
      return sys.stdin.buffer.read().decode('utf-8-sig')
    return pathlib.Path(path).read_text(encoding='utf-8-sig')
  except UnicodeDecodeError as error:
    raise ValueError(
      f'{name_file(path)} is not in UTF-8 ({error}). Save it in this encoding, as '
      'iconv -f UTF-16 -t UTF-8 does of UTF-16, and -f LATIN1 of Latin-1.'
    ) from error


def split_lines(text: str) -> list[Cell]:
  """The lines that are not empty, with their numbers."""
  lines = enumerate(re.split(r'\r\n|\r|\n', text), 1)
  return [(number, line) for number, line in lines if line.strip()]


def is_comment(cell: Cell) -> bool:
  """Whether a line begins with #."""
  return cell[1].lstrip().startswith('#')


def is_number(text: str) -> bool:
  """Whether a cell is a number, which may be nan or inf."""
  try:
    float(text)
  except ValueError:
    return False
  # As Python writes 1_000.
  return '_' not in text


def name_file(path: str | os.PathLike) -> str:
  """What errors call a file."""
  return 'stdin' if str(path) == STDIN else os.fspath(path)


def _read_table(path: str | os.PathLike, cure: str) -> Columns:
  """A table in text.

  Comments before it are left out, but names may be in the last of them, as NumPy
  writes them.
  """
  where, lines = name_file(path), split_lines(read_text(path))
  comments = [*itertools.takewhile(is_comment, lines)]
  lines = lines[len(comments) :]
  if not lines:
    raise ValueError(f'{where} is empty. {cure}')
  split = _choose_split(where, lines[0][1], cure)
  names = next(iter(split(lines)))[1]
  if not any(map(is_number, names)):
    del lines[0]
  elif comments:
    names = next(iter(split([(0, comments[-1][1].strip(' #'))])))[1]
  else:
    raise ValueError(f'{where} has no names of columns. {cure}')
  rows = [(number, row) for number, row in split(lines) if any(row)]
  for number, row in rows:
    if len(row) < len(names) or any(row[len(names) :]):
      raise ValueError(
        f'{where}: line {number} has {len(row)} fields, but the header has '
        f'{len(names)}. If a comma is the decimal mark, use a point instead; where a '
        'column is shorter, leave its cells empty but write their commas; otherwise '
        'correct the line or the header.'
      )
  columns = [[row[i] for _, row in rows] for i in range(len(names))]
  return Columns(where, names, [*columns], [number for number, _ in rows])


def _choose_split(
  where: str, header: str, cure: str
) -> Callable[[Sequence[Cell]], Iterator[tuple[int, list[str]]]]:
  """What splits lines as the first one is separated."""
  delimiter = next((x for x in '\t,;|' if x in header), None)

  def split(lines):
    if delimiter is None:
      yield from ((number, line.split()) for number, line in lines)
      return
    reader = csv.reader(
      (line for _, line in lines),
      delimiter=delimiter,
      skipinitialspace=True,
      strict=True,
    )
    try:
      for row in reader:
        # A quoted cell may have several lines; the last of them is named.
        yield lines[reader.line_num - 1][0], [cell.strip() for cell in row]
    except csv.Error as error:
      number = lines[min(reader.line_num, len(lines)) - 1][0]
      raise ValueError(
        f'{where}, line {number}: not a CSV file ({error}). {cure}'
      ) from error

  return split


def _make_object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
  value = dict(pairs)
  if len(value) < len(pairs):
    (name, _), *_ = collections.Counter(x for x, _ in pairs).most_common(1)
    raise ValueError(f'it has the name {name!r} twice')
  return value


_DECODER = json.JSONDecoder(
  parse_float=str,
  parse_int=str,
  parse_constant=str,
  object_pairs_hook=_make_object,
)


def _read_json_lines(where: str, lines: Sequence[Cell], cure: str) -> Columns:
  records, numbers = [], []
  for number, line in lines:
    record = _parse_json(f'{where}, line {number}', line, cure)
    if not isinstance(record, dict):
      raise ValueError(
        f'{where}, line {number}: {line.strip()[:40]!r} is no object; give one in '
        'each line, as {"name": 1}.'
      )
    records.append(record)
    numbers.append(number)
  if not records:
    raise ValueError(f'{where} is empty. {cure}')
  return _flatten(where, records)._replace(numbers=numbers)


def _is_object(line: str) -> bool:
  """Whether a line by itself is an object of JSON."""
  try:
    return isinstance(_DECODER.decode(line), dict)
  except (ValueError, RecursionError):
    return False


def _parse_json(where: str | os.PathLike, text: str, cure: str) -> Any:
  """JSON whose numbers are text, as Python writes them: NaN and Infinity too."""
  try:
    return _DECODER.decode(text)
  except (ValueError, RecursionError) as error:
    raise ValueError(f'{where} is not JSON ({error}). {cure}') from error


def _flatten(where: str, value: Any) -> Columns:
  """Columns of JSON: its lists, values, and fields of lists of objects."""
  columns: dict[str, Sequence[Any]] = {}

  def add(name: str, value: Any) -> None:
    if _is_numbered(value):
      value = [*value.values()]
    if isinstance(value, dict) and {*value} == {'schema', 'data'}:
      value = value['data']  # Of pandas, with orient='table'.
    if _is_split(value):
      value = dict(zip(value['columns'], map(list, zip(*value['data']))))
    if isinstance(value, dict):
      for key, one in value.items():
        add(f'{name}.{key}' if name else key, one)
    elif not isinstance(value, list):
      columns[name] = [value]
    elif value and all(isinstance(one, dict) for one in value):
      rows = [io.flatten(row) for row in value]
      for key in dict.fromkeys(key for row in rows for key in row):
        columns[f'{name}.{key}' if name else key] = [
          row.get(key) for row in rows
        ]
    else:
      columns[name] = value

  add('', value)
  return Columns(where, [*columns], [*columns.values()])


def _is_numbered(value: Any) -> bool:
  """Whether pandas wrote it, a cell or all of a row for the number of each line."""
  if not isinstance(value, dict) or not all(map(str.isdigit, value)):
    return False
  kinds = {type(one) for one in value.values()}
  return kinds == {dict} or (bool(kinds) and not kinds & {dict, list})


def _is_split(value: Any) -> bool:
  """Whether pandas wrote it, as names and rows (orient='split')."""
  return (
    isinstance(value, dict)
    and {*value} - {'index'} == {'columns', 'data'}
    and all(len(row) == len(value['columns']) for row in value['data'])
  )


def _read_parquet(path: str | os.PathLike) -> Columns:
  with extras.explain_missing():
    from pyarrow import parquet

  if not pathlib.Path(path).is_file():
    raise FileNotFoundError(f'{path} does not exist; give a file.')
  with io.explain_damage(path, '.parquet'):
    table = parquet.read_table(path)
    values = [column.to_pylist() for column in table.columns]
  return Columns(name_file(path), table.column_names, values)
