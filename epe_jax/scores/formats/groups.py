"""Scores of another tool, split into canaries that took part and others."""

from collections.abc import Mapping
from typing import Any, Literal, TypedDict, Unpack, get_args

import numpy as np

from epe_jax.audit import failed_checks
from epe_jax.epsilon.types import Scores, make_null
from epe_jax.text import checks

Higher = Literal['in', 'out']
"""Which group scores higher in a file: canaries that took part, or the others."""

Design = Literal['fixed', 'coin_flip']


class Settings(TypedDict, total=False):
  """What every reader takes besides its file; a missing one is the tool's own.

  Attributes:
    higher: which group scores higher; scores are negated if it is 'out'.
    dim: d, if scores are cosines in R^d; otherwise None.
    design: 'coin_flip' if an independent coin decided for each canary.
    inclusion_probability: of these coins, in (0, 1).
  """

  higher: Higher
  dim: float | None
  design: Design
  inclusion_probability: float


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
  """Scores oriented so that a higher one says "took part".

  Args:
    where: the file or argument that errors name.
    observed: [n1] scores of canaries that took part.
    unobserved: [n0] scores of those that did not.
    higher: as in `Settings`, like the others.
    dim: see above.
    design: see above.
    inclusion_probability: see above.

  Raises:
    ValueError: `higher` is neither, or these are not scores of one audit.
  """
  if higher not in get_args(Higher):
    raise ValueError(
      f"higher={higher!r} is neither 'in' nor 'out'. Say which canaries score higher in "
      f'{where}: those that took part, or the others.'
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
      make_null(dim),
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
  **settings: Unpack[Settings],
) -> Scores:
  """Scores of canaries with a label each, which says whether it took part.

  Args:
    where: the file or argument that errors name.
    scores: [n].
    labels: [n], True or 1 for a canary that took part; False, 0 or -1 for one
      that did not, but not both 0 and -1.
    names: what the file calls scores and labels.
    **settings: as in `Settings`.

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


def split_arrays(
  where: object,
  arrays: Mapping[str, np.ndarray],
  labels: str,
  *,
  example: str,
  **settings: Unpack[Settings],
) -> Scores:
  """`split_by_label` of the arrays `scores` and `labels` of a file.

  Args:
    where: the file.
    arrays: its arrays.
    labels: the name of the labels.
    example: a file that has both.
    **settings: as in `Settings`.

  Raises:
    ValueError: an array is missing, or as in `split_by_label`.
  """
  if not {'scores', labels} <= arrays.keys():
    raise ValueError(
      f'{where} has the arrays {sorted(arrays)}, but not scores and {labels}. '
      f'Give a file such as {example}.'
    )
  names = 'scores', labels
  return split_by_label(
    where, arrays['scores'], arrays[labels], names=names, **settings
  )


def take_pair(
  name: str, value: Any, attributes: tuple[str, str], *, cure: str
) -> tuple[Any, Any]:
  """The two groups that an object of another tool holds, or a pair of them.

  Args:
    name: of the argument.
    value: the object, or the pair.
    attributes: of the object: canaries that took part, and the others.
    cure: what to give instead.

  Raises:
    ValueError: it is neither.
  """
  if all(hasattr(value, x) for x in attributes):
    first, second = (getattr(value, x) for x in attributes)
  elif isinstance(value, tuple | list) and len(value) == 2:
    first, second = value
  else:
    raise ValueError(f'{name} is a {type(value).__name__}. {cure}')
  return first, second


def warn_if_reversed(
  scores: Scores, *, higher: str = 'in', cure: str = 'higher={!r}'
) -> str | None:
  """A warning if canaries that took part score lower, beyond chance.

  Args:
    scores: as read.
    higher: as which the file was read.
    cure: what to give instead, with {} for 'in' or 'out'.

  Returns:
    A sentence with the cure, or None.
  """
  failed = failed_checks.check_not_swapped(scores)
  if not failed:
    return None
  p_value = failed[0].values['p_value']
  assert isinstance(p_value, float)
  found = checks.describe_swapped(p_value)
  low, other = ('lower', 'out') if higher == 'in' else ('higher', 'in')
  return (
    f'the sign is probably reversed: {found}. If {low} scores mean "took part", '
    f'give {cure.format(other)}; until then no estimate means anything.'
  )


def _check_finite(where: object, values: Any, meaning: str) -> None:
  """Rejects NaN and inf; `Scores` rejects what is not an array of numbers."""
  array = np.asarray(values)
  if array.dtype.kind != 'f':
    return
  wrong = array[~np.isfinite(array)]
  if wrong.size:
    raise ValueError(
      f'{where}: {wrong.size:,} of the scores of canaries that {meaning} are not '
      f'finite, the first is {wrong[0]}. Remove these canaries, or fix what '
      'wrote the scores.'
    )


def _orient(values, higher):
  array = np.asanyarray(values)
  if higher == 'in':
    return array
  # Unsigned integers would wrap around; `Scores` rejects what is not a number.
  return -array.astype(np.float64) if array.dtype.kind in 'biuf' else array
