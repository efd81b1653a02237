"""Figures 3, 4 and 14: audits of one Gaussian step, by observations and thresholds."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxtyping import Float
from matplotlib import figure
import numpy as np
from scipy import special

from epe_jax.epsilon import threshold, tradeoff
from epe_jax.report import cells, tables
from epe_jax.report.figures import style
from papers import item, reported
from papers.tight_auditing import simulated_steps

_SIGNIFICANCE = 0.05
# Number of thresholds in the search for the best, and its range in σ.
_GRID, _FAR = 2001, 7.0
_LAW = (
  'Observations are simulated from their law, N(0, σ²) without the canary and '
  'N(1, σ²) with it; counts of very many are drawn, not the observations.'
)
_NO_BOUND = (
  'Best: the threshold that gives the same observations the largest ε, as in the '
  'paper. That is not a bound. At thresholds fixed in advance the numbers are 95 % '
  'lower bounds.'
)


class Limits(NamedTuple):
  """Lower limits of ε at thresholds, [*batch, m] each.

  Attributes:
    of_dp: of (ε, δ)-DP, equation (9).
    of_gdp: of the Gaussian mechanism, equation (12).
  """

  of_dp: Float[np.ndarray, '*batch m']
  of_gdp: Float[np.ndarray, '*batch m']


def limit_epsilon(counts: simulated_steps.Counts, delta: float) -> Limits:
  """Lower limits of ε at each threshold, by Clopper-Pearson limits of the rates.

  Args:
    counts: errors at thresholds.
    delta: δ, in (0, 1).

  Returns:
    The limits; each holds with 95 % if its threshold was fixed in advance.
  """
  fpr, fnr = (
    np.asarray(
      threshold.clopper_pearson_upper(errors, counts.num, _SIGNIFICANCE / 2)
    )
    for errors in (counts.false_positives, counts.false_negatives)
  )
  log_fpr, log_fnr = np.log(fpr), np.log(fnr)
  of_dp = threshold.epsilon_at(log_fpr, log_fnr, delta, sides='both')
  mu = tradeoff.gdp_mu(log_fpr, fnr)
  return Limits(of_dp, np.asarray(tradeoff.epsilon_gdp(mu, delta)))


def find_best_threshold(noise_multiplier: float, delta: float) -> float:
  """The best threshold for (ε, δ)-DP of a Gaussian step, equation (18).

  The likelihood ratio there is e^ε, so that w = ½ + σ² ε.

  Args:
    noise_multiplier: σ > 0, for a canary of norm 1.
    delta: δ, in (0, 1).
  """
  epsilon = tradeoff.epsilon_gdp(1 / noise_multiplier, delta)
  return 0.5 + noise_multiplier**2 * float(epsilon)


def limit_bounds_of_ranks(epsilon: float, num: int, delta: float) -> float:
  """The largest median of any 95 % lower bound from the order of scores.

  Order does not change if the same number is added to all scores. Among such tests
  the most powerful one for two Gaussians of known σ is that of the difference of the
  means, and this is the median of its bound.

  Args:
    epsilon: the true ε of the Gaussian step.
    num: number of observations of either kind.
    delta: δ, in (0, 1).
  """
  mu = tradeoff.mu_of_epsilon(epsilon, delta)
  lowest = mu + special.ndtri(_SIGNIFICANCE) * np.sqrt(2 / num)
  return float(tradeoff.epsilon_gdp(lowest, delta))


def make_figure3(settings: Any) -> item.Product:
  """ε over the number of observations, by (ε, δ)-DP and by the Gaussian curve.

  Args:
    settings: epsilons, nums, audits, delta and seed.
  """
  rng = np.random.default_rng(settings.seed)
  curves = {
    epsilon: _limit_by_number(rng, epsilon, settings)
    for epsilon in settings.epsilons
  }
  body = [
    [
      f'{epsilon:g}',
      f'{num:,}',
      *(reported.format_spread(c[i]) for c in lines.values()),
      f'{limit_bounds_of_ranks(epsilon, num, settings.delta):.2f}',
    ]
    for epsilon, lines in curves.items()
    for i, num in enumerate(settings.nums)
  ]
  names = list(next(iter(curves.values())))
  table = tables.Table(
    f'Lower limits of ε from one step, δ = {settings.delta:g}',
    ['ε', 'observations', *names, 'possible'],
    body,
    [
      f'Mean ± standard deviation of {settings.audits} audits.',
      _NO_BOUND,
      'Possible: no 95 % lower bound from the order of observations alone has a '
      'higher median; it is that of the difference of means, the noise being known.',
      _LAW,
      'The paper: f-DP is tight at 1,000 observations and (ε, δ)-DP at '
      '100,000,000.',
    ],
  )
  fig = _draw_by_number(curves, settings.nums)
  return item.Product([table], {'figure3': fig})


def make_figure4(settings: Any) -> item.Product:
  """ε at every threshold, of 5,000 observations.

  Args:
    settings: noise_multiplier, num, audits, delta, thresholds and seed.
  """
  sigma, delta = settings.noise_multiplier, settings.delta
  best = find_best_threshold(sigma, delta)
  rng = np.random.default_rng(settings.seed)
  scores = simulated_steps.draw_observations(
    rng, (settings.num,), noise_multiplier=sigma
  )
  # Within the support: at a hundredth of the observations or more on each side.
  low, high = (
    np.quantile(scores.observed, 0.01),
    np.quantile(scores.unobserved, 0.99),
  )
  grid = np.linspace(min(low, high), max(low, high) + sigma, 400)
  shown = limit_epsilon(_count(scores, grid), delta)
  at = np.array([*settings.thresholds, best])
  order = np.argsort(at)
  drawn = simulated_steps.draw_counts(
    rng,
    at[order],
    settings.num,
    noise_multiplier=sigma,
    audits=settings.audits,
  )
  limits = limit_epsilon(drawn, delta)
  body = [
    [
      f'{at[j]:.2f}' + (' (w)' if at[j] == best else ''),
      reported.format_spread(limits.of_gdp[:, i]),
      reported.format_spread(limits.of_dp[:, i]),
    ]
    for i, j in enumerate(order)
  ]
  truth = float(tradeoff.epsilon_gdp(1 / sigma, delta))
  table = tables.Table(
    f'95 % lower bounds of ε = {truth:.3g} at given thresholds, '
    f'{settings.num:,} observations',
    ['threshold', 'f-DP (CP)', '(ε, δ)-DP (CP)'],
    body,
    [
      f'σ = {sigma:g}, δ = {delta:g}. Mean ± standard deviation of '
      f'{settings.audits} audits. w is the best threshold for (ε, δ)-DP, '
      'equation (18).',
      _LAW,
    ],
  )
  fig = _draw_by_threshold(scores, grid, shown, truth, best)
  return item.Product([table], {'figure4': fig})


def make_figure14(settings: Any) -> item.Product:
  """ε by (ε, δ)-DP over the number of observations, at several thresholds.

  Args:
    settings: noise_multiplier, nums, audits, delta, thresholds and seed.
  """
  sigma, delta = settings.noise_multiplier, settings.delta
  best = find_best_threshold(sigma, delta)
  at = np.sort([*settings.thresholds, best])
  rng = np.random.default_rng(settings.seed)
  limits = [
    limit_epsilon(
      simulated_steps.draw_counts(
        rng, at, num, noise_multiplier=sigma, audits=settings.audits
      ),
      delta,
    )
    for num in settings.nums
  ]
  names = [f'{t:.2f}' + (' (w)' if t == best else '') for t in at]
  # The Gaussian curve needs no good threshold; halfway will do.
  half = int(np.argmin(np.abs(at - 0.5)))
  body = [
    [
      f'{num:,}',
      *(reported.format_spread(x) for x in limit.of_dp.T),
      reported.format_spread(limit.of_gdp[:, half]),
    ]
    for num, limit in zip(settings.nums, limits)
  ]
  truth = float(tradeoff.epsilon_gdp(1 / sigma, delta))
  table = tables.Table(
    f'95 % lower bounds of ε = {truth:.3g} by (ε, δ)-DP (CP), by threshold',
    ['observations', *names, f'f-DP (CP), {at[half]:.2f}'],
    body,
    [
      f'σ = {sigma:g}, δ = {delta:g}. Mean ± standard deviation of '
      f'{settings.audits} audits. w is the best threshold, equation (18).',
      _LAW,
      'The paper: at w more than 100,000,000 observations are needed, about '
      '250,000,000 for what the Gaussian curve gives from few thousands; '
      'other thresholds stay far below.',
    ],
  )
  fig, (axes,) = style.make_panels(1, columns=1, height=4.4)
  colors = (style.BLUE, style.SKY, style.GREEN, style.ORANGE, style.PURPLE)
  for i, name in enumerate(names):
    is_best = at[i] == best
    axes.plot(
      settings.nums,
      [np.mean(limit.of_dp[:, i]) for limit in limits],
      color=style.VERMILLION if is_best else colors[i % len(colors)],
      marker='o' if is_best else None,
      label=f'(ε, δ)-DP, threshold {name}',
    )
  axes.plot(
    settings.nums,
    [np.mean(limit.of_gdp[:, half]) for limit in limits],
    color=style.BLACK,
    label=f'f-DP, threshold {at[half]:.2f}',
  )
  axes.axhline(truth, **style.style_analytic_line(truth))
  axes.set(xscale='log', xlabel='observations', ylabel='lower bound of ε')
  style.draw_legend(fig, [axes])
  return item.Product([table], {'figure14': fig})


def _limit_by_number(
  rng: np.random.Generator, epsilon: float, settings: Any
) -> dict[str, list[Float[np.ndarray, 'audits']]]:
  """Limits of ε of each kind, for each number of observations."""
  sigma = 1 / tradeoff.mu_of_epsilon(epsilon, settings.delta)
  best = find_best_threshold(sigma, settings.delta)
  fixed = {0.5, best}
  grid = np.linspace(-_FAR * sigma, 1 + _FAR * sigma, _GRID)
  at = np.union1d(grid, list(fixed))
  half, w = np.searchsorted(at, [0.5, best])
  lines: dict[str, list[np.ndarray]] = {
    'f-DP, best': [],
    '(ε, δ)-DP, best': [],
    'f-DP, halfway': [],
    '(ε, δ)-DP, w': [],
  }
  for num in settings.nums:
    counts = simulated_steps.draw_counts(
      rng, at, num, noise_multiplier=sigma, audits=settings.audits
    )
    limits = limit_epsilon(counts, settings.delta)
    for line, values in zip(
      lines.values(),
      (
        limits.of_gdp.max(axis=-1),
        limits.of_dp.max(axis=-1),
        limits.of_gdp[:, half],
        limits.of_dp[:, w],
      ),
    ):
      line.append(values)
  return lines


def _count(scores, thresholds) -> simulated_steps.Counts:
  at = np.broadcast_to(
    thresholds, (*scores.observed.shape[:-1], len(thresholds))
  )
  num = scores.observed.shape[-1]
  return simulated_steps.Counts(
    threshold.count_at_least(scores.unobserved, at),
    num - threshold.count_at_least(scores.observed, at),
    num,
  )


def _draw_by_number(curves: dict, nums: Sequence[int]) -> figure.Figure:
  fig, panels = style.make_panels(len(curves), columns=2, height=3.4)
  styles: dict[str, dict[str, Any]] = {
    'f-DP, best': dict(color=style.VERMILLION, ls='-', marker='o'),
    '(ε, δ)-DP, best': dict(color=style.BLUE, ls='-', marker='s'),
    'f-DP, halfway': dict(color=style.ORANGE, ls=':'),
    '(ε, δ)-DP, w': dict(color=style.SKY, ls=':'),
  }
  for axes, (epsilon, lines) in zip(panels, curves.items()):
    axes.axhline(epsilon, color=style.BLACK, ls='--', lw=1.5, label='analytic')
    for name, values in lines.items():
      axes.errorbar(
        nums,
        [np.mean(v) for v in values],
        [np.std(v, ddof=1) for v in values],
        ms=4,
        lw=1.5,
        capsize=2,
        label=name,
        **styles[name],
      )
    axes.set(xscale='log', title=f'ε = {cells.format_number(epsilon)}')
    axes.set(xlabel='observations', ylabel='lower limit of ε')
  style.draw_legend(fig, panels, columns=5)
  return fig


def _draw_by_threshold(scores, grid, limits, truth, best) -> figure.Figure:
  fig, (axes,) = style.make_panels(1, columns=1, height=4.4)
  bins = np.linspace(scores.unobserved.min(), scores.observed.max(), 60)
  heights = axes.twinx()
  heights.set(yticks=[], ylabel='observations')
  heights.spines[['top', 'right']].set_visible(False)
  for values, color in (
    (scores.unobserved, style.NO_PART),
    (scores.observed, style.TOOK_PART),
  ):
    heights.hist(values, bins, color=color, alpha=0.25)
  axes.plot(grid, limits.of_gdp, color=style.VERMILLION, label='f-DP (CP)')
  axes.plot(grid, limits.of_dp, color=style.BLUE, label='(ε, δ)-DP (CP)')
  axes.axhline(truth, **style.style_analytic_line(truth))
  axes.axvline(best, color=style.BLACK, ls=':', label='w, equation (18)')
  axes.set(xlabel='threshold', ylabel='lower bound of ε', ylim=(0, None))
  style.draw_legend(fig, [axes])
  return fig
