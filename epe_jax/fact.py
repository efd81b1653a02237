"""A fact: a key with numbers, as results hold it. `epe_jax.report` makes the words."""

from collections.abc import Mapping
from typing import NamedTuple

# What a fact may hold: a number, or keys. Files spell numbers that are not finite.
Value = float | int | str | list[str]


class Fact(NamedTuple):
  """A key with numbers: a check that failed, an assumption, a thing to know.

  Attributes:
    key: names it.
    values: name -> a number, the key of something, or keys.
  """

  key: str
  values: Mapping[str, Value] = {}


Facts = tuple[Fact, ...]
