"""One table and one figure of all estimators, of things that are compared."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from epe_jax.dpsgd import estimates
from epe_jax.epsilon.types import Scores
from epe_jax.papers import item
from epe_jax.report.figures import style
from epe_jax.text import cells, tables

Which = tuple[str, estimates.Thresholds]
"""An estimator, a key of `estimates.ESTIMATORS`, and who chooses its threshold."""

LOOKS: dict[Which, dict[str, Any]] = {
  ('f_dp_cp', 'same'): dict(color=style.VERMILLION, marker='o', mfc='white'),
  ('f_dp_cp', 'band'): dict(color=style.VERMILLION, marker='o'),
  ('f_dp_zb', 'same'): dict(color=style.ORANGE, marker='^', mfc='white'),
  ('dp_cp', 'same'): dict(color=style.BLUE, marker='s', mfc='white'),
  ('dp_cp', 'band'): dict(color=style.BLUE, marker='s'),
  ('dp_zb', 'same'): dict(color=style.SKY, marker='v', mfc='white'),
  ('katz', 'same'): dict(color=style.GREEN, marker='D', mfc='white'),
}
"""In the order of tables, and how they are drawn."""

THRESHOLDS = (
  'Same: the threshold is chosen on the same observations, as in the paper. That '
  'is no bound. Band: a 95 % lower bound, of all thresholds at once.'
)
"""A note on the choices of thresholds."""


def estimate(
  scores: Scores,
  which: Which,
  *,
  mechanism: estimates.StepMechanism,
  delta: float,
) -> float:
  """The lower limit of ε by one estimator.

  Args:
    scores: of one audit.
    which: estimator and threshold.
    mechanism: as for `estimates.estimate_run`, like δ.
    delta: δ.
  """
  key, thresholds = which
  found = estimates.estimate_run(
    scores, key, mechanism=mechanism, delta=delta, thresholds=thresholds
  )
  return float(found.epsilon)


def label(key: str, thresholds: str) -> str:
  """The name of an estimator in tables: 'f-DP (CP), band'."""
  return f'{estimates.ESTIMATORS[key].label}, {thresholds}'


def compare(
  title: str,
  first: str,
  epsilon: Mapping[str, Mapping[Which, float]],
  analytic: float,
  name: str,
  notes: Sequence[str],
) -> item.Product:
  """A row and a column of marks for each of the things that are compared.

  Args:
    title: of the table.
    first: head of its first column.
    epsilon: what is compared -> estimator -> ε, of all `LOOKS`.
    analytic: ε by the accountant; no line if it is infinite.
    name: of the figure.
    notes: below the table.
  """
  table = tables.Table(
    title,
    [first, *(label(*which) for which in LOOKS)],
    [
      [row, *map(cells.format_number, line.values())]
      for row, line in epsilon.items()
    ],
    notes,
  )
  fig, (axes,) = style.make_panels(1, height=4.2)
  for i, (which, look) in enumerate(LOOKS.items()):
    x = np.arange(len(epsilon)) + (i - len(LOOKS) / 2) * 0.08
    axes.plot(
      x,
      [line[which] for line in epsilon.values()],
      ls='',
      label=label(*which),
      **look,
    )
  if np.isfinite(analytic):
    places = [-0.5, len(epsilon) - 0.5]
    axes.plot(places, [analytic] * 2, **style.style_analytic_line(analytic))
  axes.set_xticks(range(len(epsilon)), list(epsilon))
  axes.set_ylabel('lower limit of ε')
  highest = max(x for line in epsilon.values() for x in line.values())
  if highest > 10 * analytic:
    style.set_epsilon_axis(axes, 'y', highest if np.isfinite(highest) else 1e3)
  style.draw_legend(fig, [axes])
  return item.Product([table], {name: fig})
