"""Items without a model: observations of steps, drawn from their law.

Figures 3, 4 and 14 audit one Gaussian step, 5 and 13 show trade-off curves of a
subsampled one, and Table 1 composes steps to a run.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxtyping import Float
import numpy as np
from scipy import special

from epe_jax.dpsgd import estimates, families
from epe_jax.epsilon import threshold, tradeoff
from epe_jax.epsilon.types import Scores
from epe_jax.report import cells, tables
from epe_jax.report.figures import style
from papers import item, plots, reported
from papers.plots import Line
from papers.tight_auditing import accounted_run, simulated_steps

_REPORTED = reported.Reported('papers.tight_auditing')
COMMON: dict[str, Any] = dict(delta=1e-5, seed=0)
"""Settings of all items."""

_SIGNIFICANCE = 0.05
# Number of thresholds in the search for the best, and its range in σ.
_GRID, _FAR = 2001, 7.0
_LAW = (
  'Observations are simulated from their law, N(0, σ²) without the canary and '
  'N(1, σ²) with it; counts of very many are drawn, not the observations.'
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

  Each holds with 95 % if its threshold was fixed in advance.
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

  The likelihood ratio there is e^ε, so that w = ½ + σ² ε for a canary of norm 1.
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
  """ε over the number of observations, by (ε, δ)-DP and by the Gaussian curve."""
  rng = np.random.default_rng(settings.seed)
  curves = {
    epsilon: _limit_by_number(rng, epsilon, settings)
    for epsilon in settings.epsilons
  }
  table = tables.Table(
    f'Lower limits of ε from one step, δ = {settings.delta:g}',
    ['ε', 'observations', *_STYLES, 'possible'],
    [
      [
        f'{epsilon:g}',
        f'{num:,}',
        *(reported.format_spread(c[i]) for c in lines.values()),
        f'{limit_bounds_of_ranks(epsilon, num, settings.delta):.2f}',
      ]
      for epsilon, lines in curves.items()
      for i, num in enumerate(settings.nums)
    ],
    [
      f'Mean ± standard deviation of {settings.audits} audits.',
      'Best: the threshold that gives the same observations the largest ε, as in '
      'the paper. That is not a bound. At thresholds fixed in advance the numbers '
      'are 95 % lower bounds.',
      'Possible: no 95 % lower bound from the order of observations alone has a '
      'higher median; it is that of the difference of means, the noise being known.',
      _LAW,
      'The paper: section 4.1, Figure 3: f-DP is tight at 1,000 observations and '
      '(ε, δ)-DP at 100,000,000.',
    ],
  )
  titles = {e: f'ε = {cells.format_number(e)}' for e in curves}
  fig = plots.draw_lines(
    {
      titles[epsilon]: {
        name: Line(
          settings.nums,
          [np.mean(v) for v in values],
          dict(ms=4, lw=1.5, capsize=2, **_STYLES[name]),
          [np.std(v, ddof=1) for v in values],
        )
        for name, values in lines.items()
      }
      for epsilon, lines in curves.items()
    },
    levels={
      title: dict(y=e, color=style.BLACK, ls='--', lw=1.5, label='analytic')
      for e, title in titles.items()
    },
    height=3.4,
    legend=5,
    xscale='log',
    xlabel='observations',
    ylabel='lower limit of ε',
  )
  return item.Product([table], {'figure3': fig})


_STYLES: dict[str, dict[str, Any]] = {
  'f-DP, best': dict(color=style.VERMILLION, ls='-', marker='o'),
  '(ε, δ)-DP, best': dict(color=style.BLUE, ls='-', marker='s'),
  'f-DP, halfway': dict(color=style.ORANGE, ls=':'),
  '(ε, δ)-DP, w': dict(color=style.SKY, ls=':'),
}


def _limit_by_number(
  rng: np.random.Generator, epsilon: float, settings: Any
) -> dict[str, list[Float[np.ndarray, 'audits']]]:
  """Limits of ε of each kind, for each number of observations."""
  sigma = 1 / tradeoff.mu_of_epsilon(epsilon, settings.delta)
  best = find_best_threshold(sigma, settings.delta)
  grid = np.linspace(-_FAR * sigma, 1 + _FAR * sigma, _GRID)
  at = np.union1d(grid, [0.5, best])
  half, w = np.searchsorted(at, [0.5, best])
  found = []
  for num in settings.nums:
    counts = simulated_steps.draw_counts(
      rng, at, num, noise_multiplier=sigma, audits=settings.audits
    )
    limits = limit_epsilon(counts, settings.delta)
    found.append(
      (
        limits.of_gdp.max(axis=-1),
        limits.of_dp.max(axis=-1),
        limits.of_gdp[:, half],
        limits.of_dp[:, w],
      )
    )
  return dict(zip(_STYLES, map(list, zip(*found))))


def make_figure4(settings: Any) -> item.Product:
  """ε at every threshold."""
  sigma, delta = settings.noise_multiplier, settings.delta
  best = find_best_threshold(sigma, delta)
  rng = np.random.default_rng(settings.seed)
  scores = simulated_steps.draw_observations(
    rng, (settings.num,), noise_multiplier=sigma
  )
  at = np.sort([*settings.thresholds, best])
  drawn = simulated_steps.draw_counts(
    rng, at, settings.num, noise_multiplier=sigma, audits=settings.audits
  )
  limits = limit_epsilon(drawn, delta)
  truth = float(tradeoff.epsilon_gdp(1 / sigma, delta))
  table = tables.Table(
    f'95 % lower bounds of ε = {truth:.3g} at given thresholds, '
    f'{settings.num:,} observations',
    ['threshold', 'f-DP (CP)', '(ε, δ)-DP (CP)'],
    [
      [
        name,
        reported.format_spread(limits.of_gdp[:, i]),
        reported.format_spread(limits.of_dp[:, i]),
      ]
      for i, name in enumerate(_name_thresholds(at, best))
    ],
    [
      f'σ = {sigma:g}, δ = {delta:g}. Mean ± standard deviation of '
      f'{settings.audits} audits. w is the best threshold for (ε, δ)-DP, '
      'equation (18).',
      _LAW,
      'The paper: appendix C.1, Figure 4: every threshold within the support gives f-DP '
      'about the same bound; w gives (ε, δ)-DP none from 5,000 observations.',
    ],
  )
  # Within the support: at a hundredth of the observations or more on each side.
  low, high = (
    np.quantile(scores.observed, 0.01),
    np.quantile(scores.unobserved, 0.99),
  )
  grid = np.linspace(min(low, high), max(low, high) + sigma, 400)
  counts = simulated_steps.Counts(
    threshold.count_at_least(scores.unobserved, grid),
    settings.num - threshold.count_at_least(scores.observed, grid),
    settings.num,
  )
  shown = limit_epsilon(counts, delta)
  fig, (axes,) = style.make_panels(1, columns=1, height=4.4)
  bins = np.linspace(scores.unobserved.min(), scores.observed.max(), 60)
  heights = axes.twinx()
  heights.set(yticks=[], ylabel='observations')
  heights.spines[['top', 'right']].set_visible(False)
  heights.hist(scores.unobserved, bins, color=style.NO_PART, alpha=0.25)
  heights.hist(scores.observed, bins, color=style.TOOK_PART, alpha=0.25)
  axes.plot(grid, shown.of_gdp, color=style.VERMILLION, label='f-DP (CP)')
  axes.plot(grid, shown.of_dp, color=style.BLUE, label='(ε, δ)-DP (CP)')
  axes.axhline(truth, **style.style_analytic_line(truth))
  axes.axvline(best, color=style.BLACK, ls=':', label='w, equation (18)')
  axes.set(xlabel='threshold', ylabel='lower bound of ε', ylim=(0, None))
  style.draw_legend(fig, [axes])
  return item.Product([table], {'figure4': fig})


def make_figure14(settings: Any) -> item.Product:
  """ε by (ε, δ)-DP over the number of observations, at several thresholds."""
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
  names = _name_thresholds(at, best)
  # The Gaussian curve needs no good threshold; halfway will do.
  half = int(np.argmin(np.abs(at - 0.5)))
  truth = float(tradeoff.epsilon_gdp(1 / sigma, delta))
  table = tables.Table(
    f'95 % lower bounds of ε = {truth:.3g} by (ε, δ)-DP (CP), by threshold',
    ['observations', *names, f'f-DP (CP), {at[half]:.2f}'],
    [
      [
        f'{num:,}',
        *(reported.format_spread(x) for x in limit.of_dp.T),
        reported.format_spread(limit.of_gdp[:, half]),
      ]
      for num, limit in zip(settings.nums, limits)
    ],
    [
      f'σ = {sigma:g}, δ = {delta:g}. Mean ± standard deviation of '
      f'{settings.audits} audits. w is the best threshold, equation (18).',
      _LAW,
      'The paper: appendix C.1: at w more than 100,000,000 observations are needed, about '
      '250,000,000, 5,000 times as many, for what the Gaussian curve gives; '
      'other thresholds stay far below.',
    ],
  )
  colors = (style.BLUE, style.SKY, style.GREEN, style.ORANGE, style.PURPLE)
  means = np.mean([limit.of_dp for limit in limits], axis=1)
  lines = {
    f'(ε, δ)-DP, threshold {name}': Line(
      settings.nums,
      means[:, i],
      dict(color=style.VERMILLION, marker='o')
      if at[i] == best
      else dict(color=colors[i % len(colors)]),
    )
    for i, name in enumerate(names)
  }
  lines[f'f-DP, threshold {at[half]:.2f}'] = Line(
    settings.nums,
    [np.mean(limit.of_gdp[:, half]) for limit in limits],
    dict(color=style.BLACK),
  )
  fig = plots.draw_lines(
    {'': lines},
    levels={'': dict(y=truth, **style.style_analytic_line(truth))},
    columns=1,
    height=4.4,
    xscale='log',
    xlabel='observations',
    ylabel='lower bound of ε',
  )
  return item.Product([table], {'figure14': fig})


def _name_thresholds(at: Float[np.ndarray, ' m'], best: float) -> list[str]:
  return [f'{t:.2f}' + (' (w)' if t == best else '') for t in at]


def make_figure5(settings: Any) -> item.Product:
  """Error rates of observations of a subsampled step, and what bounds them."""
  p, sigma = settings.canary_probability, settings.noise_variance**0.5
  subsampled = families.subsampled_gaussian_family(p)
  epsilon = subsampled.epsilon(sigma, settings.delta)
  mu = tradeoff.mu_of_epsilon(epsilon, settings.delta)
  scores = simulated_steps.draw_observations(
    np.random.default_rng(settings.seed),
    (settings.audits, settings.num),
    noise_multiplier=sigma,
    canary_probability=p,
  )

  def one_direction(log_fpr):
    with_canary = tradeoff.fnr_gdp(1 / sigma, log_fpr)
    return p * with_canary - (1 - p) * np.expm1(log_fpr)

  curves: dict[str, Callable] = {
    'exact, N(0, σ²) against the mixture': one_direction,
    'exact, both directions (PLD)': lambda x: subsampled.fnr(sigma, x),
    f'μ-GDP of the same ε, μ = {mu:.3f}': lambda x: tradeoff.fnr_gdp(mu, x),
  }
  fprs = np.asarray(settings.fprs)
  measured = _measure_fnr(scores, fprs)
  table = tables.Table(
    f'False negative rates at given false positive rates, q_c = {p:g}',
    ['FPR', 'observed FNR', *curves],
    [
      [
        f'{fpr:g}',
        reported.format_spread(measured[:, i], digits=3),
        *(
          f'{curve(np.log(fprs[i : i + 1]))[0]:.3f}'
          for curve in curves.values()
        ),
      ]
      for i, fpr in enumerate(fprs)
    ],
    [
      f'σ² = {settings.noise_variance:g}, {settings.num:,} observations, ε = '
      f'{epsilon:.3g} at δ = {settings.delta:g}. Mean ± standard deviation of '
      f'{settings.audits} audits.',
      'What is observed is on the exact curve of its own direction. A guarantee '
      'holds for both directions, whose curve is lower at high false positive '
      'rates: no threshold reaches it there, in line with the paper.',
    ],
  )
  grid = np.linspace(1e-4, 1, 600)
  observed = Line(
    grid,
    _measure_fnr(scores, grid)[0],
    dict(color=style.BLACK, lw=3, alpha=0.4),
  )
  colors = (style.GREEN, style.VERMILLION, style.BLUE)
  fig = plots.draw_lines(
    {
      '': {
        f'observed, {settings.num:,} observations': observed,
        **{
          name: Line(grid, curve(np.log(grid)), dict(color=color, lw=1.5))
          for (name, curve), color in zip(curves.items(), colors)
        },
      }
    },
    columns=1,
    height=5.0,
    legend=2,
    xlabel='false positive rate',
    ylabel='false negative rate',
  )
  return item.Product([table], {'figure5': fig})


def _measure_fnr(
  scores: Scores, fprs: Float[np.ndarray, 'm']
) -> Float[np.ndarray, 'audits m']:
  """False negative rates at given false positive rates."""
  at = np.quantile(scores.unobserved, 1 - fprs, axis=-1).T
  return np.stack(
    [
      np.searchsorted(np.sort(observed), t) / observed.size
      for observed, t in zip(scores.observed, at)
    ]
  )


def make_figure13(settings: Any) -> item.Product:
  """Algorithm 4's curves of several numbers of lines, and the exact one.

  Args:
    settings: mechanisms, of (q_c, σ) each, num_lines and delta.
  """
  grid = np.linspace(1e-4, 1 - 1e-4, 1000)
  colors = (
    style.SKY,
    style.GREEN,
    style.ORANGE,
    style.VERMILLION,
    style.PURPLE,
  )
  body, panels = [], {}
  for p, sigma in settings.mechanisms:
    exact = estimates.make_step_mechanism(canary_probability=p).step
    curve = exact.fnr(sigma, np.log(grid))
    epsilon = exact.epsilon(sigma, settings.delta)
    title = f'q_c = {p:g}, σ = {sigma:.3g}, ε = {epsilon:.3g}'
    panels[title] = {
      'exact': Line(grid, curve, dict(color=style.BLACK, lw=1.5))
    }
    # The attack on the exact curve with equal error rates.
    at = int(np.argmin(np.abs(curve - grid)))
    rates = np.log(grid[at : at + 1]), curve[at : at + 1]
    for n, color in zip(settings.num_lines, colors):
      family = estimates.make_step_mechanism(
        canary_probability=p,
        make_lines=families.algorithm_4(delta=settings.delta, num_lines=n),
      ).step
      lines = family.fnr(sigma, np.log(grid))
      panels[title][f'{n} lines'] = Line(
        grid, lines, dict(color=color, lw=1, ls='--')
      )
      noise = tradeoff.max_noise(family, *rates)
      found = tradeoff.epsilon_of_strength(family, 1 / noise, settings.delta)
      body.append(
        [title, f'{n}', f'{np.max(curve - lines):.4f}', f'{found:.3f}']
      )
  fig = plots.draw_lines(
    panels,
    height=4.2,
    legend=6,
    xlabel='false positive rate',
    ylabel='false negative rate',
  )
  table = tables.Table(
    'Algorithm 4 against the exact trade-off curve',
    ['step', 'lines', 'largest gap', 'ε of the attack'],
    body,
    [
      'The curve is the pointwise maximum of the lines; the paper prints a '
      'minimum. It is nowhere above the exact one, so that a bound from it holds.',
      'ε of the attack: what follows from the rates of the best attack with equal '
      'rates, which by the exact curve is the ε in the first column.',
      f"δ = {settings.delta:g}; lines are at δ' evenly spaced from δ to 1 - δ.",
      'The paper: appendix A, Figure 13: the bound becomes looser by about 0.1, and ten '
      'lines are a good estimate of the curve.',
    ],
  )
  return item.Product([table], {'figure13': fig})


def make_table1(settings: Any) -> item.Product:
  """The lower limits of a run by a correct implementation.

  Args:
    settings: epsilons, runs (name -> steps, sampling_probability), audits, delta
      and seed.
  """
  rng = np.random.default_rng(settings.seed)
  rows = [(k, e) for k in estimates.ESTIMATORS for e in settings.epsilons]
  papers = {
    (key, epsilon): _REPORTED.find_row(f'table1_{key}', epsilon=epsilon) or {}
    for key, epsilon in rows
  }
  found: dict[tuple[str, float], list[str]] = {row: [] for row in rows}
  distances: dict[tuple[str, str], list[float]] = {}
  for name, run in settings.runs.items():
    accounted = accounted_run.account_for_run(
      sampling_probability=run.sampling_probability,
      steps=run.steps,
      delta=settings.delta,
      title=run.title,
    )
    mechanism = estimates.make_step_mechanism()._replace(
      compose=accounted.compose
    )
    for epsilon in settings.epsilons:
      scores = simulated_steps.draw_observations(
        rng,
        (settings.audits, run.steps),
        noise_multiplier=accounted.calibrate(epsilon),
      )
      for key in estimates.ESTIMATORS:
        estimate = estimates.estimate_run(
          scores,
          key,
          mechanism=mechanism,
          delta=settings.delta,
          thresholds='same',
        )
        text = reported.format_spread(estimate.epsilon)
        paper = papers[key, epsilon]
        if name in paper:
          text += f' ({paper[name]:.2f})'
        found[key, epsilon].append(text)
        mean, std = np.mean(estimate.epsilon), np.std(estimate.epsilon, ddof=1)
        for column in paper.keys() - {'epsilon'}:
          off = abs(paper[column] - mean) / std
          distances.setdefault((column, name), []).append(float(off))
  sizes = '; '.join(
    f'{run.title}: {run.steps:,} steps, q = {run.sampling_probability:.4g}'
    for run in settings.runs.values()
  )
  table = tables.Table(
    'Lower limits of ε from observations of all steps, by their law',
    ['audit', 'analytic ε', *(run.title for run in settings.runs.values())],
    [
      [estimates.ESTIMATORS[key].label, f'{epsilon:g}', *texts]
      for (key, epsilon), texts in found.items()
    ],
    [
      'In brackets the figures of the paper, Table 1, of trained models.',
      f'{sizes}. δ = {settings.delta:g}. Mean ± standard deviation of '
      f'{settings.audits} audits.',
      'No model is trained: with the canary in every step observations are '
      'N(0, σ²) and N(1, σ²), whatever the model. The noise is what dp_accounting '
      'gives for the analytic ε, interpolated between its values at 24 noises.',
      'Thresholds are chosen on the same observations, as in the paper: they are not bounds.',
    ],
  )
  compared = tables.Table(
    "The paper's columns against these laws",
    [
      'column of Table 1',
      *(f'law of {run.title}' for run in settings.runs.values()),
    ],
    [
      [
        column.replace('_', ' '),
        *(f'{max(distances[column, name]):.1f}' for name in settings.runs),
      ]
      for column in sorted({column for column, _ in distances})
    ],
    [
      'The largest distance in a column of a figure of the paper from the mean of '
      'audits, in their standard deviations.'
    ],
  )
  return item.Product([compared, table])


def simulate(
  name: str,
  title: str,
  source: str,
  choose: Callable[[int], dict[str, Any]],
  make: Callable[[Any], item.Product],
) -> dict[str, item.Item]:
  """An item by its name, with settings by size, those of `COMMON` apart.

  Items have the paper's size, or that of its longest runs if it gives none.
  """
  settings = lambda scale: COMMON | choose(item.SIZES[scale])
  made = item.from_settings(title, source, f'tight_{name}', settings, make)
  return {name: made}


_AUDITS = (3, 10, 20)

ITEMS = {
  **simulate(
    'figure3',
    'A Gaussian step: ε over the number of observations',
    'section 4.1, Figure 3',
    lambda size: dict(
      epsilons=(1.0, 2.0, 4.0, 6.0),
      nums=tuple(10**i for i in range(2, (4, 8, 10)[size])),
      audits=_AUDITS[size],
    ),
    make_figure3,
  ),
  **simulate(
    'figure4',
    'A Gaussian step: ε at every threshold',
    'section 5.2, Figure 4',
    lambda size: dict(
      noise_multiplier=1.0,
      num=5000,
      audits=_AUDITS[size],
      thresholds=(-1.0, 0.0, 0.5, 1.0, 2.0, 3.0),
    ),
    make_figure4,
  ),
  **simulate(
    'figure5',
    'Error rates of a subsampled step',
    'section 5.4, Figure 5',
    lambda size: dict(
      canary_probability=0.25,
      noise_variance=0.3,
      num=(1000, 10_000, 10_000)[size],
      audits=_AUDITS[size],
      fprs=(0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9),
    ),
    make_figure5,
  ),
  **simulate(
    'figure13',
    'Algorithm 4 and the exact trade-off curve',
    'appendix A, Figure 13',
    lambda size: dict(
      # A Gaussian step with ε = 1, and the step of figure 5.
      mechanisms=((1.0, 3.73), (0.25, 0.3**0.5)),
      num_lines=(3, 10, 30, 100, 1000)[: 5 if size else 2],
    ),
    make_figure13,
  ),
  **simulate(
    'figure14',
    '(ε, δ)-DP at several thresholds, over the number of observations',
    'appendix C.1, Figure 14',
    lambda size: dict(
      noise_multiplier=1.0,
      nums=tuple(10**i for i in range(3, (5, 8, 11)[size])),
      audits=_AUDITS[size],
      thresholds=(0.5, 1.0, 2.0, 3.0),
    ),
    make_figure14,
  ),
  **simulate(
    'table1_simulated',
    'Lower limits of ε by the law of observations',
    'section 6.2, Table 1, without a model',
    lambda size: dict(
      epsilons=(1.0, 4.0, 8.0, 16.0) if size else (1.0, 8.0),
      audits=_AUDITS[size],
      runs=dict(
        cifar10_wrn16=dict(
          title='CIFAR-10 WRN-16',
          steps=2500 if size else 50,
          sampling_probability=4096 / 50_000,
        ),
        cifar10_convnet=dict(
          title='CIFAR-10 ConvNet',
          steps=20_000 if size else 50,
          sampling_probability=256 / 50_000,
        ),
      ),
    ),
    make_table1,
  ),
}
