"""Scores of rounds with a canary and without, at a fixed model.

The score is <g/|g|, Σ_i CLIP(u_i) + Z> / S: about 1 with the canary and 0 without,
plus noise of standard deviation z and the updates of the others.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int
import numpy as np

from epe_jax.types import Array, Key, Params
from papers.canife import two_layer


def draw_rounds(
  rng: np.random.Generator, *, rounds: int, clients: int, num_clients: int
) -> Int[np.ndarray, 'rounds m']:
  """The clients of each round, without replacement within a round.

  Args:
    rng: of sampling.
    rounds: >= 1.
    clients: m, in [1, num_clients].
    num_clients: size of the population.
  """
  draws = [
    rng.choice(num_clients, clients, replace=False) for _ in range(rounds)
  ]
  return np.stack(draws).astype(np.int32)


def score_rounds(
  noise_key: Key,
  params: Params,
  canary: two_layer.Factors,
  x: Float[Array, 'rounds m p'],
  y: Float[Array, 'rounds m c'],
  included: Float[Array, ' rounds'],
  *,
  clip_norm: float,
  noise_multiplier: float,
) -> Float[Array, ' rounds']:
  """The score of each round, some of which have the canary in place of a client.

  Only the noise along the canary's direction is drawn, N(0, (z S)²).

  Args:
    noise_key: of the noise of these rounds.
    params: the model.
    canary: its gradient, unclipped.
    x: inputs of the clients, one example each.
    y: their labels, as probabilities.
    included: 1 where the canary replaces the first client, 0 elsewhere.
    clip_norm: S > 0.
    noise_multiplier: z >= 0.
  """
  norm = jnp.maximum(two_layer.norms(canary), 1e-20)

  def score(inputs: tuple[Array, Array, Array]) -> Float[Array, '']:
    x, y, with_canary = inputs
    updates = two_layer.clip(
      two_layer.factor_gradients(params, x, y), clip_norm
    )
    others = two_layer.inner_products(canary, updates) / (norm * clip_norm)
    own = jnp.minimum(1, norm / clip_norm)
    first = jnp.where(with_canary > 0, own, others[0])
    return first + jnp.sum(others[1:])

  noise = jax.random.normal(noise_key, included.shape, jnp.float32)
  return jax.lax.map(score, (x, y, included)) + noise_multiplier * noise
