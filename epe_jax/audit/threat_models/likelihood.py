"""The attacker who tests by likelihood in which round a canary took part, if any."""

from jaxtyping import Float
import numpy as np
from scipy import special

from epe_jax.audit import (
  failed_checks,
  upper_bounds,
)
from epe_jax.audit.record import Record
from epe_jax.audit.threat_models.shifted_scores import (
  can_fit_null,
  name_release,
  split_scores,
)
from epe_jax.audit.threat_models.threat_model import AttackScores, ThreatModel
from epe_jax.epsilon import registry, threshold
from epe_jax.epsilon.types import Unknown


def _score(record: Record) -> AttackScores | None:
  trace, expected = record.trace, record.expected
  if trace is None or expected is None or not can_fit_null(record):
    return None
  ratio = score_mixture(trace, expected, dim=record.dim)
  scores = split_scores(record, ratio, Unknown())
  return AttackScores(
    threat_model=LIKELIHOOD,
    sees=name_release(record),
    scores=scores,
    unit='log_likelihood_ratio',
    points=(registry.COUNTED, threshold.eps_lo),
    bounds=registry.choose_bounds(registry.describe(scores)),
    failed_checks=failed_checks.check_not_swapped(scores),
  )


def score_mixture(
  trace: Float[np.ndarray, 'T k'],
  expected: Float[np.ndarray, ' T'],
  *,
  dim: int,
) -> Float[np.ndarray, ' k']:
  """Returns log mean_t exp(s_t x_t - s_t²/2), the likelihood ratio over rounds.

  x_t is √d times the cosine of round t, N(s_t, 1) if the canary took part in it and
  N(0, 1) if not. If the attacker knows that a canary took part once, and not when, no
  statistic of the trace is more powerful (Neyman and Pearson 1933). It replaces the
  maximum of the paper, which is not the best test for its attacker.

  Args:
    trace: cosines [T, k] with the aggregates.
    expected: mean cosine of a canary in its own round, S / (m |ρ̄|), which an attacker
      who sees the aggregates and knows S and m can compute.
    dim: d.

  References:
    One-shot Empirical Privacy Estimation, Algorithm 3.
  """
  x = np.sqrt(dim) * np.asarray(trace, np.float64)
  s = np.sqrt(dim) * np.asarray(expected, np.float64)[:, None]
  return special.logsumexp(s * x - s**2 / 2, axis=0) - np.log(len(trace))


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
)
