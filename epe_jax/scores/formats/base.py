"""What a format of another tool is, and `Scores` of what is read from it."""

from collections.abc import Callable
import os
from typing import Any, Literal, NamedTuple, TypedDict, Unpack, get_args

import numpy as np

from epe_jax.audit import failed_checks
from epe_jax.epsilon.types import Scores, make_null
from epe_jax.fact import Fact

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


class ScoreFormat(NamedTuple):
  """A format of another tool.

  Attributes:
    name: as in --from.
    label: what it is, for people.
    read: `(path, **Settings) -> Scores`, where settings that are left out have the
      convention of the tool; None for counts, which are not scores.
    suffix: of its files.
    fields: names by which it is recognized: all of them are arrays of its .npz, or
      keys of its .json.
    higher: which group scores higher, unless the user says otherwise.
  """

  name: str
  label: str
  read: Callable[..., Scores] | None
  suffix: str
  fields: frozenset[str]
  higher: Higher = 'in'


def make_scores(
  where: str | os.PathLike | None,
  observed: Any,
  unobserved: Any,
  *,
  names: tuple[str, str] = ('observed', 'unobserved'),
  higher: Higher = 'in',
  dim: float | None = None,
  design: Design = 'fixed',
  inclusion_probability: float = 0.5,
) -> Scores:
  """Scores oriented so that a higher one says "took part".

  Args:
    where: the file or object that errors name; None if `names` are arguments.
    observed: [n1] scores of canaries that took part: anything that NumPy takes for
      an array.
    unobserved: [n0] scores of those that did not; empty only if `dim` is given.
    names: what errors call both.
    higher: as in `Settings`, like the others.
    dim: see above.
    design: see above.
    inclusion_probability: see above.

  Raises:
    ValueError: `higher` is neither, or these are not scores of one audit.
  """
  try:
    if higher not in get_args(Higher):
      raise ValueError(
        f"higher={higher!r} is neither 'in' nor 'out'. Say which canaries score "
        'higher: those that took part, or the others.'
      )
    observed = _to_array(names[0], observed)
    unobserved = _to_array(names[1], unobserved)
    if not observed.size:
      raise ValueError(
        f'{names[0]} is empty: there are no scores of canaries that took part. Add '
        'them: an audit compares the scores of both groups.'
      )
    if dim is None and not unobserved.size:
      raise ValueError(
        f'{names[1]} is empty: there are no scores of canaries that did not take '
        'part. Add them, or, if scores are cosines in R^d, give d: --dim=D on the '
        'command line, dim in Python.'
      )
    return Scores(
      _orient(observed, higher),
      _orient(unobserved, higher),
      make_null(dim),
      design,
      inclusion_probability=inclusion_probability,
    )
  except ValueError as error:
    raise ValueError(error if where is None else f'{where}: {error}') from error


def split_by_label(
  where: str | os.PathLike,
  scores: Any,
  labels: Any,
  *,
  names: tuple[str, str] = ('scores', 'labels'),
  **settings: Unpack[Settings],
) -> Scores:
  """Scores of canaries with a label each, which says whether it took part.

  Args:
    where: the file or object that errors name.
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


def find_reversed(
  scores: Scores, *, higher: str = 'in', option: str = 'higher'
) -> Fact | None:
  """Whether canaries that took part score lower, beyond chance.

  Args:
    scores: as read.
    higher: as which the file was read.
    option: what sets `higher`.

  Returns:
    A fact that `text.checks` has the words for, with the cure; None if they do not.
  """
  failed = failed_checks.check_not_swapped(scores)
  if not failed:
    return None
  values = {**failed[0].values, 'higher': higher, 'option': option}
  return Fact('sign_reversed', values)


def _to_array(name: str, values: Any) -> np.ndarray:
  """Scores [n] as an array, or what is wrong with them."""
  try:
    array = np.asanyarray(values)
  except (TypeError, ValueError) as error:
    raise ValueError(f'{name} is no array of numbers ({error}).') from error
  if not array.size:
    return np.empty(0)
  if array.dtype.kind not in 'biuf':
    raise ValueError(
      f'{name} has dtype {array.dtype}; give real numbers, such as float64.'
    )
  if array.ndim != 1:
    raise ValueError(
      f'{name} has shape {array.shape}; give one score for each canary, [n].'
    )
  not_finite = np.flatnonzero(~np.isfinite(np.ma.getdata(array)))
  if not_finite.size:
    first = not_finite[0]
    raise ValueError(
      f'{name} has {not_finite.size:,} values that are not finite, the first is '
      f'{name}[{first}] = {np.ma.getdata(array)[first]}; drop these canaries if '
      'that does not depend on who took part.'
    )
  return array


def _orient(scores: np.ndarray, higher: Higher) -> np.ndarray:
  # Unsigned integers would wrap around.
  return scores if higher == 'in' else -scores.astype(np.float64)
