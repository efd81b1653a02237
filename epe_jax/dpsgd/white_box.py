"""The white-box game on DP-SGD: Algorithm 2 of Tight Auditing.

In each step two batches are drawn. A canary gradient joins the second, and an
attacker who knows it scores both noisy sums by their inner product with it. The
model follows the batch without the canary. The code that makes the noisy gradient is
what is audited: that of this package, or any other.
"""

from collections.abc import Callable
import dataclasses
import functools
import hashlib
import json
import os
import pathlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int
import numpy as np
import optax

from epe_jax import io, streams
from epe_jax.dpsgd import dp_sgd, poisson_batches
from epe_jax.dpsgd.gradient_canaries import GradientCanary
from epe_jax.epsilon.types import Scores
from epe_jax.parallel import hosts
from epe_jax.parallel.sharding import fusion_barrier
from epe_jax.training import algorithms
from epe_jax.types import Array, Batch, Key, Params, Task

SCHEMA = 1
"""Version of the file of a game that is resumed."""

_FILE = 'white_box.npz'
_LEAF = 'leaf_'
# Steps between saving a game and reporting its progress.
_SAVE_EVERY = 250

Progress = Callable[[int, Params], None]


@dataclasses.dataclass(frozen=True)
class StepScores:
  """o = <u, ∇̃>/C and o' = <u, ∇̃'>/C of each step of the white-box game.

  u is the direction of the canary gradient, and ∇̃ and ∇̃' are the noisy sums of the
  batches without and with the canary. Where the gradients of the examples are
  orthogonal to u, o ~ N(0, σ²), and o' ~ N(s, σ²) if the canary is included, where
  s is the norm of the clipped canary in clip norms.

  Attributes:
    without: o, [T].
    with_canary: o', [T].
    included: whether the canary is in the second batch, [T].
    signal: s in [0, 1], [T]; 1 for a canary that is clipped, and 0 for one whose
      gradient is 0.
    sampling_rate: q in (0, 1], of the examples.
    canary_rate: q_c in (0, 1], of the canary.

  References:
    Tight Auditing of Differentially Private Machine Learning, Algorithm 2 and
    section 5.2.
  """

  without: Float[np.ndarray, ' T']
  with_canary: Float[np.ndarray, ' T']
  included: Bool[np.ndarray, ' T']
  signal: Float[np.ndarray, ' T']
  sampling_rate: float
  canary_rate: float

  def select(self) -> Scores:
    """o' as scores with the canary, o as scores without it.

    With q_c < 1 the canary is in some of the steps of o' only. The scores are then
    a mixture, as the subsampled mechanism has it.
    """
    return Scores(self.with_canary, self.without)


