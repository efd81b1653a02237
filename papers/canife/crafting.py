"""Examples whose gradients are orthogonal to those of mock clients, and their scores.

Adam descends on

  d (max(0, C - |g|)² + mean_i <S g/|g|, u_i>²)

by the pixels and the logits of the label of a canary with gradient g, where u_i are
the clipped updates of a minibatch of mock clients. The first term makes the canary
long enough to be clipped; the second keeps the updates of others out of its score
<g/|g|, Σ_i CLIP(u_i) + Z> / S: about 1 in rounds with the canary and 0 without, plus
noise of standard deviation z and the updates of the others.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float
import optax

from epe_jax.types import Array, Key, Params
from papers.canife import two_layer


class Canary(NamedTuple):
  """A crafted example.

  Attributes:
    pixels: [*n, p], not limited to [0, 1], as in the released code.
    label_logits: [*n, c] of its soft label.
  """

  pixels: Float[Array, '*n p']
  label_logits: Float[Array, '*n c']


def draw_canaries(key: Key, num: int, *, inputs: int, classes: int) -> Canary:
  """Draws initial canaries: uniform pixels in [0, 1] and a random class.

  Of ten classes, the drawn one has about half of the soft label.
  """
  pixels, labels = jax.random.split(key)
  classes_drawn = jax.random.randint(labels, (num,), 0, classes)
  return Canary(
    jax.random.uniform(pixels, (num, inputs), jnp.float32),
    2 * jax.nn.one_hot(classes_drawn, classes, dtype=jnp.float32),
  )


def factor_canary(params: Params, canary: Canary) -> two_layer.Factors:
  """The gradient of a canary, or of several, unclipped."""
  labels = jax.nn.softmax(canary.label_logits)
  return two_layer.factor_gradients(params, canary.pixels, labels)


def craft(
  key: Key,
  params: Params,
  canaries: Canary,
  pool: two_layer.Factors,
  *,
  steps: int,
  minibatch: int,
  learning_rate: float,
  clip_norm: float,
  norm_target: float,
) -> tuple[Canary, Float[Array, 'steps B']]:
  """Crafts B canaries in parallel, each against its own model and pool.

  Args:
    key: of the minibatches, which the canaries share.
    params: of the models, with a leading axis B.
    canaries: initial ones, [B, ...].
    pool: clipped updates of the mock clients, [B, n, ...].
    steps: of Adam, >= 1.
    minibatch: mock clients of a step, in [1, n], drawn without replacement.
    learning_rate: of Adam, > 0.
    clip_norm: S > 0, to which a gradient is scaled before its inner products.
    norm_target: C > 0, the norm below which a gradient is penalised.

  Returns:
    The canaries of the last step, and the loss of each step, before it.

  References:
    CANIFE, equation (1) and Algorithm 1. The released code keeps the class fixed;
    the first paper of this project optimises a soft label too.
  """
  num = pool.inputs.shape[1]
  dim = sum(leaf[0].size for leaf in jax.tree.leaves(params))
  optimizer = optax.adam(learning_rate)

  def loss(
    canary: Canary, params: Params, target: two_layer.Factors
  ) -> Float[Array, '']:
    gradient = factor_canary(params, canary)
    # A gradient of 0 must not give NaN.
    norm = jnp.maximum(two_layer.norms(gradient), 1e-20)
    scores = clip_norm * two_layer.inner_products(gradient, target) / norm
    shortage = jnp.maximum(norm_target - norm, 0)
    return dim * (shortage**2 + jnp.mean(scores**2))

  losses_and_slopes = jax.vmap(jax.value_and_grad(loss))

  def step(carry, t):
    canaries, opt_state = carry
    order = jax.random.permutation(jax.random.fold_in(key, t), num)
    target = jax.tree.map(lambda x: x[:, order[:minibatch]], pool)
    losses, slopes = losses_and_slopes(canaries, params, target)
    updates, opt_state = optimizer.update(slopes, opt_state)
    moved: Any = optax.apply_updates(canaries, updates)
    return (moved, opt_state), losses

  start = (canaries, optimizer.init(canaries))
  (crafted, _), losses = jax.lax.scan(
    step, start, jnp.arange(steps, dtype=jnp.int32)
  )
  return crafted, losses


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
