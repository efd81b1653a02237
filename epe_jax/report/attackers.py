"""The words for what an attacker sees, and for the units of its scores."""

from epe_jax.report import wording

SEES = {
  'final_model': 'final model',
  'initial_and_final_model': 'final model, initial model known',
  'all_iterates': 'all iterates',
  'all_iterates_and_updates': 'all iterates, other updates known',
  'all_iterates_combined': 'all iterates, combined; other updates known',
  'published_models': 'published models',
  'published_models_and_updates': 'published models, other updates known',
  'scores': 'scores',
}
"""What an attacker of this package sees and knows -> its words."""

UNITS = {
  'cosine': 'cosine, in units of 1/√d',
  'noise': 'in units of the noise',
  'log_likelihood_ratio': 'log likelihood ratio',
  'score': 'score',
}
"""What scores are measured in -> its words."""


def describe_sees(sees: str) -> str:
  """What an attacker sees, in words: those of `SEES`, or of the attacker's author.

  >>> describe_sees('all_iterates_and_updates'), describe_sees('signs of updates')
  ('all iterates, other updates known', 'signs of updates')
  """
  return SEES.get(sees) or wording.spell_key(sees)


def describe_unit(unit: str) -> str:
  """The unit of scores in words, as for the axis of a figure."""
  return UNITS.get(unit) or wording.spell_key(unit)
