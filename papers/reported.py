"""The numbers that a paper reports, from a data file, and how ours are shown with them."""

from collections.abc import Mapping
import importlib.resources
import json
import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from epe_jax.report import cells


class Reported(NamedTuple):
  """The numbers of one paper.

  Attributes:
    package: its file reported.json has them.
  """

  package: str

  def load_rows(self, name: str) -> list[dict[str, float]]:
    """The rows of a table of reported.json, column -> number; none if it has not one.

    >>> Reported('papers.one_shot').load_rows('emnist')[1]['analytic']
    300.0
    """
    return self._load().get(name, [])

  def load_tables(self, name: str) -> dict[str, list[dict[str, float]]]:
    """Loads the table of this name, and those whose names continue it after '_'.

    >>> reported = Reported('papers.tight_auditing')
    >>> list(reported.load_tables('figure11'))
    ['figure11', 'figure11_maximum']
    """
    return {
      title: rows
      for title, rows in self._load().items()
      if title == name or title.startswith(f'{name}_')
    }

  def _load(self) -> dict[str, list[dict[str, float]]]:
    return {
      title: [{k: float(x) for k, x in row.items()} for row in rows]
      for title, rows in self._read().items()
      if isinstance(rows, list)
    }

  def _read(self) -> dict[str, Any]:
    file = importlib.resources.files(self.package).joinpath('reported.json')
    return json.loads(file.read_text())

  def find_delta(self, name: str) -> float | None:
    """The δ at which the analytic ε of a table are those that the paper prints.

    Papers that say of δ no more than a formula, or take another, have it in 'deltas'
    of reported.json.

    >>> Reported('papers.one_shot').find_delta('emnist')
    6.7e-06
    """
    return self._read().get('deltas', {}).get(name)

  def find_row(self, name: str, **where: float) -> dict[str, float] | None:
    """The row of a table in which columns have these values; None if there is none.

    >>> reported = Reported('papers.one_shot')
    >>> reported.find_row('anderson', noise=0.2317, repetitions=1)['statistic']
    1.23
    """
    for row in self.load_rows(name):
      if all(math.isclose(row[k], x, abs_tol=1e-12) for k, x in where.items()):
        return row
    return None

  def explain_brackets(self, name: str) -> list[str]:
    """A note on numbers in brackets, if the paper has the table."""
    note = (
      'In brackets: the figures of the paper, at its own scale and with its own '
      'data.'
    )
    return [note] if self.load_rows(name) else []


def add_reported(
  value: float | str | None, row: Mapping[str, float] | None, column: str
) -> str:
  """Formats a number of ours, followed by the paper's in brackets if it has one."""
  text = '-' if value is None else cells.format_number(value)
  return text if row is None else f'{text} ({cells.format_number(row[column])})'


def format_spread(values: ArrayLike, *, digits: int = 2) -> str:
  """Formats the mean and the standard deviation of values.

  >>> format_spread([1.0, 2.0, 4.5])
  '2.50 ± 1.80'
  """
  values = np.asarray(values)
  std = np.std(values, ddof=1) if values.size > 1 else 0.0
  return f'{np.mean(values):.{digits}f} ± {std:.{digits}f}'
