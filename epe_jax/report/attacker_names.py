"""The words for attackers, for what they see and for the units of their scores."""

from epe_jax.audit.attack_scores import ThreatModel
from epe_jax.report import cells

NAMES = {
  'final': 'final model',
  'change': 'change of the model',
  'maximum': 'maximum over rounds',
  'likelihood': 'likelihood over rounds',
  'own_round': 'own round',
  'residual': 'own round, others removed',
  'decorrelated': 'rounds combined, others removed',
  'external': 'scores as given',
}
"""Key of an attacker of this package -> its name in legends and headings."""

VIEWS = {
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


def spell_name(attacker: ThreatModel) -> str:
  """The name of an attacker, in legends and headings."""
  key = attacker.key
  return attacker.name or NAMES.get(key) or cells.spell_key(key)


def spell_statistic(attacker: ThreatModel) -> str:
  """The score of a canary for an attacker."""
  name = spell_name(attacker)
  is_of_model = attacker.key in ('final', 'change')
  return f'cosine with the {name}' if is_of_model else name


def describe_view(view: str) -> str:
  """What an attacker sees, in words: those of `VIEWS`, or of the attacker's author.

  >>> describe_view('all_iterates_and_updates'), describe_view('signs of updates')
  ('all iterates, other updates known', 'signs of updates')
  """
  return VIEWS.get(view) or cells.spell_key(view)


def describe_unit(unit: str) -> str:
  """The unit of scores in words, as for the axis of a figure."""
  return UNITS.get(unit) or cells.spell_key(unit)
