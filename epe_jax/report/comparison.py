"""A comparison of labelled runs: its tables, its page and the files of a sweep."""

from collections.abc import Callable, Mapping, Sequence
import math
import os
import pathlib
from typing import NamedTuple

import numpy as np

from epe_jax import io
from epe_jax.audit import attackers
from epe_jax.audit.attack_scores import ThreatModel
from epe_jax.audit.results import Headline
from epe_jax.epsilon.types import Estimate
from epe_jax.experiment.run_result import RunResult
from epe_jax.experiment.sweeps import sweep, sweep_points, sweep_status
from epe_jax.report import cells, html, labelled_runs, page, tables, words
from epe_jax.report.figures import comparison as figures
from epe_jax.report.figures import style
from epe_jax.report.labelled_runs import (
  Difference,
  LabelledRun,
  format_setting,
)
from epe_jax.report.page import Page
from epe_jax.several_runs import over_runs
from epe_jax.several_runs.over_runs import ShiftEstimate

CAVEATS = (
  'These ε are of canaries; clients were not measured.',
  'Estimates and differences have 90 % intervals for the variation between canaries, '
  'and guarantee nothing. Differences assume independent estimates; those of equal '
  'seeds are not.',
  'Runs of one config differ too, so that a difference between two runs need not come '
  'from their settings. Use several seeds of each (epe-jax sweep --seeds).',
)
"""What the numbers of a comparison do not say."""

