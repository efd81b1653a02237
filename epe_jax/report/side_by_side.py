"""Audits side by side: one line for each run."""

from collections.abc import Iterable, Mapping, Sequence

from epe_jax.audit import threat_models
from epe_jax.audit.threat_models import ThreatModel
from epe_jax.experiment.run_result import RunResult
from epe_jax.report import facts
from epe_jax.text import cells, tables


def format_side_by_side(results: Mapping[str, RunResult]) -> str:
  """A table with a line for each run.

  Every ε is a point estimate, without a guarantee, and one that is not calibrated
  has a dagger. Behind that of the final model is the range, 5 to 95 %, of what the
  same estimator reports when nothing leaks. The analytic ε is that of a canary, and of
  a client where it takes part in other numbers of rounds.

  Args:
    results: name of a run -> what its result.json holds.

  Returns:
    Markdown without a final newline.
  """
  attackers = _list_attackers(results.values())
  head = [
    'run',
    'rounds x clients',
    'd',
    'noise',
    'accuracy (majority class)',
    'analytic ε',
    *(f'ε, {attacker.name}' for attacker in attackers),
  ]
  body = [
    _make_line(name, result, attackers) for name, result in results.items()
  ]
  return tables.format_markdown(tables.Table('', head, body))


def format_analytic(result: RunResult) -> str:
  """The analytic ε of a canary; of a client where it is not the same."""
  clients = f'{cells.format_number(result.clients_analytic_epsilon)} (clients)'
  if not result.is_audited:
    return clients
  text = cells.format_number(facts.find_analytic_epsilon(result))
  if facts.count_participations(result).differ:
    return f'{text}; {clients}'
  return text


def _list_attackers(results: Iterable[RunResult]) -> list[ThreatModel]:
  """The worst case and the attackers of an overview, the weakest first."""
  found = (a.threat_model for r in results for a in r.audit.attacks)
  return [
    model
    for model in threat_models.sort_by_strength(
      [*threat_models.THREAT_MODELS, *found]
    )
    if model.is_in_overview or model.is_worst_case
  ]


def _make_line(
  name: str, result: RunResult, attackers: Sequence[ThreatModel]
) -> list[str]:
  config = result.config
  if result.is_audited:
    estimates = [_format_first(result, attacker) for attacker in attackers]
  else:
    estimates = ['not audited'] * len(attackers)
  return [
    name,
    f'{result.rounds:,} x {config["clients_per_round"]:,}',
    f'{result.dim:,}',
    f'{result.noise_multiplier:g}',
    f'{cells.format_percent(result.accuracy)} '
    f'({cells.format_percent(result.baseline_accuracy)})',
    format_analytic(result),
    *estimates,
  ]


def _format_first(result: RunResult, threat_model: ThreatModel) -> str:
  """The first estimate of an attacker, as a cell."""
  attack = result.audit.find(threat_model)
  if attack is None:
    return 'not measured'
  text = cells.format_epsilon(attack.first)
  if not attack.is_calibrated:
    text += ' †'
  # Where much leaks the floor says nothing.
  floor = cells.format_floor(attack.first)
  if threat_model == threat_models.FINAL and floor:
    text += f' (floor {floor})'
  return text
