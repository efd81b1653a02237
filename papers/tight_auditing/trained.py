"""Items of audited trainings: white-box games in their steps, and black-box models."""

from collections.abc import Callable, Mapping, Sequence
import math
import operator
import pathlib
from typing import Any

import numpy as np

from epe_jax import extras
from epe_jax.epsilon.types import Scores
from epe_jax.report import cells, tables
from epe_jax.report.figures import style
from papers import grid, item, plots, reported
from papers.plots import Line
from papers.tight_auditing import audits
from papers.tight_auditing.audits import AuditedTraining, Choice
from papers.tight_auditing.simulated import COMMON

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
_BLACK_BOX = Choice('f_dp_zb', 'same')
_CURVES = [c for c in audits.CHOICES if c.estimator.startswith('f_')]
_ANALYTIC = 'analytic ε'
# Title of a workload -> its column in the paper's Table 1.
_COLUMNS = {
  'CIFAR-10 WRN-16': 'cifar10_wrn16',
  'CIFAR-10 ConvNet': 'cifar10_convnet',
  'Purchase-100': 'purchase',
  'Random WRN-16': 'random_wrn16',
}

Make = Callable[[Sequence[AuditedTraining]], item.Product]


# White box.


def make_table1(games: Sequence[AuditedTraining]) -> item.Product:
  """All audits of each workload at each ε, with the numbers of the paper."""
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
  brackets = 'In brackets the figures of the paper, Table 1, of its models, data and steps.'
  has_paper = any('(' in cell for row in body for cell in row[3:])
  table = tables.Table(
    'Lower limits of ε of trained models, white box',
    ['audit', 'thresholds', _ANALYTIC, *titles],
    body,
    [*[brackets] * has_paper, audits.THRESHOLDS, *_describe(games)],
  )
  diagonal = {
    _ANALYTIC: Line(epsilons, epsilons, dict(color=style.BLACK, ls='--'))
  }
  fig = plots.draw_lines(
    {
      title: {
        choice.label: _draw_epsilon(
          [g for g in games if g.title == title], choice, choice.plot_style
        )
        for choice in audits.CHOICES
      }
      | diagonal
      for title in titles
    },
    columns=3,
    xlabel=_ANALYTIC,
    ylabel='lower limit of ε',
    xscale='log',
    yscale='symlog',
  )
  return item.Product([table, _tabulate_games(games)], {'table1': fig})


def _draw_epsilon(
  games: Sequence[AuditedTraining],
  choice: Choice,
  plot_style: Mapping[str, Any],
) -> Line:
  """The lower limit over the analytic ε."""
  by_epsilon = {game.epsilon: game.estimate(choice) for game in games}
  return Line(list(by_epsilon), list(by_epsilon.values()), plot_style)


def _format_with_paper(game: AuditedTraining, choice: Choice) -> str:
  """A lower limit, followed by the paper's in brackets if it has one."""
  text = f'{game.estimate(choice):.2f}'
  row = _REPORTED.find_row(f'table1_{choice.estimator}', epsilon=game.epsilon)
  column = _COLUMNS.get(game.title.partition(',')[0], '')
  if row is None or choice.thresholds != 'same' or column not in row:
    return text
  return f'{text} ({row[column]:.2f})'


def make_convnet(games: Sequence[AuditedTraining]) -> item.Product:
  """The accuracy of a private model, and its audit."""
  audit, accuracy = make_table1(games).tables
  return item.Product([accuracy, audit])


def make_figure6(games: Sequence[AuditedTraining]) -> item.Product:
  """All audits at ε = 8, or at the largest ε below it."""
  epsilon = max(
    (g.epsilon for g in games if g.epsilon <= 8), default=games[0].epsilon
  )
  compare = compare_games(
    'figure6',
    'Audits of trained models, analytic ε = {epsilon:g}',
    'model',
    'The paper: section 6.2, Figure 6: f-DP gives the largest lower limits at ε = 8, '
    'on CIFAR-10.',
    by='title',
  )
  return compare([g for g in games if g.epsilon == epsilon])


