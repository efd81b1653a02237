"""The words for facts, by tables of them: each room of `epe_jax.report` has its own."""

from collections.abc import Callable, Mapping
import string
from typing import Any

from epe_jax.fact import Fact
from epe_jax.report import cells

Words = Mapping[str, str | Callable[..., str]]
"""Key of a fact -> the format of its words, or what chooses it by values."""

_FORMS: Mapping[str, Callable[[Any], str]] = {
  'errors': cells.format_errors,
  'g %': lambda share: f'{100 * share:g} %',
  'key': cells.spell_key,
  'number': cells.format_number,
  'p': cells.format_p_value,
  'ratio': cells.format_ratio,
  'rounds': cells.format_rounds,
}


class _Formatter(string.Formatter):
  """Knows the formats of numbers that people read by their names."""

  def format_field(self, value: Any, format_spec: str) -> str:
    if format_spec in _FORMS:
      return _FORMS[format_spec](value)
    return super().format_field(value, format_spec)


def describe_fact(fact: Fact, words: Words) -> str:
  """A fact in words, without a full stop.

  Args:
    fact: of a key of `words`, or one that is not of this package, which is spelled.

  >>> words = {'equal': 'all scores are equal', 'far': 'unlikely ({p_value:p})'}
  >>> describe_fact(Fact('far', {'p_value': 0.003}), words)
  'unlikely (p = 0.003)'
  >>> describe_fact(Fact('my_test', {'share': 0.5}), words)
  'my test (share = 0.5)'
  """
  if fact.key in words:
    text = words[fact.key]
    text = text if isinstance(text, str) else text(**fact.values)
    return _Formatter().vformat(text, (), fact.values)
  values = ', '.join(f'{name} = {x}' for name, x in fact.values.items())
  name = cells.spell_key(fact.key)
  return f'{name} ({values})' if values else name
