"""The words for facts, by tables of them: each room of `epe_jax.report` has its own."""

from collections.abc import Callable, Mapping

from epe_jax.fact import Fact

Words = Mapping[str, str | Callable[..., str]]
"""Key of a fact -> its words, or what makes them from its values by their names."""


def describe_fact(fact: Fact, words: Words) -> str:
  """A fact in words, without a full stop.

  Args:
    fact: of a key of `words`, or one that is not of this package, which is spelled.
    words: for each key.

  >>> words = {'equal': 'all scores are equal', 'few': 'only {num} scores'.format}
  >>> describe_fact(Fact('few', {'num': 3}), words)
  'only 3 scores'
  >>> describe_fact(Fact('my_test', {'share': 0.5}), words)
  'my test (share = 0.5)'
  """
  if fact.key in words:
    text = words[fact.key]
    return text if isinstance(text, str) else text(**fact.values)
  values = ', '.join(f'{name} = {x}' for name, x in fact.values.items())
  name = spell_key(fact.key)
  return f'{name} ({values})' if values else name


def spell_key(key: str) -> str:
  """A key that reads as words.

  >>> spell_key('reproducible_simulation')
  'reproducible simulation'
  """
  return key.replace('_', ' ')
