"""ε after rounds as JSON keeps it, and back."""

from collections.abc import Mapping, Sequence
from typing import Any

from epe_jax import typed_json
from epe_jax.audit import attackers, audit_json
from epe_jax.audit.attack_scores import ThreatModel
from epe_jax.audit.results import Audit
from epe_jax.watch.by_round import RoundEstimate, Rounds


def estimates_to_json(
  estimates: Sequence[RoundEstimate],
) -> list[dict[str, Any]]:
  """A row for each estimate after some rounds."""
  return typed_json.to_plain(list(estimates), audit_json.HOOKS)


def rounds_to_json(rounds: Rounds) -> dict[str, Any]:
  """A row for each estimate after some rounds, and bounds of all rounds at once."""
  return typed_json.to_plain(rounds, audit_json.HOOKS)


def rounds_from_json(values: Mapping[str, Any], audit: Audit) -> Rounds:
  """What `rounds_to_json` wrote; numbers that are not finite as strings.

  Args:
    values: of the file.
    audit: of the same run, which has the attackers.

  Raises:
    KeyError: a field is missing.
    ValueError: an attacker is unknown.
  """
  models = {a.threat_model.key: a.threat_model for a in audit.attacks}

  def find(key: str) -> ThreatModel:
    model = models.get(key) or attackers.find(key)
    if model is None:
      raise ValueError(f'no attacker has the key {key!r}')
    return model

  return typed_json.from_plain(Rounds, values, {ThreatModel: find})
