"""The values that a field of a config may have, with words and conversions."""

from collections.abc import Callable
import numbers
import os
from typing import Any, NamedTuple

import numpy as np

# Larger integers are typing errors, not settings.
_MAX_INTEGER = 10**9


class Field(NamedTuple):
  """The values that a field may have.

  Attributes:
    description: the values in words, to follow "give" in an error message.
    is_valid: whether a value is one of them.
    convert: turns a valid value into a Python type that JSON has.
  """

  description: str
  is_valid: Callable[[Any], bool]
  convert: Callable[[Any], Any]


def integer(low: int, high: int | None = _MAX_INTEGER) -> Field:
  """Integers from low to high; high=None sets no limit."""
  description = f'an integer from {low:,}'
  return Field(
    description + (f' to {high:,}' if high is not None else ' on'),
    lambda x: (
      is_number(x, numbers.Integral)
      and low <= x
      and (high is None or x <= high)
    ),
    int,
  )


def real(description: str, low: float, high: float, *, is_open: bool) -> Field:
  """Numbers in the open interval (low, high), or in the closed one."""
  return Field(
    description,
    lambda x: (
      is_number(x, numbers.Real)
      and (low < x < high if is_open else low <= x <= high)
    ),
    float,
  )


def is_number(x: Any, kind: type) -> bool:
  """Whether x is of a kind of `numbers`; a bool is not a number."""
  return isinstance(x, kind) and not isinstance(x, bool)


def one_of(*names: str) -> Field:
  """One of some strings."""
  return Field(
    f'one of {", ".join(map(repr, names))}',
    lambda x: isinstance(x, str) and x in names,
    str,
  )


def or_none(field: Field, none: str) -> Field:
  """The values of a field, or None, which means `none`."""
  return Field(
    f'{field.description}, or None for {none}',
    lambda x: x is None or field.is_valid(x),
    lambda x: x if x is None else field.convert(x),
  )


FLAG = Field('True or False', lambda x: isinstance(x, bool | np.bool_), bool)
PATH = Field(
  'a path that is not empty',
  lambda x: (
    isinstance(x, str | os.PathLike)
    and bool(os.fspath(x))
    and '\0' not in os.fspath(x)
  ),
  os.fspath,
)
