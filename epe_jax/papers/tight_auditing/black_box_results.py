"""Tables and figures of black-box audits."""

from collections.abc import Sequence

import numpy as np

from epe_jax.dpsgd import estimates
from epe_jax.epsilon.types import Scores
from epe_jax.papers import item, reported
from epe_jax.papers.tight_auditing import estimator_table
from epe_jax.papers.tight_auditing.black_box_games import AuditedModels
from epe_jax.text import cells, tables

_REPORTED = reported.Reported('epe_jax.papers.tight_auditing')
_OF_THE_PAPER: estimator_table.Which = ('f_dp_zb', 'same')
_CURVELESS = (
  'f-DP takes the trade-off curve of a training to be Gaussian; without noise '
  'nobody knows it.'
)
_CURVE = (
  'f-DP takes the trade-off curve of a training to be that of its steps on Poisson '
  'samples at some noise, by their privacy loss distribution (PLD).'
)


def make_figure11(audited: Sequence[AuditedModels]) -> item.Product:
  """Models whose gradients are clipped, without noise.

  Args:
    audited: of `train_clipped`.
  """
  epsilon = {
    f'C = {a.clip_norm:g}, {a.kind}': _estimate_all(a) for a in audited
  }
  compared = estimator_table.compare(
    'Clipping without noise, black box',
    'clip norm and canary',
    epsilon,
    np.inf,
    'figure11',
    [
      'Without noise there is no analytic ε.',
      'The learning rate is the same for all clip norms, so that models learn '
      'less the smaller C is.',
      _CURVELESS,
      *_explain(audited),
    ],
  )
  return compared._replace(
    tables=[
      _set_beside_paper(audited),
      *compared.tables,
      _tabulate_models(audited),
    ]
  )


def make_figure12(audited: Sequence[AuditedModels]) -> item.Product:
  """Private models, black box.

  Args:
    audited: of `train_private`.
  """
  single = len({a.title for a in audited}) == 1
  compared = estimator_table.compare(
    f'Private models, black box, analytic ε = {audited[0].analytic:.3g}',
    'canary' if single else 'model and canary',
    {
      a.kind if single else f'{a.title}, {a.kind}': _estimate_all(a)
      for a in audited
    },
    audited[0].analytic,
    'figure12',
    [
      'The paper: about 1.6 by f-DP (ZB) on CIFAR-10 with WRN-16, less on others, '
      'and nothing on random data.',
      _CURVE,
      *_explain(audited),
    ],
  )
  by_curve = _compare_curves(audited)
  return compared._replace(
    tables=[*compared.tables, by_curve, _tabulate_models(audited)]
  )


def _compare_curves(audited: Sequence[AuditedModels]) -> tables.Table:
  """The same scores by f-DP, for each curve of a training."""
  whiches = [
    which for which in estimator_table.LOOKS if which[0].startswith('f_')
  ]
  body = [
    [
      a.title,
      a.kind,
      name,
      *(
        cells.format_number(_estimate(a, which, mechanism)) for which in whiches
      ),
    ]
    for a in audited
    for name, mechanism in a.mechanisms.items()
  ]
  return tables.Table(
    'f-DP by the trade-off curve of a training',
    [
      'model',
      'canary',
      'curve',
      *(estimator_table.label(*which) for which in whiches),
    ],
    body,
    [
      'PLD: as many guarantees of the privacy loss distribution as follow its curve. '
      "Algorithm 4, the paper's: ten of them, at evenly spaced δ'.",
      'Gaussian: that of μ-GDP, of which ε is then taken at the same δ. A training '
      'on Poisson samples has another curve, so that this is no bound.',
    ],
  )


def _set_beside_paper(audited: Sequence[AuditedModels]) -> tables.Table:
  """The larger result of both canaries, and the largest that there can be."""
  body = []
  for clip_norm in dict.fromkeys(a.clip_norm for a in audited):
    largest = max(
      _estimate(a, _OF_THE_PAPER, a.mechanism)
      for a in audited
      if a.clip_norm == clip_norm
    )
    row = _REPORTED.find_row('figure11', clip_norm=clip_norm)
    text = reported.add_reported(largest, row, 'epsilon')
    body.append([f'{clip_norm:g}', text])
  one = audited[0]
  num = len(one.scores.observed)
  apart = Scores(np.arange(num) + float(num), np.arange(float(num)))
  (row,) = _REPORTED.load_rows('figure11_maximum')
  most = _estimate(one._replace(scores=apart), _OF_THE_PAPER, one.mechanism)
  body.append(
    ['scores that are all apart', reported.add_reported(most, row, 'epsilon')]
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
      'The threshold is chosen on the same scores, as in the paper: no bound.',
    ],
  )


def _tabulate_models(audited: Sequence[AuditedModels]) -> tables.Table:
  body = []
  for a in audited:
    moments = [
      f'{np.mean(x):.2f} ± {np.std(x, ddof=1):.2f}'
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
      *_describe(audited),
    ],
  )


def _estimate_all(
  audited: AuditedModels,
) -> dict[estimator_table.Which, float]:
  return {
    which: _estimate(audited, which, audited.mechanism)
    for which in estimator_table.LOOKS
  }


def _estimate(
  audited: AuditedModels,
  which: estimator_table.Which,
  mechanism: estimates.StepMechanism,
) -> float:
  return estimator_table.estimate(
    audited.scores, which, mechanism=mechanism, delta=audited.delta
  )


def _explain(audited: Sequence[AuditedModels]) -> list[str]:
  return [estimator_table.THRESHOLDS, *_describe(audited)]


def _describe(audited: Sequence[AuditedModels]) -> list[str]:
  return list(dict.fromkeys(a.description for a in audited))
