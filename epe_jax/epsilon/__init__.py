"""Estimates of ε from canary scores, on the host and in float64.

This package needs NumPy and SciPy and no JAX: it can be installed on a laptop
and pointed at a file of scores, whatever system trained the model. Everything
is a pure function `(scores, *, delta, ...) -> Estimate` that works on the last
axis of the scores and broadcasts over the others.
"""

from epe_jax.epsilon import (
  bayes,
  bootstrap,
  lower_bound,
  one_run,
  over_runs,
  pooling,
  power,
  rank_test,
  shifted_cosine,
  tradeoff,
  tradeoff_curves,
)
from epe_jax.epsilon.attack import auroc, best_accuracy, roc, tpr_at_fpr
from epe_jax.epsilon.cosine_null import CosineNull
from epe_jax.epsilon.diagnostics import (
  anderson_darling,
  effective_dimension,
  run_normality_tests,
  warn_if_not_gaussian,
)
from epe_jax.epsilon.gaussian import (
  epsilon_curve,
  epsilon_one_direction,
  epsilon_two_gaussians,
  log_delta_one_direction,
  two_gaussian,
)
from epe_jax.epsilon.noise_floor import draw_null, estimate_noise_floor
from epe_jax.epsilon.parametric import gaussian_lower_bound
from epe_jax.epsilon.shifted_cosine import ShiftedCosine, epsilon_cosines
from epe_jax.epsilon.strategies import (
  Band,
  Bonferroni,
  Explicit,
  MultiSplit,
  Split,
  Uncorrected,
)
from epe_jax.epsilon.threshold import eps_lo, jeffreys_upper, max_threshold
from epe_jax.epsilon.types import Estimate, Floor, Scores

__all__ = [
  'Band',
  'Bonferroni',
  'CosineNull',
  'Estimate',
  'Explicit',
  'Floor',
  'MultiSplit',
  'Scores',
  'ShiftedCosine',
  'Split',
  'Uncorrected',
  'anderson_darling',
  'auroc',
  'bayes',
  'best_accuracy',
  'bootstrap',
  'tradeoff_curves',
  'draw_null',
  'effective_dimension',
  'eps_lo',
  'epsilon_cosines',
  'epsilon_curve',
  'epsilon_one_direction',
  'epsilon_two_gaussians',
  'gaussian_lower_bound',
  'run_normality_tests',
  'jeffreys_upper',
  'log_delta_one_direction',
  'lower_bound',
  'max_threshold',
  'estimate_noise_floor',
  'one_run',
  'over_runs',
  'pooling',
  'power',
  'rank_test',
  'roc',
  'shifted_cosine',
  'tpr_at_fpr',
  'tradeoff',
  'two_gaussian',
  'warn_if_not_gaussian',
]
