"""Trainings that are audited: by a game in each step, or as models with a canary or not."""

from collections.abc import Callable, Mapping
import functools
import math
import os
import pathlib
from typing import Any

import jax
from jaxtyping import Float
import numpy as np

from epe_jax.dpsgd import (
  dp_sgd,
  estimates,
  families,
  gradient_canaries,
  white_box,
)
from epe_jax.epsilon.types import Scores
from epe_jax.types import Array, Batch, Params
from papers.tight_auditing import (
  augmentation,
  black_box,
  input_canaries,
  planted_bugs,
)
from papers.tight_auditing.audits import AuditedTraining
from papers.tight_auditing.workloads import Workload, load_workload

# "Even with 10 approximations we can get a good estimation": appendix A.
_NUM_LINES = 10

Score = Callable[[Params], Float[Array, '']]


def train(
  settings: Any, folder: pathlib.Path, data: Mapping[str, pathlib.Path]
) -> list[AuditedTraining]:
  """Audits all workloads in all ways, except those that are finished.

  Args:
    settings: works (name -> as for `load_workload`); games, their names and options
      of `audit_models` if they have num_models, and else of `play_game`; delta and
      seed.
    folder: of the games.
    data: path of each data set, by name.
  """
  common = dict(delta=settings.delta, seed=settings.seed)
  audited = []
  for name, each in settings.works.items():
    work = load_workload(each, data, **common)
    for game in settings.games:
      options = {**common, **game}
      path = pathlib.Path(folder, f'{name}_{options.pop("name")}')
      audit = audit_models if 'num_models' in game else play_game
      audited.append(audit(work, path, **options))
  return audited


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
  if kind in input_canaries.KINDS:
    canary = work.make_input_canary(kind)
  else:
    moving, _, name = kind.rpartition(' ')
    # Clipping the mean lets through as much of a canary as it is long.
    norm = settings.clip_norm * (1e4 if bug == 'clipping' else 1)
    canary = gradient_canaries.make_gradient_canary(
      name, norm=norm, moving=bool(moving)
    )
  accuracies = []

  def measure(done: int, params: Params) -> None:
    if done == num_steps:
      accuracies.append(work.measure_accuracy(params))

  game = white_box.run_white_box(
    work.task,
    work.data.train,
    canary,
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
  mechanism = estimates.make_step_mechanism()
  return AuditedTraining(
    title=settings.title,
    kind=label or kind,
    epsilon=epsilon,
    analytic=work.compute_epsilon(noise, delta),
    clip_norm=settings.clip_norm,
    noise_multiplier=noise,
    scores=game.select(),
    mechanisms={'Gaussian': mechanism._replace(compose=work.accounted.compose)},
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


def audit_models(
  work: Workload,
  folder: str | os.PathLike,
  *,
  kind: str,
  epsilon: float,
  num_models: int,
  chunk: int,
  delta: float,
  seed: int,
  clip_norm: float | None = None,
) -> AuditedTraining:
  """Trains models with the canary and without it, or resumes them.

  Args:
    work: the model and its data.
    folder: of these models alone; models that are scored are not trained again.
    kind: of the canary, as for `make_canary_example`.
    epsilon: at which the noise is set; infinite to clip without noise.
    num_models: T >= 1, of either kind.
    chunk: models that are trained by one call.
    delta: δ.
    seed: of all randomness of the simulation.
    clip_norm: C; None for that of the workload.

  Raises:
    ValueError: the folder has models of other settings.
  """
  settings = work.settings
  canary = make_canary_example(work, kind, seed)
  noise = 0.0 if math.isinf(epsilon) else work.accounted.calibrate(epsilon)
  mechanism = {
    'clip_norm': settings.clip_norm if clip_norm is None else clip_norm,
    'noise_multiplier': noise,
  }
  algorithm = dp_sgd.dpsgd(
    work.task,
    optimizer=work.make_optimizer(),
    expected_batch=settings.expected_batch,
    microbatch=settings.microbatch,
    **mechanism,
  )

  def train_and_score(name: str, num: int, score: Score) -> Scores:
    return black_box.run_black_box(
      black_box.make_trainer(
        work.task,
        algorithm,
        train=work.data.train,
        canary=canary,
        num_steps=settings.steps,
        expected_batch=settings.expected_batch,
        score=score,
        multiple=settings.microbatch or 1,
      ),
      num_models=num,
      key=jax.random.key(seed),
      chunk=min(chunk, num),
      path=pathlib.Path(folder, f'{name}.npz'),
      settings={'work': settings.to_dict(), 'kind': kind, **mechanism},
    )

  log_odds = functools.partial(
    black_box.score_log_odds,
    work.task,
    example=canary,
    num_classes=work.data.num_classes,
  )
  scores = train_and_score('scores', num_models, log_odds)
  # Of a model like those without the canary.
  accuracy = train_and_score('accuracy', 1, work.score_accuracy).unobserved[0]
  return AuditedTraining(
    title=settings.title,
    kind=kind,
    epsilon=epsilon,
    analytic=work.compute_epsilon(noise, delta),
    scores=scores,
    mechanisms=make_mechanisms(work, noise, delta),
    delta=delta,
    accuracy=float(accuracy),
    majority=work.majority,
    description=(
      f'{settings.title}: {work.dim:,} parameters; {settings.steps:,} steps, '
      f'q = q_c = {work.sampling_probability:.4g}, δ = {delta:g}; '
      f'{num_models:,} models with the canary and as many without it. Data: '
      f'{work.data.source}.'
    ),
    **mechanism,
  )


def make_mechanisms(
  work: Workload, noise_multiplier: float, delta: float
) -> dict[str, estimates.StepMechanism]:
  """The mechanisms of a training by the name of their curve, the reported one first."""
  gaussian = {'Gaussian': estimates.make_step_mechanism()}
  if not noise_multiplier:
    return gaussian
  make = functools.partial(
    estimates.make_run_mechanism,
    sampling_probability=work.sampling_probability,
    steps=work.settings.steps,
  )
  lines = families.algorithm_4(delta=delta, num_lines=_NUM_LINES)
  return {
    'PLD': make(),
    f'Algorithm 4, {_NUM_LINES} lines': make(make_lines=lines),
    **gaussian,
  }


def make_canary_example(work: Workload, kind: str, seed: int) -> Batch:
  """The canary of a black-box audit: arrays without the axis of examples.

  Args:
    work: its test examples are used.
    kind: 'mislabelled' or 'blank', which leak most in a black box by the paper. A
      blank input is white: all numbers are 1.
    seed: of the example and the label.
  """
  options = {'value': 1.0} if kind == 'blank' else {}
  canary = work.make_input_canary(kind, **options)
  state = canary.init(jax.random.fold_in(jax.random.key(seed), 1), None)
  return state.example
