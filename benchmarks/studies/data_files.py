"""Data files next to pages: every row of a study as CSV, of which pages show a part."""

from collections.abc import Iterable, Mapping, Sequence
import csv
import io as text_io
import pathlib

from epe_jax import io
from epe_jax.report import tables

Record = Mapping[str, str]


def write_records(path: pathlib.Path, records: Sequence[Record]) -> None:
  """Writes records to a CSV file with a line of column names.

  Args:
    path: its folder is created if it is missing.
    records: column -> cell, one or more, with equal columns.
  """
  file = text_io.StringIO()
  writer = csv.DictWriter(file, list(records[0]), lineterminator='\n')
  writer.writeheader()
  writer.writerows(records)
  path.parent.mkdir(parents=True, exist_ok=True)
  io.write_text(path, file.getvalue())


def read_records(path: pathlib.Path) -> list[dict[str, str]]:
  """Reads what `write_records` wrote."""
  with path.open(encoding='utf-8', newline='') as file:
    return list(csv.DictReader(file))


def list_records(table: tables.Table) -> list[dict[str, str]]:
  """The rows of a table as records.

  >>> list_records(tables.Table('', ['z', 'ε'], [['0.1', '91.7']]))
  [{'z': '0.1', 'ε': '91.7'}]
  """
  return [dict(zip(table.head, row)) for row in table.body]


def make_table(
  records: Iterable[Record], columns: Sequence[str], notes: Sequence[str] = ()
) -> tables.Table:
  """A table of some columns of records.

  >>> make_table([{'z': '0.1', 'ε': '91.7'}], ['ε']).body
  [['91.7']]
  """
  body = [[record[column] for column in columns] for record in records]
  return tables.Table('', columns, body, notes)


def link(path: str, text: str) -> str:
  """The sentence below a table that is a part of a file.

  Args:
    path: from the page to the file.
    text: what the file holds.
  """
  return f'All rows, {text}: [{pathlib.PurePosixPath(path).name}]({path}).'
