"""What each attacker could tell: every estimate of a run, from its scores."""

from collections.abc import Callable
import functools
from typing import Any

from jaxtyping import Bool, Float, Shaped
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
  participation: Shaped[np.ndarray, 'T k'],
  observed: Bool[np.ndarray, ' k'],
  *,
  dim: int,
  delta: float,
) -> list[dict[str, Any]]:
  """Every estimator on every reading of a run, each beside its noise floor.

  Readings: the final model's cosines and the own-round cosines, whose null law
  is exact; and the maximum over rounds, whose null is the unobserved canaries
  (left out if there are none). Its floor takes rounds as independent.

  Args:
    final: cosines with the final model.
    trace: cosines of all rounds.
    participation: 0/1, row t holds the canaries of round t.
    observed: which canaries took part.
    dim: d.
    delta: in (0, 1).

  Returns:
    Rows with threat_model, statistic, method, epsilon, delta, confidence,
    floor (its mean) and floor_quantiles (5, 50 and 95 %).
  """
  unknown = np.zeros(0)
  mine = audit.own_round(trace[:, observed], participation[:, observed])
  readings = [
    (
      'final model',
      'cosine with the final model',
      Scores(final[observed], final[~observed], dim),
      1,
    ),
    ('all iterates', 'own round', Scores(mine, unknown, dim), 1),
  ]
  if not observed.all():
    top = audit.maximum(trace)
    scores = Scores(top[observed], top[~observed])
    readings.append(
      ('all iterates', 'maximum over rounds', scores, len(trace))
    )
  rows = []
  for threat_model, statistic, scores, rounds in readings:
    for estimator in ESTIMATORS:
      estimate = estimator(scores, delta=delta)
      null = floor.noise_floor(
        np.random.default_rng(0),
        estimator,
        delta=delta,
        num_observed=scores.observed.size,
        num_unobserved=scores.unobserved.size,
        dim=dim,
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
