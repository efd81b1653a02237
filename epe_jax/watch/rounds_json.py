"""ε after rounds as JSON keeps it, and back."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from epe_jax.audit import audit_json, threat_models
from epe_jax.audit.attack_results import Audit
from epe_jax.audit.threat_models import ThreatModel
from epe_jax.watch.by_round import RoundEstimate, Rounds
from epe_jax.watch.sequential import SequentialBounds


def estimates_to_json(
  estimates: Sequence[RoundEstimate],
) -> list[dict[str, Any]]:
  """A row for each estimate after some rounds."""
  return [
    one._asdict()
    | {'threat_model': one.threat_model.key}
    | {'estimate': audit_json.estimate_to_json(one.estimate)}
    for one in estimates
  ]


def rounds_to_json(rounds: Rounds) -> dict[str, Any]:
  """A row for each estimate after some rounds, and bounds of all rounds at once."""
  bounds = rounds.all_rounds
  return {
    'each_round': estimates_to_json(rounds.each_round),
    'all_rounds': bounds and _sequential_to_json(bounds),
  }


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
  bounds = values['all_rounds']
  return Rounds(
    tuple(
      _round_estimate_from_json(row, models) for row in values['each_round']
    ),
    bounds and _sequential_from_json(bounds),
  )


def _sequential_to_json(bounds: SequentialBounds) -> dict[str, Any]:
  arrays = {
    name: x.tolist()
    for name, x in bounds._asdict().items()
    if isinstance(x, np.ndarray)
  }
  return bounds._asdict() | arrays | {'threat_model': bounds.threat_model.key}


def _sequential_from_json(values: Mapping[str, Any]) -> SequentialBounds:
  model = threat_models.find(values['threat_model'])
  if model is None:
    raise ValueError(f'no attacker has the key {values["threat_model"]!r}')
  evidence = values['log_evidence']
  return SequentialBounds(
    threat_model=model,
    delta=float(values['delta']),
    significance=float(values['significance']),
    rounds=np.array(values['rounds'], int),
    num_canaries=np.array(values['num_canaries'], int),
    mu=np.array(values['mu'], float),
    epsilon_gdp=np.array(values['epsilon_gdp'], float),
    epsilon=np.array(values['epsilon'], float),
    claim=None if values['claim'] is None else float(values['claim']),
    log_evidence=None if evidence is None else np.array(evidence, float),
  )


def _round_estimate_from_json(
  values: Mapping[str, Any], models: Mapping[str, ThreatModel]
) -> RoundEstimate:
  """One row of `estimates_to_json`; its attacker is one of the audit or package."""
  key = values['threat_model']
  model = models.get(key) or threat_models.find(key)
  if model is None:
    raise ValueError(f'no attacker has the key {key!r}')
  estimate = audit_json.estimate_from_json(values['estimate'])
  return RoundEstimate(
    **{**values, 'threat_model': model, 'estimate': estimate}
  )
