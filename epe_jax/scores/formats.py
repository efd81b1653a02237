"""Formats of other privacy-auditing tools, read into `epsilon.Scores`.

A format is a row of `FORMATS`: the names by which its files are recognized, and which
canaries score higher in them. Whatever the tool, a higher score says "took part" once it
is read.

References: privacytrustlab/ml_privacy_meter, `audit.py` (get_audit_results,
get_all_dp_audit_results) and `attacks.py` at e384af8; the RMIA paper's code,
`research/2024_rmia/main.py` at d327341 ("lower = member").
"""

from collections.abc import Mapping
import os
from typing import Any, Literal, NamedTuple, TypedDict, Unpack, get_args

from jaxtyping import Bool, Shaped
import numpy as np

from epe_jax.audit import failed_checks
from epe_jax.epsilon.checks import check_choice
from epe_jax.epsilon.types import Scores, make_null
from epe_jax.fact import Fact

Higher = Literal['in', 'out']
"""Which group scores higher in a file: canaries that took part, or the others."""

# Coins look like copies of one another with a chance of 2 to the minus this.
_MIN_COINS = 20


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
  design: Literal['fixed', 'coin_flip']
  inclusion_probability: float


class ScoreFormat(NamedTuple):
  """A format of another tool: an .npz with an array `scores` and one of labels.

  Attributes:
    name: as in --from.
    label: what it is, for people.
    labels: the array of who took part.
    higher: which group scores higher, unless the user says otherwise.
  """

  name: str
  label: str
  labels: str
  higher: Higher = 'in'


FORMATS: dict[str, ScoreFormat] = {
  one.name: one
  for one in (
    ScoreFormat('privacy_meter', 'a report of ML Privacy Meter', 'memberships'),
    ScoreFormat('rmia', "scores of the RMIA paper's code", 'answers', 'out'),
  )
}
"""Every format of another tool, by name."""


def make_scores(
  where: str | os.PathLike | None,
  observed: Any,
  unobserved: Any,
  *,
  names: tuple[str, str] = ('observed', 'unobserved'),
  **settings: Unpack[Settings],
) -> Scores:
  """Scores oriented so that a higher one says "took part".

  Args:
    where: the file or object that errors name; None if `names` are arguments.
    observed: [n1] scores of canaries that took part: anything that NumPy takes for
      an array. If one is infinite, the order of all of them is what counts.
    unobserved: [n0] scores of those that did not; empty only if `dim` is given.
    names: what errors call both.
    **settings: as in `Settings`; 'in', None, 'fixed' and 1/2 if they are left out.

  Raises:
    ValueError: `higher` is neither, or these are not scores of one audit.
  """
  higher, dim = settings.get('higher', 'in'), settings.get('dim')
  try:
    check_choice('higher', higher, get_args(Higher))
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
    if higher == 'out':
      # Unsigned integers would wrap around.
      observed, unobserved = -np.float64(observed), -np.float64(unobserved)
    observed, unobserved, is_ordinal = _order_infinite(observed, unobserved)
    if is_ordinal and dim is not None:
      raise ValueError(
        f'dim={dim} says that scores are cosines, but one is infinite; leave dim out.'
      )
    return Scores(
      observed,
      unobserved,
      make_null(dim),
      settings.get('design', 'fixed'),
      inclusion_probability=settings.get('inclusion_probability', 0.5),
      is_ordinal=is_ordinal,
    )
  except ValueError as error:
    raise ValueError(error if where is None else f'{where}: {error}') from error


