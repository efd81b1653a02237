"""Algorithm 1 for people: the table and the figure of its rows."""

from collections.abc import Mapping, Sequence
import math
from typing import Any

from matplotlib import figure

from epe_jax.audit import gaussian_mechanism
from epe_jax.report.figures import style

# Moved sideways by 2 %, so that the bars of the two do not overlap.
_STYLES = {
  'null': (style.BLUE, 'o', 0.98, 'std fixed at 1/√d'),
  'fitted': (style.VERMILLION, 's', 1.02, 'std fitted'),
}
READINGS = {name: label for name, (_, _, _, label) in _STYLES.items()}
"""What the std of each reading is, in words."""

_EXPLANATION = """\
null   std of the canaries' cosines fixed at 1/√d, its value as d grows: the
       calibrated reading, which estimates the analytic ε.
fitted std fitted, as Algorithm 1 prints it: the fit is off by 1/√(2k) of its
       value and any difference between two stds raises ε, so it reads high."""


def make_table(
  records: Sequence[Mapping[str, Any]],
) -> list[gaussian_mechanism.Row]:
  """Rows from what a JSON file of them holds."""
  rows = []
  for record in records:
    fields: dict[str, Any] = dict(record)
    for name in ('analytic_epsilon', 'mean', 'std'):
      fields[name] = float(fields[name])
    rows.append(gaussian_mechanism.Row(**fields))
  return rows


def format_table(rows: Sequence[gaussian_mechanism.Row]) -> str:
  """The table of the paper, both readings beside the analytic epsilon.

  Args:
    rows: as `gaussian_mechanism.summarize` gives them, of one dim and delta.

  Returns:
    Text without a final newline.
  """
  names = gaussian_mechanism.ESTIMATORS
  lines = [f'{"σ":>10} {"analytic ε":>12}' + ''.join(f'{n:>20}' for n in names)]
  for i in range(0, len(rows), len(names)):
    line = f'{rows[i].sigma:>10.4g} {rows[i].analytic_epsilon:>12.4g}'
    for row in rows[i : i + len(names)]:
      line += f'{f"{row.mean:.4g} ± {row.std:.2g}":>20}'
    lines.append(line)
  return '\n'.join([make_title(rows), '', *lines, '', _EXPLANATION])


def draw_mechanism(rows: Sequence[gaussian_mechanism.Row]) -> figure.Figure:
  """Estimates against the analytic epsilon; on the dashed line they agree."""
  drawn = [r for r in rows if math.isfinite(r.analytic_epsilon + r.mean)]
  values = [x for r in drawn for x in (r.analytic_epsilon, r.mean)] or [1.0]
  fig = figure.Figure(figsize=(5.5, 5), layout='constrained')
  axes = fig.subplots()
  ends = (min(values), max(values))
  axes.plot(
    ends, ends, '--', color='0.6', zorder=0, label='estimate = analytic'
  )
  for name, (color, marker, shift, label) in _STYLES.items():
    mine = [r for r in drawn if r.estimator == name]
    axes.errorbar(
      [r.analytic_epsilon * shift for r in mine],
      [r.mean for r in mine],
      [0.0 if math.isnan(r.std) else r.std for r in mine],
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
