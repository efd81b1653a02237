"""Tables and figures of white-box games on trained models."""

from collections.abc import Callable, Sequence
import operator

import numpy as np

from epe_jax.report import cells, tables
from epe_jax.report.figures import style
from papers import item, reported
from papers.tight_auditing import audits
from papers.tight_auditing.audits import AuditedTraining, Choice

_REPORTED = reported.Reported('papers.tight_auditing')
# In figure 17.
_FIRST_STEPS = (Choice('f_dp_cp', 'band'), Choice('f_dp_zb', 'same'))
_SHARES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
# In the table of figure 10, and in its panels: those of the paper.
_TABLE_10 = (
  Choice('f_dp_cp', 'same'),
  Choice('f_dp_cp', 'band'),
  Choice('f_dp_zb', 'same'),
)
_PANELS_10 = (_TABLE_10[0], _TABLE_10[2])
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
# Title of a workload -> its column in the paper's Table 1.
_COLUMNS = {
  'CIFAR-10 WRN-16': 'cifar10_wrn16',
  'CIFAR-10 ConvNet': 'cifar10_convnet',
  'Purchase-100': 'purchase',
  'Random WRN-16': 'random_wrn16',
}

MakeFromGames = Callable[[Sequence[AuditedTraining]], item.Product]


def make_table1(games: Sequence[AuditedTraining]) -> item.Product:
  """All audits at all ε, with the numbers of the paper; and Figure 6's.

  Args:
    games: of each workload at each ε.
  """
  by_place = {(g.title, g.epsilon): g for g in games}
  titles = list(dict.fromkeys(g.title for g in games))
  epsilons = list(dict.fromkeys(g.epsilon for g in games))
  body = [
    [
      audits.name_estimator(choice.estimator),
      choice.thresholds,
      f'{epsilon:g}',
      *(
        _format_with_paper(by_place[title, epsilon], choice) for title in titles
      ),
    ]
    for choice in audits.CHOICES
    for epsilon in epsilons
  ]
  brackets = (
    'In brackets the figures of the paper, of its models, data and steps.'
  )
  has_paper = any('(' in cell for row in body for cell in row[3:])
  table = tables.Table(
    'Lower limits of ε of trained models, white box',
    ['audit', 'thresholds', 'analytic ε', *titles],
    body,
    [*[brackets] * has_paper, audits.THRESHOLDS, *_describe(games)],
  )
  fig, panels = style.make_panels(len(titles), columns=3, height=4.0)
  for axes, title in zip(panels, titles):
    lines = {g.epsilon: g for g in games if g.title == title}
    for choice in audits.CHOICES:
      values = [game.estimate(choice) for game in lines.values()]
      axes.plot(list(lines), values, label=choice.label, **choice.plot_style)
    axes.plot(
      epsilons, epsilons, color=style.BLACK, ls='--', label='analytic ε'
    )
    axes.set(xlabel='analytic ε', ylabel='lower limit of ε', title=title)
    axes.set(xscale='log', yscale='symlog')
  style.draw_legend(fig, panels)
  return item.Product([table, _tabulate_games(games)], {'table1': fig})


def make_convnet(games: Sequence[AuditedTraining]) -> item.Product:
  """The accuracy of a private model, and its audit."""
  audit, accuracy = make_table1(games).tables
  return item.Product([accuracy, audit], {})


def make_figure6(games: Sequence[AuditedTraining]) -> item.Product:
  """All audits at ε = 8, or at the largest ε below it.

  Args:
    games: as for `make_table1`.
  """
  epsilon = max(
    (g.epsilon for g in games if g.epsilon <= 8), default=games[0].epsilon
  )
  compare = compare_games(
    'figure6',
    'Audits of trained models, analytic ε = {epsilon:g}',
    'model',
    'The paper: f-DP gives the largest lower limits at ε = 8, on CIFAR-10.',
    by='title',
  )
  return compare([g for g in games if g.epsilon == epsilon])


def compare_games(
  name: str, title: str, head: str, *notes: str, by: str = 'kind'
) -> MakeFromGames:
  """Makes a row and a column of marks for each of several games at one ε.

  Args:
    name: of the figure.
    title: of the table, in which {epsilon} stands for the ε of the games.
    head: of its first column.
    *notes: below the table.
    by: field of the games that differs.
  """

  def make(games: Sequence[AuditedTraining]) -> item.Product:
    compared = audits.compare(
      title.format(epsilon=games[0].epsilon),
      head,
      dict(zip(map(operator.attrgetter(by), games), games)),
      name,
      [*notes, audits.THRESHOLDS, *_describe(games)],
    )
    return compared._replace(tables=[*compared.tables, _tabulate_games(games)])

  return make


make_figure15 = compare_games(
  'figure15',
  'Canary gradients, analytic ε = {epsilon:g}',
  'canary gradient',
  'One game of each kind: they differ by chance, too.',
)
make_figure16 = compare_games(
  'figure16',
  'Canary inputs, analytic ε = {epsilon:g}',
  'canary input',
  'An input whose gradient is shorter than the clip norm, or not orthogonal '
  'to the others, shows less than the mechanism may.',
  'The paper: inputs crafted by Algorithm 3 give tighter limits than others.',
)
make_figure18 = compare_games(
  'figure18',
  'Depth of the model, analytic ε = {epsilon:g}',
  'model',
  'One game of each model: they differ by chance, too.',
  'The paper: by f-DP, WRN-40 leaks slightly more than WRN-16.',
  by='title',
)
make_figure19 = compare_games(
  'figure19',
  'Augmentations of each image, analytic ε = {epsilon:g}',
  'augmentations',
  'Gradients of the K augmentations of an image are averaged, and clipped then.',
  'One game of each K: they differ by chance, too.',
  'The paper: no clear trend.',
)
# Figures 7, 8 and 9 on real steps.
make_bugs = compare_games(
  'trained_bugs',
  'Bugs in the steps of a training that claims ε = {epsilon:g}',
  'steps',
  'One training of each: whether an audit exceeds the claim is chance where '
  'its ε is near it.',
  'f-DP (CP) with a band is a 95 % lower bound for Gaussian steps; above the '
  'claim it says that the claim is false, and not what ε is.',
  'The paper: clipping the mean shows ε > 35 by f-DP and less than 10 by the '
  'others; noise from 100 seeds is found by f-DP and Katz.',
)