def compare_games(
  name: str, title: str, head: str, *notes: str, by: str = 'kind'
) -> Make:
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
  'The paper: appendix C.2, Figure 15: a Dirac gradient slightly outperforms others, '
  'and one that is drawn anew in each step is best, by little.',
)
make_figure16 = compare_games(
  'figure16',
  'Canary inputs, analytic ε = {epsilon:g}',
  'canary input',
  'An input whose gradient is shorter than the clip norm, or not orthogonal '
  'to the others, shows less than the mechanism may.',
  'The paper: appendix C.3: inputs crafted by Algorithm 3 give tighter limits than '
  'others.',
)
make_figure18 = compare_games(
  'figure18',
  'Depth of the model, analytic ε = {epsilon:g}',
  'model',
  'One game of each model: they differ by chance, too.',
  'The paper: appendix D.2: by f-DP, WRN-40 leaks slightly more than WRN-16.',
  by='title',
)
make_figure19 = compare_games(
  'figure19',
  'Augmentations of each image, analytic ε = {epsilon:g}',
  'augmentations',
  'Gradients of the K augmentations of an image are averaged, and clipped then.',
  'One game of each K: they differ by chance, too.',
  'The paper: appendix D.3: no clear trend.',
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
  'The paper, of one step: Figures 7, 8 and 9: clipping the mean shows ε > 35 by f-DP '
  'and less than 10 by the others; noise from 100 seeds is found by f-DP and Katz; '
  'noise of a true ε of 1.57 by f-DP alone.',
)


def make_figure10(games: Sequence[AuditedTraining]) -> item.Product:
  """Crafted inputs at several ε, in the first steps of a run."""
  steps = games[0].scores.observed.size
  table = tables.Table(
    f'ε of a run from its first {steps:,} steps, canary inputs: {games[0].kind}',
    ['model', _ANALYTIC, *(choice.label for choice in _TABLE_10)],
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
      'The paper: section 6.4: tight for ε < 10, and far below on the ConvNet; '
      'Figure 10 states no numbers.',
      audits.THRESHOLDS,
      *_describe(games),
    ],
  )
  ends = sorted({g.epsilon for g in games})
  diagonal = {_ANALYTIC: Line(ends, ends, dict(color=style.BLACK, ls='--'))}
  titles = dict.fromkeys(g.title for g in games)
  fig = plots.draw_lines(
    {
      choice.label: {
        title: _draw_epsilon(
          [g for g in games if g.title == title],
          choice,
          dict(color=color, ls='-', marker='o'),
        )
        for title, color in zip(titles, plots.COLORS)
      }
      | diagonal
      for choice in _PANELS_10
    },
    xlabel=_ANALYTIC,
    ylabel='lower limit of ε',
  )
  return item.Product([table, _tabulate_games(games)], {'figure10': fig})


def make_figure17(games: Sequence[AuditedTraining]) -> item.Product:
  """ε of each kind of canary from the first n steps, as that of the whole run."""
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
      'The paper: appendix D.1: on CIFAR-10 the first steps leak more than later '
      'ones, and on random data they do not.',
      audits.THRESHOLDS,
      *_describe(games),
    ],
  )
  analytic = games[0].analytic
  options = style.style_analytic_line(analytic)
  flat = {options.pop('label'): Line(nums, [analytic] * len(nums), options)}
  fig = plots.draw_lines(
    {
      choice.label: {
        game.kind: Line(
          nums,
          lines[game.kind, choice],
          dict(color=color, ls='-', marker='o'),
        )
        for game, color in zip(games, plots.COLORS)
      }
      | flat
      for choice in _FIRST_STEPS
    },
    xscale='log',
    xlabel='first steps',
    ylabel='lower limit of ε',
  )
  return item.Product([table], {'figure17': fig})


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
    ['model', 'canary or bug', _ANALYTIC, 'σ', *_OF_TRAINING, 's'],
    body,
    [
      'Mean and standard deviation of observations in units of the clip norm and '
      'of the claimed noise. By the law of the game they are 0 and 1 without the '
      'canary, and s and 1 with it, where s is the norm of the clipped canary; what '
      'else there is comes from the gradients of the other examples.',
      'Accuracy on test examples, and the share of their most frequent class.',
      *_describe(games),
      *_warn_of_models(games),
    ],
  )


