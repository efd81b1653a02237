"""The table and the figure of Algorithm 1 on the Gaussian mechanism."""

from collections.abc import Mapping, Sequence
import math
from typing import Any

from matplotlib import figure

from epe_jax.papers.one_shot import gaussian_mechanism
from epe_jax.report.figures import style
from epe_jax.text import tables

# Moved sideways by 2 %, so that the bars of the two do not overlap.
_STYLES = {
  'null': (style.BLUE, 'o', 0.98, 'std fixed at 1/√d'),
  'fitted': (style.VERMILLION, 's', 1.02, 'std fitted'),
}
LABELS = {name: label for name, (_, _, _, label) in _STYLES.items()}
"""What the std of each estimator is, for legends and titles."""

_EXPLANATION = """\
null   std of the canaries' cosines fixed at 1/√d, its value as d grows: the
       calibrated estimator, which estimates the analytic ε.
fitted std fitted, as Algorithm 1 prints it: the fit is off by 1/√(2k) of its
       value and any difference between two stds raises ε, so it reads high."""


def parse_rows(
  records: Sequence[Mapping[str, Any]],
) -> list[gaussian_mechanism.Row]:
  """The rows that a JSON file of them holds."""
  rows = []
  for record in records:
    fields: dict[str, Any] = dict(record)
    for name in ('analytic_epsilon', 'mean', 'std'):
      fields[name] = float(fields[name])
    rows.append(gaussian_mechanism.Row(**fields))
  return rows


def group_by_sigma(
  rows: Sequence[gaussian_mechanism.Row],
) -> list[Sequence[gaussian_mechanism.Row]]:
  """The rows of each noise level together, one for each estimator."""
  num = len(gaussian_mechanism.ESTIMATORS)
  return [rows[i : i + num] for i in range(0, len(rows), num)]


def format_table(rows: Sequence[gaussian_mechanism.Row]) -> str:
  """The table of the paper: both estimators and the analytic ε.

  Args:
    rows: what `gaussian_mechanism.summarize` returns, of one dim and delta.

  Returns:
    Text without a final newline.
  """
  names = gaussian_mechanism.ESTIMATORS
  lines = [['σ', 'analytic ε', *names]]
  for of_sigma in group_by_sigma(rows):
    first = of_sigma[0]
    lines.append(
      [
        f'{first.sigma:.4g}',
        f'{first.analytic_epsilon:.4g}',
        *(f'{row.mean:.4g} ± {row.std:.2g}' for row in of_sigma),
      ]
    )
  table = tables.align_columns(
    lines, '>' * len(lines[0]), widths=(10, 13, *(20 for _ in names)), gap=''
  )
  return '\n'.join([make_title(rows), '', table, '', _EXPLANATION])


def draw_mechanism(rows: Sequence[gaussian_mechanism.Row]) -> figure.Figure:
  """Draws estimates against the analytic ε; on the dashed line they agree."""
  finite = [r for r in rows if math.isfinite(r.analytic_epsilon + r.mean)]
  values = [x for r in finite for x in (r.analytic_epsilon, r.mean)] or [1.0]
  fig = figure.Figure(figsize=(5.5, 5), layout='constrained')
  axes = fig.subplots()
  ends = (min(values), max(values))
  axes.plot(
    ends, ends, '--', color='0.6', zorder=0, label='estimate = analytic'
  )
  for name, (color, marker, shift, label) in _STYLES.items():
    selected = [r for r in finite if r.estimator == name]
    axes.errorbar(
      [r.analytic_epsilon * shift for r in selected],
      [r.mean for r in selected],
      [0.0 if math.isnan(r.std) else r.std for r in selected],
      fmt=marker,
      color=color,
      mfc='white',
      capsize=4,
      label=label,
    )
  if min(values) > 0:
    axes.set(xscale='log', yscale='log')
    for axis in (axes.xaxis, axes.yaxis):
      axis.set_major_formatter('{x:g}')
  axes.set(xlabel='analytic ε', ylabel='estimated ε, mean ± std')
  axes.set_title(make_title(rows), fontsize='medium')
  axes.legend(frameon=False)
  return fig


def make_title(rows: Sequence[gaussian_mechanism.Row]) -> str:
  """What all rows have in common."""
  row = rows[0]
  return (
    f'd = {row.dim:,}, k = {row.num_canaries:,}, δ = {row.delta:g}, '
    f'{row.simulations} simulations'
  )
