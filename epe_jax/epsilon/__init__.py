"""Estimates of ε from canary scores, on the host and in float64.

This package needs NumPy and SciPy and no JAX: it can be installed on a laptop
and pointed at a file of scores, whatever system trained the model. Everything
is a pure function `(scores, *, delta, ...) -> Estimate` that works on the last
axis of the scores and broadcasts over the others.
"""

from epe_jax.epsilon.floor import draw_null, noise_floor
from epe_jax.epsilon.gaussian import (
  epsilon_one_direction,
  epsilon_two_gaussians,
  log_delta_one_direction,
  two_gaussian,
)
from epe_jax.epsilon.null import CosineNull
from epe_jax.epsilon.threshold import eps_lo, jeffreys_upper, max_threshold
from epe_jax.epsilon.types import Estimate, Floor, Scores

__all__ = [
  'CosineNull',
  'Estimate',
  'Floor',
  'Scores',
  'draw_null',
  'eps_lo',
  'epsilon_one_direction',
  'epsilon_two_gaussians',
  'jeffreys_upper',
  'log_delta_one_direction',
  'max_threshold',
  'noise_floor',
  'two_gaussian',
]
