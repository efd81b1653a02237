"""Algorithm 1 on the Gaussian mechanism: the table, and the sweep over d."""

from collections.abc import Mapping, Sequence
import functools
import math
from typing import Any

from matplotlib import figure
import tqdm

from epe_jax.epsilon import tradeoff
from epe_jax.report import tables
from epe_jax.report.figures import style
from papers import item, plots, reported
from papers.one_shot import gaussian_mechanism

_REPORTED = reported.Reported('papers.one_shot')

_COLUMNS = {
  'null': 'ε, std 1/√d',
  'fitted': 'ε, std fitted',
}
_NOTES = (
  *_REPORTED.explain_brackets('algorithm1'),
  'Cosines are simulated from their exact law. Mean ± standard deviation of '
  'the estimates.',
  'Algorithm 1 as printed fits the std. The figures of the paper '
  'are those of a std fixed at 1/√d, which is calibrated.',
)


# Estimator -> colour, marker, factor of x so that bars do not overlap, what its std is.
_STYLES = {
  'null': (style.BLUE, 'o', 0.98, 'std fixed at 1/√d'),
  'fitted': (style.VERMILLION, 's', 1.02, 'std fitted'),
}

_EXPLANATION = """\
null   std of the canaries' cosines fixed at 1/√d, its value as d grows: the
       calibrated estimator, which estimates the analytic ε.
fitted std fitted, as Algorithm 1 prints it: the fit is off by 1/√(2k) of its
       value and any difference between two stds raises ε, so it reads high."""


def make_algorithm1(settings: Any) -> item.Product:
  """Makes the table and figure of the paper's noise levels, at one dimension."""
  sigmas = [row['sigma'] for row in _REPORTED.load_rows('algorithm1')]
  rows = _simulate(sigmas, settings.dim, settings.num_canaries, settings)
  body = [
    [
      f'{group[0].sigma:g}',
      f'{group[0].analytic_epsilon:.3g}',
      *_list_cells(
        group, _REPORTED.find_row('algorithm1', sigma=group[0].sigma)
      ),
    ]
    for group in group_by_sigma(rows)
  ]
  table = tables.Table(
    make_title(rows),
    ['σ', 'analytic ε', *_COLUMNS.values()],
    body,
    _NOTES,
  )
  return item.Product([table], {'algorithm1': draw_mechanism(rows)})


def make_d_sweep(settings: Any) -> item.Product:
  """Makes the table and figure of k = √d canaries at several dimensions."""
  epsilons = sorted({row['analytic'] for row in _REPORTED.load_rows('d_sweep')})
  sigmas = [1 / tradeoff.mu_of_epsilon(e, settings.delta) for e in epsilons]
  by_dim = {
    dim: _simulate(sigmas, dim, round(math.sqrt(dim)), settings)
    for dim in settings.dims
  }
  body = []
  for dim, rows in by_dim.items():
    groups = group_by_sigma(rows)
    for epsilon, group in zip(epsilons, groups):
      paper = _REPORTED.find_row('d_sweep', dim=dim, analytic=epsilon)
      head = [f'{dim:,}', f'{group[0].num_canaries:,}', f'{epsilon:g}']
      body.append(head + _list_cells(group, paper))
  table = tables.Table(
    f'k = √d canaries, δ = {settings.delta:g}, {settings.simulations} '
    'simulations',
    ['d', 'k', 'analytic ε', *_COLUMNS.values()],
    body,
    _NOTES,
  )
  return item.Product([table], {'d_sweep': _draw_d_sweep(by_dim)})


def parse_rows(
  records: Sequence[Mapping[str, Any]],
) -> list[gaussian_mechanism.Row]:
  """The rows that a JSON file of them holds."""
  numbers = ('analytic_epsilon', 'mean', 'std')
  return [
    gaussian_mechanism.Row(
      **{**record, **{name: float(record[name]) for name in numbers}}
    )
    for record in records
  ]


