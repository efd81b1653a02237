"""Definitions of terms, and links from numbers to them."""

import re
from typing import NamedTuple

import markupsafe


class Term(NamedTuple):
  """A definition.

  Attributes:
    name: of what is defined.
    text: a few sentences.
  """

  name: str
  text: str


TERMS = {
  'epsilon': Term(
    'ε',
    'How much one client can change the probability of anything that an attacker '
    'sees. A run is (ε, δ)-DP if no event is more than e^ε times as probable with the '
    'client as without, up to δ, and vice versa. 0 is no leakage.',
  ),
  'delta': Term(
    'δ',
    'The probability with which the guarantee of ε may fail. An ε without its δ means '
    'nothing: the same run has a larger ε at a smaller δ.',
  ),
  'lower-bound': Term(
    'Lower bound',
    'The ε of the attacker is at least this, with the stated confidence. It is counted '
    'from canaries, without assuming a shape of their scores. The choice of bound was '
    'fixed before any score was seen.',
  ),
  'confidence': Term(
    'Confidence',
    'The statement is true in at least this share of audits. For a bound it is '
    'one-sided. A point estimate has none.',
  ),
  'point-estimate': Term(
    'Point estimate',
    'Approximately the ε of this attack, if the assumptions of the estimator hold. It '
    'is not a guarantee, and it describes only one attack.',
  ),
  'interval': Term(
    '90 % interval',
    'The two-sided uncertainty of the point estimate that comes from the limited number '
    'of canaries. It does not cover variation from run to run.',
  ),
  'floor': Term(
    'Noise floor',
    'What the same estimator reports when nothing leaks, 5 to 95 % of simulated '
    'audits. An estimate within its floor cannot be distinguished from no leakage.',
  ),
  'mu': Term(
    'μ',
    'The Gaussian mechanism with this μ has this ε at this δ: to attack it is to '
    'distinguish N(0, 1) from N(μ, 1).',
  ),
  'analytic': Term(
    'Analytic ε',
    'The proven limit for an attacker, if noise and accounting are as configured. With '
    '≈ it is not a limit but an expectation, which assumes that clients do not respond '
    'to the model.',
  ),
  'calibrated': Term(
    'Calibrated',
    'How much taking part shifts a score is known up to one factor, and no test rejects '
    'the law that the estimate assumes.',
  ),
  'attacker': Term(
    'Attacker',
    'Someone who knows the canary and sees what the row says. Attackers further down '
    'the table know more.',
  ),
  'canary': Term(
    'Canary',
    'An artificial client whose update is a random direction of the full clip norm. '
    'Some take part and others do not; attackers have to tell which.',
  ),
  'client': Term(
    'A client of this run',
    'What follows for a client who takes part as often as clients of this run do. ≤ is '
    'the analytic ε. A range is what a server that adds up aggregates is expected to '
    'leave in the model: of updates that are orthogonal to each other, to updates '
    'that agree.',
  ),
  'rounds': Term(
    'Rounds', 'How often clients trained and the server averaged their updates.'
  ),
  'parameters': Term('d', 'The number of parameters of the model.'),
  'noise': Term(
    'Noise multiplier',
    'The standard deviation of the privacy noise on a sum of updates, in units of the '
    'clip norm.',
  ),
  'dimension': Term(
    'Effective dimension',
    'The number of coordinates over which the mass of what was seen is spread. If it is '
    'large, canaries score like random directions.',
  ),
  'accuracy': Term(
    'Test accuracy',
    'The share of test examples that the final model classifies correctly. The majority '
    'class is the accuracy of a constant answer.',
  ),
  'loss': Term('Test loss', 'The mean loss of the final model on test data.'),
  'guesses': Term(
    'Guesses',
    'The share of correct guesses about who took part, with the best threshold, if half '
    'of all did. 50 % is chance.',
  ),
  'risks': Term(
    'Risks of a person',
    'In or out: share of right guesses at even odds. Found: share of those who took '
    'part that is found, with one false alarm in 100. Named: probability that whoever '
    'is named did take part, if 1 in 100 did. Secret: probability of guessing an '
    'attribute that anyone guesses with probability 0.001.',
  ),
  'standard-error': Term(
    'Standard error',
    'The standard deviation of an estimate over audits. Differences of two standard '
    'errors or more occur by chance in one audit of twenty.',
  ),
  'p-value': Term(
    'p', 'The probability of so large a difference by chance, if there is none.'
  ),
  'difference': Term(
    'Difference',
    'The ε of a run minus that of the first run, with a 90 % interval for the variation '
    'between canaries, from the intervals of both (Zou and Donner 2008). An interval without 0 '
    'says that these runs differ, not that their settings do.',
  ),
  'time': Term('Time', 'Seconds that rounds took on the device named below.'),
}
"""Key of an anchor -> what it defines."""

