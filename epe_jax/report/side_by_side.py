"""Audits side by side: one line for each run."""

from collections.abc import Mapping
from typing import Any

from epe_jax.audit import threat_models
from epe_jax.audit.attack_scores import ThreatModel
from epe_jax.report import narrative, tables

# Column -> attacker.
_ATTACKERS = {
  'final model': threat_models.FINAL,
  'own round': threat_models.OWN,
  'others removed': threat_models.RESIDUAL,
}


def format_side_by_side(results: Mapping[str, Mapping[str, Any]]) -> str:
  """A table with a line for each run.

  ε are point estimates, without a guarantee; that of the final model has beside
  it the 5 to 95 % range that the same estimator gives where nothing leaks, and one
  that is not calibrated, as its report says, a dagger. The
  analytic ε is that of a canary, or without any that of a client.

  Args:
    results: name of a run -> what its result.json holds.

  Returns:
    Markdown without a final newline.
  """
  head = [
    'run',
    'rounds x clients',
    'd',
    'noise',
    'accuracy (majority class)',
    'analytic ε',
    *(f'ε, {column}' for column in _ATTACKERS),
  ]
  body = [_line(name, result) for name, result in results.items()]
  return tables.format_markdown(tables.Table('', head, body))


def format_analytic(result: Mapping[str, Any]) -> str:
  """The analytic ε of a canary, or without any that of a client, as a cell."""
  text = narrative.format_number(narrative.analytic_epsilon(result))
  return text if narrative.is_audited(result) else f'{text} (clients)'


def _line(name: str, result: Mapping[str, Any]) -> list[str]:
  config = result['config']
  estimates = {
    column: _estimate(result, which) for column, which in _ATTACKERS.items()
  }
  if not narrative.is_audited(result):
    estimates = dict.fromkeys(estimates, 'not audited')
  return [
    name,
    f'{result["rounds"]:,} x {config["clients_per_round"]:,}',
    f'{result["dim"]:,}',
    f'{result["noise_multiplier"]:g}',
    f'{100 * result["accuracy"]:.1f} % '
    f'({100 * result["baseline_accuracy"]:.1f} %)',
    format_analytic(result),
    *estimates.values(),
  ]


def _estimate(result: Mapping[str, Any], threat_model: ThreatModel) -> str:
  attack = result['audit'].find(threat_model)
  if attack is None:
    return 'not measured'
  text = narrative.format_number(float(attack.first.epsilon))
  if not attack.is_calibrated:
    text += ' †'
  # Where much leaks the floor says nothing.
  floor = narrative.format_floor(attack.first)
  if threat_model == threat_models.FINAL and floor:
    text += f' (floor {floor})'
  return text
