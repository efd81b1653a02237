"""How ε depends on the participations of a canary: densities, bars, tests."""

from collections.abc import Sequence
import itertools

import numpy as np

from epe_jax.audit import attackers
from epe_jax.audit.attack_scores import ThreatModel
from epe_jax.epsilon import diagnostics
from epe_jax.epsilon.types import Estimate
from epe_jax.report import cells, tables
from papers import grid, item, reported
from papers.one_shot import repetition_figures

_REPORTED = reported.Reported('papers.one_shot')

_TITLES = {
  attackers.FINAL: 'ε, final model',
  attackers.CHANGE: 'ε, change of the model',
}


def make_densities(runs: Sequence[grid.Run]) -> item.Product:
  """Draws the densities of cosines with the final model and with its change."""
  rows = [
    [
      f'{run.noise:g}',
      f'{run.repetitions}',
      *(
        reported.format_spread(_scale_cosines(run, attacker))
        for attacker in _TITLES
      ),
    ]
    for run in runs
  ]
  head = ['noise', 'repetitions', 'final model', 'change of the model']
  note = (
    'Mean ± standard deviation over the observed canaries, in units of '
    '1/√d; an unobserved one has 0 ± 1.'
  )
  table = tables.Table(
    'Cosines of canaries', head, rows, [note, *grid.describe_runs(runs)]
  )
  return item.Product(
    [table],
    {
      'densities': repetition_figures.draw_densities(
        _group_cosines(runs, attackers.FINAL)
      ),
      'densities_change': repetition_figures.draw_densities(
        _group_cosines(runs, attackers.CHANGE)
      ),
    },
  )


def make_bars(runs: Sequence[grid.Run]) -> item.Product:
  """Draws ε_est and ε_lo of the final model; tabulates the calibrated ε."""
  calibrated = [_tabulate_calibrated(runs, attacker) for attacker in _TITLES]
  bars = {
    (run.noise, run.repetitions): repetition_figures.Bar(
      *(
        _find_final(run, method) for method in ('two_gaussian_fitted', 'eps_lo')
      )
    )
    for run in runs
  }
  return item.Product(calibrated, {'bars': repetition_figures.draw_bars(bars)})


def _find_final(run: grid.Run, method: str) -> Estimate:
  """The estimate of the final model by a method, which every audit has."""
  attack = run.result.audit.find(attackers.FINAL)
  estimate = attack and attack.find(method)
  assert estimate is not None, f'{method} is among the estimates of a report'
  return estimate


def make_anderson(runs: Sequence[grid.Run], *, name: str) -> item.Product:
  """Makes a table of Anderson-Darling tests of the cosines with the final model.

  Args:
    runs: of a grid of noise and repetitions.
    name: of the paper's table in reported.json.
  """
  body = []
  for run in runs:
    test = diagnostics.anderson_darling(
      np.asarray(_select_cosines(run, attackers.FINAL), np.float64)
    )
    paper = _REPORTED.find_row(
      name, noise=run.noise, repetitions=run.repetitions
    )
    body.append(
      [
        f'{run.noise:g}',
        f'{run.repetitions}',
        reported.add_reported(test.statistic, paper, 'statistic'),
        f'{test.p_value:.3f}',
      ]
    )
  rejected = sum(float(line[-1]) < 0.01 for line in body)
  table = tables.Table(
    'Are the cosines with the final model Gaussian?',
    ['noise', 'repetitions', 'A²', 'p'],
    body,
    [
      *_REPORTED.explain_brackets(name),
      'Anderson-Darling, mean and std fitted; A² above 1.035 rejects at 1 %. '
      f'{rejected} of {len(body)} are rejected at 1 %.',
      *grid.describe_runs(runs),
    ],
  )
  return item.Product([table], {})


def _tabulate_calibrated(
  runs: Sequence[grid.Run], threat_model: ThreatModel
) -> tables.Table:
  """ε by noise and repetitions, and in how many cases it rises and falls."""
  estimates = {
    (run.noise, run.repetitions): run.result.audit.find_first(threat_model)
    for run in runs
  }
  formatted = {
    key: cells.format_with_interval(estimate)
    for key, estimate in estimates.items()
  }
  noises = sorted({noise for noise, _ in estimates})
  counts = sorted({count for _, count in estimates})
  rises = [
    _is_below(estimates[z, a], estimates[z, b])
    for z in noises
    for a, b in itertools.pairwise(counts)
  ]
  falls = [
    _is_below(estimates[b, n], estimates[a, n])
    for n in counts
    for a, b in itertools.pairwise(noises)
  ]
  steps = (
    f'ε rises from one count to the next by more than both intervals in {sum(rises)} of '
    f'{len(rises)} cases'
  )
  if falls:
    steps += (
      ', and falls from one noise level to the next by more than both in '
      f'{sum(falls)} of {len(falls)}'
    )
  return tables.Table(
    _TITLES[threat_model],
    ['noise', *(f'{n} x' for n in counts)],
    [[f'{z:g}', *(formatted[z, n] for n in counts)] for z in noises],
    [
      'Mixture of shifted Gaussians, with 90 % intervals; columns are the rounds '
      'a canary takes part in.',
      *cells.explain_rejected(formatted.values()),
      f'{steps}.',
      *grid.describe_runs(runs),
    ],
  )


def _is_below(low: Estimate | None, high: Estimate | None) -> bool:
  """Whether one interval lies wholly below the other."""
  assert low is not None, 'runs of a grid of repetitions have canaries'
  assert high is not None, 'runs of a grid of repetitions have canaries'
  assert low.interval is not None, 'final models have an exact null'
  assert high.interval is not None, 'final models have an exact null'
  return low.interval[1] < high.interval[0]


def _select_cosines(run: grid.Run, threat_model: ThreatModel) -> np.ndarray:
  """Cosines of the observed canaries."""
  record = run.record
  assert record is not None, 'runs of a grid of repetitions have canaries'
  return record.cosines[threat_model.key][record.observed]


def _scale_cosines(run: grid.Run, threat_model: ThreatModel) -> np.ndarray:
  """The same, in units of 1/√d."""
  return np.sqrt(run.result.dim) * _select_cosines(run, threat_model)


def _group_cosines(
  runs: Sequence[grid.Run], threat_model: ThreatModel
) -> dict[tuple[float, int], np.ndarray]:
  return {
    (run.noise, run.repetitions): _scale_cosines(run, threat_model)
    for run in runs
  }
