"""Counts of privacy-estimates: one attack at one threshold, without scores.

`AttackResults(FN, FP, TN, TP)` counts right and wrong guesses "took part"
(positive); `to_json` writes {"FN": 1, "FP": 2, "TN": 3, "TP": 4}. Counts bound ε as
scores do at a threshold that was fixed in advance.

References: privacy_estimates 0.1.0, `utils.py` (AttackResults) and
`binomial_proportion.py` (compute_eps_lo), as in microsoft/
responsible-ai-toolbox-privacy at 66d2d45. Zanella-Béguelin et al. (2023).
"""

from collections.abc import Mapping
import os
from typing import Any, NamedTuple

import numpy as np

from epe_jax import io
from epe_jax.audit import failed_checks
from epe_jax.epsilon import lower_bounds
from epe_jax.epsilon.types import Estimate, Scores, Sides
from epe_jax.report import cells, tables


class Counts(NamedTuple):
  """Guesses of one attack, >= 0 each, under the names of privacy-estimates.

  Attributes:
    FN: canaries that took part, guessed "out".
    FP: canaries that did not, guessed "in".
    TN: canaries that did not, guessed "out".
    TP: canaries that took part, guessed "in".
  """

  FN: int
  FP: int
  TN: int
  TP: int

  def to_scores(self) -> Scores:
    """Scores of 1 for a guess "in", and of 0 for a guess "out"."""
    return Scores(
      np.repeat([0.0, 1.0], [self.FN, self.TP]),
      np.repeat([0.0, 1.0], [self.TN, self.FP]),
    )


FIELDS = Counts._fields


def read_counts(path: str | os.PathLike) -> Counts:
  """Counts from a file that `AttackResults.to_json` wrote.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: it is no such file, or a count is not a whole number >= 0.
  """
  values = io.read_json(path)
  if not isinstance(values, dict) or set(FIELDS) != set(values):
    raise ValueError(
      f'{path} has no counts. Give the file that AttackResults.to_json of '
      f'privacy-estimates writes, with {", ".join(FIELDS)} and nothing else.'
    )
  return _check(path, values)


def from_attack_results(results: Any) -> Counts:
  """Counts of a `privacy_estimates.utils.AttackResults`.

  Raises:
    ValueError: it has not all counts, or one is not a whole number >= 0.
  """
  values = {name: getattr(results, name, None) for name in FIELDS}
  return _check(type(results).__name__, values)


def bound_counts(
  counts: Counts,
  *,
  delta: float,
  significance: float = 0.05,
  sides: Sides = 'both',
) -> Estimate:
  """Lower bound of ε from counts at one threshold that was fixed in advance.

  It is what `privacy_estimates.compute_eps_lo` computes for method='beta'; but where
  an attack is worse than chance, that guesses the other way around, and this is 0.

  Args:
    counts: of canaries with which the threshold was not chosen.
    delta: δ, in (0, 1).
    significance: chance that the bound exceeds the true ε, in (0, 1).
    sides: which guesses count; privacy-estimates takes both.

  Raises:
    ValueError: a setting is out of range.

  >>> counts = Counts(FN=100, FP=10, TN=990, TP=900)
  >>> round(bound_counts(counts, delta=1e-5).epsilon, 2)
  3.87
  """
  return lower_bounds.lower_bound(
    counts.to_scores(),
    delta=delta,
    significance=significance,
    multiplicity=lower_bounds.Explicit((0.5,)),
    sides=sides,
  )


def warn_if_reversed(counts: Counts) -> str | None:
  """A warning if canaries that took part are guessed "in" less often, beyond chance."""
  if not failed_checks.check_not_swapped(counts.to_scores()):
    return None
  return (
    'guesses are probably reversed: canaries that took part are guessed "in" less '
    'often than others, beyond chance. If so, exchange TP with FN and TN with FP. '
    'Until then the bound finds nothing.'
  )


def format_counts(counts: Counts, bound: Estimate) -> str:
  """Counts with what `bound_counts` returns of them, as a table in Markdown."""
  guesses = ', '.join(f'{n} {x:,}' for n, x in zip(FIELDS, counts))
  table = tables.Table(
    f'One threshold, {guesses}, δ = {cells.format_delta(bound.delta)}',
    ('limits of both rates', *cells.COLUMNS),
    [('Clopper-Pearson', *(form(bound) for form in cells.COLUMNS.values()))],
    [
      'They hold if the threshold was chosen without these canaries, and if '
      'canaries score independently.'
    ],
  )
  return tables.format_plain_markdown(table)


def _check(where: str | os.PathLike, values: Mapping[str, Any]) -> Counts:
  for name, value in values.items():
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or value < 0:
      raise ValueError(
        f'{where}: {name}={value!r} is not a count; give a whole number >= 0.'
      )
  counts = Counts(**{name: int(values[name]) for name in FIELDS})
  for total, names, canaries in (
    (counts.TP + counts.FN, 'TP + FN', 'took part'),
    (counts.TN + counts.FP, 'TN + FP', 'did not take part'),
  ):
    if not total:
      raise ValueError(
        f'{where}: {names} = 0, but a bound needs canaries that {canaries}.'
      )
  return counts
