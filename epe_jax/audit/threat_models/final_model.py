"""Attackers who see the final model, without or with the initial one."""

from epe_jax.audit import upper_bounds
from epe_jax.audit.record import Record
from epe_jax.audit.threat_models.shifted_scores import score_cosines
from epe_jax.audit.threat_models.threat_model import AttackScores, ThreatModel


def _score_final(record: Record) -> AttackScores | None:
  return score_cosines(FINAL, record, sees='final_model', shift=record.weight)


def _score_change(record: Record) -> AttackScores | None:
  sees = 'initial_and_final_model'
  return score_cosines(CHANGE, record, sees=sees, shift=record.weight)


FINAL = ThreatModel(
  key='final',
  name='final model',
  statistic='cosine with the final model',
  who='An attacker who sees only the final model',
  score=_score_final,
  limit=upper_bounds.expect_final_model,
)

CHANGE = ThreatModel(
  key='change',
  name='change of the model',
  statistic='cosine with the change of the model',
  who='An attacker who sees the initial and the final model',
  score=_score_change,
  limit=upper_bounds.expect_final_model,
  is_in_overview=False,
)
