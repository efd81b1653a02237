"""Audited trainings, and the one table of estimators that they are put through."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from epe_jax.dpsgd import estimates
from epe_jax.epsilon.types import Scores
from epe_jax.report import cells, tables
from epe_jax.report.figures import style
from papers import item


class Choice(NamedTuple):
  """An estimator, and which scores choose its threshold.

  Attributes:
    estimator: a key of `estimates.ESTIMATORS`.
    thresholds: as for `estimates.estimate_run`.
  """

  estimator: str
  thresholds: estimates.Thresholds

  @property
  def label(self) -> str:
    """The name in tables, such as 'f-DP (CP), band'."""
    return f'{name_estimator(self.estimator)}, {self.thresholds}'

  @property
  def plot_style(self) -> dict[str, Any]:
    """How it is drawn: hollow if the threshold is chosen on the same scores."""
    hollow = {'mfc': 'white'} if self.thresholds == 'same' else {}
    return STYLES[self.estimator] | hollow


STYLES: dict[str, dict[str, Any]] = {
  'f_dp_cp': dict(color=style.VERMILLION, marker='o'),
  'f_dp_zb': dict(color=style.ORANGE, marker='^'),
  'dp_cp': dict(color=style.BLUE, marker='s'),
  'dp_zb': dict(color=style.SKY, marker='v'),
  'katz': dict(color=style.GREEN, marker='D'),
}
"""How estimators are drawn."""

CHOICES = (
  Choice('f_dp_cp', 'same'),
  Choice('f_dp_cp', 'band'),
  Choice('f_dp_zb', 'same'),
  Choice('dp_cp', 'same'),
  Choice('dp_cp', 'band'),
  Choice('dp_zb', 'same'),
  Choice('katz', 'same'),
)
"""In the order of tables."""

THRESHOLDS = (
  'Same: the threshold is chosen on the same observations, as in the paper. That '
  'is not a bound. Band: a 95 % lower bound, of all thresholds at once.'
)
"""A note on the choices of thresholds."""


class AuditedTraining(NamedTuple):
  """A training with a game in its steps, or many trainings; and their scores.

  Attributes:
    title: of the workload.
    kind: of the canary, or the name of a bug.
    epsilon: the ε at which the noise was set; infinite without noise.
    analytic: ε of a run by dp_accounting at this noise, if it does what it claims.
    clip_norm: C.
    noise_multiplier: σ, as it is claimed.
    scores: of the canary.
    mechanisms: of a score and of the run, by the trade-off curve that is assumed;
      the first one is reported.
    delta: δ.
    accuracy: of a final model on test examples.
    majority: share of the most frequent class of the test examples.
    description: sizes and data, a sentence.
    signal: in a white-box game, the mean norm of the clipped canary in clip norms.
  """

  title: str
  kind: str
  epsilon: float
  analytic: float
  clip_norm: float
  noise_multiplier: float
  scores: Scores
  mechanisms: Mapping[str, estimates.StepMechanism]
  delta: float
  accuracy: float
  majority: float
  description: str
  signal: float = 1.0

  def estimate(
    self,
    choice: Choice,
    *,
    first: int | None = None,
    mechanism: estimates.StepMechanism | None = None,
  ) -> float:
    """The lower limit of ε of a run.

    Args:
      choice: of estimator and thresholds.
      first: number of scores to take, from the first one; None for all.
      mechanism: None for the one that is reported.
    """
    estimate = estimates.estimate_run(
      Scores(self.scores.observed[:first], self.scores.unobserved[:first]),
      choice.estimator,
      mechanism=mechanism or next(iter(self.mechanisms.values())),
      delta=self.delta,
      thresholds=choice.thresholds,
    )
    return float(np.asarray(estimate.epsilon))


def name_estimator(estimator: str) -> str:
  """The paper's name of an estimator."""
  return estimates.ESTIMATORS[estimator].label


def describe(audited: Sequence[AuditedTraining]) -> list[str]:
  """Sizes and data of trainings, without repetition."""
  return list(dict.fromkeys(a.description for a in audited))


def compare(
  title: str,
  head: str,
  audited: Mapping[str, AuditedTraining],
  name: str,
  notes: Sequence[str],
) -> item.Product:
  """A table, with `head` over its first column, and a figure of all estimators.

  All trainings have the same analytic ε.
  """
  epsilon = {
    row: [a.estimate(choice) for choice in CHOICES]
    for row, a in audited.items()
  }
  table = tables.Table(
    title,
    [head, *(choice.label for choice in CHOICES)],
    [[row, *map(cells.format_number, line)] for row, line in epsilon.items()],
    notes,
  )
  fig, (axes,) = style.make_panels(1, height=4.2)
  for i, (choice, values) in enumerate(zip(CHOICES, zip(*epsilon.values()))):
    x = np.arange(len(values)) + (i - len(CHOICES) / 2) * 0.08
    axes.plot(x, values, ls='', label=choice.label, **choice.plot_style)
  analytic = next(iter(audited.values())).analytic
  if np.isfinite(analytic):
    ends = [-0.5, len(epsilon) - 0.5]
    axes.plot(ends, [analytic] * 2, **style.style_analytic_line(analytic))
  axes.set_xticks(range(len(epsilon)), list(epsilon))
  axes.set_ylabel('lower limit of ε')
  highest = max(max(line) for line in epsilon.values())
  if highest > 10 * analytic:
    style.set_epsilon_axis(axes, 'y', highest if np.isfinite(highest) else 1e3)
  style.draw_legend(fig, [axes])
  return item.Product([table], {name: fig})
