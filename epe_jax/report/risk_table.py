"""The risks of a person, attacker by attacker, as a table."""

from collections.abc import Sequence

from epe_jax.audit import clients, upper_bounds
from epe_jax.audit.attack_risks import (
  BASELINE,
  FPR,
  PRIOR,
  AttackRisks,
  compute_attack_risks,
)
from epe_jax.audit.evaluation import Attack
from epe_jax.text import cells, tables

EXPLANATION = (
  'How well the best attack on a client of this run does. "In or out": share of right '
  'guesses whether a person took part, at even odds. "Found": share of those who took '
  f'part that is found, with {100 * FPR:g} false alarm in 100. "Named": probability that '
  f'whoever is named did take part, if {100 * PRIOR:g} in 100 did. "Secret": largest '
  'probability of guessing an attribute or record of a person that anyone guesses with '
  f'probability {BASELINE:g}. Without a word: of a Gaussian mechanism with the '
  'estimated ε (in brackets: with the limits of its interval), if canaries take part '
  'as clients do. "At most": what the mechanism allows. "Expected": what a linear '
  'server leaves of a client in the model; of several updates, from those that are '
  'orthogonal to those that agree.'
)
# A regret is known to about as much.
_EXACT = 1e-4
_COLUMNS = {
  'in or out': 'accuracy',
  'found': 'tpr',
  'named': 'posterior',
  'secret': 'reconstruction',
}


def make_table(
  attacks: Sequence[Attack], participations: clients.Participations
) -> tables.Table | None:
  """A line for each attacker whose estimate is calibrated; None if none is.

  Args:
    attacks: what was found about each attacker.
    participations: of canaries and clients.
  """
  body = [
    [
      attack.threat_model.name,
      *(_format_cell(risks, name, attack) for name in _COLUMNS.values()),
    ]
    for attack in attacks
    if (risks := compute_attack_risks(attack, participations)) is not None
  ]
  return tables.Table('', ['attacker', *_COLUMNS], body) if body else None


def explain_regret(attacks: Sequence[Attack]) -> str | None:
  """What a μ misstates of mechanisms that are not Gaussian; None if all are."""
  regrets = {
    attack.threat_model.name: upper_bounds.compute_gaussian_regret(
      attack.analytic, attack.first.delta
    )
    for attack in attacks
    if attack.analytic is not None
  }
  misstated = {name: x for name, x in regrets.items() if x and x > _EXACT}
  if not misstated:
    return None
  listed = ', '.join(f'{x:.2g} for {name}' for name, x in misstated.items())
  text = (
    'A μ describes a Gaussian mechanism. What these attackers are allowed is not '
    'exactly Gaussian, so rates of false positives and false negatives that are '
    f'computed from a μ are wrong by up to (the regret): {listed}.'
  )
  exact = [name for name, x in regrets.items() if x is not None and x <= _EXACT]
  return f'{text} They are exact for {"; ".join(exact)}.' if exact else text


def _format_cell(risks: AttackRisks, name: str, attack: Attack) -> str:
  def format_share(of) -> str:
    return cells.format_share(float(getattr(of, name)))

  parts = []
  if risks.estimate is not None:
    parts.append(format_share(risks.estimate))
  if risks.interval is not None:
    low, high = map(format_share, risks.interval)
    parts[-1] += f' ({low} to {high})'
  if risks.expected is not None:
    low, high = map(format_share, risks.expected)
    parts.append(f'expected {low}' + (f' to {high}' if low != high else ''))
  if risks.limit is not None:
    # Of more rounds than canaries' only a bound is known.
    is_expected = (
      risks.estimate is not None
      and attack.analytic is not None
      and attack.analytic.kind == 'expectation'
    )
    word = 'expected' if is_expected else 'at most'
    parts.append(f'{word} {format_share(risks.limit)}')
  return '; '.join(parts) or '-'
