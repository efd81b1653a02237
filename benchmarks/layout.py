"""Finds figures of a result file by a path, and formats them in tables.

A path leads through objects by key, and through a list of objects by what one of
them has: `sizes[dim=100,canaries=8]/passes/hadamard`. What may be missing, because
not every machine can measure it, has a question mark: `ratio/median/tff?`.
"""

from collections.abc import Iterator, Mapping, Sequence
import re
from typing import Any, NamedTuple

from epe_jax.report import tables

# Said above the tables of a file and not in them.
ABOUT = ('machine', 'date', 'load_before', 'load_after', 'quick')
_STEP = re.compile(r'([^\[\]]+)(?:\[(.+)\])?')
_SCALES = ((1.0, 's'), (1e-3, 'ms'), (1e-6, 'µs'), (0.0, 'ns'))
_YEAR = 365.25 * 86400
_BYTES = ((1e15, 'PB'), (1e12, 'TB'), (1e9, 'GB'), (1e6, 'MB'), (1e3, 'kB'))


class Rows(NamedTuple):
  """A table to be made of a list of objects, or of an object of objects.

  Attributes:
    title: what it shows.
    at: path to it.
    columns: head -> path within a row; the key of an object is at 'key'. Behind
      the path may stand what the figure is, if no name says it: `x as seconds`.
    notes: sentences below.
  """

  title: str
  at: str
  columns: Mapping[str, str]
  notes: Sequence[str] = ()


def find(record: Any, path: str) -> Any:
  """What a path leads to; None where something with a question mark is missing.

  Raises:
    ValueError: it leads nowhere; says which step, and what there is.
  """
  for step in path.split('/'):
    matched = _STEP.fullmatch(step)
    if matched is None:
      raise ValueError(
        f'{step!r} of {path!r} is no step; give KEY or KEY[A=B].'
      )
    key, chosen = matched.groups()
    optional, key = key.endswith('?'), key.removesuffix('?')
    if optional and isinstance(record, Mapping) and key not in record:
      return None
    if not isinstance(record, Mapping) or key not in record:
      there = sorted(record) if isinstance(record, Mapping) else type(record)
      raise ValueError(f'{path!r} leads nowhere at {key!r}; there is {there}.')
    record = record[key]
    if chosen:
      record = _chosen(record, chosen, path, optional)
      if record is None:
        return None
  return record


def rows(record: Mapping[str, Any], asked: Rows) -> tables.Table:
  """The table that is asked for; a figure that a row lacks is a dash."""
  found = find(record, asked.at)
  if isinstance(found, Mapping):
    found = [{'key': key, **row} for key, row in found.items()]
  body = [
    [_cell(row, path) for path in asked.columns.values()] for row in found
  ]
  return tables.Table(asked.title, list(asked.columns), body, asked.notes)


def everything(record: Mapping[str, Any]) -> list[tables.Table]:
  """All figures of a file in tables, whatever its form.

  Objects of one form make a table, a row each, whether they stand in a list or
  under names; what is left over makes one of names and figures.
  """
  made, single = [], []
  for name, value in record.items():
    if name in ABOUT:
      continue
    several = _several(value)
    if several is None:
      single += [[path, shown(path, x)] for path, x in leaves({name: value})]
      continue
    flat = [dict(leaves(row)) for row in several]
    head = list(dict.fromkeys(path for row in flat for path in row))
    body = [
      [shown(path, row[path]) if path in row else '-' for path in head]
      for row in flat
    ]
    made.append(tables.Table(_words(name), [_words(h) for h in head], body))
  if single:
    single = [[_words(path), value] for path, value in single]
    made.insert(0, tables.Table('', ['figure', 'value'], single))
  return made


def leaves(value: Any, before: str = '') -> Iterator[tuple[str, Any]]:
  """(path, figure) of everything in objects within objects.

  >>> list(leaves({'a': {'b': 1, 'c': [2, 3]}}))
  [('a/b', 1), ('a/c', [2, 3])]
  """
  if not isinstance(value, Mapping):
    yield before, value
    return
  for key, inner in value.items():
    yield from leaves(inner, f'{before}/{key}' if before else str(key))


