"""Whether reports of runs are true: estimates of simulated runs of many shapes.

Each run is simulated by its vectors, so two values of ε are known for every attacker:
the analytic one, which nobody can exceed, and that of the law of its scores.
"""

from collections.abc import Sequence
import functools
from typing import Any, NamedTuple

import numpy as np

from benchmarks import study
from benchmarks.bounds import simulated_runs
from epe_jax import accounting
from epe_jax.audit import (
  attackers,
  evaluation,
  results,
  statistics,
)
from epe_jax.audit.attack_scores import ThreatModel
from epe_jax.epsilon import known_shifts
from epe_jax.report import tables, words

DIM = 4000
# Cosines up to this value have the standard deviation of the null within 2 %.
_SMALL = 0.2
_SHAPES = {
  'observed': (30, 60, 100, 200, 500, 1000),
  'rounds': (1, 3, 10, 20, 50, 100),
  'noise': (0.02, 0.05, 0.1, 0.2, 0.5, 1.0),
  'momentum': (0.0, 0.9),
  'repetitions': (1, 2, 4),
  'clients': (0.0, 3.0, 30.0),
}
# Attackers whose first estimate is for a law that is known exactly.
_MIXTURES = (
  attackers.FINAL,
  attackers.CHANGE,
  attackers.OWN,
  attackers.RESIDUAL,
)


class SimulatedReport(NamedTuple):
  """The report of one simulated run, and the truth.

  Attributes:
    shape: of the run.
    analytic: ε of a canary, which bounds every attacker.
    truths: attacker -> ε of the law of its scores, if it is known.
    audit: the report.
    intervals: attacker -> 90 % interval of its first estimate, if calibrated.
  """

  shape: dict[str, Any]
  analytic: float
  truths: dict[ThreatModel, float]
  audit: results.Audit
  intervals: dict[ThreatModel, tuple[float, float]]


def simulate_reports(
  seed: int, *, runs: int, **settings: Any
) -> list[SimulatedReport]:
  """Reports of runs whose shapes are drawn at random.

  Args:
    seed: of shapes and runs.
    runs: how many, >= 1.
    **settings: of `study.map_in_processes`.
  """
  report = functools.partial(_simulate_report, seed)
  return study.map_in_processes(report, range(runs), **settings)


def make_table(found: Sequence[SimulatedReport]) -> tables.Table:
  """How often each bound exceeds its limits, by attacker."""
  attacks = [attack for run in found for attack in run.audit.attacks]
  below = [
    attack.is_calibrated
    for attack in attacks
    if any(check.key == 'below_bound' for check in attack.failed_checks)
  ]
  k, rounds, noise = (_SHAPES[n] for n in ('observed', 'rounds', 'noise'))
  intervals = '; '.join(
    f'{words.spell_statistic(attacker)}: {inside} of {total}'
    for attacker, (inside, total) in _inside(found).items()
  )
  return tables.Table(
    '',
    ['scores', 'bound at 95 %', 'runs', '> analytic ε', '> ε of the scores'],
    [
      [
        words.spell_statistic(attacker),
        method,
        f'{len(above):,}',
        _share(above),
        _share(beyond),
      ]
      for (attacker, method), (above, beyond) in _claims(found).items()
    ],
    [
      f'{len(found):,} runs, d = {DIM:,}, of {k[0]} to {k[-1]:,} observed canaries and '
      f'as many unobserved, {rounds[0]} to {rounds[-1]} rounds, noise {noise[0]:g} to '
      f'{noise[-1]:g}, momentum 0 and 0.9, 1 to 4 repetitions and updates of clients of '
      '0 to 30 clip norms; half of them with a clip norm that doubles.',
      'ε of the scores: computed from the vectors of the run. Bounds may exceed it '
      'in 5 % of runs; the analytic ε is an upper limit of it.',
      f'Calibrated first estimates below a bound of the same scores: {sum(below)}; '
      f'others, marked as not calibrated: {len(below) - sum(below)} of {len(attacks):,}.',
      '90 % intervals of calibrated estimates that contain the ε of their scores: '
      f'{intervals}. Of the other of {len(found):,} runs an estimate is not '
      'calibrated, or the ε of its scores is not known.',
    ],
  )


