"""A comparison of labelled runs: its tables, its page and the files of a sweep."""

from collections.abc import Mapping, Sequence
import math
import os
import pathlib

import numpy as np

from epe_jax import io
from epe_jax.audit import attackers
from epe_jax.audit.attack_scores import ThreatModel
from epe_jax.experiment.run_result import RunResult
from epe_jax.experiment.sweeps import sweep, sweep_points, sweep_status
from epe_jax.report import (
  attacker_names,
  cells,
  html,
  labelled_runs,
  page,
  tables,
)
from epe_jax.report.figures import comparison as figures
from epe_jax.report.figures import pictures
from epe_jax.report.labelled_runs import (
  Difference,
  LabelledRun,
  format_setting,
)
from epe_jax.report.page import Cells, Figure, Items, Page, Section, Text
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

  Returns:
    The page and its appendix as text, without a final newline.

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
  """The report of a comparison.

  Args:
    figure: the name of its file.
  """
  alarms = [
    Text(f'{run.label}: Warning: {text}.', 'alarm')
    for run in runs
    for text in run.warnings
  ]
  return Page(
    f'Comparison of {len(runs)} audits',
    [
      Text(f'{make_title(runs)}.', 'headline'),
      *alarms,
      Cells(make_headline_table(runs)),
      Figure(figure, CAPTION),
      Items(CAVEATS),
    ],
    [
      Section(
        'Every attacker, and differences',
        [Cells(make_table(runs))],
        key='differences',
      )
    ],
  )


