"""CANIFE next to the paper's own estimate and ours, on the same runs."""

from collections.abc import Callable, Sequence
import statistics
from typing import Any, NamedTuple

import numpy as np

from epe_jax.accounting import gaussian
from epe_jax.audit import attackers
from epe_jax.epsilon import threshold
from epe_jax.epsilon.types import Scores
from epe_jax.report import attacker_names, tables
from papers import item, reported
from papers.canife import composition, round_epsilon, runs, training

_TABLE = 'canife'
_REPORTED = reported.Reported('papers.one_shot')


class Comparison(NamedTuple):
  """The runs of the experiment.

  Attributes:
    settings: of the experiment.
    audited: its runs.
    variants: runs of other widths and learning rates.
  """

  settings: Any
  audited: Sequence[runs.Audited]
  variants: Sequence[runs.Variant]


def train_canife(settings: Any, folder, data) -> Comparison:
  """Trains the runs that are missing in the folder."""
  return Comparison(settings, *runs.train_runs(settings, folder, data))


def make_canife(comparison: Comparison) -> item.Product:
  """Makes the tables of both methods, and of the effect of crafting.

  Args:
    comparison: of one run or more.
  """
  return item.Product(
    [
      _tabulate_methods(comparison),
      _tabulate_ours(comparison),
      _tabulate_variants(comparison),
      _tabulate_crafting(comparison),
    ],
    {},
  )


