"""Definitions of words; a report has those of the words that it uses."""

import re
from typing import NamedTuple


class Term(NamedTuple):
  """A definition in a sentence or two."""

  name: str
  text: str
  pattern: (
    str  # A regular expression of the words that it defines, in any case.
  )


TERMS = {
  'epsilon': Term(
    'ε',
    'Taking part changes the probability of anything that an attacker sees by a factor '
    'of at most e^ε, apart from an additive δ. 0 means no leakage beyond δ.',
    'ε',
  ),
  'delta': Term(
    'δ',
    'The additive slack in the definition of ε. An ε without its δ means nothing: the '
    'same run has a larger ε at a smaller δ.',
    'δ',
  ),
  'lower-bound': Term(
    'Lower bound',
    'With 95 % confidence, if its assumptions hold, this attacker achieves at least this '
    'ε. It is computed from the scores of canaries, by a rule that was fixed before any '
    'was seen.',
    'lower bounds?',
  ),
  'point-estimate': Term(
    'Estimate',
    'The ε of this attack, if the assumptions of the estimator hold. It guarantees '
    'nothing.',
    'estimates?',
  ),
  'at-most': Term(
    'Limit',
    'The largest ε that analysis allows any attack, if noise, clipping and '
    'participation are as configured. With ≈ it is no limit but the ε that is expected '
    'if the server only adds up aggregates.',
    'limits?',
  ),
  'interval': Term(
    '90 % interval',
    'The uncertainty of the estimate that comes from the number of canaries. Runs with '
    'other seeds differ by more.',
    '90 % interval',
  ),
  'floor': Term(
    'Floor',
    'The range of 9 in 10 estimates when nothing leaks. An estimate within it is no '
    'evidence of a leak.',
    'floor',
  ),
  'mu': Term(
    'μ',
    'The Gaussian mechanism with this μ has this ε at this δ: attacking it is telling '
    'N(μ, 1) from N(0, 1).',
    'μ',
  ),
  'canary': Term(
    'Canary',
    'An artificial client whose update is a random direction of the full clip norm. '
    'Some take part and others are held out; attackers have to tell which.',
    'canar(?:y|ies)',
  ),
  'client': Term(
    'Client',
    'A real participant, taken to be one of those who take part most often. What a '
    'client leaks is derived from canaries, not measured: one update is assumed to leave '
    'as much in the last model as that of a canary. Of a client in several rounds the '
    'estimate is a range, from updates that are orthogonal to each other to updates that '
    'point the same way.',
    'clients?',
  ),
  'calibrated': Term(
    'Calibrated',
    'Said of an estimate if the shifts of scores are known up to one common factor and '
    'no test rejects the distribution that it assumes.',
    '(?:un)?calibrated',
  ),
  'noise': Term(
    'Noise',
    'The noise multiplier: the standard deviation of the noise in a sum of updates, '
    'divided by the clip norm.',
    'noise',
  ),
  'dimension': Term(
    'Effective dimension',
    'Over how many coordinates the mass of a vector is spread. Where it is large, '
    'canaries score like random directions.',
    'effective dimension',
  ),
  'difference': Term(
    'Difference',
    'The ε of a run minus that of the first, with a 90 % interval for the variation '
    'between canaries. An interval without 0 says that these runs differ, not that '
    'their settings do.',
    'differences?',
  ),
}
"""Key of an anchor -> what it defines."""


def find_used(text: str) -> dict[str, Term]:
  """The terms whose words a text uses.

  >>> [*find_used('The last model: ε ≈ 2, floor 0 to 0.2')]
  ['epsilon', 'floor']
  """
  return {
    key: term
    for key, term in TERMS.items()
    if re.search(rf'(?<!\w)(?:{term.pattern})(?!\w)', text, re.IGNORECASE)
  }


def find_term(head: str) -> str | None:
  """The key of the term that the head of a column begins with; None for none.

  >>> find_term('limit'), find_term('floor 5-95 %'), find_term('run')
  ('at-most', 'floor', None)
  """
  for key, term in TERMS.items():
    if re.match(rf'(?:{term.pattern})(?!\w)', head, re.IGNORECASE):
      return key
  return None