def write_sweep(
  folder: str | os.PathLike[str],
  points: Sequence[sweep_points.Point],
  outcome: sweep.SweepResult,
) -> str:
  """Writes the tables, the figure and the comparison of the points of a sweep.

  Args:
    folder: where the files go: sweep.md and sweep.tex; sweep.png and .svg, where
      there is anything to draw; and, where two points of one δ or more have
      estimates, comparison.html, .md, .png and .svg, as of any runs.
    outcome: what `sweep.run_sweep` returned for them, or what there is of it.

  Returns:
    The tables as text, without a final newline.

  Raises:
    FileNotFoundError: a file of a finished point is missing.
    ValueError: a file is damaged or of another version.
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
    pictures.write_figure(drawing, folder / 'sweep.png')
  if labelled_runs.is_comparable(runs):
    write_comparison(folder, runs, name='comparison')
  return '\n\n'.join(map(tables.format_text, shown))


def make_title(runs: Sequence[LabelledRun]) -> str:
  """The range of ε of the strongest attacker that all runs have, in one line."""
  shared = [
    attacker
    for attacker in labelled_runs.list_attackers(runs)
    if all(attacker in run.estimates for run in runs)
  ]
  if not (runs and shared):
    return 'No attacker was estimated in all runs'
  attacker = shared[-1]
  epsilons = {run.label: run.estimates[attacker] for run in runs}
  low = min(epsilons, key=lambda label: float(epsilons[label].epsilon))
  high = max(epsilons, key=lambda label: float(epsilons[label].epsilon))
  return (
    f'{attacker_names.spell_name(attacker)}: ε ≈ {cells.format_epsilon(epsilons[low])} ({low}) to '
    f'{cells.format_epsilon(epsilons[high])} ({high})'
  )


def make_table(runs: Sequence[LabelledRun]) -> tables.Table:
  """A line for each attacker and run: estimate, floor, bound and difference."""
  differences = labelled_runs.subtract_first(runs)
  body = [
    _list_cells(run, attacker, of_run.get(attacker))
    for attacker in labelled_runs.list_attackers(runs)
    for run, of_run in zip(runs, differences)
    if attacker in run.estimates
  ]
  notes = [
    *cells.explain_rejected(cell for line in body for cell in line),
    # Warnings are on the first page.
    *(f'{run.label}: Note: {text}.' for run in runs for text in run.notes),
  ]
  head = (
    'attacker',
    'run',
    'ε [90 % interval]',
    'floor 5-95 %',
    'bound, 95 %',
    'difference [90 % interval]',
  )
  delta = cells.format_delta(runs[0].delta)
  return tables.Table(f'ε at δ = {delta}', head, body, notes)


def make_headline_table(runs: Sequence[LabelledRun]) -> tables.Table:
  """A line for each run: the attacker of its headline, with bound and estimate."""
  body = []
  for run in runs:
    name = bound = point = '–'
    if run.headline is not None:
      name = attacker_names.spell_name(run.headline.attack.threat_model)
      bound = cells.format_epsilon(run.headline.bound)
      if run.headline.point is not None:
        point = cells.format_epsilon(run.headline.point)
    body.append([run.label, name, bound, point, _format_analytic(run)])
  head = ('run', 'attacker', 'at least', 'about', 'at most')
  return tables.Table('', head, body)


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
  fields = [*runs[0].settings] if runs else [*next(iter(failed.values()))[0]]
  seeds = max((len(run.accuracies) for run in runs), default=1)
  body = [
    [
      *map(format_setting, run.settings.values()),
      *([f'{len(run.accuracies)}'] if seeds > 1 else []),
      _format_accuracies(run.accuracies),
      _format_analytic(run),
      *(cells.format_with_interval(run.estimates.get(a)) for a in models),
    ]
    for run in runs
  ]
  width = len(models) + 2 + (seeds > 1)
  body += [
    [*map(format_setting, settings.values()), 'failed', *[''] * (width - 1)]
    for settings, _ in failed.values()
  ]
  note = 'ε are point estimates, no bounds; in brackets 90 % intervals.'
  if seeds > 1:
    note += (
      ' They are means over seeds, each of other data, clients, canaries, noise and '
      'models; accuracies are mean ± standard deviation.'
    )
  return tables.Table(
    '',
    [
      *fields,
      *(['seeds'] if seeds > 1 else []),
      'accuracy',
      'analytic ε',
      *(f'ε, {attacker_names.spell_name(attacker)}' for attacker in models),
    ],
    body,
    [
      note,
      *cells.explain_rejected(cell for line in body for cell in line),
      # The table may be published, and paths tell of the machine.
      *(f'Data: {x}.' for x in dict.fromkeys(r.source for r in runs) if x),
      *(
        f'{name} failed: {io.hide_paths(why)}'
        for name, (_, why) in failed.items()
      ),
    ],
  )


def make_variation_table(
  replicates: Sequence[LabelledRun],
) -> tables.Table | None:
  """A line for each config and attacker; None if no config has two seeds."""
  body = [
    [
      ', '.join(f'{k} = {format_setting(x)}' for k, x in run.settings.items())
      or 'all seeds',
      attacker_names.spell_name(attacker),
      *_list_variation(shifts, run.delta),
    ]
    for run in replicates
    for attacker, shifts in run.shifts.items()
    if len(shifts) > 1
  ]
  if not body:
    return None
  return tables.Table(
    'How much ε varies between runs',
    [
      'runs',
      'attacker',
      'number',
      'μ',
      'τ',
      '90 % interval',
      'I²',
      'p',
      'ε',
      'std of ε',
      '5-95 % of runs',
    ],
    body,
    [
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
    ],
  )


def make_results_table(results: Mapping[str, RunResult]) -> tables.Table:
  """A line for each run: sizes, accuracy, and the first estimate of each attacker.

  Every ε is a point estimate, without a guarantee; one that is not calibrated has a
  dagger. After that of the final model is the range, 5 to 95 %, of what the same
  estimator reports when nothing leaks. The analytic ε is that of a canary, and of a
  client where it takes part in other numbers of rounds.

  Args:
    results: name of a run -> what its result.json holds.
  """
  models = [
    attacker
    for attacker in attackers.sort_by_strength(
      [
        *attackers.OF_INDEPENDENT_NOISE,
        *(a.threat_model for r in results.values() for a in r.audit.attacks),
      ]
    )
    # The first page has the attacker who knows the initial model too.
    if attacker.is_in_overview
    or attacker.is_worst_case
    or attacker == attackers.CHANGE
  ]
  body = []
  for name, result in results.items():
    body.append(
      [
        name,
        f'{result.rounds:,} x {result.config["clients_per_round"]:,}',
        f'{result.dim:,}',
        f'{result.noise_multiplier:g}',
        f'{cells.format_percent(result.accuracy)} '
        f'({cells.format_percent(result.baseline_accuracy)})',
        _format_analytic(labelled_runs.label_run(name, result)),
        *(_format_first(result, attacker) for attacker in models),
      ]
    )
  head = [
    'run',
    'rounds x clients',
    'd',
    'noise',
    'accuracy (majority class)',
    'analytic ε',
    *(f'ε, {attacker_names.spell_name(attacker)}' for attacker in models),
  ]
  return tables.Table('', head, body)


def _list_cells(
  run: LabelledRun, attacker: ThreatModel, difference: Difference | None
) -> list[str]:
  estimate, bound = run.estimates[attacker], run.bounds.get(attacker)
  text = '-'
  if difference is not None and math.isfinite(difference.epsilon):
    text = _format_signed(difference.epsilon)
    if difference.interval is not None:
      low, high = map(_format_signed, difference.interval)
      text += f' [{low}, {high}]'
  return [
    attacker_names.spell_name(attacker),
    run.label,
    cells.format_with_interval(estimate),
    cells.format_floor(estimate) or '-',
    '-' if bound is None else f'≥ {cells.format_epsilon(bound)}',
    text,
  ]


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


def _format_accuracies(accuracies: Sequence[float]) -> str:
  text = cells.format_percent(float(np.mean(accuracies)))
  if len(accuracies) == 1:
    return text
  spread = cells.format_number(100 * float(np.std(accuracies, ddof=1)))
  return f'{text.removesuffix(" %")} ± {spread} %'


def _format_analytic(run: LabelledRun) -> str:
  """The analytic ε of a canary, and of a client where it is not the same."""
  texts = [
    cells.format_number(epsilon) + (' (clients)' if who == 'clients' else '')
    for who, epsilon in run.analytic.items()
  ]
  return '; '.join(texts) or '-'


def _format_first(result: RunResult, attacker: ThreatModel) -> str:
  """The first estimate of an attacker, as a cell."""
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