def make_figure10(games: Sequence[AuditedTraining]) -> item.Product:
  """Crafted inputs at several ε, in the first steps of a run.

  Args:
    games: of each workload at each ε.
  """
  steps = games[0].scores.observed.size
  table = tables.Table(
    f'ε of a run from its first {steps:,} steps, canary inputs: {games[0].kind}',
    ['model', 'analytic ε', *(choice.label for choice in _TABLE_10)],
    [
      [
        game.title,
        f'{game.epsilon:g}',
        *(cells.format_number(game.estimate(choice)) for choice in _TABLE_10),
      ]
      for game in games
    ],
    [
      'What the first steps show is composed to all steps of the run, as if the '
      'others leaked as much. Only the first are played.',
      'One game at each ε, with a canary and noise of its own: they differ by '
      'chance, too.',
      'The paper: tight for ε < 10, and far below on the ConvNet; its figure '
      'states no numbers.',
      audits.THRESHOLDS,
      *_describe(games),
    ],
  )
  fig, panels = style.make_panels(2, columns=2, height=4.0)
  for axes, choice in zip(panels, _PANELS_10):
    for title, color in zip(dict.fromkeys(g.title for g in games), _COLORS):
      lines = {g.epsilon: g for g in games if g.title == title}
      values = [game.estimate(choice) for game in lines.values()]
      axes.plot(list(lines), values, 'o-', color=color, label=title)
    ends = sorted({g.epsilon for g in games})
    axes.plot(ends, ends, color=style.BLACK, ls='--', label='analytic ε')
    axes.set(xlabel='analytic ε', ylabel='lower limit of ε')
    axes.set_title(choice.label)
  style.draw_legend(fig, panels)
  return item.Product([table, _tabulate_games(games)], {'figure10': fig})


def make_figure17(games: Sequence[AuditedTraining]) -> item.Product:
  """ε from the first n steps, as that of the whole run.

  Args:
    games: of each kind of canary.
  """
  total = games[0].scores.observed.size
  nums = sorted({max(1, round(total * share)) for share in _SHARES})
  lines = {
    (game.kind, choice): [game.estimate(choice, first=n) for n in nums]
    for game in games
    for choice in _FIRST_STEPS
  }
  table = tables.Table(
    f'ε of the run from its first steps, analytic ε = {games[0].epsilon:g}',
    ['canary input', 'audit', 'thresholds', *(f'{n:,}' for n in nums)],
    [
      [
        kind,
        audits.name_estimator(choice.estimator),
        choice.thresholds,
        *map(cells.format_number, values),
      ]
      for (kind, choice), values in lines.items()
    ],
    [
      'What the first steps show is composed to all steps of the run, as if the '
      'others leaked as much.',
      audits.THRESHOLDS,
      *_describe(games),
    ],
  )
  fig, panels = style.make_panels(2, columns=2, height=4.0)
  analytic = games[0].analytic
  for axes, choice in zip(panels, _FIRST_STEPS):
    axes.set_title(choice.label)
    for game, color in zip(games, _COLORS):
      values = lines[game.kind, choice]
      axes.plot(nums, values, 'o-', color=color, label=game.kind)
    axes.plot(
      nums, [analytic] * len(nums), **style.style_analytic_line(analytic)
    )
    axes.set(xscale='log', xlabel='first steps')
    axes.set_ylabel('lower limit of ε')
  style.draw_legend(fig, panels)
  return item.Product([table], {'figure17': fig})


def _format_with_paper(game: AuditedTraining, choice: Choice) -> str:
  """A lower limit, followed by the paper's in brackets if it has one."""
  text = f'{game.estimate(choice):.2f}'
  row = _REPORTED.find_row(f'table1_{choice.estimator}', epsilon=game.epsilon)
  column = _COLUMNS.get(game.title.partition(',')[0], '')
  if row is None or choice.thresholds != 'same' or column not in row:
    return text
  return f'{text} ({row[column]:.2f})'


def _tabulate_games(games: Sequence[AuditedTraining]) -> tables.Table:
  """What was trained, and whether scores follow their law."""
  body = []
  for game in games:
    sigma = game.noise_multiplier
    moments = [
      f'{np.mean(x):.3f} ± {np.std(x, ddof=1) / sigma:.3f} σ'
      for x in (game.scores.unobserved, game.scores.observed)
    ]
    body.append(
      [
        game.title,
        game.kind,
        f'{game.analytic:.3f}',
        f'{sigma:.3f}',
        f'{game.accuracy:.1%}',
        f'{game.majority:.1%}',
        *moments,
        f'{game.signal:.2f}',
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


def _describe(games: Sequence[AuditedTraining]) -> list[str]:
  return [
    *audits.describe(games),
    'The noise is that at which dp_accounting gives the analytic ε.',
  ]
