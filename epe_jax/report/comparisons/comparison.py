"""A comparison of labelled runs: its tables and its page."""

from collections.abc import Callable, Sequence
import math
import os
from typing import NamedTuple

from epe_jax.audit.attack_scores import ThreatModel
from epe_jax.audit.results import Headline
from epe_jax.epsilon.types import Estimate
from epe_jax.report import cells, checks, html, page, tables, words
from epe_jax.report.comparisons import labelled_runs
from epe_jax.report.comparisons.labelled_runs import Difference, LabelledRun
from epe_jax.report.figures import comparison as figures
from epe_jax.report.page import Page

CAVEATS = (
  'These ε are of canaries; clients were not measured.',
  'Estimates and differences have 90 % intervals for the variation between canaries, '
  'and guarantee nothing. Differences assume independent estimates; those of equal '
  'seeds are not.',
  'Runs of one config differ too, so that a difference between two runs need not come '
  'from their settings. Use several seeds of each (epe-jax sweep --seeds).',
)
"""What the numbers of a comparison do not say."""


CAPTION = (
  'Above, what each attacker learns in each run: estimates with 90 % intervals, lower '
  'bounds as ticks, limits dashed, and in grey what is estimated when nothing leaks. '
  'Below, differences from the first run.'
)
"""What the figure of a comparison shows."""


def write_comparison(
  folder: str | os.PathLike[str], runs: Sequence[LabelledRun]
) -> str:
  """Writes comparison.md and .html, and its figure, comparison.png and .svg.

  Returns:
    The page and its appendix as text.

  Raises:
    ValueError: there are fewer than two runs, or they are of several δ.
  """
  labelled_runs.check_comparable(runs)
  content = make_page(runs)
  drawing = figures.draw_comparison(runs, labelled_runs.subtract_first(runs))
  defined = page.define_words(content)
  html.write_page(folder, 'comparison', defined, {'comparison.png': drawing})
  return page.render_text(content, has_appendix=True)


def make_page(runs: Sequence[LabelledRun]) -> Page:
  """The report of a comparison, with its figure."""
  form = tables.format_plain_markdown
  return Page(
    f'Comparison of {len(runs)} audits',
    [
      page.make_bold(f'{make_title(runs)}.'),
      *(
        page.make_bold(f'{run.label}: Warning: {text}.')
        for run in runs
        for text in run.warnings
      ),
      form(make_headline_table(runs)),
      page.make_figure('comparison.png', CAPTION),
      page.make_list(CAVEATS),
    ],
    {'Every attacker, and differences': [form(make_table(runs))]},
  )


def make_title(runs: Sequence[LabelledRun]) -> str:
  """The range of ε of the strongest attacker that all runs have, in one line."""
  shared = [
    attacker
    for attacker in labelled_runs.list_attackers(runs)
    if all(
      attacker in run.estimates and not run.estimates[attacker].is_rejected
      for run in runs
    )
  ]
  if not (runs and shared):
    return 'No attacker was estimated in all runs'
  by_label = {run.label: run.estimates[shared[-1]] for run in runs}
  low, high = (
    f'{cells.format_epsilon(by_label[label])} ({label})'
    for choose in (min, max)
    for label in [choose(by_label, key=lambda x: float(by_label[x].epsilon))]
  )
  return f'{words.spell_name(shared[-1])}: ε ≈ {low} to {high}'


def make_table(runs: Sequence[LabelledRun]) -> tables.Table:
  """A line for each attacker and run: estimate, floor, bound and difference."""
  rows = [
    _Row(attacker, run, run.estimates[attacker], of_run.get(attacker))
    for attacker in labelled_runs.list_attackers(runs)
    for run, of_run in zip(runs, labelled_runs.subtract_first(runs))
    if attacker in run.estimates
  ]
  table = tables.select_columns(
    rows,
    {
      'attacker has': lambda row: words.spell_name(row.attacker),
      'run': lambda row: row.run.label,
      cells.LOWER_BOUND: _format_bound,
      cells.ESTIMATE: lambda row: cells.format_with_interval(row.estimate),
      'floor 5-95 %': lambda row: cells.format_floor(row.estimate) or '-',
      'difference [90 % interval]': _format_difference,
    },
    title=f'ε at δ = {cells.format_delta(runs[0].delta)}',
  )
  notes = [
    *cells.explain_rejected(cell for line in table.body for cell in line),
    # Warnings are on the first page.
    *(f'{run.label}: Note: {text}.' for run in runs for text in run.notes),
  ]
  return table._replace(notes=notes)


def make_headline_table(runs: Sequence[LabelledRun]) -> tables.Table:
  """A line for each run: the attacker of its headline, with bound and estimate."""

  def show(
    name: Callable[[Headline], str | None],
  ) -> Callable[[LabelledRun], str]:
    return lambda run: (run.headline and name(run.headline)) or '–'

  return tables.select_columns(
    runs,
    {
      'run': lambda run: run.label,
      'attacker has': show(lambda x: words.spell_name(x.attack.threat_model)),
      cells.LOWER_BOUND: show(lambda x: checks.format_first_bound(x.attack)),
      cells.ESTIMATE: show(
        lambda x: x.point and cells.format_with_interval(x.point)
      ),
      cells.LIMIT: labelled_runs.format_analytic,
    },
  )


class _Row(NamedTuple):
  """What an attacker learns in a run, and by how much more than in the first."""

  attacker: ThreatModel
  run: LabelledRun
  estimate: Estimate
  difference: Difference | None


def _format_bound(row: _Row) -> str:
  bound = row.run.bounds.get(row.attacker)
  return '-' if bound is None else cells.format_epsilon(bound)


def _format_difference(row: _Row) -> str:
  difference = row.difference
  if difference is None or not math.isfinite(difference.epsilon):
    return '-'
  text = _format_signed(difference.epsilon)
  if difference.interval is None:
    return text
  low, high = map(_format_signed, difference.interval)
  return f'{text} [{low}, {high}]'


def _format_signed(value: float) -> str:
  text = cells.format_number(value)
  return text if value < 0 else f'+{text}'
