"""Tables and figures of white-box games on trained models."""

from collections.abc import Mapping, Sequence

import numpy as np

from epe_jax.dpsgd import estimates
from epe_jax.papers import item, reported
from epe_jax.papers.tight_auditing import estimator_table
from epe_jax.papers.tight_auditing.played_game import (
  PlayedGame,
  estimate_epsilon,
)
from epe_jax.report.figures import style
from epe_jax.text import cells, tables

_REPORTED = reported.Reported('epe_jax.papers.tight_auditing')
# Of the steps that figure 17 reads.
_FIRST_STEPS: tuple[tuple[str, estimates.Thresholds], ...] = (
  ('f_dp_cp', 'band'),
  ('f_dp_zb', 'same'),
)
_IN_FIGURE_10: tuple[tuple[str, estimates.Thresholds], ...] = (
  ('f_dp_cp', 'same'),
  ('f_dp_cp', 'band'),
  ('f_dp_zb', 'same'),
)
_SHARES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_COLORS = (
  style.VERMILLION,
  style.BLUE,
  style.GREEN,
  style.ORANGE,
  style.SKY,
)
_LAW = (
  'Mean and standard deviation of observations in units of the clip norm and of '
  'the claimed noise. By the law of the game they are 0 and 1 without the canary, '
  'and s and 1 with it, where s is the norm of the clipped canary; what else there '
  'is comes from the gradients of the other examples.'
)


def make_table1(games: Sequence[PlayedGame]) -> item.Product:
  """All audits at all ε, with the numbers of the paper; and Figure 6's.

  Args:
    games: of `train_table1`.
  """
  titles = list(dict.fromkeys(g.title for g in games))
  epsilons = list(dict.fromkeys(g.epsilon for g in games))
  body = []
  for key, thresholds in estimator_table.LOOKS:
    for epsilon in epsilons:
      row = [estimates.ESTIMATORS[key].label, thresholds, f'{epsilon:g}']
      paper = _REPORTED.find_row(f'table1_{key}', epsilon=epsilon)
      for title in titles:
        (game,) = [g for g in games if (g.title, g.epsilon) == (title, epsilon)]
        text = f'{estimate_epsilon(game, key, thresholds):.2f}'
        column = _find_column(title)
        if paper is not None and thresholds == 'same' and column in paper:
          text += f' ({paper[column]:.2f})'
        row.append(text)
      body.append(row)
  audits = tables.Table(
    'Lower limits of ε of trained models, white box',
    ['audit', 'thresholds', 'analytic ε', *titles],
    body,
    [*_explain_brackets(body), estimator_table.THRESHOLDS, *_describe(games)],
  )
  fig, panels = style.make_panels(len(titles), columns=3, height=4.0)
  for axes, title in zip(panels, titles):
    lines = {g.epsilon: g for g in games if g.title == title}
    for (key, thresholds), look in estimator_table.LOOKS.items():
      values = [estimate_epsilon(g, key, thresholds) for g in lines.values()]
      axes.plot(
        list(lines),
        values,
        label=estimator_table.label(key, thresholds),
        **look,
      )
    axes.plot(
      epsilons, epsilons, color=style.BLACK, ls='--', label='analytic ε'
    )
    axes.set(xlabel='analytic ε', ylabel='lower limit of ε', title=title)
    axes.set(xscale='log', yscale='symlog')
  style.draw_legend(fig, panels)
  return item.Product([audits, _tabulate_runs(games)], {'table1': fig})


def make_figure6(games: Sequence[PlayedGame]) -> item.Product:
  """All audits at ε = 8, or at the largest ε below it.

  Args:
    games: of `train_table1`.
  """
  epsilon = max(
    (g.epsilon for g in games if g.epsilon <= 8), default=games[0].epsilon
  )
  chosen = {g.title: g for g in games if g.epsilon == epsilon}
  return _compare(
    f'Audits of trained models, analytic ε = {epsilon:g}',
    'model',
    chosen,
    'figure6',
    ['The paper: f-DP gives the largest lower limits at ε = 8, on CIFAR-10.'],
  )


def make_convnet(games: Sequence[PlayedGame]) -> item.Product:
  """The accuracy of a private model, and its audit.

  Args:
    games: of `train_table1`.
  """
  made = make_table1(games)
  return item.Product([made.tables[1], made.tables[0]], {})


def make_gradient_canaries(games: Sequence[PlayedGame]) -> item.Product:
  """Figure 15: kinds of canary gradients.

  Args:
    games: of `train_canaries`.
  """
  return _compare(
    f'Canary gradients, analytic ε = {games[0].epsilon:g}',
    'canary gradient',
    {g.kind: g for g in games},
    'figure15',
    ['One game of each kind: they differ by chance, too.'],
  )


