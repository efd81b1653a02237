"""The round of `fedavg.dp_fedavg` where a client is one example of a two-layer network.

Clipped gradients are summed by their factors, X̃ᵀ(c ∘ Δ), and none is made: 128 of
them take two matrix products. A test checks that a round is that of `dp_fedavg` with
clients that take one step at learning rate 1.
"""

import jax
from jax.flatten_util import ravel_pytree
import jax.numpy as jnp
import optax

from epe_jax.papers.canife import two_layer
from epe_jax.training import fedavg
from epe_jax.types import Batch, Key, Params


def dp_rounds(
  *,
  classes: int,
  server_opt: optax.GradientTransformation,
  clip_norm: float,
  noise_multiplier: float,
) -> fedavg.Algorithm:
  """ρ = S Σ_j c_j - Σ_i CLIP(g_i; S);  θ <- server(θ, (ρ + Z) / m).

  Args:
    classes: c.
    server_opt: optimizer of the server.
    clip_norm: S, finite and > 0.
    noise_multiplier: z, finite and > 0.

  Returns:
    init(params), and step(state, batch, injection, training_key, noise_key), which
    takes batches {'x': [m, p], 'y': int32 [m]} in place of cohorts, and has use for
    no training key.

  Raises:
    ValueError: clip_norm or noise_multiplier is out of range.

  References:
    One-shot Empirical Privacy Estimation, Algorithm 2; Goodfellow 2015.
  """
  for name, value in (
    ('clip_norm', clip_norm),
    ('noise_multiplier', noise_multiplier),
  ):
    if not 0 < value < float('inf'):
      raise ValueError(f'{name}={value}; give a finite number > 0.')

  def init(params: Params) -> fedavg.TrainState:
    return fedavg.TrainState(
      round=jnp.zeros((), jnp.int32),
      params=jax.tree.map(jnp.copy, params),
      opt_state=server_opt.init(params),
      clip_state=(),
    )

  def step(
    state: fedavg.TrainState,
    batch: Batch,
    injection: fedavg.Injection,
    training_key: Key,
    noise_key: Key,
  ) -> tuple[fedavg.TrainState, fedavg.Round]:
    del training_key
    m = len(batch['y'])
    labels = jax.nn.one_hot(batch['y'], classes, dtype=jnp.float32)
    factors = two_layer.factor_gradients(state.params, batch['x'], labels)
    norms = two_layer.norms(factors)
    clipped = two_layer.clip(factors, clip_norm)
    gradient, unravel = ravel_pytree(two_layer.sum_gradients(clipped))
    # The vector key of `dp_fedavg`, so that both draw the same noise.
    vector_key, _ = jax.random.split(noise_key)
    noise = jax.random.normal(vector_key, gradient.shape, jnp.float32)
    rho = clip_norm * (injection.direction() + noise_multiplier * noise)
    aggregate = (rho - gradient) / m
    updates, opt_state = server_opt.update(
      unravel(-aggregate), state.opt_state, state.params
    )
    new = fedavg.TrainState(
      round=state.round + 1,
      params=optax.apply_updates(state.params, updates),
      opt_state=opt_state,
      clip_state=(),
    )
    sums = fedavg.ClippedSums(
      vector=-gradient,
      num=jnp.float32(m),
      num_unclipped=jnp.sum(norms <= clip_norm, dtype=jnp.float32),
      norm=jnp.sum(norms),
      loss=None,
    )
    round = fedavg.make_round(
      sums,
      aggregate,
      injection,
      clip_norm=clip_norm,
      noise_multiplier=noise_multiplier,
      divisor=m,
    )
    return new, round

  return fedavg.Algorithm(init, step)
