"""Labelled runs in comparison: the ε of each attacker, and differences to the first.

Finished runs, the points of a sweep, and points of several seeds are compared alike.
Estimates have intervals, and so have differences.
"""

from collections.abc import Mapping, Sequence
import math
import os
import pathlib
from typing import Any, NamedTuple

import numpy as np

from epe_jax import io
from epe_jax.audit import threat_models
from epe_jax.audit.attack_results import Headline
from epe_jax.audit.threat_models import ThreatModel
from epe_jax.epsilon.scatter import over_runs
from epe_jax.epsilon.scatter.over_runs import ShiftEstimate
from epe_jax.epsilon.types import Estimate
from epe_jax.experiment import finished_runs
from epe_jax.experiment.run_result import RunResult
from epe_jax.experiment.seed_sweep import SeedEstimates
from epe_jax.report import facts
from epe_jax.text import audit_notes, cells, tables

CAVEATS = (
  'These ε are of canaries; of clients nothing was measured.',
  'Estimates and differences have 90 % intervals for the variation between canaries, '
  'and guarantee nothing. Differences assume independent estimates; those of equal '
  'seeds are not.',
  'Runs of one config differ too, so that a difference between two runs need not come '
  'from their settings. Use several seeds of each (epe-jax sweep --seeds).',
)
"""What the numbers of a comparison do not say."""


class LabelledRun(NamedTuple):
  """A run, or several of one config that differ in the seed.

  Attributes:
    label: its name.
    delta: of every ε.
    accuracies: of the final model of each seed, in [0, 1].
    estimates: attacker -> its first point estimate with a 90 % interval, which
      carries its floor; without those that have none.
    analytic: 'canaries' and 'clients' -> ε that the mechanism allows them; of
      clients alone where there are no canaries, of canaries alone where clients take
      part as they do, of none where it is not known.
    bounds: attacker -> its pre-declared lower bound.
    headline: the lower bound of the strongest attacker; None if there is none.
    remarks: warnings and notes on the numbers, a sentence each.
    settings: what a sweep sets; field -> value.
    shifts: attacker -> by how much a canary is shifted in each seed.
    source: of its data.
  """

  label: str
  delta: float
  accuracies: Sequence[float]
  estimates: Mapping[ThreatModel, Estimate]
  analytic: Mapping[str, float]
  bounds: Mapping[ThreatModel, Estimate] = {}
  headline: Headline | None = None
  remarks: Sequence[str] = ()
  settings: Mapping[str, Any] = {}
  shifts: Mapping[ThreatModel, Sequence[ShiftEstimate]] = {}
  source: str = ''


class Difference(NamedTuple):
  """By how much one ε is above another, with a two-sided interval."""

  epsilon: float
  interval: tuple[float, float] | None


def label_run(
  label: str, result: RunResult, settings: Mapping[str, Any] = {}
) -> LabelledRun:
  """A finished run under a name.

  Args:
    label: its name.
    result: what its result.json holds; a run that was not audited has no estimates.
      Shifts of canaries are known if its attacks have their scores.
    settings: what a sweep sets; field -> value.
  """
  attacks = {attack.threat_model: attack for attack in result.audit.attacks}
  analytic = {}
  if result.is_audited:
    analytic['canaries'] = facts.find_analytic_epsilon(result)
  if not result.is_audited or facts.count_participations(result).differ:
    analytic['clients'] = result.clients_analytic_epsilon
  return LabelledRun(
    label,
    result.delta,
    [result.accuracy],
    {
      attacker: attack.first_with_interval
      for attacker, attack in attacks.items()
      if attacker.is_shift
    },
    analytic=analytic,
    bounds={
      attacker: attack.bounds[0]
      for attacker, attack in attacks.items()
      if attack.bounds
    },
    headline=result.audit.headline,
    remarks=audit_notes.format_remarks(result.audit),
    settings=settings,
    shifts={
      attacker: [over_runs.estimate_shift(attack.scores)]
      for attacker, attack in attacks.items()
      if attack.scores is not None and attack.scores.shift is not None
    },
    source=io.hide_paths(result.data),
  )


