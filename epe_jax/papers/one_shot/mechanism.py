"""Algorithm 1 on the Gaussian mechanism: the table, and the sweep over d."""

from collections.abc import Callable, Iterable, Sequence
import functools
import math
from typing import Any

from matplotlib import figure
import tqdm

from epe_jax.epsilon.trade_offs import tradeoff_curves
from epe_jax.papers import item, reported
from epe_jax.papers.one_shot import gaussian_mechanism, mechanism_table
from epe_jax.report.figures import style
from epe_jax.text import tables

_REPORTED = reported.Reported('epe_jax.papers.one_shot')

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


def make_algorithm1(settings: Any) -> item.Product:
  """Makes the table and figure of the paper's noise levels, at one dimension.

  Args:
    settings: dim, num_canaries, delta and simulations.
  """
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
    for group in mechanism_table.group_by_sigma(rows)
  ]
  table = tables.Table(
    mechanism_table.make_title(rows),
    ['σ', 'analytic ε', *_COLUMNS.values()],
    body,
    _NOTES,
  )
  return item.Product(
    [table], {'algorithm1': mechanism_table.draw_mechanism(rows)}
  )


def make_d_sweep(settings: Any) -> item.Product:
  """Makes the table and figure of k = √d canaries at several dimensions.

  Args:
    settings: dims, delta and simulations.
  """
  epsilons = sorted({row['analytic'] for row in _REPORTED.load_rows('d_sweep')})
  sigmas = [
    1 / tradeoff_curves.mu_of_epsilon(e, settings.delta) for e in epsilons
  ]
  by_dim = {
    dim: _simulate(sigmas, dim, round(math.sqrt(dim)), settings)
    for dim in settings.dims
  }
  body = []
  for dim, rows in by_dim.items():
    groups = mechanism_table.group_by_sigma(rows)
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


def _simulate(
  sigmas: Sequence[float], dim: int, num_canaries: int, settings: Any
) -> list[gaussian_mechanism.Row]:
  progress: Callable[..., Iterable] = functools.partial(
    tqdm.tqdm, unit='audit', desc=f'd = {dim:,}'
  )
  epsilons = gaussian_mechanism.run_estimators(
    0,
    sigmas,
    delta=settings.delta,
    simulations=settings.simulations,
    progress=progress,
    dim=dim,
    num_canaries=num_canaries,
  )
  return gaussian_mechanism.summarize(
    sigmas, epsilons, delta=settings.delta, dim=dim, num_canaries=num_canaries
  )


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
  fig, all_axes = style.make_panels(2, columns=2, height=4.0, share=True)
  colors = (style.SKY, style.GREEN, style.VERMILLION)
  groups = [mechanism_table.group_by_sigma(rows) for rows in by_dim.values()]
  for i, (axes, name) in enumerate(
    zip(all_axes, gaussian_mechanism.ESTIMATORS)
  ):
    axes.axhline(1, color=style.BLACK, ls='--', lw=1.5, label='analytic')
    for j, color in enumerate(colors):
      selected = [of_dim[j][i] for of_dim in groups]
      scale = [row.analytic_epsilon for row in selected]
      axes.errorbar(
        [row.dim * 1.15 ** (j - 1) for row in selected],
        [row.mean / e for row, e in zip(selected, scale)],
        [row.std / e for row, e in zip(selected, scale)],
        fmt='o-',
        color=color,
        mfc='white',
        capsize=4,
        label=f'analytic ε = {scale[0]:.3g}',
      )
    axes.set(xscale='log', xlabel='d, with k = √d canaries')
    axes.set_title(mechanism_table.LABELS[name])
  all_axes[0].set_ylabel('estimated ε / analytic ε, mean ± std')
  style.draw_legend(fig, all_axes)
  return fig