class GameKeys(NamedTuple):
  """The randomness of a game, a key for each purpose.

  Attributes:
    training: of dropout and augmentation.
    canary: of the canary gradients.
    inclusion: of the steps in which the canary is included.
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
    params: the model, trained without the canary.
    opt_state: state of the optimizer.
    canary: state of the canary.
    without, with_canary, included, signal: as in `StepScores`; 0 for later steps.
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
  """A pair of pure functions.

  Attributes:
    init: (params, canary key) -> state, to be jitted by the caller.
    step: (state, examples [N, ...], indices of the batches B and B' [2, b], keys)
      -> state; jitted, and its state is donated. Keys are those of the game; each
      step folds its number into them.
  """

  init: Callable[[Params, Key], GameState]
  step: jax.stages.Wrapped


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

  ∇̃ and ∇̃' are the noisy sums of two batches, the second with the canary g' with
  probability q_c, and u = g'/|g'|, or 0 where g' = 0.

  Args:
    noisy_gradient: makes the noisy mean gradient of a batch, that is the noisy sum
      over m: `dp_sgd.noisy_gradient`, or the code to audit.
    canary: gives g'.
    optimizer: of the model; it is given the noisy mean of the first batch.
    steps: T >= 1, the number of steps to be scored.
    clip_norm: C.
    expected_batch: m, by which the sum was divided.
    canary_rate: q_c in (0, 1].

  Raises:
    ValueError: canary_rate is out of range.

  References:
    Tight Auditing of Differentially Private Machine Learning, Algorithm 2.
  """
  if not 0 < canary_rate <= 1:
    raise ValueError(
      f'canary_rate={canary_rate}; give a probability in (0, 1].'
    )

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

  @functools.partial(jax.jit, donate_argnums=0)
  def step(
    state: GameState,
    data: Batch,
    indices: Int[Array, '2 b'],
    keys: GameKeys,
  ) -> GameState:
    batch, other_batch = (dp_sgd.gather_batch(data, row) for row in indices)
    t, params = state.step, state.params
    training = jax.random.split(jax.random.fold_in(keys.training, t))
    noise = jax.random.split(jax.random.fold_in(keys.noise, t))
    coin = jax.random.fold_in(keys.inclusion, t)
    joins = jax.random.bernoulli(coin, canary_rate)
    # Otherwise its random numbers would be drawn again for each use.
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

    def score(mean: Float[Array, ' d']) -> Float[Array, '']:
      # Dividing the product saves a unit vector of d floats.
      product = jnp.vdot(gradient, mean, precision=jax.lax.Precision.HIGHEST)
      return product / jnp.where(norm > 0, norm, 1) * expected_batch / clip_norm

    params, opt_state = algorithms.apply_gradient(
      optimizer, released, params, state.opt_state
    )
    return GameState(
      step=t + 1,
      params=params,
      opt_state=opt_state,
      canary=canary_state,
      without=state.without.at[t].set(score(released)),
      with_canary=state.with_canary.at[t].set(score(other)),
      included=state.included.at[t].set(joins),
      signal=state.signal.at[t].set(jnp.minimum(norm / clip_norm, 1)),
    )

  return Game(init, step)


def derive_game_keys(seed: int) -> GameKeys:
  """The keys of a simulation, from a seed >= 0."""

  def derive(purpose: str) -> Key:
    words = streams.sequence(seed, f'white-box {purpose}').generate_state(2)
    return jax.random.wrap_key_data(
      jnp.asarray(words, jnp.uint32), impl='threefry2x32'
    )

  return GameKeys(*map(derive, GameKeys._fields))


@dataclasses.dataclass(frozen=True)
class WhiteBoxSettings:
  """Sizes and claims of a game.

  Attributes:
    steps: T >= 1, of training.
    expected_batch: m, in (0, N].
    clip_norm: C > 0, in parameter units.
    noise_multiplier: σ >= 0, as training claims it.
    canary_rate: q_c in (0, 1], of the canary in the second batch.
    microbatch: examples whose gradients are held at once; None for one on a CPU
      and all elsewhere.
    augmentations: K >= 1, of each example, if `augment` is given.
  """

  steps: int
  expected_batch: float
  clip_norm: float
  noise_multiplier: float
  canary_rate: float = 1.0
  microbatch: int | None = None
  augmentations: int = 1


def run_white_box(
  task: Task,
  examples: Batch,
  canary: GradientCanary,
  settings: WhiteBoxSettings,
  keys: GameKeys,
  *,
  optimizer: optax.GradientTransformation,
  params: Params,
  batch_seed: int,
  noisy_gradient: dp_sgd.NoisyGradient | None = None,
  augment: dp_sgd.Augment | None = None,
  workdir: str | os.PathLike | None = None,
  progress: Progress | None = None,
) -> StepScores:
  """Trains a model by DP-SGD and plays the white-box game in every step.

  Args:
    task: the model and its loss.
    examples: arrays [N, ...], the training data, which are put on the device.
    canary: gives the canary gradient of each step.
    settings: sizes and claims.
    keys: a key for each purpose; the noise key from the operating system if the
      model will be released.
    optimizer: of the model.
    params: the model to start from.
    batch_seed: of both batches of all steps, >= 0.
    noisy_gradient: the step to audit; None for `dp_sgd.noisy_gradient` with these
      settings. It has its own clip norm and noise, which the settings claim.
    augment: (key, batch) -> batch, for `dp_sgd.noisy_gradient`.
    workdir: folder in which the game is saved and from which it is resumed; None to
      keep nothing. Its files are as secret as the canary.
    progress: called with the number of steps done and the model after every 250
      steps and after the last one, also if the game was finished before. It must
      not keep the model, whose memory is reused.

  Returns:
    The scores of all steps.

  Raises:
    ValueError: an argument is out of range; or the game in the workdir has other
      settings, keys or model.
  """
  num_examples = len(jax.tree.leaves(examples)[0])
  if noisy_gradient is None:
    noisy_gradient = dp_sgd.noisy_gradient(
      task,
      clip_norm=settings.clip_norm,
      noise_multiplier=settings.noise_multiplier,
      expected_batch=settings.expected_batch,
      microbatch=settings.microbatch,
      augment=augment,
      augmentations=settings.augmentations,
    )
  elif augment is not None:
    raise ValueError(
      'augment is for the default step, but noisy_gradient is given; augment '
      'there.'
    )
  game = white_box_game(
    noisy_gradient,
    canary,
    optimizer=optimizer,
    steps=settings.steps,
    clip_norm=settings.clip_norm,
    expected_batch=settings.expected_batch,
    canary_rate=settings.canary_rate,
  )
  hosts.keep_freed_memory()
  # Before training, so that a batch that does not fit is an error early.
  both = np.stack(
    [
      poisson_batches.draw_poisson_batches(
        batch_seed,
        purpose,
        num_examples=num_examples,
        expected_batch=settings.expected_batch,
        steps=settings.steps,
        microbatch=settings.microbatch,
      )
      for purpose in ('white-box batch', 'white-box batch of the canary')
    ],
    axis=1,
  )
  state = jax.jit(game.init)(params, keys.canary)
  digest = _digest(settings, keys, batch_seed, num_examples, state)
  path = None if workdir is None else pathlib.Path(workdir, _FILE)
  if path is not None and path.exists():
    state = _restore(path, digest, state)
  data = jax.device_put(examples)

  start = done = int(state.step)
  while done < settings.steps:
    state = game.step(state, data, both[done], keys)
    done += 1
    if done % _SAVE_EVERY == 0 or done == settings.steps:
      if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        _save(path, digest, state)
      if progress is not None:
        progress(done, state.params)
  if start == settings.steps and progress is not None:
    progress(done, state.params)
  return StepScores(
    without=np.asarray(state.without, np.float64),
    with_canary=np.asarray(state.with_canary, np.float64),
    included=np.asarray(state.included),
    signal=np.asarray(state.signal, np.float64),
    sampling_rate=settings.expected_batch / num_examples,
    canary_rate=settings.canary_rate,
  )


def _digest(
  settings: WhiteBoxSettings,
  keys: GameKeys,
  batch_seed: int,
  num_examples: int,
  state: GameState,
) -> str:
  """A hash of all that decides a game except functions and the data themselves."""
  sizes = dataclasses.asdict(settings), batch_seed, num_examples
  text = json.dumps(sizes, sort_keys=True)
  found = hashlib.sha256(text.encode())
  for leaf in (*keys, *jax.tree.leaves(state)):
    array = _to_host(leaf)
    found.update(repr((array.shape, array.dtype.str)).encode())
    found.update(array.tobytes())
  return found.hexdigest()


def _save(path: pathlib.Path, digest: str, state: GameState) -> None:
  leaves = {
    f'{_LEAF}{i}': _to_host(x) for i, x in enumerate(jax.tree.leaves(state))
  }
  io.write_arrays(
    path, {'schema': SCHEMA, 'digest': digest, **leaves}, private=True
  )


def _restore(path: pathlib.Path, digest: str, like: GameState) -> GameState:
  arrays = io.read_arrays(path)
  io.check_schema(path, int(arrays.get('schema', 0)), reads=SCHEMA)
  leaves, structure = jax.tree.flatten(like)
  names = [f'{_LEAF}{i}' for i in range(len(leaves))]
  if str(arrays.get('digest')) != digest or not arrays.keys() >= set(names):
    raise ValueError(
      f'{path} is of a game with other settings, keys, model or canary; give '
      'those, or another workdir.'
    )
  return jax.tree.unflatten(
    structure,
    [_to_device(arrays[name], leaf) for name, leaf in zip(names, leaves)],
  )


def _is_key(leaf: Array) -> bool:
  return bool(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def _to_host(leaf: Array) -> np.ndarray:
  return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def _to_device(array: np.ndarray, like: Array) -> Array:
  if _is_key(like):
    return jax.random.wrap_key_data(
      jnp.asarray(array), impl=jax.random.key_impl(like)
    )
  return jnp.asarray(array, like.dtype)