def _warn_of_models(games: Sequence[AuditedTraining]) -> list[str]:
  """A caution if models learnt nothing."""
  failed = dict.fromkeys(
    f'{g.title}, {g.kind} ({g.accuracy:.1%})'
    for g in games
    if g.accuracy <= item.LEARNT * g.majority
  )
  if not failed:
    return []
  return [
    f'{item.CAUTION}no better than the majority class is {"; ".join(failed)}. '
    'It did not learn.'
  ]


_OF_TRAINING = ('accuracy', 'majority class', 'without canary', 'with canary')


def _describe(games: Sequence[AuditedTraining]) -> list[str]:
  return [
    *audits.describe(games),
    'The noise is that at which dp_accounting gives the analytic ε.',
  ]


# Black box.


def make_figure11(audited: Sequence[AuditedTraining]) -> item.Product:
  """Models whose gradients are clipped, without noise."""
  compared = audits.compare(
    'Clipping without noise, black box',
    'clip norm and canary',
    {f'C = {a.clip_norm:g}, {a.kind}': a for a in audited},
    'figure11',
    [
      'Without noise there is no analytic ε.',
      'The learning rate is the same for all clip norms, so that models learn '
      'less the smaller C is.',
      'f-DP takes the trade-off curve of a training to be Gaussian; without noise '
      'nobody knows it.',
      *_warn_of_few(audited),
      audits.THRESHOLDS,
      *audits.describe(audited),
    ],
  )
  found = [
    _tabulate_with_paper(audited),
    *compared.tables,
    _tabulate_models(audited),
  ]
  return compared._replace(tables=found)


def make_figure12(audited: Sequence[AuditedTraining]) -> item.Product:
  """Private models, black box."""
  single = len({a.title for a in audited}) == 1
  compared = audits.compare(
    f'Private models, black box, analytic ε = {audited[0].analytic:.3g}',
    'canary' if single else 'model and canary',
    {a.kind if single else f'{a.title}, {a.kind}': a for a in audited},
    'figure12',
    [
      'The paper: section 6.4, Figure 12: about 1.6 by f-DP (ZB) on CIFAR-10 with '
      'WRN-16 and 1,000 models of each kind, less on others, and nothing on random data.',
      *_warn_of_few(audited),
      'f-DP takes the trade-off curve of a training to be that of its steps on '
      'Poisson samples at some noise, by their privacy loss distribution (PLD).',
      audits.THRESHOLDS,
      *audits.describe(audited),
    ],
  )
  curves = tables.Table(
    'f-DP by the trade-off curve of a training',
    ['model', 'canary', 'curve', *(choice.label for choice in _CURVES)],
    [
      [
        a.title,
        a.kind,
        name,
        *(
          cells.format_number(a.estimate(choice, mechanism=mechanism))
          for choice in _CURVES
        ),
      ]
      for a in audited
      for name, mechanism in a.mechanisms.items()
    ],
    [
      'PLD: as many guarantees of the privacy loss distribution as follow its curve. '
      "Algorithm 4, the paper's: ten of them, at evenly spaced δ'.",
      'Gaussian: that of μ-GDP, of which ε is then taken at the same δ. A training '
      'on Poisson samples has another curve, so that this is not a bound.',
    ],
  )
  found = [*compared.tables, curves, _tabulate_models(audited)]
  return compared._replace(tables=found)


def _warn_of_few(audited: Sequence[AuditedTraining]) -> list[str]:
  return grid.warn_of_few(
    audited[0].scores.observed.size, 'models of each kind'
  )


