"""The report of an auditor as text: what was audited, the attackers, and notes."""

import dataclasses

import numpy as np

from epe_jax.audit import (
  attackers,
  effective_dimensions,
  evaluation,
  results,
)
from epe_jax.audit.effective_dimensions import warn_of_low_dimension
from epe_jax.audit.record import Record
from epe_jax.auditor import claim_check
from epe_jax.auditor.audit_config import AuditConfig
from epe_jax.canaries import registry
from epe_jax.fact import Facts
from epe_jax.report import attacker_names, audit_notes, cells, checks, tables
from epe_jax.report.run_tables import format_summary_table


def format_auditor(
  config: AuditConfig,
  record: Record,
  audit: results.Audit,
  *,
  notes: Facts,
) -> str:
  """Formats what contradicts the claim, the headline, attackers, and sentences.

  Args:
    config: of the audit.
    record: what attackers saw.
    audit: what was estimated from it.
    notes: of the auditor.
  """
  noise = config.noise_multiplier
  head = (
    f'{record.num_rounds:,} of {config.rounds:,} rounds, d = {config.dim:,}, '
    f'{np.count_nonzero(record.observed):,} of {config.num_canaries:,} canaries '
    f'in, noise multiplier {"not claimed" if noise is None else f"{noise:g}"}, '
    f'δ = {audit.attacks[0].first.delta:.3g}'
  )
  # Ahead of numbers, whose rows may say no more than that they are uncalibrated.
  failed = [
    *(x for attack in audit.attacks for x in attack.contradictions),
    *claim_check.check_claim(record, audit),
  ]
  attacks = (dataclasses.replace(x, contradictions=()) for x in audit.attacks)
  sentences = [
    *(f'Warning: {x}.' for x in _describe(notes, are_settings=False)),
    *audit_notes.format_notes(audit._replace(attacks=tuple(attacks))),
  ]
  if warning := _warn_if_concentrated(config, record):
    sentences.append(warning)
  sentences += _explain_uncalibrated(config, audit)
  sentences += [f'Note: {x}.' for x in _describe(notes, are_settings=True)]
  if audit.headline is not None:
    attack, bound, _ = audit.headline
    sentences.insert(0, _describe_headline(record, attack, bound))
  headline = audit.headline
  parts = [
    *(
      tables.fill_paragraph(f'Finding: {text}.')
      for text in dict.fromkeys(map(checks.describe_check, failed))
    ),
    '' if headline is None else cells.format_headline(headline),
    tables.fill_paragraph(head),
    format_summary_table(audit),
    tables.fill_items(sentences),
  ]
  return '\n\n'.join(part for part in parts if part)


def _describe(notes: Facts, *, are_settings: bool) -> list[str]:
  """Sentences on the settings that were read, or on everything else."""
  return [
    checks.describe_check(note)
    for note in notes
    if (note.key == 'settings_read') == are_settings
  ]


def _describe_headline(
  record: Record,
  attack: results.AttackResult,
  bound: evaluation.Estimate,
) -> str:
  rounds = int(np.count_nonzero(record.assigned, axis=0).max())
  return (
    f'With {100 * (bound.confidence or 0):.4g} % confidence ε ≥ '
    f'{bound.epsilon:.3g} for an attacker who sees '
    f'{attacker_names.describe_view(attack.view)} '
    f'({attacker_names.spell_name(attack.threat_model)}). This is of a canary of {cells.format_rounds(rounds)}: a client of '
    'more may leak more.'
  )


def _explain_uncalibrated(
  config: AuditConfig, audit: results.Audit
) -> list[str]:
  """Why attackers have no estimate although no test speaks against it."""
  models = [audit.find(attackers.FINAL), audit.find(attackers.CHANGE)]
  notes = []
  if config.server_momentum is None and any(models):
    notes.append(
      'What the model keeps of a canary is not known, so that it has bounds alone. '
      'If the server adds up releases, set server_momentum, 0 for none.'
    )
  if audit.find(attackers.LIKELIHOOD) is not None:
    notes.append('The likelihood over rounds has bounds alone.')
  return notes


def _warn_if_concentrated(config: AuditConfig, record: Record) -> str | None:
  assert record.rounds is not None, 'the record of a whole run'
  threshold = registry.min_effective_dimension(config.family, config.dim)
  dimensions = record.rounds.effective_dimension.tolist()
  return warn_of_low_dimension(
    effective_dimensions.summarize(
      config.family,
      threshold=threshold,
      rounds=dimensions,
      # Of models only cosines are kept.
      final_model=0.0,
      change=0.0,
    )
  )