def label_seeds(
  label: str, rows: Sequence[SeedEstimates], settings: Mapping[str, Any] = {}
) -> LabelledRun:
  """The means over runs of one config, with intervals over their seeds.

  Args:
    label: the name of the config.
    rows: a row for each seed, 1 or more.
    settings: what a sweep sets; field -> value.
  """
  delta = rows[0].delta
  shifts, estimates = {}, {}
  for attacker in threat_models.THREAT_MODELS:
    key = attacker.key
    of_attacker = [row.shift[key] for row in rows if key in row.shift]
    if of_attacker:
      shifts[attacker] = of_attacker
    if len(of_attacker) > 1:
      mu, variance = np.array(of_attacker, np.float64).T
      effects = over_runs.random_effects(mu, variance)
      estimates[attacker] = over_runs.epsilon_of_mean(effects, delta=delta)
    elif key in rows[0].epsilon:
      epsilon = rows[0].epsilon[key]
      estimates[attacker] = Estimate(epsilon, delta, 'location_mixture', None)
  analytic = [row.analytic for row in rows if row.analytic is not None]
  return LabelledRun(
    label,
    delta,
    [row.accuracy for row in rows],
    estimates,
    analytic={'canaries': max(analytic)} if analytic else {},
    settings=settings,
    shifts=shifts,
  )


def label_workdirs(
  workdirs: Sequence[str | os.PathLike[str]],
) -> list[LabelledRun]:
  """Loads finished runs; the label of each is the shortest unique end of its path.

  Raises:
    FileNotFoundError: a workdir has no finished run.
    ValueError: a workdir is given twice, or a file is damaged.
  """
  paths = [pathlib.Path(workdir).resolve() for workdir in workdirs]
  for path in paths:
    if paths.count(path) > 1:
      raise ValueError(f'{path} is given more than once; give it once.')
  return [
    label_run(label, finished_runs.load_result(path))
    for label, path in zip(_shorten(paths), paths)
  ]


def list_attackers(runs: Sequence[LabelledRun]) -> list[ThreatModel]:
  """The attackers that any of the runs has an estimate of, the weakest first."""
  return threat_models.sort_by_strength(
    attacker for run in runs for attacker in run.estimates
  )


def subtract(estimate: Estimate, first: Estimate) -> Difference:
  """The difference of two estimates, with an interval from both of theirs.

  The distance of a limit from its estimate stands for a standard error on that side;
  those of independent estimates add up in squares (MOVER).

  Args:
    estimate: with an interval, or without.
    first: what is subtracted, at the same δ.

  Returns:
    The difference; without an interval where one of the estimates has none.

  Raises:
    ValueError: they are of different δ.

  References:
    Zou and Donner, "Construction of confidence limits about effect measures: a
    general approach" (2008), equation (2).

  >>> one, other = (
  ...   Estimate(e, 1e-5, 'any', None, interval=(e - 3, e + 4)) for e in (9.0, 20.0)
  ... )
  >>> subtract(other, one)
  Difference(epsilon=11.0, interval=(6.0, 16.0))
  """
  if estimate.delta != first.delta:
    raise ValueError(
      f'delta={estimate.delta} and {first.delta}: ε of different δ have no '
      'difference; compare runs of one δ (config.audit.delta).'
    )
  there, here = float(estimate.epsilon), float(first.epsilon)
  if not (math.isfinite(there) and math.isfinite(here)):
    return Difference(math.nan, None)
  if estimate.interval is None or first.interval is None:
    return Difference(there - here, None)
  (low, high), (low0, high0) = estimate.interval, first.interval
  below = math.hypot(there - low, high0 - here)
  above = math.hypot(high - there, here - low0)
  difference = there - here
  return Difference(difference, (difference - below, difference + above))


def subtract_first(
  runs: Sequence[LabelledRun],
) -> list[dict[ThreatModel, Difference]]:
  """The differences of each run to the first; those of the first are empty."""
  first = runs[0]
  return [
    {
      attacker: subtract(estimate, first.estimates[attacker])
      for attacker, estimate in run.estimates.items()
      if run is not first and attacker in first.estimates
    }
    for run in runs
  ]


def is_comparable(runs: Sequence[LabelledRun]) -> bool:
  """Whether two runs or more are at one δ, and one has estimates."""
  return (
    len(runs) > 1
    and len({run.delta for run in runs}) == 1
    and any(run.estimates for run in runs)
  )


def check_comparable(runs: Sequence[LabelledRun]) -> None:
  """Raises a ValueError unless there are two runs or more, all at one δ."""
  if len(runs) < 2:
    raise ValueError(f'{len(runs)} run is given; give two or more.')
  deltas = {run.delta for run in runs}
  if len(deltas) > 1:
    listed = ', '.join(f'{run.label}: {run.delta:.3g}' for run in runs)
    raise ValueError(
      f'runs differ in δ ({listed}), and ε of different δ do not compare; give '
      'runs of one δ (config.audit.delta).'
    )


