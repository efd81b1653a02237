"""The numbers of a round that an audit records. It needs no JAX."""

from typing import Any, NamedTuple

from jaxtyping import Float

MIN_CLIP_NORM, MAX_CLIP_NORM = 1e-10, 1e18
CLIP_NORMS = f'[{MIN_CLIP_NORM}, {MAX_CLIP_NORM}]'
"""The valid clip norms. The squares of shorter updates vanish in float32, so that they
would pass unclipped, and those of longer ones overflow."""


class RoundScalars(NamedTuple):
  """One number for each round: scalars in a `Round`, and [T] in a record.

  In a record unknown values are NaN: in a training loop that is not ours, those of
  noise_std, num_clients, sum_norm and residual_norm.

  Attributes:
    clip_norm: S.
    canary_norm: S / m, the norm of a canary in the aggregate of its round.
    noise_std: standard deviation of the noise on a coordinate of the aggregate.
    num_clients: number of real clients (in DP-SGD, of examples of the step).
    num_canaries: number of canaries.
    sum_norm: norm of the sum of the clipped client updates.
    aggregate_norm: norm of the aggregate.
    residual_norm: norm of the aggregate less everything that clients and canaries
      sent, which is the norm of the noise. None where no audit measured it.
    effective_dimension: of the aggregate. None likewise.
  """

  clip_norm: Float[Any, '*T']
  canary_norm: Float[Any, '*T']
  noise_std: Float[Any, '*T']
  num_clients: Float[Any, '*T']
  num_canaries: Float[Any, '*T']
  sum_norm: Float[Any, '*T']
  aggregate_norm: Float[Any, '*T']
  residual_norm: Float[Any, '*T'] = None
  effective_dimension: Float[Any, '*T'] = None