def make_input_canaries(games: Sequence[PlayedGame]) -> item.Product:
  """Figure 16: kinds of canary inputs.

  Args:
    games: of `train_canaries`.
  """
  return _compare(
    f'Canary inputs, analytic ε = {games[0].epsilon:g}',
    'canary input',
    {g.kind: g for g in games},
    'figure16',
    [
      'An input whose gradient is shorter than the clip norm, or not orthogonal '
      'to the others, shows less than the mechanism may.',
      'The paper: inputs crafted by Algorithm 3 give tighter limits than others.',
    ],
  )


def make_figure10(games: Sequence[PlayedGame]) -> item.Product:
  """Crafted inputs at several ε, in the first steps of a run.

  Args:
    games: of `train_table1`.
  """
  body = []
  for game in games:
    values = [estimate_epsilon(game, *which) for which in _IN_FIGURE_10]
    body.append(
      [game.title, f'{game.epsilon:g}', *map(cells.format_number, values)]
    )
  table = tables.Table(
    f'ε of a run from its first {games[0].observations.num_steps:,} steps, '
    f'canary inputs: {games[0].kind}',
    [
      'model',
      'analytic ε',
      *(estimator_table.label(*which) for which in _IN_FIGURE_10),
    ],
    body,
    [
      'What the first steps show is composed to all steps of the run, as if the '
      'others leaked as much. Only the first are played.',
      'One game at each ε, with a canary and noise of its own: they differ by '
      'chance, too.',
      'The paper: tight for ε < 10, and far below on the ConvNet; its figure '
      'states no numbers.',
      estimator_table.THRESHOLDS,
      *_describe(games),
    ],
  )
  fig, panels = style.make_panels(2, columns=2, height=4.0)
  # The thresholds of the paper.
  for axes, which in zip(panels, (_IN_FIGURE_10[0], _IN_FIGURE_10[2])):
    for title, color in zip(dict.fromkeys(g.title for g in games), _COLORS):
      lines = {g.epsilon: g for g in games if g.title == title}
      values = [estimate_epsilon(g, *which) for g in lines.values()]
      axes.plot(list(lines), values, 'o-', color=color, label=title)
    ends = sorted({g.epsilon for g in games})
    axes.plot(ends, ends, color=style.BLACK, ls='--', label='analytic ε')
    axes.set(xlabel='analytic ε', ylabel='lower limit of ε')
    axes.set_title(estimator_table.label(*which))
  style.draw_legend(fig, panels)
  return item.Product([table, _tabulate_runs(games)], {'figure10': fig})


def make_figure18(games: Sequence[PlayedGame]) -> item.Product:
  """Models of different depths.

  Args:
    games: of `train_table1`, at one ε.
  """
  return _compare(
    f'Depth of the model, analytic ε = {games[0].epsilon:g}',
    'model',
    {g.title: g for g in games},
    'figure18',
    [
      'One game of each model: they differ by chance, too.',
      'The paper: by f-DP, WRN-40 leaks slightly more than WRN-16.',
    ],
  )


def make_figure19(games: Sequence[PlayedGame]) -> item.Product:
  """Numbers of augmentations of each example.

  Args:
    games: of `train_augmentations`.
  """
  return _compare(
    f'Augmentations of each image, analytic ε = {games[0].epsilon:g}',
    'augmentations',
    {g.kind: g for g in games},
    'figure19',
    [
      'Gradients of the K augmentations of an image are averaged, and clipped '
      'then.',
      'One game of each K: they differ by chance, too.',
      'The paper: no clear trend.',
    ],
  )


def make_figure17(games: Sequence[PlayedGame]) -> item.Product:
  """ε from the first n steps, as that of the whole run.

  Args:
    games: of `train_canaries`.
  """
  total = games[0].observations.num_steps
  nums = sorted({max(1, round(total * share)) for share in _SHARES})
  body, lines = [], {}
  for game in games:
    for key, thresholds in _FIRST_STEPS:
      lines[game.kind, key] = [
        estimate_epsilon(game, key, thresholds, first=n) for n in nums
      ]
      body.append(
        [
          game.kind,
          estimates.ESTIMATORS[key].label,
          thresholds,
          *(cells.format_number(x) for x in lines[game.kind, key]),
        ]
      )
  table = tables.Table(
    f'ε of the run from its first steps, analytic ε = {games[0].epsilon:g}',
    ['canary input', 'audit', 'thresholds', *(f'{n:,}' for n in nums)],
    body,
    [
      'What the first steps show is composed to all steps of the run, as if the '
      'others leaked as much.',
      estimator_table.THRESHOLDS,
      *_describe(games),
    ],
  )
  fig, panels = style.make_panels(2, columns=2, height=4.0)
  for axes, (key, thresholds) in zip(panels, _FIRST_STEPS):
    axes.set_title(estimator_table.label(key, thresholds))
    for game, color in zip(games, _COLORS):
      axes.plot(nums, lines[game.kind, key], 'o-', color=color, label=game.kind)
    axes.plot(
      nums,
      [games[0].analytic] * len(nums),
      **style.style_analytic_line(games[0].analytic),
    )
    axes.set(xscale='log', xlabel='first steps')
    axes.set_ylabel('lower limit of ε')
  style.draw_legend(fig, panels)
  return item.Product([table], {'figure17': fig})


