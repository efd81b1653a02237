"""Where files hold words for people instead of keys and numbers."""

from collections.abc import Iterator
from typing import Any

GIVEN = frozenset(
  {'task', 'data', 'config', 'versions', 'software', 'label', 'device'}
)
"""Fields whose words a user, a source of data or a library gave."""


def find_sentences(value: Any, path: str = '') -> Iterator[str]:
  """The path and the text of every key or string with a space.

  Args:
    value: as JSON has it.
    path: of the value.
  """
  if isinstance(value, dict):
    for name, x in value.items():
      if ' ' in name:
        yield f'{path}.{name}'
      if name not in GIVEN:
        yield from find_sentences(x, f'{path}.{name}')
  elif isinstance(value, list):
    for i, x in enumerate(value):
      yield from find_sentences(x, f'{path}[{i}]')
  elif isinstance(value, str) and ' ' in value:
    yield f'{path}: {value}'
