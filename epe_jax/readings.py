"""What each attacker could tell: every estimate of a run, from its scores."""

from collections.abc import Callable
import functools
from typing import Any

from jaxtyping import Bool, Float
import numpy as np

from epe_jax import audit
from epe_jax.epsilon import floor, gaussian, threshold
from epe_jax.epsilon.types import Estimate, Scores

# Calibrated first where a single cosine is read.
ESTIMATORS: tuple[Callable[..., Estimate], ...] = (
  functools.partial(gaussian.two_gaussian, std='null'),
  functools.partial(gaussian.two_gaussian, std='fitted'),
  threshold.max_threshold,
  threshold.eps_lo,
)


def estimates(
  final: Float[np.ndarray, ' k'],
  trace: Float[np.ndarray, 'T k'],
  participation: Bool[np.ndarray, 'T k'],
  *,
  dim: int,
  delta: float,
) -> list[dict[str, Any]]:
  """Every estimator on every reading of a run, each beside its noise floor.

  Readings: the final model's cosines, the cosines in a canary's own rounds, and
  the maximum over rounds. The null law is exact for the first, and for the
  second if each canary took part once. Elsewhere it is that of the unobserved
  canaries, and without any the reading is left out. The floor of the maximum
  takes rounds as independent.

  Args:
    final: cosines with the final model.
    trace: cosines of all rounds.
    participation: 0/1, row t holds the canaries of round t; canaries in no row
      are unobserved.
    dim: d.
    delta: in (0, 1).

  Returns:
    Rows with threat_model, statistic, method, epsilon, delta, confidence,
    floor (its mean) and floor_quantiles (5, 50 and 95 %).
  """
  observed = participation.any(axis=0)
  own = audit.own_round(trace, audit.lent(participation))
  once = participation.sum(axis=0).max() == 1
  top = audit.maximum(trace)
  readings = [
    ('final model', 'cosine with the final model', final, dim, 1),
    ('all iterates', 'own round', own, dim if once else None, 1),
    ('all iterates', 'maximum over rounds', top, None, len(trace)),
  ]
  rows = []
  for threat_model, statistic, values, known_dim, rounds in readings:
    if known_dim is None and observed.all():
      continue
    scores = Scores(values[observed], values[~observed], known_dim)
    for estimator in ESTIMATORS:
      estimate = estimator(scores, delta=delta)
      null = floor.noise_floor(
        np.random.default_rng(0),
        estimator,
        delta=delta,
        num_observed=scores.observed.size,
        num_unobserved=scores.unobserved.size,
        dim=known_dim if rounds == 1 else dim,
        rounds=rounds,
      )
      rows.append(
        {
          'threat_model': threat_model,
          'statistic': statistic,
          'method': estimate.method,
          'epsilon': float(estimate.epsilon),
          'delta': delta,
          'confidence': estimate.confidence,
          'floor': null.mean,
          'floor_quantiles': {'5': null.q05, '50': null.q50, '95': null.q95},
        }
      )
  return rows
