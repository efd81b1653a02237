"""Scores of several runs as those of one audit.

The cosine of a canary that took no part has the same law in every run whose
model has the same number of parameters, so that the cosines of runs can be
pooled: ten runs of 100 canaries give as many scores as one run of 1000.
"""

from collections.abc import Sequence

import numpy as np

from epe_jax.epsilon.types import Scores


def pool_scores(runs: Sequence[Scores]) -> Scores:
  """The scores of all canaries of all runs.

  Args:
    runs: scores of one run or more, with equal leading axes and design, which
      are cosines of one dim. Their `shift` is ignored.

  Returns:
    The scores, those of the first run first.

  Raises:
    ValueError: there are no runs, a dim is None, or runs differ in the dim, the
      design or the leading axes.

  >>> runs = [Scores(np.full(3, x), np.zeros(2), dim=100) for x in (0.1, 0.2)]
  >>> pool_scores(runs).observed.tolist()
  [0.1, 0.1, 0.1, 0.2, 0.2, 0.2]
  """
  if not runs:
    raise ValueError('runs is empty; give the scores of one run or more.')
  kinds = {(s.dim, s.design, s.observed.shape[:-1]) for s in runs}
  if len(kinds) > 1:
    raise ValueError(
      f'runs have several (dim, design, leading axes): {sorted(kinds, key=str)}. '
      'Scores of one kind alone can be pooled.'
    )
  if runs[0].dim is None:
    raise ValueError(
      'runs have dim=None, so nothing says that their scores are on one scale. '
      'Pool cosines, and give their dim.'
    )
  return Scores(
    np.concatenate([scores.observed for scores in runs], axis=-1),
    np.concatenate([scores.unobserved for scores in runs], axis=-1),
    runs[0].dim,
    runs[0].design,
  )