def find_broken(found: Sequence[SimulatedReport]) -> list[str]:
  """Claims that fail more often than they say, beyond what chance would do.

  By chance a case is named in one of 1,000 studies.
  """
  bad = []
  for (attacker, method), pair in _claims(found).items():
    name = words.spell_statistic(attacker)
    for what, failed in zip(('analytic ε', 'ε of its scores'), pair):
      if study.fails_too_often(sum(failed), len(failed), 0.05, 1e-3):
        bad.append(f'{method} of {name} exceeds the {what} in {_share(failed)}')
  for attacker, (inside, total) in _inside(found).items():
    if study.fails_too_often(total - inside, total, 0.1, 1e-3):
      name = words.spell_statistic(attacker)
      bad.append(f'{inside} of {total} intervals of {name} hold its ε')
  return bad


def _claims(
  found: Sequence[SimulatedReport],
) -> dict[tuple[ThreatModel, str], tuple[list[bool], list[bool]]]:
  """Attacker and method -> of each run, whether its bound exceeds the analytic ε.

  And of each run of which it is known, whether it exceeds the ε of its scores.
  """
  claims = {}
  for run in found:
    for attack in run.audit.attacks:
      truth = run.truths.get(attack.threat_model)
      for bound in attack.bounds:
        key = attack.threat_model, bound.method
        above, beyond = claims.setdefault(key, ([], []))
        above.append(float(bound.epsilon) > run.analytic)
        if truth is not None:
          beyond.append(float(bound.epsilon) > truth)
  return claims


def _simulate_report(seed: int, i: int) -> SimulatedReport:
  rng = np.random.default_rng((seed, i))
  shape = {name: rng.choice(some).item() for name, some in _SHAPES.items()}
  shape['repetitions'] = min(shape['repetitions'], shape['rounds'])
  # In half of the runs the clip norm changes.
  growth = 2.0 ** (np.linspace(0, 1, shape['rounds']) * rng.integers(2))
  run = simulated_runs.simulate(
    rng, unobserved=shape['observed'], dim=DIM, clip_norms=growth, **shape
  )
  analytic = accounting.epsilon_of_releases(
    shape['noise'],
    delta=run.record.delta,
    participations=shape['repetitions'],
  ).epsilon
  audit = evaluation.evaluate(run.record, floors=False)
  intervals = {
    attack.threat_model: attack.first.interval
    for attack in audit.attacks
    if attack.is_calibrated
    and attack.first.method == 'location_mixture'
    and attack.first.interval is not None
  }
  return SimulatedReport(shape, analytic, _truths(run), audit, intervals)


def _truths(run: simulated_runs.SimulatedRun) -> dict[ThreatModel, float]:
  """ε of the law of the scores, for each attacker for which it is known.

  Cosines near 1 vary less than others, so expected cosines have to be small. For a
  sum of several rounds, norms do not determine the angles between aggregates.
  """
  record, models = run.record, run.models
  assert record.rounds is not None
  assert record.expected is not None
  assert record.weight is not None
  assigned = record.assigned[:, record.observed]
  weight = record.weight[record.observed]
  cosines = {
    attackers.FINAL: weight / np.linalg.norm(models[-1]),
    attackers.CHANGE: weight / np.linalg.norm(models[-1] - models[0]),
  }
  if assigned.sum(axis=0).max() == 1:
    cosines[attackers.OWN] = record.expected @ assigned
  root = np.sqrt(record.dim)
  shifts = {
    name: root * cosine
    for name, cosine in cosines.items()
    if cosine.max() < _SMALL
  }
  alone = statistics.expect_residual(assigned, record.rounds)
  return {
    name: float(known_shifts.epsilon_mixture(shift, record.delta))
    for name, shift in (shifts | {attackers.RESIDUAL: alone}).items()
  }


def _inside(
  found: Sequence[SimulatedReport],
) -> dict[ThreatModel, tuple[int, int]]:
  """(intervals that contain the ε of their scores, all intervals)."""
  counts = {}
  for attacker in _MIXTURES:
    pairs = [
      (run.intervals[attacker], run.truths[attacker])
      for run in found
      if attacker in run.intervals and attacker in run.truths
    ]
    inside = sum(low <= truth <= high for (low, high), truth in pairs)
    counts[attacker] = inside, len(pairs)
  return counts


def _share(claims: Sequence[bool]) -> str:
  return f'{100 * np.mean(claims):.1f} %' if claims else '-'
