"""Checks of arguments: a ValueError names the argument, its value and what to give.

They stand at the door: in `Scores`, in `check_scores`, with which every estimator
begins, and where a public function has a setting of its own. Inside, types are
trusted. An interval is written as in mathematics, and as it stands in the error. NaN
is in none, so that no NaN passes for a small ε.
"""

from collections.abc import Sequence
import functools
import math
import numbers
import operator
import reprlib
from typing import Any

from jaxtyping import Float
import numpy as np

MAX_INTEGER = 2**53
"""A float64 holds no larger ones exactly."""


def check_number(
  name: str, value: Any, interval: str, *, such_as: str = ''
) -> float:
  """The number itself, if it is a real one of an interval, such as '[0, inf)'.

  Arrays without axes are numbers; `such_as` is an example for the error.

  >>> check_number('mu', math.nan, '[0, inf]')
  Traceback (most recent call last):
    ...
  ValueError: mu=nan; give a number in [0, inf].
  """
  is_number = isinstance(value, numbers.Real) or (
    getattr(value, 'shape', None) == ()
    # PyTorch has other types.
    and getattr(value.dtype, 'kind', 'f') in 'iuf'
  )
  try:
    number = float(value) if is_number else math.nan
  except OverflowError:  # An integer beyond all floats.
    number = math.nan
  if not _is_inside(number, interval):
    example = f', such as {such_as}' if such_as else ''
    raise ValueError(
      f'{name}={reprlib.repr(value)}; give a number in {interval}{example}.'
    )
  return number


def check_numbers(
  name: str, values: Any, interval: str, *, is_vector: bool = False
) -> Float[np.ndarray, '...']:
  """An array of float64, if all are real numbers of an interval.

  A vector must have one axis and at least one number.
  """
  wanted = 'an array [n] of numbers' if is_vector else 'numbers'
  try:
    array = np.asarray(values)
  except ValueError:  # A list of lists of unequal lengths.
    array = np.asarray(None)
  if array.dtype.kind not in 'iuf' or (
    is_vector and (array.ndim != 1 or not array.size)
  ):
    raise ValueError(
      f'{name}={reprlib.repr(values)}; give {wanted} in {interval}.'
    )
  array = array.astype(np.float64)
  inside = _is_inside(array, interval)
  if not np.all(inside):
    bad = float(array[~np.asarray(inside)].flat[0])
    raise ValueError(f'{name}={bad}; give {wanted} in {interval}.')
  return array


def check_integer(
  name: str, value: Any, smallest: int = 1, largest: float = MAX_INTEGER
) -> int:
  """The integer itself, if it is one and in range; seeds are of any size.

  >>> check_integer('rounds', 1.5)
  Traceback (most recent call last):
    ...
  ValueError: rounds=1.5; give an integer >= 1.
  """
  try:
    number = None if isinstance(value, bool) else operator.index(value)
  except TypeError:
    number = None
  if number is None or not smallest <= number <= largest:
    limits = f'>= {smallest}'
    if largest < MAX_INTEGER or (number or 0) > largest:
      limits = f'in [{smallest}, {largest}]'
    raise ValueError(f'{name}={reprlib.repr(value)}; give an integer {limits}.')
  return number


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
  """Raises a ValueError unless the value is one of the choices."""
  if not isinstance(value, str) or value not in choices:
    *others, last = map(repr, choices)
    raise ValueError(
      f'{name}={reprlib.repr(value)} is neither {", ".join(others)} nor {last}.'
    )


def check_delta(delta: Any) -> float:
  """δ, if it is in (0, 1)."""
  return check_number('delta', delta, '(0, 1)', such_as='1e-5')


def check_significance(significance: Any) -> float:
  """The significance, if it is in [1e-100, 1): smaller ones have no quantiles."""
  return check_number('significance', significance, '[1e-100, 1)')


def check_confidence(confidence: Any) -> float:
  """The confidence, if it is in (0, 1 - 1e-12]."""
  return check_number('confidence', confidence, '(0, 0.999999999999]')


def _is_inside(values, interval):
  low, high, with_low, with_high = _parse_interval(interval)
  above = values >= low if with_low else values > low
  return above & (values <= high if with_high else values < high)


@functools.cache
def _parse_interval(interval: str) -> tuple[float, float, bool, bool]:
  low, high = map(float, interval[1:-1].split(','))
  return low, high, interval[0] == '[', interval[-1] == ']'


def warn_of_delta(delta: float, num_clients: float | None = None) -> str | None:
  """Says that a δ is too large for its ε to mean anything; else None.

  A mechanism that publishes all of one person in n, drawn at random, is (0, 1/n)-DP.
  Where nothing is known of the number of clients, 1/n is taken for 0.01.
  """
  if num_clients is None:
    if delta <= 0.01:
      return None
    return (
      f'δ = {delta:g} is above 0.01, so that ε = 0 allows to publish '
      'everything of one person in a hundred; give a δ far below 1/n for n people'
    )
  if delta <= 1 / num_clients:
    return None
  return (
    f'δ = {delta:g} is above 1/n for n = {num_clients:,.0f} clients, '
    'so that ε = 0 allows to publish everything of one of them; give a δ far below 1/n'
  )
