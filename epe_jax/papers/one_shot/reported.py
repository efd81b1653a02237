"""The numbers that the paper reports, from a data file."""

from collections.abc import Mapping
import importlib.resources
import json
import math

from epe_jax.text import cells


def load_rows(name: str) -> list[dict[str, float]]:
  """Loads the rows of one table.

  Args:
    name: of the table in reported.json.

  Returns:
    Column -> number of each row, those that are not finite included; no rows of a
    table that the paper does not have.

  >>> load_rows('stackoverflow')[1]['analytic']
  300.0
  """
  text = importlib.resources.files('epe_jax.papers.one_shot').joinpath(
    'reported.json'
  )
  table = json.loads(text.read_text()).get(name, [])
  return [{k: float(x) for k, x in row.items()} for row in table]


def find_row(name: str, **where: float) -> dict[str, float] | None:
  """Finds the row of a table with these values.

  Args:
    name: of the table in reported.json.
    **where: column -> its value in that row.

  Returns:
    Column -> number; None if the paper has no such row.

  >>> find_row('anderson', noise=0.2317, repetitions=1)['statistic']
  1.23
  """
  for row in load_rows(name):
    if all(math.isclose(row[k], x, abs_tol=1e-12) for k, x in where.items()):
      return row
  return None


def add_reported(
  value: float | str | None, row: Mapping[str, float] | None, column: str
) -> str:
  """A number of ours with the paper's in brackets behind it, if it has one.

  Args:
    value: ours; None if there is none.
    row: of the paper's table; None if there is none.
    column: of that row.
  """
  text = '-' if value is None else cells.format_number(value)
  return text if row is None else f'{text} ({cells.format_number(row[column])})'


def explain_brackets(name: str) -> list[str]:
  """A note on what numbers in brackets are, if the paper has the table."""
  note = 'In brackets: the figures of the paper, at its own scale and with its own data.'
  return [note] if load_rows(name) else []
