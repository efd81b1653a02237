"""A fact: a key with numbers, as results hold it. `epe_jax.report` makes the words."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

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

  def to_json(self) -> dict[str, Any]:
    """The key and the values."""
    return {'key': self.key, 'values': dict(self.values)}

  @classmethod
  def from_json(cls, values: Mapping[str, Any]) -> 'Fact':
    """The fact that `to_json` wrote.

    Raises:
      KeyError: a field is missing.
    """
    return cls(values['key'], dict(values['values']))


Facts = tuple[Fact, ...]


def facts_to_json(facts: Iterable[Fact]) -> list[dict[str, Any]]:
  """A row for each fact."""
  return [fact.to_json() for fact in facts]