def make_bugs(games: Sequence[PlayedGame]) -> item.Product:
  """Figures 7, 8 and 9 on real steps: which audits exceed the claimed ε.

  Args:
    games: of `train_bugs`.
  """
  return _compare(
    f'Bugs in the steps of a training that claims ε = {games[0].epsilon:g}',
    'steps',
    {g.kind: g for g in games},
    'trained_bugs',
    [
      'One training of each: whether an audit exceeds the claim is chance where '
      'its ε is near it.',
      'f-DP (CP) with a band is a 95 % lower bound for Gaussian steps; above the '
      'claim it says that the claim is false, and not what ε is.',
      'The paper: clipping the mean shows ε > 35 by f-DP and less than 10 by the '
      'others; noise from 100 seeds is found by f-DP and Katz.',
    ],
  )


def _compare(
  title: str,
  first: str,
  games: Mapping[str, PlayedGame],
  name: str,
  notes: Sequence[str],
) -> item.Product:
  """A row and a column of marks for each game."""
  every = list(games.values())
  compared = estimator_table.compare(
    title,
    first,
    {
      label: {
        which: estimate_epsilon(game, *which) for which in estimator_table.LOOKS
      }
      for label, game in games.items()
    },
    every[0].analytic,
    name,
    [*notes, estimator_table.THRESHOLDS, *_describe(every)],
  )
  return compared._replace(tables=[*compared.tables, _tabulate_runs(every)])


def _tabulate_runs(games: Sequence[PlayedGame]) -> tables.Table:
  """What was trained, and whether observations follow their law."""
  body = []
  for game in games:
    seen = game.observations
    moments = [
      f'{np.mean(x):.3f} ± {np.std(x, ddof=1) / seen.noise_multiplier:.3f} σ'
      for x in (seen.without, seen.with_canary)
    ]
    body.append(
      [
        game.title,
        game.kind,
        f'{game.analytic:.3f}',
        f'{seen.noise_multiplier:.3f}',
        f'{game.accuracy:.1%}',
        f'{game.majority:.1%}',
        *moments,
        f'{np.mean(seen.signal):.2f}',
      ]
    )
  return tables.Table(
    'Trainings and their observations',
    [
      'model',
      'canary or bug',
      'analytic ε',
      'σ',
      'accuracy',
      'majority class',
      'without canary',
      'with canary',
      's',
    ],
    body,
    [
      _LAW,
      'Accuracy on test examples, and the share of their most frequent class.',
      *_describe(games),
    ],
  )


def _describe(games: Sequence[PlayedGame]) -> list[str]:
  """Sizes and data of the games."""
  sizes = {}
  for game in games:
    seen = game.observations
    sizes[game.title] = (
      f'{game.title}: {game.dim:,} parameters; {seen.num_steps:,} steps, as many '
      f'observations of either kind; q = {seen.sampling_rate:.4g}, '
      f'q_c = {seen.canary_rate:g}, δ = {game.delta:g}. Data: {game.source}.'
    )
  return [
    *sizes.values(),
    'The noise is that at which dp_accounting gives the analytic ε.',
  ]


def _explain_brackets(body: Sequence[Sequence[str]]) -> list[str]:
  note = 'In brackets the figures of the paper, of its models, data and steps.'
  return [note] if any('(' in x for row in body for x in row[3:]) else []


def _find_column(title: str) -> str:
  """The column of the paper's Table 1 for a title of ours, if it has one."""
  return {
    'CIFAR-10 WRN-16': 'cifar10_wrn16',
    'CIFAR-10 ConvNet': 'cifar10_convnet',
    'Purchase-100': 'purchase',
    'Random WRN-16': 'random_wrn16',
  }.get(title.partition(',')[0], '')
