"""White-box games on models that are trained, at noise for a given ε of the run."""

from collections.abc import Callable, Mapping
import functools
import math
import os
import pathlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float
import numpy as np
import optax

from epe_jax import accounting
from epe_jax.data import examples as examples_lib
from epe_jax.data import registry
from epe_jax.dpsgd import (
  augmentation,
  dp_sgd,
  estimates,
  input_canaries,
  white_box,
)
from epe_jax.dpsgd.gradient_canaries import GradientCanary, make_gradient_canary
from epe_jax.papers.tight_auditing import accounted_run, planted_bugs
from epe_jax.papers.tight_auditing.played_game import PlayedGame
from epe_jax.tasks import convnet, fully_connected, wide_resnet
from epe_jax.types import Array, Batch, Params, Task, weighted

# Examples of the test that are evaluated at once.
_TEST_CHUNK = 500


class Workload(NamedTuple):
  """A model and its data, and what training it costs in privacy.

  Attributes:
    settings: title, task, model, steps, expected_batch and so on.
    task: the model.
    data: train and test examples.
    accounted: ε of the run by its noise.
  """

  settings: Any
  task: Task
  data: examples_lib.Examples
  accounted: accounted_run.AccountedRun

  @property
  def sampling_probability(self) -> float:
    """q, of the examples."""
    return self.settings.expected_batch / len(self.data.train['label'])

  def make_optimizer(self) -> optax.GradientTransformation:
    """SGD at the learning rate and momentum of the settings."""
    settings = self.settings
    return optax.sgd(settings.learning_rate, settings.momentum or None)

  def compute_epsilon(self, noise_multiplier: float, delta: float) -> float:
    """ε of the run by dp_accounting; infinite without noise."""
    if not noise_multiplier:
      return math.inf
    return accounting.epsilon_of_poisson(
      noise_multiplier,
      delta=delta,
      probability=self.sampling_probability,
      rounds=self.settings.steps,
    ).epsilon


def load_workload(
  settings: Any, data: Mapping[str, pathlib.Path], *, delta: float, seed: int
) -> Workload:
  """Loads the data of a workload, makes its model and accounts for its run.

  Args:
    settings: title; data, num_train and num_test as for `load_examples`; task,
      'convnet', 'wide_resnet' or 'fully_connected', and model, its sizes; steps;
      expected_batch; clip_norm; learning_rate; momentum; microbatch.
    data: path of each `--data`, by name.
    delta: δ of the run.
    seed: of what is drawn of the data.

  Raises:
    ValueError, FileNotFoundError: the data cannot be read, or are not given.
  """
  if (
    registry.find_example_level(settings.data).path
    and settings.data not in data
  ):
    raise ValueError(
      f'{settings.title} trains on {settings.data}; give '
      f'--data={settings.data}=PATH.'
    )
  loaded = examples_lib.load_examples(
    settings.data,
    data.get(settings.data),
    rng_seed=seed,
    num_train=settings.num_train,
    num_test=settings.num_test,
  )
  accounted = accounted_run.account_for_run(
    sampling_probability=settings.expected_batch / len(loaded.train['label']),
    steps=settings.steps,
    delta=delta,
    title=settings.title,
  )
  return Workload(settings, _make_task(settings, loaded), loaded, accounted)