def _tabulate_with_paper(audited: Sequence[AuditedTraining]) -> tables.Table:
  """The larger result of both canaries, and the largest possible one."""
  body = []
  for clip_norm in dict.fromkeys(a.clip_norm for a in audited):
    largest = max(
      a.estimate(_BLACK_BOX) for a in audited if a.clip_norm == clip_norm
    )
    row = _REPORTED.find_row('figure11', clip_norm=clip_norm)
    text = reported.add_reported(largest, row, 'epsilon')
    body.append([f'{clip_norm:g}', text])
  num = len(audited[0].scores.observed)
  separate = Scores(np.arange(num) + float(num), np.arange(float(num)))
  largest = audited[0]._replace(scores=separate).estimate(_BLACK_BOX)
  (row,) = _REPORTED.load_rows('figure11_maximum')
  text = reported.add_reported(largest, row, 'epsilon')
  body.append(['scores that are all separated', text])
  return tables.Table(
    'Clipping without noise: f-DP (ZB), the larger of all canaries',
    ['clip norm C', 'lower limit of ε'],
    body,
    [
      'In brackets the figures of the paper, Figure 11: WRN-16 on CIFAR-10, 1,000 '
      'models with the canary and as many without it.',
      f'Here there are {num:,} of each. The last row is the largest result of so '
      'many models, whatever is trained.',
      'The threshold is chosen on the same scores, as in the paper: it is not a bound.',
    ],
  )


def _tabulate_models(audited: Sequence[AuditedTraining]) -> tables.Table:
  return tables.Table(
    'Models and their scores',
    ['model', 'canary', 'C', 'σ', *_OF_TRAINING],
    [
      [
        a.title,
        a.kind,
        f'{a.clip_norm:g}',
        cells.format_number(a.noise_multiplier),
        f'{a.accuracy:.1%}',
        f'{a.majority:.1%}',
        reported.format_spread(a.scores.unobserved),
        reported.format_spread(a.scores.observed),
      ]
      for a in audited
    ],
    [
      "Mean and standard deviation over models of log(p / (1 - p)) of the canary's "
      'label.',
      'Accuracy on test examples of one model, and the share of their most '
      'frequent class.',
      *audits.describe(audited),
    ],
  )


# Settings. The paper gives steps, batch sizes and models; clip norms and learning
# rates are ours, without its augmentation. At 'small' models and data are smaller, and
# there are as many steps as two cores do in minutes.

_CONVNET: dict[str, Any] = dict(
  title='CIFAR-10 ConvNet',
  data='cifar10',
  num_train=None,
  num_test=None,
  task='convnet',
  model=dict(width=32),
  steps=20_000,
  expected_batch=256.0,
  clip_norm=1.0,
  learning_rate=0.5,
  momentum=0.0,
  microbatch=64,
)
_WRN16 = _CONVNET | dict(
  title='CIFAR-10 WRN-16',
  task='wide_resnet',
  model=dict(depth=16, width=4),
  steps=2500,
  expected_batch=4096.0,
  learning_rate=2.0,
)
# Of random images at 'smoke', and of Fashion-MNIST at 'small'.
_RANDOM: dict[str, Any] = dict(
  title='ConvNet of width 1',
  data='random',
  num_train=200,
  num_test=100,
  model=dict(width=1),
  steps=4,
  expected_batch=4.0,
  microbatch=None,
)
# Few images, so that few steps suffice for ε = 8 at a noise near that of others.
_FEW: dict[str, Any] = dict(
  title='Fashion-MNIST ConvNet, width 8',
  data='fashion_mnist',
  num_train=4000,
  num_test=2000,
  model=dict(width=8),
  steps=300,
  expected_batch=32.0,
  microbatch=None,
)


def _make_purchase(size: int) -> dict[str, Any]:
  return dict(
    title='Purchase-100' + ('' if size == 2 else ', small network'),
    data='purchase100',
    num_train=(400, 10_000, None)[size],
    num_test=(100, 2000, None)[size],
    task='fully_connected',
    model=dict(hidden=((4,), (64, 64), (256, 256))[size]),
    steps=(30, 2500, 2500)[size],
    expected_batch=(8.0, 128.0, 2048.0)[size],
    clip_norm=1.0,
    learning_rate=1.0,
    momentum=0.0,
    microbatch=(None, None, 256)[size],
  )


def _make_works(size: int, few: dict[str, Any] | None = None) -> Any:
  """All models of the paper, or below its size that of Purchase-100, with `few`."""
  purchase = _make_purchase(size)
  if size < 2:
    return dict(purchase=purchase | (few or {}))
  return dict(
    cifar10_wrn16=_WRN16,
    cifar10_convnet=_CONVNET,
    purchase=purchase,
    random_wrn16=_WRN16 | dict(title='Random WRN-16', data='random'),
  )


