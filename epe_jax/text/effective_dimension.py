"""Whether the effective dimension of a run is enough, in words."""

from epe_jax.audit.effective_dimension import EffectiveDimensions

_VECTORS = {
  'min_round': 'the round where it is smallest',
  'final_model': 'the final model',
  'change': 'the change from the initial to the final model',
}


def warn_if_low(dimension: EffectiveDimensions | None) -> str | None:
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
