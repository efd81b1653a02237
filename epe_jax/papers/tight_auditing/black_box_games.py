"""Models with a canary example and without, and what the final one says of it."""

from collections.abc import Callable, Mapping
import functools
import os
import pathlib
from typing import Any, NamedTuple

import jax
from jaxtyping import Float

from epe_jax.dpsgd import black_box, dp_sgd, estimates
from epe_jax.epsilon import families
from epe_jax.epsilon import types as epsilon_types
from epe_jax.papers.tight_auditing import trained_games
from epe_jax.types import Array, Batch, Params

CANARIES = ('mislabelled', 'blank')
"""Those that leak most in a black box, by the paper."""

# "Even with 10 approximations we can get a good estimation": appendix A.
_NUM_LINES = 10

Score = Callable[[Params], Float[Array, '']]


class AuditedModels(NamedTuple):
  """Models that are trained, and the scores of their canary.

  Attributes:
    title: of the workload.
    kind: of the canary.
    clip_norm: C.
    noise_multiplier: σ; 0 if gradients are clipped alone.
    analytic: ε of a training by dp_accounting; infinite without noise.
    scores: log-odds of the canary's label, of models with it and without it.
    mechanisms: of a training, for `estimates.estimate_run`, by what its trade-off curve
      is taken to be; the first is the one that is reported.
    delta: δ.
    accuracy: of one model on test examples.
    majority: share of the most frequent class of the test examples.
    description: sizes of the training, and its data.
  """

  title: str
  kind: str
  clip_norm: float
  noise_multiplier: float
  analytic: float
  scores: epsilon_types.Scores
  mechanisms: Mapping[str, estimates.StepMechanism]
  delta: float
  accuracy: float
  majority: float
  description: str

  @property
  def mechanism(self) -> estimates.StepMechanism:
    """The one that is reported."""
    return next(iter(self.mechanisms.values()))


def audit_models(
  work: trained_games.Workload,
  folder: str | os.PathLike,
  *,
  kind: str,
  clip_norm: float,
  noise_multiplier: float,
  num_models: int,
  chunk: int,
  delta: float,
  seed: int,
) -> AuditedModels:
  """Trains models with the canary and without it, or goes on to do so.

  Args:
    work: the model and its data.
    folder: of these models alone; what is scored there is not trained again.
    kind: of the canary, of `CANARIES`.
    clip_norm: C.
    noise_multiplier: σ >= 0.
    num_models: T >= 1, of either kind.
    chunk: models that are trained by one call.
    delta: δ.
    seed: of all randomness of the simulation.

  Raises:
    ValueError: the folder has models of other settings.
  """
  settings, task = work.settings, work.task
  canary = make_canary_example(work, kind, seed)

  def train(
    name: str, num: int, score: Score | None = None
  ) -> epsilon_types.Scores:
    trainer = make_trainer(
      work,
      canary,
      clip_norm=clip_norm,
      noise_multiplier=noise_multiplier,
      score=score,
    )
    return black_box.run_black_box(
      trainer,
      num_models=num,
      key=jax.random.key(seed),
      chunk=min(chunk, num),
      path=pathlib.Path(folder, f'{name}.npz'),
      settings={
        'work': settings.to_dict(),
        'kind': kind,
        'clip_norm': clip_norm,
        'noise_multiplier': noise_multiplier,
      },
    )

  scores = train('scores', num_models)
  # Of a model like those without the canary.
  measured = train(
    'accuracy',
    1,
    lambda params: trained_games.score_accuracy(task, params, work.data.test),
  )
  rate = work.sampling_probability
  dim = sum(x.size for x in jax.tree.leaves(task.init(jax.random.key(0))))
  return AuditedModels(
    title=settings.title,
    kind=kind,
    clip_norm=clip_norm,
    noise_multiplier=noise_multiplier,
    analytic=work.compute_epsilon(noise_multiplier, delta),
    scores=scores,
    mechanisms=_make_mechanisms(work, noise_multiplier, delta),
    delta=delta,
    accuracy=float(measured.unobserved[0]),
    majority=trained_games.measure_majority(work.data),
    description=(
      f'{settings.title}: {dim:,} parameters; {settings.steps:,} steps, '
      f'q = q_c = {rate:.4g}, δ = {delta:g}; {num_models:,} models with the '
      f'canary and as many without it. Data: {work.data.source}.'
    ),
  )


