"""Estimates as rows: method, ε, μ, interval, floor and kind."""

from collections.abc import Sequence

from epe_jax.audit.estimates import Attack
from epe_jax.epsilon.types import Estimate
from epe_jax.text import cells, tables

_METHODS = {
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
  'clopper_pearson_split': 'threshold from half of them',
  'clopper_pearson_multisplit': 'the same, median of many splits',
  'epsilon_credible_split': 'threshold from half of them',
  'gdp_clopper_pearson_band': 'under a band, if f is Gaussian',
  'gdp_rank_test': 'all thresholds, if f is Gaussian',
  'gdp_credible_split': 'the same, if f is Gaussian',
  'one_run': 'from one run, Bernoulli(1/2)',
  'one_run_gdp': 'the same, if f is Gaussian',
  'one_run_fdp': 'the same, by recursion',
  'one_run_independent': 'the same, if leaks are independent',
  'one_run_independent_gdp': 'the same, and f is Gaussian',
  'gaussian_lower_bound': 'both Gaussians, spread free',
  'gaussian_lower_bound_rejected': 'both Gaussians, rejected',
  'location_mixture': 'Gaussians, shifts known',
  'most_exposed': 'the same, most exposed canary',
  'location_mixture_bound': 'Gaussians, shifts known',
  'location_mixture_bound_rejected': 'Gaussians, shifts known, rejected',
  'maximum_over_rounds': 'law of a maximum',
  'shifted_cosine': 'law of a cosine',
}


def describe_method(estimate: Estimate) -> str:
  """The estimator in a few words."""
  return _METHODS.get(estimate.method, estimate.method.replace('_', ' '))


def make_table(attacks: Sequence[Attack]) -> tables.Table:
  """One table of all estimates; each row names its attacker."""
  head = ('attacker sees', 'statistic', 'method', *cells.HEAD)
  body = [
    (
      attack.sees,
      attack.threat_model.statistic,
      describe_method(estimate),
      *_flag_excess(attack, estimate),
    )
    for attack in attacks
    for estimate in attack.estimates
  ]
  return tables.Table('', head, body)


def format_groups(attacks: Sequence[Attack]) -> list[str]:
  """Lines of estimates, under a heading for each attacker, with its doubts."""
  lines = []
  for attack in attacks:
    heading = f'{attack.sees}: {attack.threat_model.statistic}'
    if attack.analytic is not None:
      heading += f' (analytic ε {cells.format_analytic(attack.analytic)})'
    lines += ['', heading[0].upper() + heading[1:]]
    lines += [
      tables.fill_paragraph(f'{doubt}.', bullet='  Doubt: ')
      for doubt in attack.doubts
    ]
    lines.append(_format_line('', cells.Cells(*cells.HEAD)))
    for estimate in attack.estimates:
      row = cells.format_cells(estimate)
      lines.append(_format_line(f'  {describe_method(estimate)}', row))
      if excess := attack.describe_excess(estimate):
        limit = cells.format_analytic(attack.analytic)
        lines.append(f'    {excess}: above the analytic ε {limit}')
  return lines


def _flag_excess(attack: Attack, estimate: Estimate) -> cells.Cells:
  """The cells of an estimate, which says if it is above what the mechanism allows."""
  row = cells.format_cells(estimate)
  excess = attack.describe_excess(estimate)
  return row._replace(kind=f'{row.kind}; {excess}') if excess else row


def _format_line(method: str, row: cells.Cells) -> str:
  # Of fixed widths, so that the columns of all attackers are aligned.
  return (
    f'{method:<33}{row.epsilon:>8}{row.mu:>7}  {row.interval:<15} {row.floor:<15} '
    f'{row.kind}'
  ).rstrip()
