"""The files of a comparison and of a sweep."""

from collections.abc import Mapping, Sequence
import os
import pathlib

from epe_jax import io
from epe_jax.experiment import finished_runs, sweep
from epe_jax.experiment.seed_sweep import SeedEstimates
from epe_jax.report import between_runs, comparison, html
from epe_jax.report.comparison import LabelledRun
from epe_jax.report.figures import comparison as figures
from epe_jax.report.figures import pictures
from epe_jax.report.page import Cells, Figure, Page, Section
from epe_jax.text import tables

CAPTION = (
  'Left, what each attacker is found to learn in each run: estimates with 90 % '
  'intervals, what the same estimator reports when nothing leaks in grey, lower bounds '
  'as ticks and the analytic ε dashed. Right, the difference of the estimates from '
  'those of the first run, with 90 % intervals.'
)
"""What the figure of a comparison shows."""


def write_comparison(
  folder: str | os.PathLike[str], runs: Sequence[LabelledRun], *, name: str
) -> str:
  """Writes NAME.md, NAME.html and the figure of a comparison, NAME.png and .svg.

  Args:
    folder: where the files go.
    runs: two or more at one δ; differences are to the first.
    name: of the files, without an ending.

  Returns:
    The tables as text, without a final newline.

  Raises:
    ValueError: there are fewer than two runs, or they are of several δ.
  """
  comparison.check_comparable(runs)
  title = comparison.make_title(runs)
  headlines = comparison.make_headline_table(runs)
  table = comparison.make_table(runs)
  page = Page(
    title,
    [
      Section('One number for each run', [Cells(headlines)], key='headlines'),
      Section('Figures', [Figure(f'{name}.png', CAPTION)], key='figures'),
      Section(
        'Every attacker, and differences', [Cells(table)], key='differences'
      ),
    ],
  )
  drawing = figures.draw_comparison(
    runs, comparison.subtract_first(runs), finding=title
  )
  html.write_page(folder, name, page, {f'{name}.png': drawing})
  return '\n\n'.join(map(tables.format_text, (headlines, table)))


def write_sweep(
  folder: str | os.PathLike[str],
  points: Sequence[sweep.Point],
  outcome: sweep.Outcome,
) -> str:
  """Writes sweep.md, sweep.tex, a figure and the comparison of the points.

  The figure is sweep.png and .svg, where there is one; comparison.html, .md, .png and
  .svg, as of any runs, where two points of one δ or more have estimates.

  Args:
    folder: where the files go.
    points: of the grid.
    outcome: what `sweep.run_sweep` returned for them.

  Returns:
    The tables as text, without a final newline.

  Raises:
    FileNotFoundError: a file of a finished point is missing.
    ValueError: a file is damaged or of another version.
  """
  runs, failed = [], {}
  for point in points:
    if point.name in outcome.failed:
      failed[point.name] = (point.settings, outcome.failed[point.name])
    elif point.name in outcome.finished:
      run = finished_runs.load_finished_run(outcome.finished[point.name])
      runs.append(comparison.label_run(point.name, run, point.settings))
  table = comparison.make_settings_table(runs, failed)
  io.write_text(
    pathlib.Path(folder, 'sweep.tex'), f'{tables.format_latex(table)}\n'
  )
  drawing = figures.draw_sweep(runs, finding=comparison.make_title(runs))
  if drawing is not None:
    pictures.write_figure(drawing, pathlib.Path(folder, 'sweep.png'))
  return _write_tables(folder, runs, table, between_runs.group_replicates(runs))


def write_seed_sweep(
  folder: str | os.PathLike[str],
  points: Sequence[sweep.Point],
  results: Mapping[str, Sequence[SeedEstimates]],
) -> str:
  """Writes sweep.md and the comparison of the points, which are means over seeds.

  Args:
    folder: where the files go.
    points: of the grid.
    results: what `seed_sweep.run_seed_sweep` returned for them.

  Returns:
    The tables as text, without a final newline.
  """
  runs = [
    comparison.label_seeds(point.name, results[point.name], point.settings)
    for point in points
  ]
  return _write_tables(folder, runs, comparison.make_settings_table(runs), runs)


def _write_tables(
  folder: str | os.PathLike[str],
  runs: Sequence[LabelledRun],
  table: tables.Table,
  replicates: Sequence[LabelledRun],
) -> str:
  """Writes sweep.md and, where runs are comparable, their comparison."""
  variation = between_runs.make_variation_table(replicates)
  shown = [table, *([variation] if variation else [])]
  text = '\n\n'.join(map(tables.format_markdown, shown))
  io.write_text(
    pathlib.Path(folder, 'sweep.md'), f'{tables.escape_html(text)}\n'
  )
  if comparison.is_comparable(runs):
    write_comparison(folder, runs, name='comparison')
  return '\n\n'.join(map(tables.format_text, shown))