def _make_one_work(size: int, few: dict[str, Any] | None = None) -> Any:
  return dict(work=next(iter(_make_works(size, few).values())))


def _choose_few(size: int) -> dict[str, Any]:
  """For thousands of models: few and small examples without a GPU."""
  return dict(
    num_train=500 if size else 100,
    num_test=500 if size else 50,
    model=dict(hidden=(32,) if size else (4,)),
    steps=100 if size else 5,
    expected_batch=50.0 if size else 10.0,
  )


def _play_at(
  kind: str, epsilons: Sequence[float], first: int | None = None
) -> tuple[dict[str, Any], ...]:
  """A game with one kind of canary for each ε."""
  return tuple(
    dict(
      name=f'epsilon={epsilon:g}',
      kind=kind,
      epsilon=epsilon,
      first=first,
      # With the same noise all of them would be high or low together.
      seed=i,
    )
    for i, epsilon in enumerate(epsilons)
  )


def _choose_table1(size: int) -> dict[str, Any]:
  epsilons = (1.0, 4.0, 8.0, 16.0) if size else (8.0,)
  return dict(works=_make_works(size), games=_play_at('dirac', epsilons))


def _choose_figure10(size: int) -> dict[str, Any]:
  epsilons = (1.0, 4.0, 8.0, 16.0) if size else (4.0, 8.0)
  # The paper does not say which inputs its figure has.
  games = _play_at('crafted', epsilons, first=250 if size else 10)
  return dict(works=_make_works(size), games=games)


def _choose_kinds(size: int, kinds: Sequence[str]) -> dict[str, Any]:
  """A game at ε = 8 for each kind of canary; at 'smoke' the first and the last."""
  return dict(
    works=_make_one_work(size),
    games=tuple(
      dict(name=kind.replace(' ', '_'), kind=kind, epsilon=8.0)
      for kind in kinds[:: 1 if size else len(kinds) - 1]
    ),
  )


def _choose_convnet(size: int) -> dict[str, Any]:
  all_images = dict(num_train=None, num_test=None, expected_batch=256.0)
  images = (
    _RANDOM,
    _FEW | all_images | dict(steps=500),
    dict(title='Fashion-MNIST ConvNet', data='fashion_mnist', steps=2500),
  )[size]
  games = _play_at('dirac', (8.0,))
  return dict(works=dict(convnet=_CONVNET | images), games=games)


def _choose_depths(size: int) -> dict[str, Any]:
  works = {}
  for depth in (16, 40) if size else (10,):
    few = dict(num_train=1000, expected_batch=8.0)
    title = f'{("", "Fashion-MNIST ", "CIFAR-10 ")[size]}WRN-{depth}'
    works[f'wrn{depth}'] = (
      _CONVNET
      | (_RANDOM, _FEW | few, _WRN16)[size]
      | dict(
        title=title + ('' if size == 2 else ', width 1'),
        task='wide_resnet',
        model=dict(depth=depth, width=4 if size == 2 else 1),
      )
    )
  return dict(works=works, games=_play_at('dirac', (8.0,)))


def _choose_augmentations(size: int) -> dict[str, Any]:
  work = (_CONVNET | _RANDOM, _CONVNET | _FEW, _WRN16)[size]
  return dict(
    works=dict(work=work),
    games=tuple(
      dict(
        name=f'augmentations={num}',
        label=f'K = {num}',
        kind='dirac',
        epsilon=8.0,
        augmentations=num,
      )
      for num in (1, 2, 4, 8, 16)[: (2, 4, 5)[size]]
    ),
  )


def _choose_bugs(size: int) -> dict[str, Any]:
  game = dict(kind='dirac', epsilon=1.27)
  return dict(
    works=dict(purchase=_make_purchase(size)),
    games=(
      game | dict(name='correct', label='correct'),
      game | dict(name='clipping', label='clipping', bug='clipping'),
      game | dict(name='seeds', label='seeds', bug='seeds'),
      game | dict(name='scale', label='scale', bug='scale', true_epsilon=1.57),
    ),
  )


