"""How ε moves with the rounds a canary takes part in: densities, bars, tests."""

from collections.abc import Sequence
import functools
import itertools

import numpy as np

from epe_jax.audit import threat_models
from epe_jax.audit.attack_scores import ThreatModel
from epe_jax.epsilon import diagnostics
from epe_jax.epsilon.types import Estimate
from epe_jax.experiment import finished_runs
from epe_jax.papers.one_shot import product, reported
from epe_jax.report import sweep_report, tables
from epe_jax.report.figures import repetitions

_READINGS = {
  threat_models.FINAL: 'ε, final model',
  threat_models.CHANGE: 'ε, change of the model',
}


def densities(runs: Sequence[product.Run]) -> product.Product:
  """Densities of the cosines with the final model and with its change."""
  rows = [
    [
      f'{run.noise:g}',
      f'{run.repetitions}',
      *(
        f'{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}'
        for values in (_units(run, name) for name in _READINGS)
      ),
    ]
    for run in runs
  ]
  head = ['noise', 'repetitions', 'final model', 'change of the model']
  note = (
    'Mean ± standard deviation over the canaries that took part, in units of '
    '1/√d; one that took no part has 0 ± 1.'
  )
  table = tables.Table(
    'Cosines of canaries', head, rows, [note, *product.about(runs)]
  )
  return product.Product(
    [table],
    {
      'densities': repetitions.draw_densities(
        _units_by(runs, threat_models.FINAL)
      ),
      'densities_change': repetitions.draw_densities(
        _units_by(runs, threat_models.CHANGE)
      ),
    },
  )


def bars(runs: Sequence[product.Run]) -> product.Product:
  """ε_est and ε_lo of the final model, and the calibrated ε with intervals."""
  made = [_calibrated(runs, threat_model) for threat_model in _READINGS]
  drawn = {
    run_key(run): repetitions.Bar(
      *(
        run.said.result['audit'].find(threat_models.FINAL).find(method)
        for method in ('two_gaussian_fitted', 'eps_lo')
      )
    )
    for run in runs
  }
  return product.Product(made, {'bars': repetitions.draw_bars(drawn)})


def anderson(runs: Sequence[product.Run], *, name: str) -> product.Product:
  """Anderson-Darling statistics of the cosines with the final model.

  Args:
    runs: of a grid of noise and repetitions.
    name: of the paper's table in reported.json.
  """
  body = []
  for run in runs:
    test = diagnostics.anderson_darling(
      np.asarray(_of(run, threat_models.FINAL), np.float64)
    )
    paper = reported.find_row(
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
      *reported.brackets(name),
      'Anderson-Darling, mean and std fitted; A² above 1.035 rejects at 1 %. '
      f'{rejected} of {len(body)} are rejected at 1 %.',
      *product.about(runs),
    ],
  )
  return product.Product([table], {})


stackoverflow_anderson = functools.partial(anderson, name='anderson')
emnist_anderson = functools.partial(anderson, name='emnist_anderson')


def run_key(run: product.Run) -> tuple[float, int]:
  """Where a run stands in a figure: noise and repetitions."""
  return run.noise, run.repetitions


def _calibrated(
  runs: Sequence[product.Run], threat_model: ThreatModel
) -> tables.Table:
  """ε by noise and repetitions, and how surely it rises and falls."""
  found = {
    run_key(run): finished_runs.estimate_first(run.said, threat_model)
    for run in runs
  }
  cells = {at: sweep_report.format_with_interval(e) for at, e in found.items()}
  noises = sorted({noise for noise, _ in found})
  counts = sorted({count for _, count in found})
  rises = [
    _beyond(found[z, a], found[z, b])
    for z in noises
    for a, b in itertools.pairwise(counts)
  ]
  falls = [
    _beyond(found[b, n], found[a, n])
    for n in counts
    for a, b in itertools.pairwise(noises)
  ]
  return tables.Table(
    _READINGS[threat_model],
    ['noise', *(f'{n} x' for n in counts)],
    [[f'{z:g}', *(cells[z, n] for n in counts)] for z in noises],
    [
      'Mixture of shifted Gaussians, with 90 % intervals; columns are the rounds '
      'a canary takes part in.',
      *sweep_report.explain_rejected(cells.values()),
      f'From one count to the next ε rises beyond both intervals in '
      f'{sum(rises)} of {len(rises)} cases, and from one noise level to the '
      f'next it falls so in {sum(falls)} of {len(falls)}.',
      *product.about(runs),
    ],
  )


def _beyond(low: Estimate | None, high: Estimate | None) -> bool:
  """Whether one interval lies wholly below the other."""
  assert low is not None, 'runs of a grid of repetitions have canaries'
  assert high is not None, 'runs of a grid of repetitions have canaries'
  assert low.interval is not None, 'final models have an exact null'
  assert high.interval is not None, 'final models have an exact null'
  return low.interval[1] < high.interval[0]


def _of(run: product.Run, threat_model: ThreatModel) -> np.ndarray:
  """Cosines of the canaries that took part."""
  record = run.said.record
  assert record is not None, 'runs of a grid of repetitions have canaries'
  return record.cosines[threat_model.key][record.observed]


def _units(run: product.Run, threat_model: ThreatModel) -> np.ndarray:
  return np.sqrt(run.said.result['dim']) * _of(run, threat_model)


def _units_by(
  runs: Sequence[product.Run], threat_model: ThreatModel
) -> dict[tuple[float, int], np.ndarray]:
  return {run_key(run): _units(run, threat_model) for run in runs}