_ABOUT_VARIATION = (
  'μ is by how much taking part shifts a canary, in standard deviations of the '
  'null: its mean over runs, and its standard deviation τ between them, without '
  'the scatter of canaries. I² is the share of the scatter of estimates that is '
  'not from canaries; p is its p-value if all runs leaked the same.',
  'ε is that of the Gaussian mechanism with the mean μ, and its spread over runs '
  'is that of μ: the empirical privacy variance. Point estimates: no guarantee.',
  'Std and range show how far ε varies between runs beyond the error of each '
  "run's own estimate, so they are narrower than the estimates themselves "
  'scatter. With τ = 0 (-) errors alone explain all of the scatter; the interval '
  'of τ says what else is possible.',
  'The runs of a line differ in the seed alone.',
)

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

  Returns:
    The page and its appendix as text.

  Raises:
    ValueError: there are fewer than two runs, or they are of several δ.
  """
  labelled_runs.check_comparable(runs)
  content = make_page(runs, figure=f'{name}.png')
  drawing = figures.draw_comparison(runs, labelled_runs.subtract_first(runs))
  defined = page.define_words(content)
  html.write_page(folder, name, defined, {f'{name}.png': drawing})
  return page.render_text(content, has_appendix=True)


def make_page(runs: Sequence[LabelledRun], *, figure: str) -> Page:
  """The report of a comparison, with a figure by the name of its file."""
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
      page.make_figure(figure, CAPTION),
      page.make_list(CAVEATS),
    ],
    {'Every attacker, and differences': [form(make_table(runs))]},
  )


def write_sweep(
  folder: str | os.PathLike[str],
  points: Sequence[sweep_points.Point],
  outcome: sweep.SweepResult,
) -> str:
  """Writes the tables, the figure and the comparison of the points of a sweep.

  These are sweep.md and sweep.tex; sweep.png and .svg, where there is anything to
  draw; and, where two points of one δ or more have estimates, comparison.html, .md,
  .png and .svg, as of any runs.

  Args:
    outcome: what `sweep.run_sweep` returned for them, or what there is of it.

  Returns:
    The tables as text.
  """
  runs = [
    labelled_runs.load_point(
      point.name, outcome.finished[point.name], point.settings
    )
    for point in points
    if point.name in outcome.finished
  ]
  failed = {
    point.name: (point.settings, outcome.failed[point.name])
    for point in points
    if point.name in outcome.failed
  }
  folder = pathlib.Path(folder)
  table = make_settings_table(runs, failed)
  # Of an earlier sweep into the same folder, maybe of other fields.
  others = {*sweep_status.list_points(folder)} - {p.name for p in points}
  if others:
    note = (
      f'Points of the folder that are not of this sweep: {len(others):,}. '
      'epe-jax sweep --status=WORKDIR shows all.'
    )
    table = table._replace(notes=[*table.notes, note])
  variation = make_variation_table(labelled_runs.group_replicates(runs))
  shown = [table, *([variation] if variation else [])]
  text = '\n\n'.join(map(tables.format_plain_markdown, shown))
  io.write_text(folder / 'sweep.tex', f'{tables.format_latex(table)}\n')
  io.write_text(folder / 'sweep.md', f'{text}\n')
  drawing = figures.draw_sweep(runs, finding=make_title(runs))
  if drawing is not None:
    style.write_figure(drawing, folder / 'sweep.png')
  if labelled_runs.is_comparable(runs):
    write_comparison(folder, runs, name='comparison')
  return tables.render_text(text, is_folded=False)


def make_title(runs: Sequence[LabelledRun]) -> str:
  """The range of ε of the strongest attacker that all runs have, in one line."""
  shared = [
    attacker
    for attacker in labelled_runs.list_attackers(runs)
    if all(attacker in run.estimates for run in runs)
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
      'attacker': lambda row: words.spell_name(row.attacker),
      'run': lambda row: row.run.label,
      'ε [90 % interval]': lambda row: cells.format_with_interval(row.estimate),
      'floor 5-95 %': lambda row: cells.format_floor(row.estimate) or '-',
      'bound, 95 %': _format_bound,
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
      'attacker': show(lambda x: words.spell_name(x.attack.threat_model)),
      'at least': show(lambda x: cells.format_epsilon(x.bound)),
      'about': show(lambda x: x.point and cells.format_epsilon(x.point)),
      'at most': _format_analytic,
    },
  )


def make_settings_table(
  runs: Sequence[LabelledRun], failed: Mapping[str, tuple[Mapping, str]] = {}
) -> tables.Table:
  """A line for each point of a sweep: its settings, accuracy and estimates.

  Args:
    runs: the finished points, 1 or more unless all failed.
    failed: name of a point that failed -> its settings, and why.
  """
  models = attackers.sort_by_strength(
    [
      *(attacker for run in runs for attacker in run.estimates),
      *(x for x in attackers.THREAT_MODELS if x.is_shift),
    ]
  )
  has_seeds = any(len(run.accuracies) > 1 for run in runs)
  columns: dict[str, Callable[[LabelledRun], str]] = {
    **({'seeds': lambda run: f'{len(run.accuracies)}'} if has_seeds else {}),
    'accuracy': _format_accuracies,
    'analytic ε': _format_analytic,
    **{
      f'ε, {words.spell_name(attacker)}': _show(attacker) for attacker in models
    },
  }
  table = tables.select_columns(runs, columns)
  all_settings = [run.settings for run in runs]
  all_settings += [settings for settings, _ in failed.values()]
  lost = [['failed', *[''] * (len(columns) - 1)]] * len(failed)
  body = [
    [*map(format_setting, settings.values()), *line]
    for settings, line in zip(all_settings, [*table.body, *lost])
  ]
  note = 'ε are point estimates, no bounds; in brackets 90 % intervals.'
  if has_seeds:
    note += (
      ' They are means over seeds, each of other data, clients, canaries, noise and '
      'models; accuracies are mean ± standard deviation.'
    )
  notes = [
    note,
    *cells.explain_rejected(cell for line in body for cell in line),
    # The table may be published, and paths tell of the machine.
    *(f'Data: {x}.' for x in dict.fromkeys(r.source for r in runs) if x),
    *(
      f'{name} failed: {io.hide_paths(why)}'
      for name, (_, why) in failed.items()
    ),
  ]
  return tables.Table('', [*all_settings[0], *columns], body, notes)


def make_variation_table(
  replicates: Sequence[LabelledRun],
) -> tables.Table | None:
  """A line for each config and attacker; None if no config has two seeds."""
  body = [
    [
      ', '.join(f'{k} = {format_setting(x)}' for k, x in run.settings.items())
      or 'all seeds',
      words.spell_name(attacker),
      *_list_variation(shifts, run.delta),
    ]
    for run in replicates
    for attacker, shifts in run.shifts.items()
    if len(shifts) > 1
  ]
  if not body:
    return None
  of_mu = 'number', 'μ', 'τ', '90 % interval', 'I²', 'p'
  of_epsilon = 'ε', 'std of ε', '5-95 % of runs'
  return tables.Table(
    'How much ε varies between runs',
    ['runs', 'attacker', *of_mu, *of_epsilon],
    body,
    _ABOUT_VARIATION,
  )


def make_results_table(results: Mapping[str, RunResult]) -> tables.Table:
  """A line for each run: sizes, accuracy, and the first estimate of each attacker.

  Every ε is a point estimate, without a guarantee; one that is not calibrated has a
  dagger. After that of the final model is the range, 5 to 95 %, of what the same
  estimator reports when nothing leaks. The analytic ε is that of a canary, and of a
  client where it takes part in other numbers of rounds.
  """
  models = attackers.sort_by_strength(
    [
      *attackers.OF_INDEPENDENT_NOISE,
      *(a.threat_model for r in results.values() for a in r.audit.attacks),
    ]
  )
  shown = [
    attacker
    for attacker in models
    # The first page has the attacker who knows the initial model too.
    if attacker.is_in_overview
    or attacker.is_worst_case
    or attacker == attackers.CHANGE
  ]
  return tables.select_columns(
    results.items(),
    {
      'run': lambda row: row[0],
      'rounds x clients': lambda row: (
        f'{row[1].rounds:,} x {row[1].config["clients_per_round"]:,}'
      ),
      'd': lambda row: f'{row[1].dim:,}',
      'noise': lambda row: f'{row[1].noise_multiplier:g}',
      'accuracy (majority class)': lambda row: (
        f'{cells.format_percent(row[1].accuracy)} '
        f'({cells.format_percent(row[1].baseline_accuracy)})'
      ),
      'analytic ε': lambda row: _format_analytic(labelled_runs.label_run(*row)),
      **{f'ε, {words.spell_name(x)}': _show_first(x) for x in shown},
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
  return '-' if bound is None else f'≥ {cells.format_epsilon(bound)}'


def _format_difference(row: _Row) -> str:
  difference = row.difference
  if difference is None or not math.isfinite(difference.epsilon):
    return '-'
  text = _format_signed(difference.epsilon)
  if difference.interval is None:
    return text
  low, high = map(_format_signed, difference.interval)
  return f'{text} [{low}, {high}]'


def _show(attacker: ThreatModel) -> Callable[[LabelledRun], str]:
  return lambda run: cells.format_with_interval(run.estimates.get(attacker))


def _list_variation(shifts: Sequence[ShiftEstimate], delta: float) -> list[str]:
  mu, variance = np.array(shifts, np.float64).T
  effects = over_runs.random_effects(mu, variance)
  spread = over_runs.compute_epsilon_spread(
    effects.mu, effects.tau, delta=delta
  )
  epsilon = over_runs.epsilon_of_mean(effects, delta=delta).epsilon
  return [
    f'{len(shifts)}',
    cells.format_number(effects.mu),
    cells.format_number(effects.tau),
    cells.format_interval(effects.tau_interval) or '-',
    f'{100 * effects.i_squared:.0f} %',
    f'{effects.p_value:.2g}',
    cells.format_number(float(epsilon)),
    cells.format_number(spread.std) if effects.tau > 0 else '-',
    (effects.tau > 0 and cells.format_interval((spread.low, spread.high)))
    or '-',
  ]


def _format_signed(value: float) -> str:
  text = cells.format_number(value)
  return text if value < 0 else f'+{text}'


def _format_accuracies(run: LabelledRun) -> str:
  text = cells.format_percent(float(np.mean(run.accuracies)))
  if len(run.accuracies) == 1:
    return text
  spread = cells.format_number(100 * float(np.std(run.accuracies, ddof=1)))
  return f'{text.removesuffix(" %")} ± {spread} %'


def _format_analytic(run: LabelledRun) -> str:
  """The analytic ε of a canary, and of a client where it is not the same."""
  texts = [
    cells.format_number(epsilon) + (' (clients)' if who == 'clients' else '')
    for who, epsilon in run.analytic.items()
  ]
  return '; '.join(texts) or '-'


def _show_first(
  attacker: ThreatModel,
) -> Callable[[tuple[str, RunResult]], str]:
  def show(row: tuple[str, RunResult]) -> str:
    _, result = row
    if not result.is_audited:
      return 'not audited'
    attack = result.audit.find(attacker)
    if attack is None:
      return 'not measured'
    text = cells.format_epsilon(attack.first)
    if not attack.is_calibrated:
      text += ' †'
    # Where much leaks the floor says nothing.
    floor = cells.format_floor(attack.first)
    if attacker == attackers.FINAL and floor:
      text += f' (floor {floor})'
    return text

  return show
