"""Checks of arguments: an error names the argument, its value and what to give.

An interval is written as in mathematics, such as '[0, inf)', and as it stands in the
error. NaN is in none, so that no NaN passes for a small ε.
"""

from __future__ import annotations

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
  """The number itself, if it is a real one of an interval.

  Args:
    name: of the argument.
    value: what was given; arrays without axes are numbers.
    interval: such as '[0, inf)'.
    such_as: an example for the error.

  Raises:
    ValueError: it is another thing, or outside the interval.

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

  Args:
    name: of the argument.
    values: a number, or an array or list of them.
    interval: such as '(0, 1)'.
    is_vector: whether it must have one axis and at least one number.

  Raises:
    ValueError: it is another thing, or a number is outside the interval.
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
  """The integer itself, if it is one and in range.

  Args:
    name: of the argument.
    value: what was given.
    smallest: allowed.
    largest: allowed; infinite for seeds.

  Raises:
    ValueError: it is another thing, or out of range.

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

  Args:
    delta: δ, in (0, 1).
    num_clients: n, or as many as there are at least; None if nothing is known of them,
      and 1/n is taken for 0.01.
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
