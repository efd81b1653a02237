"""Counts of guesses without scores: at one threshold, or at each of a ROC.

`AttackResults(FN, FP, TN, TP)` counts right and wrong guesses "took part"
(positive); `to_json` writes {"FN": 1, "FP": 2, "TN": 3, "TP": 4}. Counts bound ε as
scores do at a threshold that was fixed in advance.

References: privacy_estimates 0.1.0, `utils.py` (AttackResults) and
`binomial_proportion.py` (compute_eps_lo), as in microsoft/
responsible-ai-toolbox-privacy at 66d2d45. Zanella-Béguelin et al. (2023).
"""

from collections.abc import Mapping, Sequence
import math
import os
from typing import Any, NamedTuple

from jaxtyping import Float, Shaped
import numpy as np

from epe_jax import columns
from epe_jax.audit import failed_checks
from epe_jax.epsilon import lower_bounds
from epe_jax.epsilon.types import Estimate, Scores
from epe_jax.report import cells, tables
from epe_jax.scores import formats


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

# How far a rate times its number may be from a whole number, as float32 has it.
_WHOLE = 0.1
# Of surprise at a divisor that all counts of a ROC have.
_BITS = 20


def from_cells(
  where: str, cells: Mapping[str, Sequence[columns.Cell]]
) -> Counts:
  """Counts from the cells of a file, one under each name.

  Raises:
    ValueError: there are more, or one is not a whole number >= 0.
  """
  values = {}
  for name, column in cells.items():
    if len(column) != 1:
      raise ValueError(
        f'{where} has {len(column):,} entries of {name}; give the counts of one attack '
        'at one threshold.'
      )
    ((_, text),) = column
    is_whole = columns.is_number(text) and float(text).is_integer()
    values[name] = int(float(text)) if is_whole else text
  return _check(where, values)


def count_guesses(
  where: str,
  guesses: Shaped[np.ndarray, ' n'],
  labels: Shaped[np.ndarray, ' n'],
) -> Counts:
  """Counts of guesses [n] of who took part, by labels [n]: 1 or 0 each, or -1.

  Raises:
    ValueError: all took part, or none did.
  """
  guessed = np.asarray(guesses) == 1
  took_part = formats.find_members(where, np.asarray(labels), 'labels')
  counts = (
    np.sum(took_part & ~guessed),
    np.sum(~took_part & guessed),
    np.sum(~took_part & ~guessed),
    np.sum(took_part & guessed),
  )
  return _check(where, dict(zip(FIELDS, counts)))


def order_by_roc(
  where: str,
  fpr: Float[np.ndarray, ' m'],
  tpr: Float[np.ndarray, ' m'],
  num_in: float,
  num_out: float,
) -> tuple[Float[np.ndarray, ' n1'], Float[np.ndarray, ' n0']]:
  """Scores in the order that a ROC has, in which those between two points are equal.

  Bounds by ranks lose nothing by that: points that scikit-learn leaves out are on a line.

  Args:
    where: the file that errors name.
    fpr: share of the canaries that did not take part above each threshold.
    tpr: share of those that did.
    num_in: n1 >= 1, how many took part.
    num_out: n0 >= 1, how many did not.

  Raises:
    ValueError: a rate times its number is no whole number, all of them have a divisor
      that chance does not explain, or the rates of no thresholds are these.
  """
  totals = []
  for option, name, rates, num in (
    ('num_in', 'tpr', tpr, num_in),
    ('num_out', 'fpr', fpr, num_out),
  ):
    if not (num >= 1 and float(num).is_integer()):
      raise ValueError(f'{option}={num:g}; give a whole number >= 1.')
    counts = np.asarray(rates, np.float64) * num
    wrong = ~(np.abs(counts - np.round(counts)) < _WHOLE) | (counts > num)
    wrong |= counts < 0
    if np.any(wrong):
      raise ValueError(
        f'{where}: {name}={rates[wrong][0]:.8g} of {option}={num:,.0f} canaries is not '
        f'a number of canaries, but {counts[wrong][0]:.6g}. Give the numbers of the '
        'attack that the ROC is of, and rates with all their digits.'
      )
    whole = np.round(counts).astype(int)
    between = np.unique(whole[(whole > 0) & (whole < num)])
    divisor = int(np.gcd.reduce(between))
    if divisor > 1 and between.size * math.log2(divisor) > _BITS:
      raise ValueError(
        f'{where}: all {between.size:,} values of {name} are multiples of {divisor} of '
        f'{option}={num:,.0f} canaries, as if they were rounded, or of fewer canaries. '
        'Give the numbers of the attack, and rates with all their digits.'
      )
    totals.append(whole)
  if totals[0].size != totals[1].size:
    raise ValueError(
      f'{where}: tpr has {tpr.size:,} entries and fpr {fpr.size:,}; give one of each '
      'for a threshold.'
    )
  order = np.lexsort(totals)
  above = [
    np.diff(x[order], prepend=0, append=n)
    for x, n in zip(totals, (num_in, num_out))
  ]
  if np.any(above[0] < 0):
    raise ValueError(
      f'{where}: where fpr grows, tpr falls; a ROC has both rates of one threshold in '
      'each entry.'
    )
  ranks = -np.arange(order.size + 1.0)
  observed, unobserved = (np.repeat(ranks, x.astype(int)) for x in above)
  return observed, unobserved


def bound_counts(counts: Counts, *, delta: float) -> Estimate:
  """Lower bound of ε, 95 %, from counts at one threshold that was fixed in advance.

  It is what `privacy_estimates.compute_eps_lo` computes for method='beta'; but where
  an attack is worse than chance, that guesses the other way around, and this is 0.

  Args:
    counts: of canaries with which the threshold was not chosen.
    delta: δ, in (0, 1).

  Raises:
    ValueError: delta is out of range.

  >>> counts = Counts(FN=100, FP=10, TN=990, TP=900)
  >>> round(bound_counts(counts, delta=1e-5).epsilon, 2)
  3.87
  """
  return lower_bounds.lower_bound(
    counts.to_scores(),
    delta=delta,
    multiplicity=lower_bounds.Explicit((0.5,)),
    sides='both',
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
        f'{where}: {name}={value} is not a count; give a whole number >= 0.'
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
