"""The files of a comparison and of a sweep."""

from collections.abc import Mapping, Sequence
import os
import pathlib
from typing import Any

from epe_jax import io
from epe_jax.experiment import finished_runs, sweep
from epe_jax.experiment.seed_sweep import SeedEstimates
from epe_jax.report import between_runs, comparison, html, page
from epe_jax.report.comparison import LabelledRun
from epe_jax.report.figures import comparison as figures
from epe_jax.report.figures import pictures
from epe_jax.report.page import Cells, Figure, Items, Page, Section, Text
from epe_jax.text import tables

CAPTION = (
  'Above, what each attacker learns in each run, with 90 % intervals; what is estimated '
  'when nothing leaks is grey, lower bounds are ticks, limits dashed. Below, differences '
  'from the first run.'
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
    The page and its appendix as text, without a final newline.

  Raises:
    ValueError: there are fewer than two runs, or they are of several δ.
  """
  comparison.check_comparable(runs)
  content = make_page(runs, figure=f'{name}.png')
  drawing = figures.draw_comparison(runs, comparison.subtract_first(runs))
  defined = page.define_words(content)
  html.write_page(folder, name, defined, {f'{name}.png': drawing})
  return page.render_text(content, has_appendix=True)


def make_page(runs: Sequence[LabelledRun], *, figure: str) -> Page:
  """The report of a comparison.

  Args:
    runs: two or more at one δ; differences are to the first.
    figure: the name of its file.
  """
  alarms = [
    Text(f'{run.label}: {text}', 'alarm')
    for run in runs
    for text in run.remarks
    if text.startswith('Warning')
  ]
  return Page(
    f'Comparison of {len(runs)} audits',
    [
      Text(f'{comparison.make_title(runs)}.', 'headline'),
      *alarms,
      Cells(comparison.make_headline_table(runs)),
      Figure(figure, CAPTION),
      Items(comparison.CAVEATS),
    ],
    [
      Section(
        'Every attacker, and differences',
        [Cells(comparison.make_table(runs))],
        key='differences',
      )
    ],
  )


def write_sweep(
  folder: str | os.PathLike[str],
  points: Sequence[sweep.Point],
  outcome: sweep.Outcome,
) -> str:
  """Writes the tables, the figure and the comparison of the points of a sweep.

  Args:
    folder: where the files go: sweep.md and sweep.tex; sweep.png and .svg, where
      there is anything to draw; and, where two points of one δ or more have
      estimates, comparison.html, .md, .png and .svg, as of any runs.
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
      runs.append(comparison.label_run(point.name, run.result, point.settings))
  replicates = between_runs.group_replicates(runs)
  return _write_points(folder, runs, replicates, failed)


def write_seed_sweep(
  folder: str | os.PathLike[str],
  points: Sequence[sweep.Point],
  results: Mapping[str, Sequence[SeedEstimates]],
) -> str:
  """Writes the same of points that are means over seeds.

  Args:
    folder: as in `write_sweep`.
    points: of the grid.
    results: what `seed_sweep.run_seed_sweep` returned for them.

  Returns:
    The tables as text, without a final newline.
  """
  runs = [
    comparison.label_seeds(point.name, results[point.name], point.settings)
    for point in points
  ]
  return _write_points(folder, runs, runs)


def _write_points(
  folder: str | os.PathLike[str],
  runs: Sequence[LabelledRun],
  replicates: Sequence[LabelledRun],
  failed: Mapping[str, tuple[Mapping[str, Any], str]] = {},
) -> str:
  folder = pathlib.Path(folder)
  table = comparison.make_settings_table(runs, failed)
  variation = between_runs.make_variation_table(replicates)
  shown = [table, *([variation] if variation else [])]
  text = '\n\n'.join(map(tables.format_markdown, shown))
  io.write_text(folder / 'sweep.tex', f'{tables.format_latex(table)}\n')
  io.write_text(folder / 'sweep.md', f'{tables.escape_html(text)}\n')
  drawing = figures.draw_sweep(runs, finding=comparison.make_title(runs))
  if drawing is not None:
    pictures.write_figure(drawing, folder / 'sweep.png')
  if comparison.is_comparable(runs):
    write_comparison(folder, runs, name='comparison')
  return '\n\n'.join(map(tables.format_text, shown))
