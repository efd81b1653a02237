"""The risks of a person, attacker by attacker, as a table."""

from collections.abc import Sequence

from epe_jax.audit import upper_bounds
from epe_jax.audit.attack_risks import (
  BASELINE,
  FPR,
  PRIOR,
  AttackRisks,
  compute_attack_risks,
)
from epe_jax.audit.estimates import Attack
from epe_jax.text import cells, tables

EXPLANATION = (
  'How well the best attack on a Gaussian mechanism with the estimated ε does (in '
  'brackets: with the limits of its interval), and what the mechanism of the run '
  'allows this attacker, or a linear server is expected to leave. "In or out": share '
  'of right guesses whether a person took part, at even odds. "Found": share of '
  f'those who took part that is found, with {100 * FPR:g} false alarm in 100. "Named": '
  'probability that whoever is named did take part, if '
  f'{100 * PRIOR:g} in 100 did. "Secret": largest probability of guessing an attribute '
  'or record of a person that anyone guesses with probability '
  f'{BASELINE:g}. "-": for this attacker the mechanism is not Gaussian, so ε at one δ '
  'says little about risks. The verdict, the words and the figures have another share '
  'of right guesses, that of the measured attack over all canaries, of which some show '
  'less than others: it is a little smaller.'
)
_COLUMNS = {
  'in or out': 'accuracy',
  'found': 'tpr',
  'named': 'posterior',
  'secret': 'reconstruction',
}


def make_table(attacks: Sequence[Attack]) -> tables.Table | None:
  """A line for each attacker whose estimate is calibrated; None if none is."""
  body = [
    [
      attack.threat_model.name,
      *(
        _format_cell(risks, name, _name_limit(attack))
        for name in _COLUMNS.values()
      ),
    ]
    for attack in attacks
    if (risks := compute_attack_risks(attack)) is not None
  ]
  return tables.Table('', ['attacker', *_COLUMNS], body) if body else None


def explain_regret(attacks: Sequence[Attack]) -> str | None:
  """What a μ misstates of mechanisms that are not Gaussian; None if all are."""
  misstated = {
    attack.threat_model.name: regret
    for attack in attacks
    if attack.analytic is not None
    and not attack.analytic.is_gaussian
    and (
      regret := upper_bounds.compute_gaussian_regret(
        attack.analytic, attack.first.delta
      )
    )
    is not None
  }
  if not misstated:
    return None
  listed = ', '.join(f'{x:.2g} for {name}' for name, x in misstated.items())
  text = (
    'A μ describes a Gaussian mechanism. What these attackers are allowed is not '
    'exactly Gaussian, so rates of false positives and false negatives that are '
    f'computed from a μ may be wrong by up to (the regret): {listed}.'
  )
  exact = [
    attack.threat_model.name
    for attack in attacks
    if attack.analytic is not None and attack.analytic.is_gaussian
  ]
  return f'{text} They are exact for {"; ".join(exact)}.' if exact else text


def _name_limit(attack: Attack) -> str:
  is_bound = attack.analytic is None or attack.analytic.kind == 'bound'
  return 'allowed' if is_bound else 'expected'


def _format_cell(risks: AttackRisks, name: str, allowed: str) -> str:
  def format_share(of) -> str:
    return cells.format_share(float(getattr(of, name)))

  text = '-' if risks.estimate is None else format_share(risks.estimate)
  if risks.interval is not None:
    low, high = map(format_share, risks.interval)
    text += f' ({low} to {high})'
  if risks.allowed is None:
    return text
  return f'{text}; {allowed} {format_share(risks.allowed)}'
