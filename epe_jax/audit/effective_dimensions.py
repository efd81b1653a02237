"""The effective dimension of the vectors of a run, and whether it is enough.

Cosines with canaries of signs, or of single coordinates, are normal only where
the mass of a vector lies on many coordinates. Their number in each round, and
in the final model, is kept next to the estimates that depend on it.
"""

from collections.abc import Sequence
import statistics
from typing import NamedTuple

_VECTORS = {
  'min_round': 'the round where it is smallest',
  'final_model': 'the last model',
  'change': 'the change from the first to the last model',
}


class EffectiveDimensions(NamedTuple):
  """The effective dimensions of what was scored in a run.

  Attributes:
    family: of the canaries.
    threshold: below which their cosines are not to be taken for normal; None if
      the family has none.
    min_round: of the round's aggregate where it is smallest.
    median_round: of the median round.
    final_model: of the final model.
    change: of the difference between the final and the initial model.
  """

  family: str
  threshold: float | None
  min_round: float
  median_round: float
  final_model: float
  change: float


def summarize(
  family: str,
  *,
  threshold: float | None,
  rounds: Sequence[float],
  final_model: float,
  change: float,
) -> EffectiveDimensions:
  """Summarizes the effective dimensions of a run.

  The threshold is that of `canaries.min_effective_dimension`.

  Args:
    rounds: the effective dimension of each round's aggregate. It is 0 of a
      vector of zeros, which has no cosines and is left out.

  >>> dimension = summarize('hadamard', threshold=100, rounds=[50.0, 0.0, 70.0],
  ...                       final_model=200.0, change=300.0)
  >>> dimension.min_round, dimension.median_round
  (50.0, 60.0)
  """
  positive = [x for x in rounds if x > 0] or [0.0]
  return EffectiveDimensions(
    family=family,
    threshold=threshold,
    min_round=min(positive),
    median_round=statistics.median(positive),
    final_model=final_model,
    change=change,
  )


def warn_of_low_dimension(dimension: EffectiveDimensions | None) -> str | None:
  """Says where the effective dimension is too low, and what to do; else None.

  Args:
    dimension: what `summarize` gives; None for a run without canaries.
  """
  if dimension is None or dimension.threshold is None:
    return None
  low = [
    f'{x:,.0f} in {where}'
    for name, where in _VECTORS.items()
    if 0 < (x := getattr(dimension, name)) < dimension.threshold
  ]
  if not low:
    return None
  return (
    f"Cosines with canaries of the family '{dimension.family}' are normal "
    'where the mass of a vector lies on enough coordinates: an effective '
    f'dimension of {dimension.threshold:,.0f} or more. It is {", ".join(low)}. Take '
    "estimates from these for doubtful, and train with the family 'sphere' "
    "(or 'hadamard2', where it is offered), which needs no such thing."
  )
