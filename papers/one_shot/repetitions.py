"""How ε depends on the participations of a canary: densities, bars, tests."""

from collections.abc import Sequence
import itertools
import math

from matplotlib import axes as mpl_axes
from matplotlib import figure
import numpy as np
from scipy import stats

from epe_jax.audit import attackers
from epe_jax.audit.attack_scores import ThreatModel
from epe_jax.epsilon import diagnostics
from epe_jax.epsilon.types import Estimate
from epe_jax.report import cells, tables
from epe_jax.report.figures import style
from papers import grid, item, reported

_REPORTED = reported.Reported('papers.one_shot')

_TITLES = {
  attackers.FINAL: 'ε, last model only',
  attackers.CHANGE: 'ε, first and last model',
}
_COLORS = (style.SKY, style.GREEN, style.ORANGE, style.VERMILLION, style.PURPLE)
_LINES = ('-', '--', '-.', ':', '-')


def make_densities(runs: Sequence[grid.Run]) -> item.Product:
  """Draws the densities of cosines with the final model and with its change."""
  table = tables.Table(
    'Cosines of canaries',
    ['noise', 'repetitions', 'last model only', 'first and last model'],
    [
      [
        f'{run.noise:g}',
        f'{run.repetitions}',
        *(
          reported.format_spread(_scale_cosines(run, attacker))
          for attacker in _TITLES
        ),
      ]
      for run in runs
    ],
    [
      'Mean ± standard deviation over the canaries that took part, in units of '
      '1/√d; one held out has 0 ± 1.',
      *grid.describe_runs(runs),
    ],
  )
  return item.Product(
    [table],
    {
      'densities': _draw_densities(runs, attackers.FINAL),
      'densities_change': _draw_densities(runs, attackers.CHANGE),
    },
  )


def _draw_densities(
  runs: Sequence[grid.Run], threat_model: ThreatModel
) -> figure.Figure:
  """Draws the densities of cosines in units of 1/√d, a panel for each noise level.

  Source: One-shot Empirical Privacy Estimation, Figure 1.
  """
  noises = list(dict.fromkeys(run.noise for run in runs))
  fig, all_axes = style.make_panels(len(noises), columns=2, height=3.2)
  for axes, noise in zip(all_axes, noises):
    cosines = {
      run.repetitions: _scale_cosines(run, threat_model)
      for run in runs
      if run.noise == noise
    }
    low = min(-4.0, *(x.min() - 1 for x in cosines.values()))
    high = max(4.0, *(x.max() + 1 for x in cosines.values()))
    x = np.linspace(low, high, 500)
    for (n, values), color, line in zip(cosines.items(), _COLORS, _LINES):
      label = f'{n} x, {len(values):,} canaries'
      density = stats.gaussian_kde(values)(x)
      axes.plot(x, density, line, color=color, lw=2, label=label)
    label = 'took no part: N(0, 1)'
    axes.plot(x, stats.norm.pdf(x), color=style.BLACK, lw=1, label=label)
    axes.set_title(f'noise z = {noise:g}')
    axes.set_xlabel('cosine, in units of 1/√d')
    axes.set_yticks([])
    axes.set_ylim(bottom=0)
  for axes in all_axes[::2]:
    axes.set_ylabel('density')
  style.draw_legend(fig, all_axes, columns=5)
  return fig


def make_bars(runs: Sequence[grid.Run]) -> item.Product:
  """Draws ε_est and ε_lo of the final model; tabulates the calibrated ε."""
  calibrated = [_tabulate_calibrated(runs, attacker) for attacker in _TITLES]
  return item.Product(calibrated, {'bars': _draw_bars(runs)})


def _draw_bars(runs: Sequence[grid.Run]) -> figure.Figure:
  """Draws ε_est as a bar, ε_lo as a tick on it, the noise floor as a band.

  Source: One-shot Empirical Privacy Estimation, Figure 2.
  """
  noises = list(dict.fromkeys(run.noise for run in runs))
  fig, all_axes = style.make_panels(len(noises), columns=2, height=3.0)
  for axes, noise in zip(all_axes, noises):
    of_noise = [run for run in runs if run.noise == noise]
    top = max(0.0, *(_draw_bar(axes, x, run) for x, run in enumerate(of_noise)))
    counts = [f'{run.repetitions} x' for run in of_noise]
    axes.set_xticks(range(len(counts)), counts)
    axes.set_title(f'noise z = {noise:g}')
    axes.set_ylim(0, 1.15 * top or 1)
  for axes in all_axes[::2]:
    axes.set_ylabel('ε, last model only')
  for axes in all_axes[-2:]:
    axes.set_xlabel('rounds in which a canary took part')
  style.draw_legend(fig, all_axes)
  return fig


def _draw_bar(axes: mpl_axes.Axes, x: int, run: grid.Run) -> float:
  """Draws one bar; returns how high it reaches."""
  attack = run.result.audit.find(attackers.FINAL)
  assert attack is not None, 'every audit has this attacker'
  estimate = attack.find('two_gaussian_fitted')
  assert estimate is not None, 'it is among the estimates of a report'
  value, floor = float(estimate.epsilon), estimate.floor
  if floor is not None:
    axes.bar(
      *(x, floor.q95 - floor.q05, 0.95, floor.q05),
      color=style.GREY,
      zorder=0,
      label='floor: 5 to 95 % of ε_est when nothing leaks',
    )
  if not math.isfinite(value):
    axes.annotate('∞', (x, 0), ha='center', va='bottom')
    return 0.0
  axes.bar(x, value, 0.6, color=style.BLUE, alpha=0.85, label='ε_est')
  axes.annotate(
    cells.format_number(value),
    (x, value),
    (0, 2),
    textcoords='offset points',
    ha='center',
  )
  tick = attack.find('eps_lo')
  assert tick is not None, 'it is among the estimates of a report'
  axes.plot(
    [x - 0.3, x + 0.3],
    [float(tick.epsilon)] * 2,
    color=style.VERMILLION,
    lw=3,
    label="the paper's ε_lo (no bound)",
  )
  return value


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
  return item.Product([table])


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
  below, above = (estimate and estimate.interval for estimate in (low, high))
  assert below, 'these attackers have an exact null, and so an interval'
  assert above, 'these attackers have an exact null, and so an interval'
  return below[1] < above[0]


def _select_cosines(run: grid.Run, threat_model: ThreatModel) -> np.ndarray:
  """Cosines of the observed canaries."""
  record = run.record
  assert record is not None, 'runs of a grid of repetitions have canaries'
  return record.cosines[threat_model.key][record.observed]


def _scale_cosines(run: grid.Run, threat_model: ThreatModel) -> np.ndarray:
  """The same, in units of 1/√d."""
  return np.sqrt(run.result.dim) * _select_cosines(run, threat_model)