def _audit_models(
  size: int, epsilon: float, clip_norms: Sequence[float | None] = (None,)
) -> tuple[dict[str, Any], ...]:
  """Audits of models with both kinds of canary at each clip norm, or one at 'smoke'."""
  return tuple(
    dict(
      name=kind if norm is None else f'clip_norm={norm:g}_{kind}',
      kind=kind,
      epsilon=epsilon,
      clip_norm=norm,
      num_models=(4, 100, 1000)[size],
      chunk=(2, 20, 4)[size],
    )
    for norm in clip_norms[: 3 if size else 1]
    for kind in ('mislabelled', 'blank')[: 2 if size else 1]
  )


def _experiment(
  name: str, choose: Callable[[int], dict[str, Any]]
) -> item.Experiment:
  return item.Experiment(
    f'tight_{name}',
    lambda scale: COMMON | choose(item.SIZES[scale]),
    ('cifar10', 'fashion_mnist', 'purchase100'),
  )


def _train(
  settings: Any, folder: pathlib.Path, data: Mapping[str, pathlib.Path]
) -> list[AuditedTraining]:
  # It needs the extra for DP-SGD.
  with extras.explain_missing():
    from papers.tight_auditing import games
  return games.train(settings, folder, data)


def _item(
  title: str, source: str, experiment: item.Experiment, make: Make
) -> item.Item:
  return item.from_training(title, source, experiment, _train, make)


_TABLE1 = _experiment('table1', _choose_table1)
_INPUTS = _experiment(
  'input_canaries',
  lambda size: _choose_kinds(
    size, ('mislabelled', 'blank', 'adversarial', 'crafted')
  ),
)
_GRADIENTS = _experiment(
  'gradient_canaries',
  lambda size: _choose_kinds(
    size, ('dirac', 'constant', 'random', 'moving dirac', 'moving random')
  ),
)
_CLIPPED = _experiment(
  'clipped_black_box',
  lambda size: dict(
    works=_make_one_work(size, _choose_few(size)),
    games=_audit_models(size, math.inf, (0.1, 1.0, 10.0)),
  ),
)
_PRIVATE = _experiment(
  'black_box',
  lambda size: dict(
    works=_make_works(size, _choose_few(size)), games=_audit_models(size, 8.0)
  ),
)

ITEMS = {
  'table1': _item(
    'White-box audits of trained models',
    'section 6.2, Table 1',
    _TABLE1,
    make_table1,
  ),
  'figure6': _item(
    'Audits of trained models, by estimator',
    'section 6.2, Figure 6',
    _TABLE1,
    make_figure6,
  ),
  'convnet': _item(
    'A private ConvNet, its accuracy and its audit',
    'appendix B, the ConvNet of Table 1, on images that are at hand',
    _experiment('convnet', _choose_convnet),
    make_convnet,
  ),
  'figure15': _item(
    'Kinds of canary gradients',
    'appendix C.2, Figure 15',
    _GRADIENTS,
    make_figure15,
  ),
  'figure16': _item(
    'Kinds of canary inputs',
    'appendix C.3, Figure 16',
    _INPUTS,
    make_figure16,
  ),
  'figure17': _item(
    'Canary inputs in the first steps',
    'appendix D.1, Figure 17',
    _INPUTS,
    make_figure17,
  ),
  'figure10': _item(
    'Canary inputs at several ε',
    'section 6.4, Figure 10',
    _experiment('inputs_by_epsilon', _choose_figure10),
    make_figure10,
  ),
  'figure11': _item(
    'Clipping without noise, black box',
    'section 6.4, Figure 11',
    _CLIPPED,
    make_figure11,
  ),
  'figure12': _item(
    'Private models, black box',
    'section 6.4, Figure 12',
    _PRIVATE,
    make_figure12,
  ),
  'figure18': _item(
    'Models of different depths',
    'appendix D.2, Figure 18',
    _experiment('depths', _choose_depths),
    make_figure18,
  ),
  'figure19': _item(
    'Augmentations of each image',
    'appendix D.3, Figure 19',
    _experiment('augmentations', _choose_augmentations),
    make_figure19,
  ),
  'trained_bugs': _item(
    'Bugs in the steps of a training',
    'section 6.3, Figures 7, 8 and 9',
    _experiment('trained_bugs', _choose_bugs),
    make_bugs,
  ),
}
