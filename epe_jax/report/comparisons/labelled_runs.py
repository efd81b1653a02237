"""Labelled runs, and what is known of several: differences, and seeds of one config.

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
from epe_jax.audit import attackers
from epe_jax.audit.attack_scores import ThreatModel
from epe_jax.audit.results import Headline
from epe_jax.epsilon.types import Estimate
from epe_jax.experiment import finished_runs, workdirs
from epe_jax.experiment.run_result import RunResult
from epe_jax.experiment.sweeps import seed_sweep
from epe_jax.experiment.sweeps.seed_sweep import SeedEstimates
from epe_jax.report import audit_notes, cells, leaks, provenance
from epe_jax.several_runs import over_runs
from epe_jax.several_runs.over_runs import ShiftEstimate


class LabelledRun(NamedTuple):
  """A run, or several of one config that differ in the seed.

  Attributes:
    delta: of every ε.
    accuracies: of the final model of each seed, in [0, 1].
    estimates: attacker -> its first point estimate with a 90 % interval, which
      carries its floor; without those that have none.
    analytic: 'canaries' and 'clients' -> ε that the mechanism allows them; of
      clients alone where there are no canaries, of canaries alone where clients take
      part as they do, of none where it is not known.
    bounds: attacker -> its pre-declared lower bound.
    warnings, notes: on its numbers, sentences without a full stop.
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
  warnings: Sequence[str] = ()
  notes: Sequence[str] = ()
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
  """A finished run under a name; one that was not audited has no estimates.

  Shifts of canaries are known if its attacks have their scores.
  """
  attacks = {attack.threat_model: attack for attack in result.audit.attacks}
  analytic = {}
  if result.is_audited:
    analytic['canaries'] = leaks.find_analytic_epsilon(result)
  participations = leaks.count_participations(result)
  if not result.is_audited or participations.differ:
    analytic['clients'] = participations.analytic_epsilon
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
    warnings=audit_notes.list_warnings(result.audit),
    notes=audit_notes.list_notes(result.audit),
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
  """The means over runs of one config, with intervals over their seeds."""
  delta = rows[0].delta
  shifts, estimates = {}, {}
  for attacker in attackers.THREAT_MODELS:
    key = attacker.key
    of_attacker = [row.shift[key] for row in rows if key in row.shift]
    if of_attacker:
      shifts[attacker] = of_attacker
    if len(of_attacker) > 1:
      mu, variance = np.array(of_attacker, np.float64).T
      effects = over_runs.random_effects(mu, variance)
      estimates[attacker] = over_runs.estimate_epsilon(effects, delta=delta)
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


def load_point(
  label: str, workdir: str | os.PathLike[str], settings: Mapping[str, Any]
) -> LabelledRun:
  """Loads a finished point of a sweep, a run or the runs of many seeds."""
  files = workdirs.workdir_at(workdir)
  if files.rows.is_file():
    return label_seeds(label, seed_sweep.read_rows(files.rows), settings)
  result = finished_runs.load_finished_run(workdir).result
  return label_run(label, result, settings)


def label_workdirs(
  workdirs: Sequence[str | os.PathLike[str]],
) -> list[LabelledRun]:
  """Loads finished runs; the label of each is the shortest unique end of its path.

  Raises:
    FileNotFoundError: a workdir has no finished run.
    ValueError: a workdir is given twice, or a file is damaged or of another run.
  """
  paths = [pathlib.Path(workdir).resolve() for workdir in workdirs]
  for path in paths:
    if paths.count(path) > 1:
      raise ValueError(f'{path} is given more than once; give it once.')
  results = [*map(finished_runs.load_result, paths)]
  for path, result in zip(paths, results):
    provenance.identify_workdir(path, result)
  return [*map(label_run, _shorten(paths), results)]


def group_replicates(runs: Sequence[LabelledRun]) -> list[LabelledRun]:
  """Joins runs of a sweep that differ in the seed alone, or have many seeds.

  Returns:
    For each δ and setting of the other fields that two runs or more have, the first
    of these runs with the shifts of all.
  """
  groups: dict[tuple[str, float], list[LabelledRun]] = {}
  for run in runs:
    others = {k: v for k, v in run.settings.items() if k != 'seed'}
    group = groups.setdefault((repr(others), run.delta), [])
    group.append(run._replace(settings=others))
  joined = []
  for group in groups.values():
    shifts: dict[ThreatModel, list[ShiftEstimate]] = {}
    for run in group:
      for attacker, of_seeds in run.shifts.items():
        shifts.setdefault(attacker, []).extend(of_seeds)
    if sum(len(run.accuracies) for run in group) > 1:
      joined.append(group[0]._replace(shifts=shifts))
  return joined


def format_setting(value: Any) -> str:
  """A value that a sweep sets, without folders: tables and figures are published."""
  value = io.hide_paths(value)
  return f'{value:g}' if isinstance(value, float) else str(value)


def format_analytic(run: LabelledRun) -> str:
  """The analytic ε of a canary, and of a client where it is not the same."""
  texts = [
    cells.format_number(epsilon) + (' (clients)' if who == 'clients' else '')
    for who, epsilon in run.analytic.items()
  ]
  return '; '.join(texts) or '-'


def list_attackers(runs: Sequence[LabelledRun]) -> list[ThreatModel]:
  """The attackers that any of the runs has an estimate of, the weakest first."""
  return attackers.sort_by_strength(
    attacker for run in runs for attacker in run.estimates
  )


def subtract(estimate: Estimate, first: Estimate) -> Difference:
  """The difference of two estimates, with an interval from both of theirs.

  The distance of a limit from its estimate stands for a standard error on that side;
  those of independent estimates add up in squares (MOVER).

  Returns:
    Without an interval where one of the estimates has none.

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


def _shorten(paths: Sequence[pathlib.Path]) -> list[str]:
  """The last folders of each path, as many as tell all apart."""
  depth = 1
  while True:
    labels = ['/'.join(path.parts[-depth:]) for path in paths]
    if len(set(labels)) == len(paths):
      return labels
    depth += 1
