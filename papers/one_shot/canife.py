"""CANIFE next to the paper's own estimate and ours, on the same runs."""

from collections.abc import Sequence
import statistics
from typing import Any

import numpy as np

from epe_jax.accounting import gaussian
from epe_jax.audit import attackers
from epe_jax.epsilon import paper_estimates
from epe_jax.epsilon.types import Scores
from epe_jax.report import cells, tables, words
from papers import item, reported
from papers.canife import composition, runs, training

_TABLE = 'canife'
_REPORTED = reported.Reported('papers.one_shot')
_NONE = 'uncalibrated'

Audited = Sequence[runs.Audited]


def train_canife(settings: Any, folder, data) -> Any:
  """(settings, its runs, runs of other widths and learning rates)."""
  return settings, *runs.train_runs(settings, folder, data)


def make_canife(trained: Any) -> item.Product:
  """The tables of both methods, and of the effect of crafting."""
  settings, audited, variants = trained
  return item.Product(
    [
      _tabulate_methods(settings, audited),
      _tabulate_ours(settings, audited),
      _tabulate_variants(variants),
      _tabulate_crafting(settings, audited),
    ]
  )


def _tabulate_methods(settings: Any, audited: Audited) -> tables.Table:
  delta = 1 / settings.num_train
  q, z = settings.batch / settings.num_train, settings.noise_multiplier
  stretches = runs.list_stretches(settings)

  def compose(epsilons: Sequence[float], round_delta: float) -> float:
    return composition.compose_audits(
      epsilons,
      stretches,
      round_delta=round_delta,
      probability=q,
      delta=delta,
      fallback=z,
    )

  def measure(num: int, kind: str = 'lower', prefix: str = '') -> list[float]:
    """ε of each run from the first scores of each audit."""
    epsilons = []
    for run in audited:
      rounds = zip(
        getattr(run, f'{prefix}included'), getattr(run, f'{prefix}excluded')
      )
      found = [composition.measure_round(i[:num], e[:num]) for i, e in rounds]
      epsilons.append(
        compose([getattr(x, kind) for x in found], found[0].delta)
      )
    return epsilons

  def cap(num: int) -> str:
    largest = compose([composition.cap(num)] * len(stretches), 1 / (2 * num))
    return f'{largest:.3f}'

  num = settings.scores
  separate = Scores(np.ones(settings.observed), np.zeros(settings.unobserved))
  uncounted = compose([float('inf')] * len(stretches), 1 / (2 * num))
  body = [
    *(
      [
        f'CANIFE, {n} scores with the canary and {n} without, lower limits',
        _format_spread(measure(n), column),
        cap(n),
      ]
      for n, column in ((num // 2, ''), (num, 'canife'))
    ),
    [
      'the same, an example that is not crafted',
      _format_spread(measure(num, prefix='random_')),
      cap(num),
    ],
    [
      'CANIFE, counted rates, z where no score is wrong',
      _format_spread(measure(num, 'counted')),
      f'{uncounted:.3g}',
    ],
    [
      'the paper: largest cosine over rounds, two Gaussians fitted',
      _format_spread(_read(audited, runs.PAPER, 'estimate'), 'ours'),
      '-',
    ],
    [
      'ε_lo of the same scores, not a bound',
      _format_spread(_read(audited, runs.PAPER, 'bound')),
      f'{float(paper_estimates.eps_lo(separate, delta=delta).epsilon):.3g}',
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
      'Neither is a bound: thresholds are chosen on the scores that evaluate '
      'them.',
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


def _tabulate_ours(settings: Any, audited: Audited) -> tables.Table:
  body = []
  for key, ours in audited[0].ours.items():
    model, limit = attackers.find(key), ours.get('limit')
    if model is None:
      continue
    body.append(
      [
        words.spell_name(model),
        _format_spread(x) if (x := _read(audited, key, 'estimate')) else _NONE,
        _format_spread(_read(audited, key, 'bound')),
        '-' if limit is None else f'{limit:.3g}',
      ]
    )
  return tables.Table(
    'Our estimates of the same runs, mean ± std',
    ['attacker', 'estimate', cells.LOWER_BOUND, cells.LIMIT],
    body,
    [
      f'{settings.observed:,} canaries observed in one round each and '
      f'{settings.unobserved:,} unobserved, {settings.family}; δ = '
      f'1/{settings.num_train:,}. The estimate is the preferred one, the bound '
      'the one that is declared in advance; each holds for one run by itself.',
    ],
  )


def _tabulate_variants(variants: Sequence[runs.Variant]) -> tables.Table:
  keys = (runs.PAPER, attackers.MAXIMUM.key, attackers.OWN.key)
  body = [
    [
      f'{run.width}',
      f'{run.learning_rate:g}',
      f'{run.dim:,}',
      f'{100 * run.accuracy:.1f} %',
      f'{run.noise:.3f}',
      *(
        _NONE if (x := run.ours[key]['estimate']) is None else f'{x:.3g}'
        for key in keys
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
      'every round (maximum)',
      'every round',
    ],
    body,
    [
      'One run each. The updates of the others are noise to an attacker who does '
      'not know them: the effective noise is the root of z² + s²/(S² d), with s '
      'the norm of their clipped sum, averaged over rounds. The last two columns '
      'are our estimates.',
    ],
  )


def _tabulate_crafting(settings: Any, audited: Audited) -> tables.Table:
  body = []
  for name, prefix in (('crafted', ''), ('not crafted', 'random_')):
    a, b, norms = (
      np.stack([getattr(run, prefix + field) for run in audited])
      for field in ('included', 'excluded', 'norms')
    )
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
        f'{np.median(norms):.3g}',
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


def _read(audited: Audited, key: str, name: str) -> list[float]:
  values = [run.ours[key][name] for run in audited]
  return [x for x in values if x is not None]


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
