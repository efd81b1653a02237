"""Black-box audits: models with a canary example and without, scored at the end."""

from collections.abc import Callable, Mapping, Sequence
import functools
import math
import os
import pathlib
from typing import Any

import jax
from jaxtyping import Float
import numpy as np

from epe_jax.dpsgd import black_box, dp_sgd, estimates, families
from epe_jax.epsilon.types import Scores
from epe_jax.report import cells, tables
from epe_jax.types import Array, Batch, Params
from papers import item, reported
from papers.tight_auditing import audits
from papers.tight_auditing.audits import AuditedTraining, Choice
from papers.tight_auditing.workloads import Workload, load_workload

_REPORTED = reported.Reported('papers.tight_auditing')
# "Even with 10 approximations we can get a good estimation": appendix A.
_NUM_LINES = 10
_OF_THE_PAPER = Choice('f_dp_zb', 'same')
_CURVES = [c for c in audits.CHOICES if c.estimator.startswith('f_')]

Score = Callable[[Params], Float[Array, '']]


def train_models(
  settings: Any, folder: str | os.PathLike, data: Mapping[str, pathlib.Path]
) -> list[AuditedTraining]:
  """Audits all workloads in all ways, except those that are finished.

  Args:
    settings: works (name -> as for `load_workload`), audits (their names, and options
      of `audit_models`), num_models, chunk, delta and seed.
    folder: of the models.
    data: path of each data set, by name.
  """
  common = dict(delta=settings.delta, seed=settings.seed)
  audited = []
  for name, each in settings.works.items():
    work = load_workload(each, data, **common)
    for audit in settings.audits:
      options = dict(audit)
      path = pathlib.Path(folder, f'{name}_{options.pop("name")}')
      audited.append(
        audit_models(
          work,
          path,
          num_models=settings.num_models,
          chunk=settings.chunk,
          **options,
          **common,
        )
      )
  return audited


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

  def train(name: str, num: int, score: Score | None = None) -> Scores:
    return black_box.run_black_box(
      make_trainer(work, canary, score=score, **mechanism),
      num_models=num,
      key=jax.random.key(seed),
      chunk=min(chunk, num),
      path=pathlib.Path(folder, f'{name}.npz'),
      settings={'work': settings.to_dict(), 'kind': kind, **mechanism},
    )

  scores = train('scores', num_models)
  # Of a model like those without the canary.
  accuracy = train('accuracy', 1, work.score_accuracy).unobserved[0]
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


def make_trainer(
  work: Workload,
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
    score=score
    or functools.partial(
      black_box.score_log_odds,
      work.task,
      example=canary,
      num_classes=work.data.num_classes,
    ),
    multiple=settings.microbatch or 1,
  )


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


def make_figure11(audited: Sequence[AuditedTraining]) -> item.Product:
  """Models whose gradients are clipped, without noise."""
  compared = audits.compare(
    'Clipping without noise, black box',
    'clip norm and canary',
    {f'C = {a.clip_norm:g}, {a.kind}': a for a in audited},
    'figure11',
    [
      'Without noise there is no analytic ε.',
      'The learning rate is the same for all clip norms, so that models learn '
      'less the smaller C is.',
      'f-DP takes the trade-off curve of a training to be Gaussian; without noise '
      'nobody knows it.',
      audits.THRESHOLDS,
      *audits.describe(audited),
    ],
  )
  return compared._replace(
    tables=[
      _tabulate_with_paper(audited),
      *compared.tables,
      _tabulate_models(audited),
    ]
  )


def make_figure12(audited: Sequence[AuditedTraining]) -> item.Product:
  """Private models, black box."""
  single = len({a.title for a in audited}) == 1
  compared = audits.compare(
    f'Private models, black box, analytic ε = {audited[0].analytic:.3g}',
    'canary' if single else 'model and canary',
    {a.kind if single else f'{a.title}, {a.kind}': a for a in audited},
    'figure12',
    [
      'The paper: about 1.6 by f-DP (ZB) on CIFAR-10 with WRN-16, less on others, '
      'and nothing on random data.',
      'f-DP takes the trade-off curve of a training to be that of its steps on '
      'Poisson samples at some noise, by their privacy loss distribution (PLD).',
      audits.THRESHOLDS,
      *audits.describe(audited),
    ],
  )
  return compared._replace(
    tables=[
      *compared.tables,
      _compare_curves(audited),
      _tabulate_models(audited),
    ]
  )


def _compare_curves(audited: Sequence[AuditedTraining]) -> tables.Table:
  """The same scores by f-DP, for each curve of a training."""
  body = [
    [
      a.title,
      a.kind,
      name,
      *(
        cells.format_number(a.estimate(choice, mechanism=mechanism))
        for choice in _CURVES
      ),
    ]
    for a in audited
    for name, mechanism in a.mechanisms.items()
  ]
  return tables.Table(
    'f-DP by the trade-off curve of a training',
    ['model', 'canary', 'curve', *(choice.label for choice in _CURVES)],
    body,
    [
      'PLD: as many guarantees of the privacy loss distribution as follow its curve. '
      "Algorithm 4, the paper's: ten of them, at evenly spaced δ'.",
      'Gaussian: that of μ-GDP, of which ε is then taken at the same δ. A training '
      'on Poisson samples has another curve, so that this is not a bound.',
    ],
  )


def _tabulate_with_paper(audited: Sequence[AuditedTraining]) -> tables.Table:
  """The larger result of both canaries, and the largest possible one."""
  body = []
  for clip_norm in dict.fromkeys(a.clip_norm for a in audited):
    largest = max(
      a.estimate(_OF_THE_PAPER) for a in audited if a.clip_norm == clip_norm
    )
    row = _REPORTED.find_row('figure11', clip_norm=clip_norm)
    text = reported.add_reported(largest, row, 'epsilon')
    body.append([f'{clip_norm:g}', text])
  num = len(audited[0].scores.observed)
  separate = Scores(np.arange(num) + float(num), np.arange(float(num)))
  largest = audited[0]._replace(scores=separate).estimate(_OF_THE_PAPER)
  (row,) = _REPORTED.load_rows('figure11_maximum')
  body.append(
    [
      'scores that are all separated',
      reported.add_reported(largest, row, 'epsilon'),
    ]
  )
  return tables.Table(
    'Clipping without noise: f-DP (ZB), the larger of all canaries',
    ['clip norm C', 'lower limit of ε'],
    body,
    [
      'In brackets the figures of the paper: WRN-16 on CIFAR-10, 1,000 models '
      'with the canary and as many without it.',
      f'Here there are {num:,} of each. The last row is the largest result of so '
      'many models, whatever is trained.',
      'The threshold is chosen on the same scores, as in the paper: it is not a bound.',
    ],
  )


def _tabulate_models(audited: Sequence[AuditedTraining]) -> tables.Table:
  body = []
  for a in audited:
    moments = [
      reported.format_spread(x)
      for x in (a.scores.unobserved, a.scores.observed)
    ]
    body.append(
      [
        a.title,
        a.kind,
        f'{a.clip_norm:g}',
        cells.format_number(a.noise_multiplier),
        f'{a.accuracy:.1%}',
        f'{a.majority:.1%}',
        *moments,
      ]
    )
  return tables.Table(
    'Models and their scores',
    [
      'model',
      'canary',
      'C',
      'σ',
      'accuracy',
      'majority class',
      'without canary',
      'with canary',
    ],
    body,
    [
      "Mean and standard deviation over models of log(p / (1 - p)) of the canary's "
      'label.',
      'Accuracy on test examples of one model, and the share of their most '
      'frequent class.',
      *audits.describe(audited),
    ],
  )