def make_title(runs: Sequence[LabelledRun]) -> str:
  """The range of ε of the strongest attacker that all runs have, in one line."""
  shared = [
    attacker
    for attacker in list_attackers(runs)
    if all(attacker in run.estimates for run in runs)
  ]
  if not (runs and shared):
    return 'No attacker was estimated in all runs'
  attacker = shared[-1]
  epsilons = {run.label: run.estimates[attacker] for run in runs}
  low = min(epsilons, key=lambda label: float(epsilons[label].epsilon))
  high = max(epsilons, key=lambda label: float(epsilons[label].epsilon))
  return (
    f'{attacker.name}: ε ≈ {cells.format_epsilon(epsilons[low])} ({low}) to '
    f'{cells.format_epsilon(epsilons[high])} ({high})'
  )


def make_table(runs: Sequence[LabelledRun]) -> tables.Table:
  """A line for each attacker and run: estimate, floor, bound and difference.

  Args:
    runs: two or more at one δ; differences are to the first.
  """
  differences = subtract_first(runs)
  body = [
    _list_cells(run, attacker, of_run.get(attacker))
    for attacker in list_attackers(runs)
    for run, of_run in zip(runs, differences)
    if attacker in run.estimates
  ]
  notes = [
    *cells.explain_rejected(cell for line in body for cell in line),
    # Warnings are on the first page.
    *(
      f'{run.label}: {text}'
      for run in runs
      for text in run.remarks
      if not text.startswith('Warning')
    ),
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
      name = run.headline.attack.threat_model.name
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
  attackers = threat_models.sort_by_strength(
    [
      *(attacker for run in runs for attacker in run.estimates),
      *(one for one in threat_models.THREAT_MODELS if one.is_shift),
    ]
  )
  fields = [*runs[0].settings] if runs else [*next(iter(failed.values()))[0]]
  seeds = max((len(run.accuracies) for run in runs), default=1)
  body = [
    [
      *map(_format_value, run.settings.values()),
      *([f'{len(run.accuracies)}'] if seeds > 1 else []),
      _format_accuracies(run.accuracies),
      _format_analytic(run),
      *(cells.format_with_interval(run.estimates.get(a)) for a in attackers),
    ]
    for run in runs
  ]
  width = len(attackers) + 2 + (seeds > 1)
  body += [
    [*map(_format_value, settings.values()), 'failed', *[''] * (width - 1)]
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
      *(f'ε, {attacker.name}' for attacker in attackers),
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


def make_results_table(results: Mapping[str, RunResult]) -> tables.Table:
  """A line for each run: sizes, accuracy, and the first estimate of each attacker.

  Every ε is a point estimate, without a guarantee; one that is not calibrated has a
  dagger. After that of the final model is the range, 5 to 95 %, of what the same
  estimator reports when nothing leaks. The analytic ε is that of a canary, and of a
  client where it takes part in other numbers of rounds.

  Args:
    results: name of a run -> what its result.json holds.
  """
  attackers = [
    attacker
    for attacker in threat_models.sort_by_strength(
      [
        *threat_models.THREAT_MODELS,
        *(a.threat_model for r in results.values() for a in r.audit.attacks),
      ]
    )
    if attacker.is_in_overview or attacker.is_worst_case
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
        _format_analytic(label_run(name, result)),
        *(_format_first(result, attacker) for attacker in attackers),
      ]
    )
  head = [
    'run',
    'rounds x clients',
    'd',
    'noise',
    'accuracy (majority class)',
    'analytic ε',
    *(f'ε, {attacker.name}' for attacker in attackers),
  ]
  return tables.Table('', head, body)


def _shorten(paths: Sequence[pathlib.Path]) -> list[str]:
  """The last folders of each path, as many as tell all apart."""
  depth = 1
  while True:
    labels = ['/'.join(path.parts[-depth:]) for path in paths]
    if len(set(labels)) == len(paths):
      return labels
    depth += 1


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
    attacker.name,
    run.label,
    cells.format_with_interval(estimate),
    cells.format_floor(estimate) or '-',
    '-' if bound is None else f'≥ {cells.format_epsilon(bound)}',
    text,
  ]


def _format_signed(value: float) -> str:
  text = cells.format_number(value)
  return text if value < 0 else f'+{text}'


def _format_value(value: Any) -> str:
  value = io.hide_paths(value)
  return f'{value:g}' if isinstance(value, float) else str(value)


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
  if attacker == threat_models.FINAL and floor:
    text += f' (floor {floor})'
  return text
