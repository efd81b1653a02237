"""What is known of each round besides vectors: one number each."""

from typing import Any, NamedTuple

from jaxtyping import Float


class RoundScalars(NamedTuple):
  """One number of each round, [T] each.

  Of a training loop that is not ours noise_std, num_clients, sum_norm and
  residual_norm are NaN where they are not known.

  Attributes:
    clip_norm: S.
    canary_norm: S / m, what a canary adds to the noisy mean of its round.
    noise_std: of the privacy noise on a coordinate of the noisy mean.
    num_clients: real clients of the round.
    num_canaries: canaries of the round.
    sum_norm: norm of the sum of the clipped updates of the real clients.
    aggregate_norm: norm of the noisy mean.
    residual_norm: norm of the noisy mean less all that was put in, of clients
      and of canaries: of the noise.
    effective_dimension: on how many coordinates the noisy mean lies.
  """

  clip_norm: Float[Any, ' T']
  canary_norm: Float[Any, ' T']
  noise_std: Float[Any, ' T']
  num_clients: Float[Any, ' T']
  num_canaries: Float[Any, ' T']
  sum_norm: Float[Any, ' T']
  aggregate_norm: Float[Any, ' T']
  residual_norm: Float[Any, ' T']
  effective_dimension: Float[Any, ' T']
