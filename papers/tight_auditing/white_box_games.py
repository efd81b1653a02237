"""White-box games on models that are trained, at noise for a given ε of the run."""

from collections.abc import Mapping
import os
import pathlib
from typing import Any

import jax
import numpy as np

from epe_jax.dpsgd import (
  augmentation,
  dp_sgd,
  estimates,
  gradient_canaries,
  input_canaries,
  white_box,
)
from epe_jax.dpsgd.gradient_canaries import GradientCanary
from epe_jax.types import Params
from papers.tight_auditing import planted_bugs
from papers.tight_auditing.audits import AuditedTraining
from papers.tight_auditing.workloads import Workload, load_workload


def train_games(
  settings: Any, folder: str | os.PathLike, data: Mapping[str, pathlib.Path]
) -> list[AuditedTraining]:
  """Plays all games on all workloads, except those that are finished.

  Args:
    settings: works (name -> as for `load_workload`), games (their names, and options
      of `play_game`), delta and seed.
    folder: of the games.
    data: path of each data set, by name.
  """
  delta, seed = settings.delta, settings.seed
  played = []
  for name, each in settings.works.items():
    work = load_workload(each, data, delta=delta, seed=seed)
    for game in settings.games:
      options = {'delta': delta, 'seed': seed, **game}
      path = pathlib.Path(folder, f'{name}_{options.pop("name")}')
      played.append(play_game(work, path, **options))
  return played


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
  label: str | None = None,
) -> AuditedTraining:
  """Trains a model with the white-box game in every step, or resumes one.

  Args:
    work: the model and its data.
    folder: of this game alone; a finished game there is not played again.
    kind: of the canary: a key of `gradient_canaries.KINDS`, with 'moving ' before it
      if each step draws a new one, or of `input_canaries.KINDS`.
    epsilon: of the run, as it is claimed; it decides the claimed noise.
    delta: δ.
    seed: of all randomness of the simulation.
    bug: planted in the step: 'clipping', 'seeds' or 'scale'; None for none.
    true_epsilon: of the noise that is really added, for the bug 'scale'.
    first: number of steps to play, with the noise of a whole run; None for all.
    augmentations: of each image, whose gradients are averaged; None to train on
      images as they are.
    label: name in tables; None for that of the kind.

  Raises:
    ValueError: the folder has a game of other settings.
  """
  settings = work.settings
  noise = work.accounted.calibrate(epsilon)
  num_steps = first or settings.steps
  augment = None
  if augmentations is not None:
    augment = augmentation.make_crop_and_flip(work.data.inputs)
  accuracies = []

  def measure(done: int, params: Params) -> None:
    if done == num_steps:
      accuracies.append(work.measure_accuracy(params))

  # Clipping the mean lets through as much of a canary as it is long.
  norm = settings.clip_norm * (1e4 if bug == 'clipping' else 1)
  game = white_box.run_white_box(
    work.task,
    work.data.train,
    make_canary(work, kind, norm),
    white_box.WhiteBoxSettings(
      steps=num_steps,
      expected_batch=settings.expected_batch,
      clip_norm=settings.clip_norm,
      noise_multiplier=noise,
      microbatch=settings.microbatch,
      augmentations=augmentations or 1,
    ),
    white_box.derive_game_keys(seed),
    optimizer=work.make_optimizer(),
    params=work.task.init(jax.random.key(seed)),
    batch_seed=seed,
    noisy_gradient=_plant(work, bug, noise, true_epsilon, seed),
    augment=augment,
    workdir=folder,
    progress=measure,
  )
  return AuditedTraining(
    title=settings.title,
    kind=label or kind,
    epsilon=epsilon,
    analytic=work.compute_epsilon(noise, delta),
    clip_norm=settings.clip_norm,
    noise_multiplier=noise,
    scores=game.select(),
    mechanisms={'Gaussian': make_step_mechanism(work)},
    delta=delta,
    accuracy=accuracies[-1],
    majority=work.majority,
    description=(
      f'{settings.title}: {work.dim:,} parameters; {num_steps:,} steps, as many '
      f'observations of either kind; q = {game.sampling_rate:.4g}, '
      f'q_c = {game.canary_rate:g}, δ = {delta:g}. Data: {work.data.source}.'
    ),
    signal=float(np.mean(game.signal)),
  )


def make_canary(work: Workload, kind: str, norm: float) -> GradientCanary:
  """The canary of a kind, as for `play_game`."""
  if kind in input_canaries.KINDS:
    return work.make_input_canary(kind)
  moving, _, name = kind.rpartition(' ')
  return gradient_canaries.make_gradient_canary(
    name, norm=norm, moving=bool(moving)
  )


def make_step_mechanism(work: Workload) -> estimates.StepMechanism:
  """A step with the canary in it, which composes to the run of a workload."""
  mechanism = estimates.make_step_mechanism()
  return mechanism._replace(compose=work.accounted.compose)


def _plant(
  work: Workload,
  bug: str | None,
  noise: float,
  true_epsilon: float | None,
  seed: int,
) -> dp_sgd.NoisyGradient | None:
  """The step with a bug; None for the correct one."""
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