def find_members(
  where: str | os.PathLike, labels: Shaped[np.ndarray, ' n'], name: str
) -> Bool[np.ndarray, ' n']:
  """Who took part, by labels of 1 and 0, or of 1 and -1.

  Raises:
    ValueError: a label is neither.
  """
  no = -1 if labels.dtype.kind in 'if' and np.any(labels == -1) else 0
  is_label = labels.dtype.kind in 'biuf' and np.isin(labels, (no, 1))
  if not np.all(is_label):
    wrong = labels[~np.broadcast_to(is_label, labels.shape)][0]
    raise ValueError(
      f'{where}: {name} has the entry {wrong}; write 1 for a canary that '
      f'took part and {no} for one that did not.'
    )
  return labels == 1


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
  took_part = find_members(where, labels, names[1])
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
    A fact that `report.checks` has the words for, with the cure; None if they do
    not.
  """
  failed = failed_checks.check_not_swapped(scores)
  if not failed:
    return None
  values = {**failed[0].values, 'higher': higher, 'option': option}
  return Fact('sign_reversed', values)


def find(
  where: str | os.PathLike, arrays: Mapping[str, np.ndarray], source: str
) -> ScoreFormat | None:
  """The format of another tool that arrays are to be read as; None of all others.

  Args:
    where: the file that errors name.
    arrays: of an .npz, by name; none of any other file.
    source: a name of `FORMATS`, or 'auto' to recognize the format.

  Raises:
    ValueError: there is no format of that name, or the arrays are not its own.
  """
  has = lambda one: {'scores', one.labels} <= arrays.keys()
  if source == 'auto':
    return next(filter(has, FORMATS.values()), None)
  if source not in FORMATS:
    raise ValueError(
      f"source={source!r} (--from on the command line) is neither 'auto' nor one of "
      f'{", ".join(FORMATS)}.'
    )
  tool = FORMATS[source]
  if not has(tool):
    has_not = f'has the arrays {sorted(arrays)}, but not' if arrays else 'lacks'
    raise ValueError(
      f'{where} {has_not} scores and {tool.labels}, and so is not {tool.label}, as '
      f'source={source!r} (--from on the command line) says; leave it out, or give such '
      'an .npz.'
    )
  return tool


def read(
  where: str | os.PathLike,
  arrays: Mapping[str, np.ndarray],
  tool: ScoreFormat,
  **settings: Unpack[Settings],
) -> Scores:
  """Scores of one target model from the arrays of a tool, by its convention.

  Raises:
    ValueError: as `split_by_label`, or examples are there more than once: those of
      several target models, or several neighbors of each (range attack).
  """
  labels = np.ravel(arrays[tool.labels])
  if tool.name == 'privacy_meter':
    _check_examples_differ(where, labels)
    # `run_audit_dp.py` flips a fair coin for each example, `run_mia.py` takes half.
    if 'k_neg' in arrays:
      settings.setdefault('design', 'coin_flip')
  settings.setdefault('higher', tool.higher)
  names = 'scores', tool.labels
  return split_by_label(
    where, arrays['scores'], labels, names=names, **settings
  )


def _check_examples_differ(path, members):
  """Refuses files that have each example more than once, by their memberships.

  `get_average_audit_results` pools models 2i and 2i + 1 that are trained on
  complements, so that the second block is the first one, negated; one audit may
  have two blocks of one label each. Neighbors of a range attack share theirs.
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
  changes = np.flatnonzero(labels[1:] != labels[:-1]) + 1
  each = np.gcd.reduce(np.diff(changes, prepend=0, append=labels.size))
  if changes.size >= _MIN_COINS and each > 1:
    raise ValueError(
      f'{path}: memberships are equal in blocks of {each}, as those of a range '
      'attack with so many neighbors of each example, which do not score '
      'independently. Give one score for each example.'
    )


def _to_array(name: str, values: Any) -> np.ndarray:
  """Scores [n] as an array, or what is wrong with them."""
  try:
    array = np.asanyarray(values)
  except (TypeError, ValueError) as error:
    raise ValueError(f'{name} is not an array of numbers ({error}).') from error
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
  missing = np.flatnonzero(np.isnan(np.ma.getdata(array)))
  if missing.size:
    raise ValueError(
      f'{name} has {missing.size:,} values that are nan, the first is '
      f'{name}[{missing[0]}]; drop these canaries if that does not depend on who took '
      'part.'
    )
  return array


def _order_infinite(
  observed: np.ndarray, unobserved: np.ndarray
) -> tuple[np.ndarray, np.ndarray, bool]:
  """Scores of ±∞ as the largest and smallest of all, and whether there are any."""
  scores = np.concatenate([np.ma.getdata(observed), np.ma.getdata(unobserved)])
  is_finite = np.isfinite(scores)
  if np.all(is_finite):
    return observed, unobserved, False
  finite = np.float64(scores[is_finite])
  ends = {
    'posinf': np.nextafter(np.max(finite, initial=0.0), np.inf),
    'neginf': np.nextafter(np.min(finite, initial=0.0), -np.inf),
  }
  replace = lambda x: np.nan_to_num(np.asanyarray(x, np.float64), **ends)
  return replace(observed), replace(unobserved), True
