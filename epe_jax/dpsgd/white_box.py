"""The white-box game on DP-SGD: Algorithm 2 of Tight Auditing.

In each step two batches are drawn. A canary gradient joins the second, and who
knows it scores both noisy sums by their inner product with it. The model follows
the batch without the canary. Whatever makes the noisy gradient is audited: that
of the library, or one with a bug.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int
import optax

from epe_jax import streams
from epe_jax.dpsgd import dp_sgd
from epe_jax.dpsgd.gradient_canaries import GradientCanary
from epe_jax.parallel.barrier import fusion_barrier
from epe_jax.training import fedavg
from epe_jax.types import Array, Key, Params


class GameKeys(NamedTuple):
  """The randomness of a game, each from a source of its own.

  Attributes:
    training: of dropout and augmentation.
    canary: of the canary gradients.
    inclusion: of the coins by which the canary joins.
    noise: of the privacy noise of both batches.
  """

  training: Key
  canary: Key
  inclusion: Key
  noise: Key


class GameState(NamedTuple):
  """The state that a step of the game leaves to the next one.

  Attributes:
    step: the number of steps done, int32.
    params: the model, which no canary has touched.
    opt_state: state of the optimizer.
    canary: state of the canary.
    without, with_canary, included, signal: as `Observations` has them; 0 for steps
      to come.
  """

  step: Int[Array, '']
  params: Params
  opt_state: optax.OptState
  canary: Any
  without: Float[Array, ' T']
  with_canary: Float[Array, ' T']
  included: Bool[Array, ' T']
  signal: Float[Array, ' T']


class Game(NamedTuple):
  """A pair of pure functions, to be jitted by the caller.

  Attributes:
    init: (params, canary key) -> state.
    step: (state, batch B, batch B', keys) -> state. Keys are those of the game;
      each step folds its number into them.
  """

  init: Callable[[Params, Key], GameState]
  step: Callable[
    [GameState, dp_sgd.ExampleBatch, dp_sgd.ExampleBatch, GameKeys], GameState
  ]


def white_box_game(
  noisy_gradient: dp_sgd.NoisyGradient,
  canary: GradientCanary,
  *,
  optimizer: optax.GradientTransformation,
  steps: int,
  clip_norm: float,
  expected_batch: float,
  canary_rate: float = 1.0,
) -> Game:
  """o = <u, ∇̃>/C and o' = <u, ∇̃'>/C in each step; θ follows ∇̃.

  ∇̃ and ∇̃' are the noisy sums of two batches, the second with the canary g' if its
  coin of probability q_c says so, and u = g'/|g'|, or 0 where g' = 0.

  Args:
    noisy_gradient: makes the noisy mean gradient of a batch, which times m is the
      noisy sum: `dpsgd.noisy_gradient`, or what is to be audited.
    canary: gives g'.
    optimizer: of the model; it is given the noisy mean of the first batch.
    steps: T >= 1, room for observations.
    clip_norm: C.
    expected_batch: m, by which the sum was divided.
    canary_rate: q_c in (0, 1].

  Raises:
    ValueError: canary_rate is out of range.

  References:
    Tight Auditing of Differentially Private Machine Learning, Algorithm 2.
  """
  check_canary_rate(canary_rate)

  def init(params: Params, canary_key: Key) -> GameState:
    # A copy, so that a caller may donate the state and keep the parameters.
    params = jax.tree.map(jnp.copy, params)
    return GameState(
      step=jnp.zeros((), jnp.int32),
      params=params,
      opt_state=optimizer.init(params),
      canary=canary.init(canary_key, params),
      without=jnp.zeros(steps, jnp.float32),
      with_canary=jnp.zeros(steps, jnp.float32),
      included=jnp.zeros(steps, jnp.bool_),
      signal=jnp.zeros(steps, jnp.float32),
    )

  def step(
    state: GameState,
    batch: dp_sgd.ExampleBatch,
    other_batch: dp_sgd.ExampleBatch,
    keys: GameKeys,
  ) -> GameState:
    t, params = state.step, state.params
    training = jax.random.split(jax.random.fold_in(keys.training, t))
    noise = jax.random.split(jax.random.fold_in(keys.noise, t))
    coin = jax.random.fold_in(keys.inclusion, t)
    joins = jax.random.bernoulli(coin, canary_rate)
    # Or random numbers in it would be drawn anew for each use.
    gradient, canary_state = fusion_barrier(
      t >= 0, lambda: canary.gradient(state.canary, params, t)
    )
    norm = jnp.linalg.norm(gradient)
    never = jnp.zeros((), jnp.float32)
    released = noisy_gradient(
      params, batch, gradient, never, training[0], noise[0]
    )
    other = noisy_gradient(
      params,
      other_batch,
      gradient,
      joins.astype(jnp.float32),
      training[1],
      noise[1],
    )

    def observe(mean: Float[Array, ' d']) -> Float[Array, '']:
      # The norm divides the product, so that no unit vector is made.
      product = jnp.vdot(gradient, mean, precision=jax.lax.Precision.HIGHEST)
      return product / jnp.where(norm > 0, norm, 1) * expected_batch / clip_norm

    params, opt_state = fedavg.apply_gradient(
      optimizer, released, params, state.opt_state
    )
    return GameState(
      step=t + 1,
      params=params,
      opt_state=opt_state,
      canary=canary_state,
      without=state.without.at[t].set(observe(released)),
      with_canary=state.with_canary.at[t].set(observe(other)),
      included=state.included.at[t].set(joins),
      signal=state.signal.at[t].set(jnp.minimum(norm / clip_norm, 1)),
    )

  return Game(init, step)


def derive_game_keys(seed: int) -> GameKeys:
  """The keys of a simulation, each from its own stream of a seed >= 0."""

  def derive(purpose: str) -> Key:
    words = streams.sequence(seed, f'white-box {purpose}').generate_state(2)
    return jax.random.wrap_key_data(
      jnp.asarray(words, jnp.uint32), impl='threefry2x32'
    )

  return GameKeys(*map(derive, GameKeys._fields))


def check_canary_rate(canary_rate: float) -> None:
  """Raises a ValueError unless q_c is a probability > 0."""
  if not 0 < canary_rate <= 1:
    raise ValueError(
      f'canary_rate={canary_rate}; give a probability in (0, 1].'
    )
