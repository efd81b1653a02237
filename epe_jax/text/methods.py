"""Names of estimators as people read them."""

from epe_jax.epsilon.types import Estimate

METHODS = {
  'two_gaussian_null': 'two Gaussians, std of the null',
  'two_gaussian_fitted': 'two Gaussians, std fitted',
  'eps_lo': "the paper's ε_lo (no bound)",
  'max_threshold': 'best threshold',
  'max_threshold_gaussian': 'best threshold, Gaussian rates',
  'max_threshold_empirical': 'best threshold, counted rates',
  'clopper_pearson_uncorrected': 'best threshold, uncorrected',
  'clopper_pearson_band': 'best threshold under a band',
  'rank_test': 'all thresholds, one test',
  'clopper_pearson_bonferroni': 'a few thresholds, Bonferroni',
  'clopper_pearson_split': 'threshold from half of scores',
  'clopper_pearson_multisplit': 'threshold, median of splits',
  'epsilon_credible_split': 'credible, threshold from half',
  'gdp_clopper_pearson_band': 'under a band, if f is Gaussian',
  'gdp_rank_test': 'all thresholds, if f is Gaussian',
  'gdp_credible_split': 'credible, if f is Gaussian',
  'one_run': 'from one run, Bernoulli(1/2)',
  'one_run_gdp': 'one run, if f is Gaussian',
  'one_run_fdp': 'one run, by recursion',
  'one_run_independent': 'one run, leaks independent',
  'one_run_independent_gdp': 'one run, independent, Gaussian',
  'gaussian_lower_bound': 'both Gaussians, spread free',
  'gaussian_lower_bound_rejected': 'both Gaussians, rejected',
  'location_mixture': 'Gaussians, shifts known',
  'most_exposed': 'Gaussians, most exposed canary',
  'location_mixture_bound': 'Gaussians, shifts known, bound',
  'location_mixture_bound_rejected': 'Gaussians, bound rejected',
  'maximum_over_rounds': 'law of a maximum',
  'shifted_cosine': 'law of a cosine',
}
"""Name of an estimator -> words that tell it from all others, wherever they stand."""


def describe_method(estimate: Estimate) -> str:
  """The estimator in a few words."""
  return METHODS.get(estimate.method, estimate.method.replace('_', ' '))
