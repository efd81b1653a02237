"""The points of a sweep: how far they are, their tables, and what they write."""

from collections.abc import Callable, Iterable, Mapping, Sequence
import datetime
import math
import os
import pathlib

import numpy as np

from epe_jax import io
from epe_jax.audit import attackers
from epe_jax.audit.attack_scores import ThreatModel
from epe_jax.experiment.sweeps import sweep, sweep_points, sweep_status
from epe_jax.experiment.sweeps.sweep_status import PointStatus
from epe_jax.report import cells, tables, words
from epe_jax.report.comparisons import comparison, labelled_runs
from epe_jax.report.comparisons.labelled_runs import LabelledRun, format_setting
from epe_jax.report.figures import comparison as figures
from epe_jax.report.figures import style
from epe_jax.several_runs import over_runs
from epe_jax.several_runs.over_runs import ShiftEstimate

# Last lines of the log of a point that failed.
_QUOTED = 10
_ABOUT_VARIATION = (
  'μ is by how much taking part shifts a canary, in standard deviations of the '
  'scores held out: its mean over runs, and its standard deviation τ between them, without '
  'the scatter of canaries. I² is the share of the scatter of estimates that is '
  'not from canaries; p is its p-value if all runs leaked the same.',
  'ε is that of the Gaussian mechanism with the mean μ, and its spread over runs '
  'is that of μ: the empirical privacy variance. Estimates: no guarantee.',
  'Std and range show how far ε varies between runs beyond the error of each '
  "run's own estimate, so they are narrower than the estimates themselves "
  'scatter. With τ = 0 (-) errors alone explain all of the scatter; the interval '
  'of τ says what else is possible.',
  'The runs of a line differ in the seed alone.',
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
  drawing = figures.draw_sweep(runs, finding=comparison.make_title(runs))
  if drawing is not None:
    style.write_figure(drawing, folder / 'sweep.png')
  if labelled_runs.is_comparable(runs):
    comparison.write_comparison(folder, runs)
  return tables.render_text(text, is_folded=False)


def make_settings_table(
  runs: Sequence[LabelledRun], failed: Mapping[str, tuple[Mapping, str]] = {}
) -> tables.Table:
  """A line for each point of a sweep: its settings, accuracy and estimates.

  Args:
    runs: the finished points, 1 or more unless all failed.
    failed: name of a point that failed -> its settings, and why.
  """
  has_seeds = any(len(run.accuracies) > 1 for run in runs)
  columns: dict[str, Callable[[LabelledRun], str]] = {
    **({'seeds': lambda run: f'{len(run.accuracies)}'} if has_seeds else {}),
    'accuracy': _format_accuracies,
    **{
      f'{words.spell_name(attacker)}, {head}': show(attacker)
      for attacker in _choose_attackers(runs)
      for head, show in (('lower bound', _show_bound), ('estimate', _show))
    },
    cells.LIMIT: _show_limit('canaries'),
    'client, limit': _show_limit('clients'),
  }
  # Empty columns say nothing.
  columns = {
    head: show
    for head, show in columns.items()
    if not runs or any(show(run) != '-' for run in runs)
  }
  table = tables.select_columns(runs, columns)
  all_settings = [run.settings for run in runs]
  all_settings += [settings for settings, _ in failed.values()]
  lost = [['failed', *[''] * (len(columns) - 1)]] * len(failed)
  body = [
    [*map(format_setting, settings.values()), *line]
    for settings, line in zip(all_settings, [*table.body, *lost])
  ]
  note = (
    'Lower bounds hold at 95 %, each by itself; estimates, with 90 % intervals, '
    'guarantee nothing.'
  )
  if has_seeds:
    note += (
      ' Estimates are means over seeds, each of other data, clients, canaries, noise and '
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
    ['runs', 'attacker has', *of_mu, *of_epsilon],
    body,
    _ABOUT_VARIATION,
  )


def format_progress(workdir: str | os.PathLike[str]) -> str:
  """A line of how far a sweep is, a table of its points, results and failures."""
  points = sweep_status.find_status(workdir)
  parts = [
    describe_progress(points),
    tables.format_text(make_status_table(points)),
  ]
  finished = [
    labelled_runs.load_point(
      point.name, pathlib.Path(workdir, point.name), {'point': point.name}
    )
    for point in points
    if point.state == 'finished'
  ]
  if finished:
    table = make_settings_table(finished)
    parts.append(tables.format_text(table))
  failed = [point.name for point in points if point.state == 'failed']
  if failed:
    parts.append(quote_logs(workdir, failed))
  return '\n\n'.join(parts)


def quote_logs(workdir: str | os.PathLike[str], names: Iterable[str]) -> str:
  """The last lines of the logs of points."""
  parts = []
  for name in names:
    log = pathlib.Path(workdir, f'{name}.log')
    lines = io.read_last_lines(log, _QUOTED) or ['(no output)']
    parts.append('\n'.join([f'{log}:', *(f'  {line}' for line in lines)]))
  return '\n\n'.join(parts)


def describe_progress(points: Sequence[PointStatus]) -> str:
  """How many points are in which state, and the time that is left, in one line.

  >>> describe_progress([PointStatus('a', 'running', 5, 20, 2.0, 'process 1')])
  '1 point: 1 running; 5 of 20 rounds; 0:00:30 left'
  """
  counts = sweep_status.count_states(points)
  states = ', '.join(f'{number} {state}' for state, number in counts.items())
  plural = '' if len(points) == 1 else 's'
  parts = [f'{len(points)} point{plural}: {states}']
  if all(point.rounds for point in points):
    done = sum(point.rounds_done for point in points)
    parts.append(f'{done:,} of {sum(p.rounds for p in points):,} rounds')
  seconds = sweep_status.estimate_seconds_left(points)
  if not math.isnan(seconds):
    parts.append(f'{datetime.timedelta(seconds=round(seconds))} left')
  return '; '.join(parts)


def make_status_table(points: Sequence[PointStatus]) -> tables.Table:
  """A line for each point: its state, rounds, and who runs it or why it failed."""
  return tables.select_columns(
    points,
    {
      'point': lambda point: point.name,
      'state': lambda point: point.state,
      'rounds': lambda point: (
        f'{point.rounds_done:,} of {point.rounds:,}' if point.rounds else '-'
      ),
      'by, or why': lambda point: point.detail or '-',
    },
  )


def _choose_attackers(runs: Sequence[LabelledRun]) -> list[ThreatModel]:
  """The strongest attacker that has estimates, that with the models, and own ones."""
  listed = labelled_runs.list_attackers(runs)
  of_model = [x for x in (attackers.CHANGE, attackers.FINAL) if x in listed]
  own = [x for x in listed if x not in attackers.THREAT_MODELS]
  return attackers.sort_by_strength([*own, *of_model[:1], *listed[-1:]])


def _show_bound(attacker: ThreatModel) -> Callable[[LabelledRun], str]:
  def show(run: LabelledRun) -> str:
    bound = run.bounds.get(attacker)
    return '-' if bound is None else cells.format_epsilon(bound)

  return show


def _show_limit(who: str) -> Callable[[LabelledRun], str]:
  def show(run: LabelledRun) -> str:
    epsilon = run.analytic.get(who)
    return '-' if epsilon is None else cells.format_number(epsilon)

  return show


def _show(attacker: ThreatModel) -> Callable[[LabelledRun], str]:
  return lambda run: cells.format_with_interval(run.estimates.get(attacker))


def _list_variation(shifts: Sequence[ShiftEstimate], delta: float) -> list[str]:
  mu, variance = np.array(shifts, np.float64).T
  effects = over_runs.random_effects(mu, variance)
  spread = over_runs.compute_epsilon_spread(
    effects.mu, effects.tau, delta=delta
  )
  epsilon = over_runs.estimate_epsilon(effects, delta=delta).epsilon
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


def _format_accuracies(run: LabelledRun) -> str:
  text = cells.format_percent(float(np.mean(run.accuracies)))
  if len(run.accuracies) == 1:
    return text
  spread = cells.format_number(100 * float(np.std(run.accuracies, ddof=1)))
  return f'{text.removesuffix(" %")} ± {spread} %'