def play_game(
  work: Workload,
  folder: str | os.PathLike,
  *,
  kind: str,
  epsilon: float,
  delta: float,
  seed: int,
  bug: str | None = None,
  true_epsilon: float | None = None,
  first: int | None = None,
  augmentations: int | None = None,
) -> PlayedGame:
  """Trains a model with the white-box game in every step, or goes on with one.

  Args:
    work: the model and its data.
    folder: of this game alone; a finished game there is not played again.
    kind: of the canary: 'dirac', 'constant', 'random' or 'moving dirac', 'moving
      random'; or 'mislabelled', 'blank', 'adversarial', 'crafted'.
    epsilon: of the run, as it is claimed; it decides about the claimed noise.
    delta: δ.
    seed: of all randomness of the simulation.
    bug: planted in the step: 'clipping', 'seeds' or 'scale'; None for none.
    true_epsilon: of the noise that is really added, for the bug 'scale'.
    first: steps that are played, with the noise of a whole run; None for all.
    augmentations: of each image, whose gradients are averaged; None to train on
      images as they are.

  Raises:
    ValueError: the folder has a game of other settings.
  """
  settings = work.settings
  noise = work.accounted.calibrate(epsilon)
  num_steps = first or settings.steps
  game = white_box.WhiteBoxSettings(
    steps=num_steps,
    expected_batch=settings.expected_batch,
    clip_norm=settings.clip_norm,
    noise_multiplier=noise,
    microbatch=settings.microbatch,
    augmentations=augmentations or 1,
  )
  augment = None
  if augmentations is not None:
    augment = augmentation.make_crop_and_flip(work.data.inputs)
  accuracies = []

  def measure(done: int, params: Params) -> None:
    if done == num_steps:
      accuracies.append(measure_accuracy(work.task, params, work.data.test))

  params = work.task.init(jax.random.key(seed))
  # Whoever clips the mean lets through as much of a canary as it is long.
  norm = settings.clip_norm * (1e4 if bug == 'clipping' else 1)
  observed = white_box.run_white_box(
    work.task,
    work.data.train,
    _make_canary(work, kind, norm),
    game,
    white_box.derive_game_keys(seed),
    optimizer=work.make_optimizer(),
    params=params,
    batch_seed=seed,
    noisy_gradient=_plant(work, bug, noise, true_epsilon, seed),
    augment=augment,
    workdir=folder,
    progress=measure,
  )
  mechanism = estimates.make_step_mechanism()._replace(
    compose=work.accounted.compose
  )
  return PlayedGame(
    title=settings.title,
    kind=bug or kind,
    epsilon=epsilon,
    analytic=work.compute_epsilon(noise, delta),
    observations=observed,
    mechanism=mechanism,
    delta=delta,
    accuracy=accuracies[-1],
    majority=measure_majority(work.data),
    source=work.data.source,
    dim=sum(x.size for x in jax.tree.leaves(params)),
  )


def measure_accuracy(task: Task, params: Params, test: Batch) -> float:
  """The share of test examples that a model classifies rightly."""
  metrics = jax.jit(task.metrics)
  hits, num = 0.0, len(jax.tree.leaves(test)[0])
  for start in range(0, num, _TEST_CHUNK):
    part = {k: x[start : start + _TEST_CHUNK] for k, x in test.items()}
    hits += float(weighted(metrics(params, part)['accuracy']).total.sum())
  return hits / num


def score_accuracy(task: Task, params: Params, test: Batch) -> Float[Array, '']:
  """The same within a program, all test examples at once."""
  hits = weighted(
    task.metrics(params, jax.tree.map(jnp.asarray, test))['accuracy']
  )
  return jnp.sum(hits.total) / jnp.sum(hits.weight)


def measure_majority(data: examples_lib.Examples) -> float:
  """The share of the most frequent class of the test examples."""
  labels = data.test['label']
  return float(np.bincount(labels).max() / len(labels))


def train_table1(
  settings: Any, folder: str | os.PathLike, data: Mapping[str, pathlib.Path]
) -> list[PlayedGame]:
  """Plays a game for each workload and ε.

  Args:
    settings: works (name -> as for `load_workload`), epsilons, canary, first (steps
      that are played, None for all), delta and seed.
    folder: of the games.
    data: path of each `--data`, by name.
  """
  played = []
  for name, each in settings.works.items():
    work = load_workload(each, data, delta=settings.delta, seed=settings.seed)
    played += [
      play_game(
        work,
        pathlib.Path(folder, f'{name}_epsilon={epsilon:g}'),
        kind=settings.canary,
        epsilon=epsilon,
        first=settings.first,
        delta=settings.delta,
        # Another noise for each: otherwise all would be high or low together.
        seed=settings.seed + i,
      )
      for i, epsilon in enumerate(settings.epsilons)
    ]
  return played


def train_canaries(
  settings: Any, folder: str | os.PathLike, data: Mapping[str, pathlib.Path]
) -> list[PlayedGame]:
  """Plays a game for each kind of canary.

  Args:
    settings: work (as for `load_workload`), kinds, epsilon, delta and seed.
    folder: of the games.
    data: path of each `--data`, by name.
  """
  play = _load_game(settings, data)
  return [
    play(
      pathlib.Path(folder, kind.replace(' ', '_')),
      kind=kind,
      epsilon=settings.epsilon,
    )
    for kind in settings.kinds
  ]


