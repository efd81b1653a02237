"""Figures 5 and 13: trade-off curves of subsampled steps, exact and by Algorithm 4."""

from typing import Any

from jaxtyping import Float
import numpy as np

from epe_jax.dpsgd import estimates, families
from epe_jax.epsilon import tradeoff
from epe_jax.report import tables
from epe_jax.report.figures import style
from papers import item, reported
from papers.tight_auditing import simulated_steps


def make_figure5(settings: Any) -> item.Product:
  """Error rates of observations of a subsampled step, and what bounds them.

  Args:
    settings: canary_probability, noise_variance, num, audits, delta, fprs, seed.
  """
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

  curves = {
    'exact, N(0, σ²) against the mixture': one_direction,
    'exact, both directions (PLD)': lambda x: subsampled.fnr(sigma, x),
    f'μ-GDP of the same ε, μ = {mu:.3f}': lambda x: tradeoff.fnr_gdp(mu, x),
  }
  fprs = np.asarray(settings.fprs)
  measured = _measure_fnr(scores, fprs)
  body = [
    [
      f'{fpr:g}',
      reported.format_spread(measured[:, i], digits=3),
      *(
        f'{curve(np.log(fprs[i : i + 1]))[0]:.3f}' for curve in curves.values()
      ),
    ]
    for i, fpr in enumerate(fprs)
  ]
  table = tables.Table(
    f'False negative rates at given false positive rates, q_c = {p:g}',
    ['FPR', 'observed FNR', *curves],
    body,
    [
      f'σ² = {settings.noise_variance:g}, {settings.num:,} observations, ε = '
      f'{epsilon:.3g} at δ = {settings.delta:g}. Mean ± standard deviation of '
      f'{settings.audits} audits.',
      'What is observed is on the exact curve of its own direction. A guarantee '
      'holds for both directions, whose curve is lower at high false positive '
      'rates: no threshold reaches it there, in line with the paper.',
    ],
  )
  fig, (axes,) = style.make_panels(1, columns=1, height=5.0)
  grid = np.linspace(1e-4, 1, 600)
  axes.plot(
    grid,
    _measure_fnr(scores, grid)[0],
    color=style.BLACK,
    lw=3,
    alpha=0.4,
    label=f'observed, {settings.num:,} observations',
  )
  colors = (style.GREEN, style.VERMILLION, style.BLUE)
  for (name, curve), color in zip(curves.items(), colors):
    axes.plot(grid, curve(np.log(grid)), color=color, lw=1.5, label=name)
  axes.set(xlabel='false positive rate', ylabel='false negative rate')
  style.draw_legend(fig, [axes], columns=2)
  return item.Product([table], {'figure5': fig})


def make_figure13(settings: Any) -> item.Product:
  """Algorithm 4's curves of several numbers of lines, and the exact one.

  Args:
    settings: mechanisms, of (q_c, σ) each, num_lines and delta.
  """
  grid = np.linspace(1e-4, 1 - 1e-4, 1000)
  fig, panels = style.make_panels(
    len(settings.mechanisms), columns=2, height=4.2
  )
  colors = (
    style.SKY,
    style.GREEN,
    style.ORANGE,
    style.VERMILLION,
    style.PURPLE,
  )
  body = []
  for axes, (p, sigma) in zip(panels, settings.mechanisms):
    exact = estimates.make_step_mechanism(canary_probability=p).step
    curve = exact.fnr(sigma, np.log(grid))
    epsilon = exact.epsilon(sigma, settings.delta)
    title = f'q_c = {p:g}, σ = {sigma:.3g}, ε = {epsilon:.3g}'
    axes.plot(grid, curve, color=style.BLACK, lw=1.5, label='exact')
    # The attack on the exact curve with equal error rates.
    at = int(np.argmin(np.abs(curve - grid)))
    rates = np.log(grid[at : at + 1]), curve[at : at + 1]
    for n, color in zip(settings.num_lines, colors):
      family = estimates.make_step_mechanism(
        canary_probability=p,
        make_lines=families.algorithm_4(delta=settings.delta, num_lines=n),
      ).step
      lines = family.fnr(sigma, np.log(grid))
      axes.plot(grid, lines, color=color, lw=1, ls='--', label=f'{n} lines')
      noise = tradeoff.max_noise(family, *rates)
      found = tradeoff.epsilon_of_strength(family, 1 / noise, settings.delta)
      body.append(
        [title, f'{n}', f'{np.max(curve - lines):.4f}', f'{found:.3f}']
      )
    axes.set(title=title, xlabel='false positive rate')
    axes.set(ylabel='false negative rate')
  style.draw_legend(fig, panels, columns=6)
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
    ],
  )
  return item.Product([table], {'figure13': fig})


def _measure_fnr(
  scores, fprs: Float[np.ndarray, 'm']
) -> Float[np.ndarray, 'audits m']:
  """False negative rates at given false positive rates."""
  at = np.quantile(scores.unobserved, 1 - fprs, axis=-1).T
  return np.stack(
    [
      np.searchsorted(np.sort(observed), t) / observed.size
      for observed, t in zip(scores.observed, at)
    ]
  )