def _make_mechanisms(
  work: trained_games.Workload, noise_multiplier: float, delta: float
) -> dict[str, estimates.StepMechanism]:
  """Those of a training by the name of their curve, the reported one first."""
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


def make_trainer(
  work: trained_games.Workload,
  canary: Batch,
  *,
  clip_norm: float,
  noise_multiplier: float,
  score: Score | None = None,
) -> black_box.ScoreModels:
  """Trains models of a workload with or without a canary, and scores them.

  Args:
    work: the model and its data.
    canary: arrays without the axis of examples.
    clip_norm: C.
    noise_multiplier: σ >= 0.
    score: of the final model; None for the log-odds of the canary's label.
  """
  settings = work.settings
  score = score or functools.partial(
    black_box.score_log_odds,
    work.task,
    example=canary,
    num_classes=work.data.num_classes,
  )
  algorithm = dp_sgd.dpsgd(
    work.task,
    optimizer=work.make_optimizer(),
    clip_norm=clip_norm,
    noise_multiplier=noise_multiplier,
    expected_batch=settings.expected_batch,
    microbatch=settings.microbatch,
  )
  return black_box.make_trainer(
    work.task,
    algorithm,
    train=work.data.train,
    canary=canary,
    num_steps=settings.steps,
    expected_batch=settings.expected_batch,
    score=score,
    multiple=settings.microbatch or 1,
  )


def make_canary_example(
  work: trained_games.Workload, kind: str, seed: int
) -> Batch:
  """The canary of a black-box audit: arrays without the axis of examples.

  Args:
    work: whose test examples it is made of.
    kind: of `CANARIES`. A blank input is white: all numbers are 1.
    seed: of the example and the label.
  """
  options = {'value': 1.0} if kind == 'blank' else {}
  canary = trained_games.make_input_canary(work, kind, **options)
  state = canary.init(jax.random.fold_in(jax.random.key(seed), 1), None)
  return state.example


def train_clipped(
  settings: Any, folder: str | os.PathLike, data: Mapping[str, pathlib.Path]
) -> list[AuditedModels]:
  """Trains models that clip gradients and add no noise.

  Args:
    settings: work (as for `load_workload`), clip_norms, kinds, num_models, chunk,
      delta and seed.
    folder: of the models.
    data: path of each `--data`, by name.
  """
  common = dict(delta=settings.delta, seed=settings.seed)
  work = trained_games.load_workload(settings.work, data, **common)
  return [
    audit_models(
      work,
      pathlib.Path(folder, f'clip_norm={clip_norm:g}_{kind}'),
      kind=kind,
      clip_norm=clip_norm,
      noise_multiplier=0.0,
      num_models=settings.num_models,
      chunk=settings.chunk,
      **common,
    )
    for clip_norm in settings.clip_norms
    for kind in settings.kinds
  ]


def train_private(
  settings: Any, folder: str | os.PathLike, data: Mapping[str, pathlib.Path]
) -> list[AuditedModels]:
  """Trains private models, at noise for a given ε.

  Args:
    settings: works (name -> as for `load_workload`), epsilon, kinds, num_models,
      chunk, delta and seed.
    folder: of the models.
    data: path of each `--data`, by name.
  """
  common = dict(delta=settings.delta, seed=settings.seed)
  audited = []
  for name, each in settings.works.items():
    work = trained_games.load_workload(each, data, **common)
    audited += [
      audit_models(
        work,
        pathlib.Path(folder, f'{name}_{kind}'),
        kind=kind,
        clip_norm=each.clip_norm,
        noise_multiplier=work.accounted.calibrate(settings.epsilon),
        num_models=settings.num_models,
        chunk=settings.chunk,
        **common,
      )
      for kind in settings.kinds
    ]
  return audited
