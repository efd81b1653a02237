"""Audits as JSON keeps them, and back."""

from collections.abc import Mapping
from typing import Any

from epe_jax import __version__, typed_json
from epe_jax.audit import attackers
from epe_jax.audit.attack_scores import ThreatModel
from epe_jax.audit.results import FPRS, AttackResult, Audit, Headline
from epe_jax.epsilon.types import Estimate, Scores


def to_json(audit: Audit) -> dict[str, Any]:
  """Lists, dicts, strings and numbers; some numbers may not be finite."""
  headline = audit.headline
  bound = headline and headline.bound
  return {
    'version': __version__,
    'attacks': [_attack_to_json(attack, bound) for attack in audit.attacks],
    'headline': headline and _headline_to_json(headline),
    'is_simultaneous': audit.is_simultaneous,
  }


def from_json(values: Mapping[str, Any]) -> Audit:
  """The audit that `to_json` wrote; numbers that are not finite as strings.

  Raises:
    KeyError: a field is missing.
  """
  attacks = tuple(map(_attack_from_json, values['attacks']))
  return Audit(attacks, bool(values['is_simultaneous']))


def estimate_to_json(estimate: Estimate) -> dict[str, Any]:
  """The fields of an estimate, and whether it assumes a shape of scores."""
  plain = typed_json.to_plain(estimate)
  return plain | {'is_shape_free': estimate.is_shape_free}


def to_plain(value: Any) -> Any:
  """As `typed_json.to_plain`, with attackers by their keys and `estimate_to_json`."""
  return typed_json.to_plain(value, _HOOKS)


_HOOKS: typed_json.Hooks = {
  ThreatModel: lambda model: model.key,
  Estimate: estimate_to_json,
}


def _headline_to_json(headline: Headline) -> dict[str, Any]:
  """The bound, its attacker and its point estimate."""
  attack, bound, point = headline
  return estimate_to_json(bound) | {
    'threat_model': attack.threat_model.key,
    'num_observed': attack.num_observed,
    'num_unobserved': attack.num_unobserved,
    'point_estimate': point and estimate_to_json(point),
  }


def _attack_to_json(
  attack: AttackResult, headline: Estimate | None
) -> dict[str, Any]:
  # Scores are in the record of the run.
  plain = typed_json.to_plain(attack, {**_HOOKS, Scores: lambda scores: None})
  del plain['scores']
  if attack.rates:
    names = (f'{fpr:g}' for fpr in FPRS)
    plain['rates']['tpr'] = dict(zip(names, attack.rates.tpr))
  for estimate, row in zip(attack.estimates, plain['estimates']):
    row['excess'] = attack.describe_excess(estimate)
    row['is_headline'] = estimate is headline
  model = attack.threat_model
  # What the author of an attacker says of it; of those of this package, readers know.
  words = {} if attackers.find(model.key) else model.to_json()
  return plain | words


def _attack_from_json(values: Mapping[str, Any]) -> AttackResult:
  if rates := values['rates']:
    tpr = [rates['tpr'][f'{fpr:g}'] for fpr in FPRS]
    values = {**values, 'rates': rates | {'tpr': tpr}}

  def find(key: str) -> ThreatModel:
    return attackers.find(key) or ThreatModel.from_json(key, values)

  return typed_json.from_plain(
    AttackResult, {**values, 'scores': None}, {ThreatModel: find}
  )
