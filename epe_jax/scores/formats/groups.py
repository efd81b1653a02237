"""Scores of another tool, split into canaries that took part and others."""

from typing import Any, Literal, get_args

import numpy as np

from epe_jax.audit import failed_checks
from epe_jax.epsilon.types import Scores

Higher = Literal['in', 'out']
"""Who scores higher in a file: canaries that took part, or the others."""

Design = Literal['fixed', 'coin_flip']


def make_scores(
  where: object,
  observed: Any,
  unobserved: Any,
  *,
  higher: Higher = 'in',
  dim: float | None = None,
  design: Design = 'fixed',
  inclusion_probability: float = 0.5,
) -> Scores:
  """Scores of which a higher one says "took part".

  Args:
    where: the file or argument that errors are to name.
    observed: [n1] scores of canaries that took part.
    unobserved: [n0] scores of those that did not.
    higher: who scores higher; scores are negated if it is 'out'.
    dim: d, if scores are cosines in R^d; otherwise None.
    design: 'coin_flip' if a coin of its own decided of each canary.
    inclusion_probability: of these coins, in (0, 1).

  Raises:
    ValueError: `higher` is neither, or these are no scores of one audit.
  """
  if higher not in get_args(Higher):
    raise ValueError(
      f"higher={higher!r} is neither 'in' nor 'out'. Say who scores higher in "
      f'{where}: canaries that took part, or the others.'
    )
  for group, meaning in ((observed, 'took part'), (unobserved, 'did not')):
    _check_finite(where, group, meaning)
  if not np.size(observed):
    raise ValueError(
      f'{where}: no scores of canaries that took part. Add them: an audit '
      'compares the scores of both groups.'
    )
  if dim is None and not np.size(unobserved):
    raise ValueError(
      f'{where}: no scores of canaries that did not take part. Add them, or, if '
      'scores are cosines in R^d, give d: --dim=D on the command line, dim in '
      'Python.'
    )
  try:
    return Scores(
      _orient(observed, higher),
      _orient(unobserved, higher),
      dim,
      design,
      inclusion_probability=inclusion_probability,
    )
  except ValueError as error:
    raise ValueError(f'{where}: {error}') from error


def split_by_label(
  where: object,
  scores: Any,
  labels: Any,
  *,
  names: tuple[str, str] = ('scores', 'labels'),
  **settings: Any,
) -> Scores:
  """Scores of canaries with a label each, which says whether it took part.

  Args:
    where: the file or argument that errors are to name.
    scores: [n].
    labels: [n], True or 1 for a canary that took part; False, 0 or -1 for one
      that did not, but not both 0 and -1.
    names: what the file calls scores and labels.
    **settings: of `make_scores`.

  Raises:
    ValueError: shapes differ, labels are none of these, or there are no canaries
      of one kind.
  """
  scores, labels = np.ravel(scores), np.ravel(labels)
  if scores.shape != labels.shape:
    raise ValueError(
      f'{where}: {names[0]} has {scores.size:,} entries and {names[1]} '
      f'{labels.size:,}; give one of each for a canary.'
    )
  no = -1 if labels.dtype.kind in 'if' and np.any(labels == -1) else 0
  is_label = labels.dtype.kind in 'biuf' and np.isin(labels, (no, 1))
  if not np.all(is_label):
    wrong = labels[~np.broadcast_to(is_label, labels.shape)][0]
    raise ValueError(
      f'{where}: {names[1]} has the entry {wrong!r}; write 1 for a canary that '
      f'took part and {no} for one that did not.'
    )
  took_part = labels == 1
  for group, meaning in ((took_part, 'took part'), (~took_part, 'did not')):
    if not group.any():
      raise ValueError(
        f'{where}: no entry of {names[1]} says that a canary {meaning}; an '
        'audit compares the scores of both kinds.'
      )
  return make_scores(where, scores[took_part], scores[~took_part], **settings)


def warn_if_reversed(
  scores: Scores, *, higher: str = 'in', cure: str = 'higher={!r}'
) -> str | None:
  """What to say where canaries that took part score lower beyond chance.

  Args:
    scores: as read.
    higher: who was taken to score higher in the file.
    cure: what to give instead, with {} for 'in' or 'out'.

  Returns:
    A sentence with the cure, or None.
  """
  found = failed_checks.describe_if_swapped(scores)
  if found is None:
    return None
  low, other = ('lower', 'out') if higher == 'in' else ('higher', 'in')
  return (
    f'the sign is probably reversed: {found}. If {low} scores mean "took part", '
    f'give {cure.format(other)}; until then no estimate means anything.'
  )


def _check_finite(where: object, values: Any, meaning: str) -> None:
  """Refuses NaN and inf; what is no array of numbers `Scores` refuses."""
  array = np.asarray(values)
  if array.dtype.kind != 'f':
    return
  wrong = array[~np.isfinite(array)]
  if wrong.size:
    raise ValueError(
      f'{where}: {wrong.size:,} of the scores of canaries that {meaning} are not '
      f'finite, the first is {wrong[0]}. Remove these canaries, or mend what '
      'wrote the scores.'
    )


def _orient(values, higher):
  array = np.asanyarray(values)
  if higher == 'in':
    return array
  # Unsigned integers would wrap around; what is no number `Scores` refuses.
  return -array.astype(np.float64) if array.dtype.kind in 'biuf' else array
