"""The report of a loop as text: findings, the headline, attackers, and notes."""

import dataclasses

import numpy as np

from epe_jax.audit import attackers, effective_dimensions, results
from epe_jax.audit.record import Record
from epe_jax.canaries import registry
from epe_jax.fact import Facts
from epe_jax.report import (
  audit_notes,
  cells,
  checks,
  first_page,
  page,
  run_tables,
  tables,
)

# Of notes that are not warnings.
_PLAIN = 'settings_read', 'sampling_accounted'
_WITHOUT_MOMENTUM = (
  'What the model keeps of a canary is not known: of models there are lower bounds only. '
  'If the server adds up releases, set server_momentum, 0 for none.'
)


def format_loop(
  record: Record,
  audit: results.Audit,
  *,
  rounds: int,
  num_canaries: int,
  family: str,
  failed: Facts,
  notes: Facts,
) -> str:
  """Formats what contradicts the claim, the headline, attackers, and sentences.

  Args:
    record: what attackers saw.
    audit: what was estimated from it.
    rounds: T, those of the settings.
    num_canaries: k, of the settings.
    family: of the canaries.
    failed: what contradicts the claim, besides what attackers say themselves.
    notes: of the auditor.
  """
  noise = record.noise_multiplier
  head = (
    f'{record.num_rounds:,} of {rounds:,} rounds, d = {record.dim:,}, '
    f'{np.count_nonzero(record.observed):,} of {num_canaries:,} canaries '
    f'took part, noise multiplier {"not claimed" if noise is None else f"{noise:g}"}, '
    f'δ = {cells.format_delta(audit.attacks[0].first.delta)}'
  )
  # Ahead of numbers, whose rows may say no more than that they are uncalibrated.
  failed = (
    *(x for attack in audit.attacks for x in attack.contradictions),
    *failed,
  )
  attacks = (dataclasses.replace(x, contradictions=()) for x in audit.attacks)
  settings = [x for x in notes if x.key in _PLAIN]
  sentences = [
    _describe_canary(record),
    *(f'Warning: {_describe(x)}.' for x in notes if x not in settings),
    *audit_notes.format_notes(audit._replace(attacks=tuple(attacks))),
    *_warn_if_concentrated(family, record),
    *_explain_uncalibrated(record, audit),
    *(f'Note: {_describe(x)}.' for x in settings),
  ]
  findings = [
    f'Finding: {text}.' for text in dict.fromkeys(map(_describe, failed))
  ]
  about = first_page.state_headline_of(audit)
  parts = [
    *map(page.make_paragraph, [*findings, about, head]),
    tables.format_plain_markdown(run_tables.make_summary_table(audit)),
    page.make_list(sentences),
  ]
  return tables.render_text('\n\n'.join(filter(None, parts)))


_describe = checks.describe_check


def _describe_canary(record: Record) -> str:
  rounds = cells.format_rounds(record.participations)
  return f'These ε are of a canary of {rounds}: a client of more may leak more.'


def _explain_uncalibrated(record: Record, audit: results.Audit) -> list[str]:
  """Why attackers have no estimate although no check failed."""
  models = [audit.find(attackers.FINAL), audit.find(attackers.CHANGE)]
  is_unknown = record.momentum is None and any(models)
  notes = [_WITHOUT_MOMENTUM] if is_unknown else []
  if audit.find(attackers.LIKELIHOOD) is not None:
    notes.append('The likelihood attack has lower bounds only.')
  return notes


def _warn_if_concentrated(family: str, record: Record) -> list[str]:
  assert record.rounds is not None, 'the record of a whole run'
  dimensions = effective_dimensions.summarize(
    family,
    threshold=registry.min_effective_dimension(family, record.dim),
    rounds=record.rounds.effective_dimension.tolist(),
    # Of models only cosines are kept.
    final_model=0.0,
    change=0.0,
  )
  warning = effective_dimensions.warn_of_low_dimension(dimensions)
  return [warning] if warning else []
