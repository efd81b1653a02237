"""On how many coordinates lies the mass of what a run showed: was it enough?

Cosines with canaries of signs, or of single coordinates, are normal only where
the vector is spread over many coordinates. How many they are in each round, and
in the final model, is kept beside the estimates that rest on it.
"""

from collections.abc import Mapping, Sequence
import statistics
from typing import Any

_VECTORS = {
  'least': 'the round where it is least',
  'final_model': 'the final model',
  'change': 'the change from the initial to the final model',
}


def summarize(
  family: str,
  *,
  needed: float | None,
  rounds: Sequence[float],
  final_model: float,
  change: float,
) -> dict[str, Any]:
  """What result.json keeps of it.

  Args:
    family: of the canaries.
    needed: the effective dimension below which their cosines are not to be
      taken for normal, as `canaries.min_effective_dimension` gives it.
    rounds: effective dimension of each round's aggregate; 0 of a vector of
      zeros, which has no cosines and is left out.
    final_model: that of the final model.
    change: that of its difference from the initial model.

  >>> summary = summarize('hadamard', needed=100.0, rounds=[50.0, 0.0, 70.0],
  ...                final_model=200.0, change=300.0)
  >>> summary['least'], summary['median']
  (50.0, 60.0)
  """
  positive = [x for x in rounds if x > 0] or [0.0]
  return {
    'family': family,
    'needed': needed,
    'least': min(positive),
    'median': statistics.median(positive),
    'final_model': final_model,
    'change': change,
  }


def warn_if_low(summary: Mapping[str, Any] | None) -> str | None:
  """Says where there were too few coordinates, and what to do; else None.

  Args:
    summary: what `summarize` made; None of a run without canaries.
  """
  if summary is None or summary['needed'] is None:
    return None
  low = [
    f'{summary[name]:,.0f} in {where}'
    for name, where in _VECTORS.items()
    if 0 < summary[name] < summary['needed']
  ]
  if not low:
    return None
  return (
    f"Cosines with canaries of the family '{summary['family']}' are normal where "
    'the mass of a vector lies on enough coordinates: an effective dimension of '
    f'{summary["needed"]:,.0f} or more. It is {", ".join(low)}. Take estimates '
    "from these for doubtful, and train with canaries.family='hadamard2' or "
    "'sphere', which need no such thing."
  )