def train_augmentations(
  settings: Any, folder: str | os.PathLike, data: Mapping[str, pathlib.Path]
) -> list[PlayedGame]:
  """Plays a game for each number of augmentations.

  Args:
    settings: work (as for `load_workload`), augmentations, epsilon, delta and seed.
    folder: of the games.
    data: path of each `--data`, by name.
  """
  play = _load_game(settings, data)
  return [
    play(
      pathlib.Path(folder, f'augmentations={num}'),
      kind='dirac',
      epsilon=settings.epsilon,
      augmentations=num,
    )._replace(kind=f'K = {num}')
    for num in settings.augmentations
  ]


def train_bugs(
  settings: Any, folder: str | os.PathLike, data: Mapping[str, pathlib.Path]
) -> list[PlayedGame]:
  """Plays a game on correct code, and one for each planted bug.

  Args:
    settings: work (as for `load_workload`), claimed, true_epsilon (of noise that
      is too small), delta and seed.
    folder: of the games.
    data: path of each `--data`, by name.
  """
  play = _load_game(settings, data)
  return [
    play(
      pathlib.Path(folder, bug or 'correct'),
      kind='dirac',
      epsilon=settings.claimed,
      bug=bug,
      true_epsilon=settings.true_epsilon if bug == 'scale' else None,
    )._replace(kind=bug or 'correct')
    for bug in (None, 'clipping', 'seeds', 'scale')
  ]


def _load_game(
  settings: Any, data: Mapping[str, pathlib.Path]
) -> Callable[..., PlayedGame]:
  """`play_game` on the one workload of an item, with its δ and seed."""
  common = dict(delta=settings.delta, seed=settings.seed)
  work = load_workload(settings.work, data, **common)
  return functools.partial(play_game, work, **common)


def _make_task(settings: Any, loaded: examples_lib.Examples) -> Task:
  shape = loaded.train[loaded.inputs].shape[1:]
  sizes = dict(settings.model)
  if settings.task == 'fully_connected':
    return fully_connected.task(
      loaded.num_classes, num_features=math.prod(shape), **sizes
    )
  make = {'convnet': convnet.task, 'wide_resnet': wide_resnet.task}
  return make[settings.task](loaded.num_classes, image_shape=shape, **sizes)


def _make_canary(work: Workload, kind: str, norm: float) -> GradientCanary:
  """A canary by its name."""
  if kind in input_canaries.KINDS:
    return make_input_canary(work, kind)
  moving, _, name = kind.rpartition(' ')
  return make_gradient_canary(name, norm=norm, moving=bool(moving))


def make_input_canary(
  work: Workload, kind: str, **options: Any
) -> GradientCanary:
  """A canary example, made of test examples.

  Args:
    work: whose test examples it is made of.
    kind: 'mislabelled', 'blank', 'adversarial' or 'crafted'.
    options: for the function of `input_canaries` that makes it.
  """
  pool = input_canaries.Pool(
    {k: x[:64] for k, x in work.data.test.items()},
    work.data.inputs,
    work.data.num_classes,
  )
  return input_canaries.KINDS[kind](work.task, pool, **options)


def _plant(
  work: Workload,
  bug: str | None,
  noise: float,
  true_epsilon: float | None,
  seed: int,
) -> Any:
  """The step with a bug; None for that of the library."""
  if bug is None:
    return None
  sizes = dict(
    clip_norm=work.settings.clip_norm,
    expected_batch=work.settings.expected_batch,
    microbatch=work.settings.microbatch,
  )
  if bug == 'clipping':
    return planted_bugs.clip_after_averaging(
      work.task, noise_multiplier=noise, **sizes
    )
  if bug == 'seeds':
    step = dp_sgd.noisy_gradient(work.task, noise_multiplier=noise, **sizes)
    # Keys of the game come from other streams.
    return planted_bugs.noise_of_few_seeds(
      step, jax.random.fold_in(jax.random.key(seed), 1)
    )
  assert true_epsilon is not None, 'the bug is that of the scale'
  smaller = work.accounted.calibrate(true_epsilon)
  return dp_sgd.noisy_gradient(work.task, noise_multiplier=smaller, **sizes)