def _tabulate_methods(comparison: Comparison) -> tables.Table:
  settings, audited, _ = comparison
  delta = 1 / settings.num_train
  q, stretches = (
    settings.batch / settings.num_train,
    runs.list_stretches(settings),
  )
  z = settings.noise_multiplier

  def compose(epsilons: Sequence[float], round_delta: float) -> float:
    return composition.compose_audits(
      epsilons,
      stretches,
      round_delta=round_delta,
      probability=q,
      delta=delta,
      fallback=z,
    )

  def measure(
    run: runs.Audited, num: int, read: Callable, *, random: bool = False
  ) -> float:
    included = run.random_included if random else run.included
    excluded = run.random_excluded if random else run.excluded
    found = [
      round_epsilon.measure_round(i[:num], e[:num])
      for i, e in zip(included, excluded)
    ]
    return compose([read(x) for x in found], found[0].delta)

  body = []
  for num, column in ((settings.scores // 2, ''), (settings.scores, 'canife')):
    cap = compose([round_epsilon.cap(num, num)] * len(stretches), 1 / (2 * num))
    values = [measure(run, num, lambda x: x.lower) for run in audited]
    body.append(
      [
        f'CANIFE, {num} scores with the canary and {num} without, lower limits',
        _format_spread(values, column),
        f'{cap:.3f}',
      ]
    )
  num = settings.scores
  body += [
    [
      'the same, an example that is not crafted',
      _format_spread(
        [measure(r, num, lambda x: x.lower, random=True) for r in audited]
      ),
      f'{cap:.3f}',
    ],
    [
      'CANIFE, counted rates, z where no score is wrong',
      _format_spread(
        [measure(run, num, lambda x: x.counted) for run in audited]
      ),
      f'{compose([float("inf")] * len(stretches), 1 / (2 * num)):.3g}',
    ],
    [
      'the paper: largest cosine over rounds, two Gaussians fitted',
      _format_spread(
        [_read(r, runs.PAPER, 'estimate') for r in audited], 'ours'
      ),
      '-',
    ],
    [
      'ε_lo of the same scores, not a bound',
      _format_spread([_read(r, runs.PAPER, 'bound') for r in audited]),
      _format_eps_lo_cap(settings),
    ],
  ]
  exact = gaussian.epsilon_of_releases(z, delta=delta).epsilon
  renyi = composition.epsilon_of_rounds([z], [1], probability=1, delta=delta)
  analytic = _REPORTED.find_row(_TABLE, noise=z)
  paper = f' (the paper: {analytic["analytic"]:g})' if analytic else ''
  first = audited[0]
  accuracy = 100 * statistics.fmean(run.accuracy for run in audited)
  return tables.Table(
    f'ε of a run by CANIFE and by the paper, mean ± std over {len(audited)} runs',
    ['method', 'ε', 'if no score is wrong'],
    body,
    [
      *_REPORTED.explain_brackets(_TABLE),
      f'Analytic ε of one participation at δ = 1/{settings.num_train:,}: '
      f'{exact:.1f} exactly, {renyi:.1f} by Rényi DP{paper}.',
      'The last column is what a method gives when every score is on the right '
      'side of its threshold. With lower limits nothing can exceed it: the number '
      'of scores decides it, and not the mechanism. With counted rates the noise is '
      'then taken to be z, which is not measured.',
      'Neither is a bound: thresholds are chosen on the scores that they are '
      'judged by.',
      f'CANIFE composes rounds with Poisson sampling at q = {q:.3g}; the runs pass '
      'over the data once.',
      f'Data: {first.source}. {training.count_rounds(settings):,} rounds of '
      f'{settings.batch:,} clients with an image each, d = {first.dim:,}, hidden '
      f'layer of {settings.width}, server learning rate '
      f'{settings.learning_rate:g}, clip norm {settings.clip_norm:g}, z = {z:g}; '
      f'the paper states neither width nor learning rate. Accuracy '
      f'{accuracy:.1f} %.',
    ],
  )


def _format_eps_lo_cap(settings: Any) -> str:
  """ε_lo of maxima that are separated without an error."""
  separate = Scores(np.ones(settings.observed), np.zeros(settings.unobserved))
  largest = threshold.eps_lo(separate, delta=1 / settings.num_train)
  return f'{float(largest.epsilon):.3g}'


def _tabulate_ours(comparison: Comparison) -> tables.Table:
  settings, audited, _ = comparison
  body = []
  for key in audited[0].ours:
    model = attackers.find(key)
    if model is None:
      continue
    limit = audited[0].ours[key]['limit']
    body.append(
      [
        attacker_names.spell_name(model),
        _format_spread([_read(run, key, 'estimate') for run in audited]),
        _format_spread([_read(run, key, 'bound') for run in audited]),
        '-' if limit is None else f'{limit:.3g}',
      ]
    )
  return tables.Table(
    'Our estimates of the same runs, mean ± std',
    ['attacker', 'estimate', 'lower bound, 95 %', 'analytic'],
    body,
    [
      f'{settings.observed:,} canaries observed in one round each and '
      f'{settings.unobserved:,} unobserved, {settings.family}; δ = '
      f'1/{settings.num_train:,}. The estimate is the one to believe first, the '
      'bound the one that is declared in advance; each holds for one run by itself.',
    ],
  )


def _tabulate_variants(comparison: Comparison) -> tables.Table:
  variants = comparison.variants
  body = [
    [
      f'{run.width}',
      f'{run.learning_rate:g}',
      f'{run.dim:,}',
      f'{100 * run.accuracy:.1f} %',
      f'{run.noise:.3f}',
      f'{_read(run, runs.PAPER, "estimate"):.3g}',
      *(
        f'{_read(run, model.key, "estimate"):.3g}'
        for model in (attackers.MAXIMUM, attackers.OWN)
      ),
    ]
    for run in variants
  ]
  return tables.Table(
    'What the width and the learning rate, which the paper does not state, change',
    [
      'hidden layer',
      'learning rate',
      'd',
      'accuracy',
      'effective noise',
      'ε as the paper estimates it',
      'maximum over rounds',
      'own round',
    ],
    body,
    [
      'One run each. The updates of the others are noise to an attacker who does '
      'not know them: the effective noise is the root of z² + s²/(S² d), with s '
      'the norm of their clipped sum, averaged over rounds. The last two columns '
      'are our estimates.',
    ],
  )


def _tabulate_crafting(comparison: Comparison) -> tables.Table:
  settings, audited, _ = comparison
  body = []
  for name, included, excluded, norms in (
    ('crafted', 'included', 'excluded', 'norms'),
    ('not crafted', 'random_included', 'random_excluded', 'random_norms'),
  ):
    gather = lambda field: np.stack([getattr(run, field) for run in audited])
    a, b = gather(included), gather(excluded)
    wrong = [
      np.mean(np.concatenate([x < 0.5, y >= 0.5]))
      for run in zip(a, b)
      for x, y in zip(*run)
    ]
    body.append(
      [
        name,
        f'{a.mean():.3f}',
        f'{b.mean():.3f}',
        f'{a.std(axis=2).mean():.3f}',
        f'{b.std(axis=2).mean():.3f}',
        f'{100 * float(np.mean(wrong)):.1f} %',
        f'{np.median(gather(norms)):.3g}',
      ]
    )
  return tables.Table(
    'Scores of audited rounds',
    [
      'canary',
      'mean with',
      'mean without',
      'std with',
      'std without',
      'wrong side of 1/2',
      'median |g|',
    ],
    body,
    [
      f'{len(runs.list_audits(settings))} audits of each run, {settings.scores} '
      f'scores with the canary and as many without; {settings.craft_steps:,} steps '
      f'of Adam against minibatches of {settings.minibatch} of {settings.pool} mock '
      'clients. Noise alone has the standard deviation '
      f'{settings.noise_multiplier:g}.',
    ],
  )


def _read(run: runs.Audited | runs.Variant, key: str, name: str) -> float:
  value = run.ours[key][name]
  assert value is not None, 'estimates and bounds are numbers'
  return value


def _format_spread(values: Sequence[float], column: str = '') -> str:
  """Mean ± std, followed by the paper's in brackets if it has such a column."""
  text = reported.format_spread(values, digits=3)
  rows = _REPORTED.load_rows(_TABLE)
  if column and rows:
    text += f' ({rows[0][column]:g} ± {rows[0][f"{column}_std"]:g})'
  return text


def _choose(scale: str) -> dict[str, Any]:
  # The paper states neither the width nor the learning rate. Steps, pool, minibatch,
  # Adam's learning rate and the norm are those of CANIFE's released code.
  settings = dict(
    num_train=60_000,
    num_test=10_000,
    batch=128,
    width=128,
    learning_rate=0.5,
    clip_norm=1.0,
    noise_multiplier=0.2,
    observed=1000,
    unobserved=1000,
    family='hadamard',
    audit_every=100,
    scores=100,
    pool=512,
    minibatch=128,
    craft_steps=2500,
    craft_learning_rate=1.0,
    norm_target=1.0,
    runs=20 if scale == 'paper' else 5,
    # Hidden layer and learning rate of further runs, one each.
    variants=(
      *((width, rate) for width in (128, 32) for rate in (0.5, 0.05, 0.005)),
      (8, 0.05),
      (8, 0.005),
    ),
  )
  if scale == 'smoke':
    settings |= dict(num_train=512, num_test=64, batch=32, width=8)
    settings |= dict(audit_every=5, observed=20, unobserved=20, scores=10)
    settings |= dict(pool=32, minibatch=8, craft_steps=20, runs=2)
    settings |= dict(variants=((4, 0.05),))
  return settings


ITEM = item.from_training(
  'CANIFE next to one-shot estimates, on Fashion-MNIST',
  'section 5.4; appendix H of the submission of 2023',
  item.Experiment('canife', _choose, ('fashion_mnist',)),
  train_canife,
  make_canife,
)