# Head of a column, or first cell of a row of two -> key of a term.
_TERM_OF = {
  'accuracy of the majority class': 'accuracy',
  'analytic ε': 'analytic',
  'attacker': 'attacker',
  'analytic ε of canaries': 'analytic',
  'analytic ε of canaries and clients': 'analytic',
  'analytic ε of clients': 'analytic',
  'a client': 'client',
  'bound, 95 %': 'lower-bound',
  'bounds, 95 % together': 'lower-bound',
  'canaries that did not': 'canary',
  'canaries that took part': 'canary',
  'difference [90 % interval]': 'difference',
  'effective dimension of what was seen': 'dimension',
  'floor 5-95 %': 'floor',
  'found': 'risks',
  'in or out': 'risks',
  '90 % interval': 'interval',
  'kind': 'confidence',
  'lower bound, 95 %': 'lower-bound',
  'named': 'risks',
  'noise': 'noise',
  'parameters d': 'parameters',
  'rounds': 'rounds',
  'rounds of a client, at most': 'rounds',
  'secret': 'risks',
  'test accuracy': 'accuracy',
  'test loss': 'loss',
  'time': 'time',
  'δ': 'delta',
  'ε': 'epsilon',
  'ε [90 % interval]': 'point-estimate',
  'μ': 'mu',
}

# The context of a number tells its term; the first pattern that matches counts.
_NUMBER = r'[\d.,]*\d(?:e-?\d+)?'
_PATTERNS = (
  (rf'ε ≥ (?:{_NUMBER}|∞)', 'lower-bound'),
  (rf'ε ≈ (?:{_NUMBER}|∞)', 'point-estimate'),
  (rf'point estimate {_NUMBER}', 'point-estimate'),
  (rf'floor {_NUMBER}-{_NUMBER}', 'floor'),
  (rf'δ = {_NUMBER}', 'delta'),
  (rf'{_NUMBER} % confidence', 'confidence'),
  (rf'with confidence {_NUMBER} %', 'confidence'),
  (rf'\({_NUMBER} %', 'confidence'),
  (rf'90 % interval {_NUMBER} to {_NUMBER}', 'interval'),
  (rf'reports {_NUMBER} to {_NUMBER}', 'floor'),
  (
    rf'(?:analysis allows|allowed ε =|analytic ε is|analytic ε of) {_NUMBER}',
    'analytic',
  ),
  (rf'{_NUMBER} standard errors?', 'standard-error'),
  (rf'p [=<] {_NUMBER}', 'p-value'),
  (rf'(?:about|more than|less than) {_NUMBER} %', 'guesses'),
  (rf'{_NUMBER} rounds?', 'rounds'),
  (rf'd = {_NUMBER}', 'parameters'),
  (rf'noise {_NUMBER}', 'noise'),
  (rf'(?:accuracy|majority class:) {_NUMBER} %', 'accuracy'),
  (rf'at {_NUMBER} %', 'confidence'),
  (rf'{_NUMBER} of {_NUMBER} canaries', 'canary'),
  (rf'{_NUMBER} canaries', 'canary'),
)
_ANY = re.compile('|'.join(f'({pattern})' for pattern, _ in _PATTERNS))


def find_term(name: str) -> str | None:
  """The key of the term for numbers under, or next to, a name; None for none."""
  return _TERM_OF.get(name)


def link(text: str, key: str) -> markupsafe.Markup:
  """Text that leads to the definition of a term.

  Raises:
    KeyError: there is no such term.
  """
  return markupsafe.Markup('<a href="#term-{}" title="{}">{}</a>').format(
    key, TERMS[key].name, text
  )


def link_each(text: str, key: str) -> markupsafe.Markup:
  """Text in which every number leads to the definition of one term.

  Raises:
    KeyError: there is no such term.

  >>> print(link_each('0.2 times', 'noise'))
  <a href="#term-noise" title="Noise multiplier">0.2</a> times
  """
  parts = re.split(rf'((?:≈ |≥ )?(?<![\w.])(?:{_NUMBER}|∞)(?: %)?)', text)
  linked = [
    link(part, key) if i % 2 else markupsafe.escape(part)
    for i, part in enumerate(parts)
  ]
  return markupsafe.Markup('').join(linked)


def link_numbers(text: str) -> markupsafe.Markup:
  """A sentence in which numbers lead to the definition that their context suggests.

  >>> print(link_numbers('ε ≥ 2.0 < 3'))
  <a href="#term-lower-bound" title="Lower bound">ε ≥ 2.0</a> &lt; 3
  """
  parts, end = [], 0
  for match in _ANY.finditer(text):
    assert match.lastindex is not None, 'one of the patterns'
    parts.append(markupsafe.escape(text[end : match.start()]))
    parts.append(link(match.group(), _PATTERNS[match.lastindex - 1][1]))
    end = match.end()
  parts.append(markupsafe.escape(text[end:]))
  return markupsafe.Markup('').join(parts)