def group_by_sigma(
  rows: Sequence[gaussian_mechanism.Row],
) -> list[Sequence[gaussian_mechanism.Row]]:
  """The rows of each noise level together, one for each estimator."""
  num = len(gaussian_mechanism.ESTIMATORS)
  return [rows[i : i + num] for i in range(0, len(rows), num)]


def format_table(rows: Sequence[gaussian_mechanism.Row]) -> str:
  """The table of the paper: both estimators and the analytic ε."""
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


def _simulate(
  sigmas: Sequence[float], dim: int, num_canaries: int, settings: Any
) -> list[gaussian_mechanism.Row]:
  sizes: dict[str, Any] = dict(
    dim=dim, num_canaries=num_canaries, delta=settings.delta
  )
  epsilons = gaussian_mechanism.run_estimators(
    0,
    sigmas,
    simulations=settings.simulations,
    progress=functools.partial(tqdm.tqdm, unit='audit', desc=f'd = {dim:,}'),
    **sizes,
  )
  return gaussian_mechanism.summarize(sigmas, epsilons, **sizes)


def _list_cells(
  rows: Sequence[gaussian_mechanism.Row], paper: dict[str, float] | None
) -> list[str]:
  """The estimates of one noise level, with the paper's in brackets."""
  cells = [f'{row.mean:.3f} ± {row.std:.3f}' for row in rows]
  if paper is not None:
    # The numbers of the paper are those of the calibrated estimator.
    cells[0] += f' ({paper["mean"]:g} ± {paper["std"]:g})'
  return cells


def _draw_d_sweep(
  by_dim: dict[int, list[gaussian_mechanism.Row]],
) -> figure.Figure:
  """Draws estimate over analytic ε along d, a panel for each estimator."""
  groups = [group_by_sigma(rows) for rows in by_dim.values()]
  panels = {}
  for i, name in enumerate(gaussian_mechanism.ESTIMATORS):
    lines = panels[_STYLES[name][-1]] = {}
    for j, color in enumerate((style.SKY, style.GREEN, style.VERMILLION)):
      selected = [of_dim[j][i] for of_dim in groups]
      scale = [row.analytic_epsilon for row in selected]
      lines[f'analytic ε = {scale[0]:.3g}'] = plots.Line(
        [row.dim * 1.15 ** (j - 1) for row in selected],
        [row.mean / e for row, e in zip(selected, scale)],
        dict(fmt='o-', color=color, mfc='white', capsize=4),
        [row.std / e for row, e in zip(selected, scale)],
      )
  level = dict(y=1, color=style.BLACK, ls='--', lw=1.5, label='analytic')
  fig = plots.draw_lines(
    panels,
    levels=dict.fromkeys(panels, level),
    share=True,
    xscale='log',
    xlabel='d, with k = √d canaries',
  )
  fig.axes[0].set_ylabel('estimated ε / analytic ε, mean ± std')
  return fig


def _choose_algorithm1(scale: str) -> dict[str, Any]:
  smoke = scale == 'smoke'
  return dict(
    dim=10_000 if smoke else 1_000_000,
    num_canaries=100 if smoke else 1000,
    delta=1e-6,
    simulations=5 if smoke else 50,
  )


def _choose_d_sweep(scale: str) -> dict[str, Any]:
  smoke = scale == 'smoke'
  return dict(
    dims=tuple(10**i for i in range(4, 6 if smoke else 8)),
    delta=1e-6,
    simulations=5 if smoke else 50,
  )


ITEMS = {
  'algorithm1': item.from_settings(
    'Algorithm 1 on the Gaussian mechanism',
    'section 3, Table 1 of the text of May 2023',
    'algorithm1',
    _choose_algorithm1,
    make_algorithm1,
  ),
  'd_sweep': item.from_settings(
    'Algorithm 1 at several dimensions',
    'the authors in answer to their reviewers',
    'd_sweep',
    _choose_d_sweep,
    make_d_sweep,
  ),
}
