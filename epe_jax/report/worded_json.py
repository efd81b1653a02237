"""The JSON of an audit for people who read it: its facts, and the words for them."""

from typing import Any

from epe_jax.audit import audit_json
from epe_jax.audit.results import Audit
from epe_jax.epsilon.types import Estimate
from epe_jax.report import audit_notes, cells, words


def describe_in_json(audit: Audit) -> dict[str, Any]:
  """What `audit_json.to_json` gives, with names of attackers, labels and notes."""
  values, found = audit_json.to_json(audit), audit.headline
  for attack, row in zip(audit.attacks, values['attacks']):
    row['name'] = words.spell_name(attack.threat_model)
    row['statistic'] = words.spell_statistic(attack.threat_model)
    for estimate, one in zip(attack.estimates, row['estimates']):
      one['label'] = cells.describe_method(estimate)
  if found is not None:
    row = values['headline']
    row |= {'text': cells.format_headline(found)} | _label(found.bound)
    if found.point is not None:
      row['point_estimate'] |= _label(found.point)
  return values | {
    'warnings': audit_notes.list_warnings(audit),
    'notes': audit_notes.list_notes(audit),
  }


def _label(estimate: Estimate) -> dict[str, str]:
  return {'label': cells.describe_method(estimate)}
