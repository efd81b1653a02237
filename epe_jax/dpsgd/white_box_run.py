"""A training of DP-SGD with the white-box game in every step, saved and resumed."""

from collections.abc import Callable
import dataclasses
import functools
import hashlib
import json
import os
import pathlib

import jax
import jax.numpy as jnp
from jaxtyping import Int
import numpy as np
import optax

from epe_jax import io
from epe_jax.dpsgd import dp_sgd, poisson_batches, white_box
from epe_jax.dpsgd import step_scores as observations_lib
from epe_jax.dpsgd.gradient_canaries import GradientCanary
from epe_jax.dpsgd.step_scores import Observations
from epe_jax.dpsgd.white_box import GameKeys, GameState
from epe_jax.types import Array, Batch, Params, Task

SCHEMA = 1
"""Version of the file of a game that is resumed."""

_FILE = 'white_box.npz'
_LEAF = 'leaf_'

Progress = Callable[[int, Params], None]


@dataclasses.dataclass(frozen=True)
class WhiteBoxSettings:
  """Sizes and claims of a game.

  Attributes:
    steps: T >= 1, of training and of observations.
    expected_batch: m, in (0, N].
    clip_norm: C > 0, in parameter units.
    noise_multiplier: σ >= 0, as training claims it.
    canary_rate: q_c in (0, 1], with which the canary joins the second batch.
    microbatch: examples whose gradients are held at once; None for one on a CPU
      and all elsewhere.
    augmentations: K >= 1, of each example, if there is a function that augments.
    save_every: steps between two times that a game is saved, and progress is
      reported, >= 1.
  """

  steps: int
  expected_batch: float
  clip_norm: float
  noise_multiplier: float
  canary_rate: float = 1.0
  microbatch: int | None = None
  augmentations: int = 1
  save_every: int = 250

  def __post_init__(self):
    white_box.check_canary_rate(self.canary_rate)
    for name in ('steps', 'save_every'):
      if getattr(self, name) < 1:
        raise ValueError(f'{name}={getattr(self, name)}; give 1 or more.')


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
) -> Observations:
  """Trains a model by DP-SGD and plays the white-box game in every step.

  Args:
    task: the model and its loss.
    examples: arrays [N, ...], all training data, which are put on the device.
    canary: gives the canary gradient of each step.
    settings: sizes and claims.
    keys: a key for each purpose; the noise key from the operating system if the
      model will be released.
    optimizer: of the model.
    params: the model to start from.
    batch_seed: of both batches of all steps, >= 0.
    noisy_gradient: the step that is audited; None for that of the library with
      these settings. It has its own clip norm and noise, which the settings claim.
    augment: (key, batch) -> batch, for the step of the library.
    workdir: folder in which the game is saved, and resumed from where it was;
      None to keep nothing. Files there are as secret as the canary.
    progress: (steps done, model) after every `save_every` steps and after the
      last, also of a game that was finished before. It must not keep the model,
      whose memory is used again.

  Returns:
    Observations of all steps.

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
      'augment is for the step of the library, but noisy_gradient is given; '
      'augment there.'
    )
  game = white_box.white_box_game(
    noisy_gradient,
    canary,
    optimizer=optimizer,
    steps=settings.steps,
    clip_norm=settings.clip_norm,
    expected_batch=settings.expected_batch,
    canary_rate=settings.canary_rate,
  )
  # Before anything is trained: a batch that does not fit is an error here.
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

  @functools.partial(jax.jit, donate_argnums=0)
  def advance(
    state: GameState,
    data: Batch,
    indices: Int[Array, '2 b'],
    keys: GameKeys,
  ) -> GameState:
    batch, other = (dp_sgd.gather_batch(data, row) for row in indices)
    return game.step(state, batch, other, keys)

  start = done = int(state.step)
  while done < settings.steps:
    state = advance(state, data, both[done], keys)
    done += 1
    if done % settings.save_every == 0 or done == settings.steps:
      if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        _save(path, digest, state)
      if progress is not None:
        progress(done, state.params)
  if start == settings.steps and progress is not None:
    progress(done, state.params)
  fields = {
    name: np.asarray(getattr(state, name))
    for name in ('without', 'with_canary', 'included', 'signal')
  }
  return observations_lib.unpack_observations(
    fields
    | {
      'clip_norm': settings.clip_norm,
      'noise_multiplier': settings.noise_multiplier,
      'sampling_rate': settings.expected_batch / num_examples,
      'canary_rate': settings.canary_rate,
    }
  )


def _digest(
  settings: WhiteBoxSettings,
  keys: GameKeys,
  batch_seed: int,
  num_examples: int,
  state: GameState,
) -> str:
  """A hash of all that decides a game but functions and the data themselves."""
  fields = dataclasses.asdict(settings)
  # How often a game is saved changes nothing in it.
  del fields['save_every']
  text = json.dumps([fields, batch_seed, num_examples], sort_keys=True)
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
