"""The attacker who tests by likelihood in which round a canary took part, if any."""

from epe_jax.audit import (
  attack_statistics,
  failed_checks,
  upper_bounds,
)
from epe_jax.audit.record import Record
from epe_jax.audit.threat_models.scoring import (
  can_fit_null,
  name_release,
  split_scores,
)
from epe_jax.audit.threat_models.threat_model import AttackScores, ThreatModel
from epe_jax.epsilon import (
  registry,
  threshold,
)
from epe_jax.epsilon.types import Unknown


def _score(record: Record) -> AttackScores | None:
  trace, expected = record.trace, record.expected
  if trace is None or expected is None or not can_fit_null(record):
    return None
  ratio = attack_statistics.score_mixture(trace, expected, dim=record.dim)
  scores = split_scores(record, ratio, Unknown())
  return AttackScores(
    threat_model=LIKELIHOOD,
    sees=name_release(record),
    scores=scores,
    unit='log likelihood ratio',
    scale=1.0,
    points=(registry.COUNTED, threshold.eps_lo),
    bounds=registry.choose_bounds(registry.describe(scores)),
    draw=None,
    law=None,
    is_calibrated=False,
    is_expected=False,
    failed_checks=failed_checks.check_not_swapped(scores),
  )


LIKELIHOOD = ThreatModel(
  key='likelihood',
  name='likelihood over rounds',
  statistic='likelihood over rounds',
  who=(
    'An attacker who sees what every round releases and tests by likelihood'
  ),
  score=_score,
  limit=upper_bounds.bound_unknown_rounds,
  is_shift=False,
  is_in_overview=False,
  # Its law is not known, so that tables have its bounds and there is no more to say.
  is_narrated=False,
)
