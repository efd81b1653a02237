"""What the paper reports, from a data file."""

from collections.abc import Mapping
import importlib.resources
import json
import math
from typing import Any

from epe_jax.report import narrative


def load_rows(name: str) -> list[dict[str, float]]:
  """The rows of one table; none of a table that the paper does not have.

  Numbers that are not finite are floats too.

  >>> load_rows('stackoverflow')[1]['analytic']
  300.0
  """
  text = importlib.resources.files('epe_jax.papers.one_shot').joinpath(
    'reported.json'
  )
  table = json.loads(text.read_text()).get(name, [])
  return [{k: float(x) for k, x in row.items()} for row in table]


def find_row(name: str, **where: float) -> dict[str, float] | None:
  """The row of a table with these values; None if the paper has no such one.

  >>> find_row('anderson', noise=0.2317, repetitions=1)['statistic']
  1.23
  """
  for row in load_rows(name):
    if all(math.isclose(row[k], x, abs_tol=1e-12) for k, x in where.items()):
      return row
  return None


def add_reported(
  value: Any, row: Mapping[str, float] | None, column: str
) -> str:
  """A figure of ours with the paper's in brackets behind it, if it has one."""
  text = '-' if value is None else narrative.format_number(value)
  return (
    text if row is None else f'{text} ({narrative.format_number(row[column])})'
  )


def brackets(name: str) -> list[str]:
  """What figures in brackets are, if there are any."""
  said = 'In brackets the figures of the paper, at its own scale and data.'
  return [said] if load_rows(name) else []
