"""Scores of PrivacyGuard: what its attacks hand to its analyses.

An attack returns an analysis input with two pandas frames, `df_train_user` of
members and `df_test_user` of others, each with a column `score`. A higher score says
"member" (its LossAttack negates losses). It writes no file of its own.

References: facebookresearch/PrivacyGuard at fb9c26c, in `privacy_guard/`:
`analysis/base_analysis_input.py`, `analysis/mia/aggregate_analysis_input.py`,
`analysis/mia/mia_results.py` (train is label 1), `attacks/lira_attack.py`,
`attacks/loss_attack.py`.
"""

from typing import Any, Unpack

import numpy as np

from epe_jax.epsilon.types import Scores
from epe_jax.scores.formats import base

_FRAMES = ('df_train_user', 'df_test_user')


def from_privacy_guard(
  analysis_input: Any,
  *,
  user_id_key: str = 'user_id',
  **settings: Unpack[base.Settings],
) -> Scores:
  """Scores that an attack of PrivacyGuard made.

  Args:
    analysis_input: a `BaseAnalysisInput`, as `run_attack()` returns it, or the
      pair of frames (df_train_user, df_test_user). A frame is what has columns:
      pandas, polars, or a dict of arrays.
    user_id_key: the column of users, if there is one. No user may have several
      rows, which would not score independently.
    **settings: as in `base.Settings`. PrivacyGuard compares two sets of users that
      were chosen: design 'fixed'.

  Raises:
    ValueError: it is neither, a frame has no scores or some that are not
      numbers, or a user has several rows.

  >>> frames = {'score': [2.0, 3.0]}, {'score': [0.0, 1.0]}
  >>> from_privacy_guard(frames).observed.tolist()
  [2.0, 3.0]
  """
  frames = base.take_pair(
    'analysis_input',
    analysis_input,
    _FRAMES,
    cure='Give what run_attack() of PrivacyGuard returns, or the pair '
    '(df_train_user, df_test_user).',
  )
  train, test = (
    _read_frame(name, frame, user_id_key)
    for name, frame in zip(_FRAMES, frames)
  )
  return base.make_scores('PrivacyGuard', train, test, **settings)


def _read_frame(name, frame, user_id_key):
  columns = list(getattr(frame, 'columns', frame))
  if 'score' not in columns:
    raise ValueError(
      f"{name} has the columns {columns} and no 'score'. Give the frame that an "
      'attack of PrivacyGuard returns.'
    )
  scores = np.asarray(frame['score'])
  missing = int(np.isnan(scores).sum()) if scores.dtype.kind == 'f' else 0
  if missing:
    raise ValueError(
      f'{name} has {missing:,} scores that are NaN. Find out why, or leave these '
      "rows out with dropna(subset=['score']), as its LiraAttack does."
    )
  if user_id_key in columns:
    users = np.asarray(frame[user_id_key])
    if len(np.unique(users)) < len(users):
      raise ValueError(
        f'{name} has {len(users):,} rows of {len(np.unique(users)):,} users, '
        'and rows of one user do not score independently. Choose a '
        'row_aggregation of PrivacyGuard other than AggregationType.NONE.'
      )
  return scores
