"""Section 6.3: which audit finds a bug, and from how many observations."""

from collections.abc import Callable, Mapping, Sequence
import functools
from typing import Any

from jaxtyping import Float
from matplotlib import axes as mpl_axes
import numpy as np
import tqdm

from epe_jax.dpsgd import estimates
from epe_jax.epsilon import tradeoff
from epe_jax.epsilon.types import Scores
from epe_jax.report import cells, tables
from epe_jax.report.figures import style
from papers import item
from papers.tight_auditing import audits, simulated_steps
from papers.tight_auditing.simulated import simulate

Draw = Callable[[np.random.Generator, int], Scores]
"""(source, number of observations of either kind) -> observations of a game."""

_CHOICES = {
  'same': 'Thresholds are chosen on the same observations, as in the paper: no '
  'number is a bound.',
  'valid': 'f-DP (CP) and (ε, δ)-DP (CP) are 95 % lower bounds, of all thresholds '
  'at once; the others have a threshold that half of the observations chose.',
}
_BATCH_NOTE = (
  'Simulated on the mechanism: gradients and noise are drawn, and no model is '
  'trained.'
)
_APPROXIMATE = (
  'Credible bounds (ZB) hold on average over a prior, and Katz limits are '
  'approximations.'
)


def run_audits(
  draw: Draw, nums: Sequence[int], *, choice: str, settings: Any
) -> dict[int, dict[str, Float[np.ndarray, 'audits']]]:
  """Audits simulated observations by every estimator.

  Args:
    draw: of the mechanism.
    nums: numbers of observations of either kind; fewer ones are the first of more.
    choice: 'same' or 'valid'.
    settings: audits, delta and seed.

  Returns:
    Number -> key of `audits.STYLES`, in the order of figures -> ε of
    each audit. All estimators use the same observations.
  """
  rng = np.random.default_rng(settings.seed)
  mechanism = estimates.make_step_mechanism()
  drawn = [draw(rng, max(nums)) for _ in range(settings.audits)]
  observed, unobserved = (
    np.stack([getattr(scores, kind) for scores in drawn])
    for kind in ('observed', 'unobserved')
  )
  epsilon: dict[int, dict[str, np.ndarray]] = {num: {} for num in nums}
  for num in nums:
    scores = Scores(observed[:, :num], unobserved[:, :num])
    for key in audits.STYLES:
      estimate = estimates.estimate_run(
        scores,
        key,
        mechanism=mechanism,
        delta=settings.delta,
        thresholds='same'
        if choice == 'same'
        # The best of those that are valid.
        else estimates.ESTIMATORS[key].thresholds[-1],
      )
      epsilon[num][key] = np.asarray(estimate.epsilon)
  return epsilon


def make_clipping(settings: Any) -> item.Product:
  """Violation 1: the mean is clipped, not the gradients."""
  return _make_hunt(
    'clipping_bug',
    {
      name: functools.partial(simulated_steps.draw_step_observations, step=step)
      for name, step in (
        ('clipping after averaging', simulated_steps.clip_mean),
        ('correct code', simulated_steps.clip_each),
      )
    },
    settings,
    [
      'The paper, of a trained model: Figure 7: f-DP shows ε > 35, and the others '
      'less than 10.',
      _BATCH_NOTE,
    ],
  )


def make_seeds(settings: Any) -> item.Product:
  """Violation 2: noise from 100 seeds."""
  return _make_hunt(
    'seeds_bug',
    {
      'noise from 100 seeds': simulated_steps.draw_few_seeds,
      'correct code': _draw_gaussian,
    },
    settings,
    [
      'The paper, of a trained model: Figure 8: f-DP and Katz find the bug, and '
      '(ε, δ)-DP by Clopper-Pearson or ZB does not.',
      'Each audit has 100 other noises. Its true ε is infinite: an output can come about '
      'with the canary or without it, never with both.',
      _BATCH_NOTE,
    ],
  )


def make_scale(settings: Any) -> item.Product:
  """Violation 3, Figure 9: noise that is too small."""
  all_tables = []
  fig, panels = style.make_panels(2 * len(_CHOICES), columns=2, height=4.0)
  for row, (choice, explained) in enumerate(_CHOICES.items()):
    at_num, by_num = {}, {}
    for truth in tqdm.tqdm(settings.epsilons, desc=choice, unit='noise'):
      sigma = 1 / tradeoff.mu_of_epsilon(truth, settings.delta)
      draw = functools.partial(_draw_gaussian, noise_multiplier=sigma)
      nums = settings.nums if truth == settings.shown else [settings.num]
      found = run_audits(draw, nums, choice=choice, settings=settings)
      at_num[truth] = found[settings.num]
      if truth == settings.shown:
        by_num = found
    notes = [explained, *_explain(settings), _BATCH_NOTE]
    all_tables += [
      _tabulate(
        f'Lower limit of ε by true ε, {settings.num:,} observations: '
        f'{choice} thresholds',
        'true ε',
        {f'{truth:g}': line for truth, line in at_num.items()},
        settings,
        [
          *notes,
          'The paper: section 6.3, Figure 9: f-DP detects a true ε of 1.57, and the '
          'others not even 2.17.',
          _state_detection(at_num, settings),
        ],
      ),
      _tabulate(
        f'True ε = {settings.shown:g}: {choice} thresholds',
        'observations',
        {f'{num:,}': line for num, line in by_num.items()},
        settings,
        notes,
      ),
    ]
    left, right = panels[2 * row : 2 * row + 2]
    _draw_lines(left, at_num, settings.claimed)
    left.plot(settings.epsilons, settings.epsilons, color=style.GREY, zorder=0)
    left.set(xlabel='true ε', title=f'{settings.num:,} observations, {choice}')
    _draw_lines(right, by_num, settings.claimed)
    right.axhline(settings.shown, color=style.GREY, label='true ε')
    right.set(xlabel='observations', xscale='log')
    right.set_title(f'true ε = {settings.shown:g}, {choice}')
  style.draw_legend(fig, panels)
  return item.Product(all_tables, {'scale_bug': fig})