def shown(path: str, value: Any) -> str:
  """A figure for people; its unit is in the name, as seconds or bytes.

  >>> shown('seconds/best', 0.0123), shown('peak_bytes', 2_500_000)
  ('12.3 ms', '2.5 MB')
  >>> shown('dim', 4050748), shown('ratio', 1.23456), shown('x', None)
  ('4,050,748', '1.23', '-')
  """
  if value is None:
    return '-'
  if isinstance(value, bool):
    return 'yes' if value else 'no'
  if isinstance(value, str):
    return value
  if isinstance(value, (list, tuple)):
    return ', '.join(shown(path, x) for x in value)
  if isinstance(value, Mapping):
    return ', '.join(f'{k} {shown(f"{path}/{k}", x)}' for k, x in value.items())
  rate = '_per_' in path
  if 'seconds' in path and not rate:
    return seconds(value)
  if 'bytes' in path and not rate:
    return nbytes(value)
  return number(value)


def number(value: float) -> str:
  """Three digits that count, and more near 1; whole numbers in full.

  >>> number(1200), number(0.004567), number(6.02e23), number(12.345)
  ('1,200', '0.00457', '6.02e+23', '12.3')
  >>> number(1.00512), number(0.9988)
  ('1.005', '0.999')
  """
  if value == int(value) and abs(value) < 1e9:
    return f'{int(value):,}'
  if 1000 <= abs(value) < 1e9:
    return f'{value:,.0f}'
  # Of a ratio to what it should be like, it is the difference that counts.
  return f'{value:.3f}' if 0.9 < value < 1.1 else f'{value:.3g}'


def seconds(value: float) -> str:
  """A time, in the unit that suits it.

  >>> seconds(0.00042), seconds(95.0), seconds(86400.0)
  ('420 µs', '95 s', '24 h')
  """
  if value >= 2 * _YEAR:
    return f'{value / _YEAR:,.0f} years'
  if value >= 2 * 86400:
    return f'{value / 86400:,.3g} days'
  if value == 0:
    return '0 s'
  if value >= 2 * 3600:
    return f'{value / 3600:.3g} h'
  if value >= 120:
    return f'{value / 60:.3g} min'
  unit, name = next(x for x in _SCALES if value >= x[0])
  return f'{value / (unit or 1e-9):.3g} {name}'


def nbytes(value: float) -> str:
  """A size in memory or on a disk.

  >>> nbytes(33e9), nbytes(512)
  ('33 GB', '512 B')
  """
  for unit, name in _BYTES:
    if abs(value) >= unit:
      return f'{value / unit:.3g} {name}'
  return f'{value:.3g} B'


def _chosen(found: Any, chosen: str, path: str, optional: bool) -> Any:
  wanted = dict(part.split('=', 1) for part in chosen.split(','))
  for one in found:
    if all(str(one.get(key)) == value for key, value in wanted.items()):
      return one
  if optional:
    return None
  raise ValueError(f'{path!r} leads nowhere: no [{chosen}] among {len(found)}.')


def _cell(row: Mapping[str, Any], path: str) -> str:
  path, _, unit = path.partition(' as ')
  try:
    return shown(unit or path, find(row, path))
  except ValueError:
    return '-'


def _several(value: Any) -> list[Mapping[str, Any]] | None:
  if isinstance(value, list) and value and isinstance(value[0], Mapping):
    return value
  if isinstance(value, Mapping) and len(value) > 1:
    inner = list(value.values())
    if all(
      isinstance(x, Mapping) and x.keys() == inner[0].keys() for x in inner
    ):
      return [{'': key, **x} for key, x in value.items()]
  return None


def _words(path: str) -> str:
  return path.replace('_', ' ').replace('/', ', ')
