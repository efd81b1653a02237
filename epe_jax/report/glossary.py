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
    'How much taking part changes the probability of anything that an attacker sees: '
    'by a factor of e^ε at most, up to δ. 0 means no leakage.',
    'ε',
  ),
  'delta': Term(
    'δ',
    'The probability with which ε may fail. An ε without its δ means nothing: the '
    'same run has a larger ε at a smaller δ.',
    'δ',
  ),
  'lower-bound': Term(
    'Lower bound',
    'The true ε of the attacker is above it with 95 % confidence. It is counted from '
    'canaries; which bound it is was fixed before any score was seen.',
    'lower bounds?',
  ),
  'point-estimate': Term(
    'Estimate',
    'The ε of this attack, if what the estimator assumes is so. It guarantees nothing.',
    'estimates?',
  ),
  'at-most': Term(
    'Limit',
    'The ε that the mechanism allows any attack, by analysis, if noise, clipping and '
    'participation are as configured. With ≈ it is what a server that adds up '
    'aggregates is expected to leave, and not a limit.',
    'limits?',
  ),
  'interval': Term(
    '90 % interval',
    'Where the estimate may lie, as canaries are few. Runs differ by more.',
    '90 % interval',
  ),
  'floor': Term(
    'Floor',
    'What the same estimator reports when nothing leaks, in 90 % of audits.',
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
    'A client who takes part as often as any, or where clients are drawn for each '
    'round, as often as it happens. Canaries show what an update leaves in the last '
    'model. A server that adds up aggregates leaves that of each round of the client: '
    'its estimate is the ε of orthogonal updates and of aligned ones, if its rounds are '
    'not known. Its rounds by themselves were not measured.',
    'clients?',
  ),
  'calibrated': Term(
    'Calibrated',
    'How much taking part shifts a score is known up to a factor, and no test rejects '
    'the distribution that the estimate assumes.',
    '(?:un)?calibrated',
  ),
  'noise': Term(
    'Noise',
    'The standard deviation of the noise of a sum of updates, in clip norms.',
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
    'The ε of a run less that of the first, with a 90 % interval for the variation '
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