def _state_detection(
  at_num: Mapping[float, Mapping[str, np.ndarray]], settings: Any
) -> str:
  """How often estimators without f-DP exceed the claim at the largest true ε."""
  truth = max(at_num)
  shares = [
    np.mean(epsilon > settings.claimed)
    for key, epsilon in at_num[truth].items()
    if not key.startswith('f_dp')
  ]
  return (
    f'Here the others detect {truth:g} in {min(shares):.0%} to {max(shares):.0%} of '
    'audits.'
  )


def _make_hunt(
  name: str,
  draws: Mapping[str, Callable[..., Scores]],
  settings: Any,
  notes: Sequence[str],
) -> item.Product:
  """A table and panel of each mechanism, for both choices of thresholds."""
  sigma = 1 / tradeoff.mu_of_epsilon(settings.claimed, settings.delta)
  all_tables = []
  fig, panels = style.make_panels(
    len(draws) * len(_CHOICES), columns=len(draws), height=3.8
  )
  cases = [(c, d) for c in _CHOICES for d in draws]
  for (choice, title), axes in zip(tqdm.tqdm(cases, unit='case'), panels):
    draw = functools.partial(draws[title], noise_multiplier=sigma)
    lines = run_audits(draw, settings.nums, choice=choice, settings=settings)
    all_tables.append(
      _tabulate(
        f'{title[0].upper()}{title[1:]}: {choice} thresholds',
        'observations',
        {f'{num:,}': line for num, line in lines.items()},
        settings,
        [_CHOICES[choice], *_explain(settings), *notes],
      )
    )
    _draw_lines(axes, lines, settings.claimed)
    axes.set(xscale='log', xlabel='observations', title=f'{title}, {choice}')
  style.draw_legend(fig, panels)
  return item.Product(all_tables, {name: fig})


def _explain(settings: Any) -> list[str]:
  return [
    f'Median of {settings.audits} audits, and in brackets the share of audits that '
    f'exceed the claimed ε = {settings.claimed:g} at δ = {settings.delta:g}; one '
    'step, q_c = 1.',
    _APPROXIMATE,
  ]


def _tabulate(
  title: str,
  first: str,
  lines: Mapping[str, Mapping[str, np.ndarray]],
  settings: Any,
  notes: Sequence[str],
) -> tables.Table:
  def format_cell(epsilon: np.ndarray) -> str:
    share = np.mean(epsilon > settings.claimed)
    return f'{cells.format_number(float(np.median(epsilon)))} ({share:.0%})'

  return tables.Table(
    title,
    [first, *map(audits.name_estimator, audits.STYLES)],
    [[name, *map(format_cell, line.values())] for name, line in lines.items()],
    notes,
  )


def _draw_lines(
  axes: mpl_axes.Axes,
  lines: Mapping[Any, Mapping[str, np.ndarray]],
  claimed: float,
) -> None:
  for key, plot_style in audits.STYLES.items():
    values = [line[key] for line in lines.values()]
    low, middle, high = (
      np.array([np.quantile(v, q) for v in values]) for q in (0.1, 0.5, 0.9)
    )
    x = list(lines)
    label = audits.name_estimator(key)
    axes.plot(x, middle, ms=4, lw=1.5, label=label, **plot_style)
    axes.fill_between(x, low, high, color=plot_style['color'], alpha=0.12, lw=0)
  axes.axhline(claimed, color=style.BLACK, ls='--', lw=1.5, label='claimed ε')
  axes.set_ylabel('lower limit of ε, median and 10-90 %')


def _draw_gaussian(
  rng: np.random.Generator, num: int, *, noise_multiplier: float
) -> Scores:
  return simulated_steps.draw_observations(
    rng, (num,), noise_multiplier=noise_multiplier
  )


def _choose_hunt(size: int) -> dict[str, Any]:
  return dict(
    claimed=1.27,
    audits=(3, 20, 50)[size],
    # 2,500 steps are those of the paper's WRN-16, 20,000 those of its ConvNet.
    nums=(
      (100, 1000),
      (250, 1000, 2500, 5000),
      (250, 500, 1000, 2500, 5000, 10_000, 20_000),
    )[size],
  )


ITEMS = {
  **simulate(
    'clipping_bug',
    'Bug: clipping after averaging',
    'section 6.3, Figure 7, without a model',
    _choose_hunt,
    make_clipping,
  ),
  **simulate(
    'seeds_bug',
    'Bug: noise from 100 seeds',
    'section 6.3, Figure 8, without a model',
    _choose_hunt,
    make_seeds,
  ),
  **simulate(
    'scale_bug',
    'Bug: noise that is too small',
    'section 6.3, Figure 9, without a model',
    lambda size: (
      _choose_hunt(size)
      | dict(
        epsilons=tuple(round(1.27 + 0.1 * i, 2) for i in range(10))
        if size
        else (1.27, 1.57),
        shown=1.57,
        num=2500 if size else 1000,
      )
    ),
    make_scale,
  ),
}
