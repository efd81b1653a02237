"""Scores of ML Privacy Meter: its reports, and those of the RMIA paper's code.

Both write an .npz for each target model, with opposite signs:

| file | scores | labels | higher |
|---|---|---|---|
| `attack_result_{i}.npz`, `attack_result_average_dp.npz` | `scores` | `memberships` | in |
| `attack_predictions_{i}.npz`, `scores_{i}_gamma_{γ}.npz` | `scores` | `answers` | out |

References: privacytrustlab/ml_privacy_meter, `audit.py` (get_audit_results,
get_all_dp_audit_results) and `attacks.py` at e384af8; the RMIA paper's code,
`research/2024_rmia/main.py` at d327341 ("lower = member").
"""

import os
from typing import Unpack

import numpy as np

from epe_jax import io
from epe_jax.epsilon.types import Scores
from epe_jax.scores.formats import base
from epe_jax.scores.formats.base import ScoreFormat

# Coins look like copies of one another with a chance of 2 to the minus this.
_MIN_COINS = 20


def read_privacy_meter(
  path: str | os.PathLike, **settings: Unpack[base.Settings]
) -> Scores:
  """Scores of one target model from a report of ML Privacy Meter.

  A higher score of RMIA says "member". So should one of the LOSS attack, but at
  e384af8 `attacks.run_loss` negates what `get_signals.get_model_signals` has, which
  is the softmax of the true class for either attack: give higher='out'.

  Args:
    path: `report/exp/attack_result_{i}.npz`, or the
      `report/attack_result_average_dp.npz` of `run_audit_dp.py` with one
      target.
    **settings: as in `base.Settings`. The design of the tool is 'coin_flip' in a
      file of `run_audit_dp.py` with `k_neg`, whose target has a fair coin for each
      example; otherwise 'fixed', as `run_mia.py` takes exactly half of them.
      `attack_result_0.npz` does not say which program wrote it: give
      'coin_flip' if that was `run_audit_dp.py`.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: it is no such file, or has examples more than once: those of
      several target models, or several neighbors of each (range attack).
  """
  arrays = _read_arrays(path, 'memberships', example='attack_result_0.npz')
  members = np.ravel(arrays['memberships'])
  _check_one_target(path, members)
  _check_one_score_each(path, members)
  settings.setdefault('design', 'coin_flip' if 'k_neg' in arrays else 'fixed')
  return base.split_by_label(
    path,
    arrays['scores'],
    members,
    names=('scores', 'memberships'),
    **settings,
  )


def read_rmia(
  path: str | os.PathLike, **settings: Unpack[base.Settings]
) -> Scores:
  """Scores of one target model from the code of the RMIA paper.

  A lower score says "member" there, so scores are negated.

  Args:
    path: `attack_predictions_{i}.npz` or `scores_{i}_gamma_{γ}.npz`.
    **settings: as in `base.Settings`. The file does not say whether its models were
      trained by `scripts/train.py` of that code, which flips a coin for each example:
      give design 'coin_flip' then.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: it is no such file.
  """
  arrays = _read_arrays(path, 'answers', example='attack_predictions_0.npz')
  settings.setdefault('higher', 'out')
  return base.split_by_label(
    path,
    arrays['scores'],
    arrays['answers'],
    names=('scores', 'answers'),
    **settings,
  )


FORMATS = (
  ScoreFormat(
    'privacy_meter',
    'a report of ML Privacy Meter',
    read_privacy_meter,
    suffix='.npz',
    fields=frozenset({'scores', 'memberships'}),
  ),
  ScoreFormat(
    'rmia',
    "scores of the RMIA paper's code",
    read_rmia,
    suffix='.npz',
    fields=frozenset({'scores', 'answers'}),
    higher='out',
  ),
)


def _read_arrays(path, labels, *, example):
  arrays = io.read_arrays(path)
  if not {'scores', labels} <= arrays.keys():
    raise ValueError(
      f'{path} has the arrays {sorted(arrays)}, but not scores and {labels}. '
      f'Give a file such as {example}.'
    )
  return arrays


def _check_one_target(path, members):
  """Rejects what `get_average_audit_results` pools of several models.

  Models 2i and 2i + 1 are trained on complements, so that the second block of
  memberships is the first one, negated. One audit of equally many members and
  others may have them in two blocks, of one label each.
  """
  labels = members.astype(bool)
  for size in range(_MIN_COINS, labels.size // 2 + 1):
    first, second = labels[:size], labels[size : 2 * size]
    is_mixed = first.any() and not first.all()
    if labels.size % size == 0 and is_mixed and np.array_equal(second, ~first):
      raise ValueError(
        f'{path} pools the scores of {labels.size // size} target models, two of '
        'them trained on complements, so that examples are in it more than once. '
        'Give the attack_result_{i}.npz of one model.'
      )


def _check_one_score_each(path, members):
  """Rejects the neighbors of a range attack, which share their membership."""
  changes = np.flatnonzero(np.diff(members.astype(np.int8))) + 1
  if changes.size < _MIN_COINS:
    return
  each = np.gcd.reduce(np.diff(changes, prepend=0, append=members.size))
  if each > 1:
    raise ValueError(
      f'{path}: memberships are equal in blocks of {each}, as those of a range '
      'attack with so many neighbors of each example, which do not score '
      'independently. Give one score for each example.'
    )
