"""Several runs of one config: the μ and ε of each, their mean, and one more run."""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
from typing import Any

import numpy as np

from epe_jax.audit import external_scores, threat_models
from epe_jax.audit.attack_scores import AttackScores, ThreatModel
from epe_jax.audit.record import Record
from epe_jax.epsilon import gaussian, over_runs, tradeoff_curves
from epe_jax.epsilon.types import Estimate, Scores
from epe_jax.report import narrative, tables

Row = dict[str, Any]

# Statistics that taking part shifts: a maximum or a likelihood has no μ.
_POINT = functools.partial(gaussian.two_gaussian, std='null')
_COLUMNS = (
  'μ is by how much taking part shifts a canary on average, in standard deviations '
  'of the null,\n± its standard error; ε is that of a Gaussian mechanism with this '
  'μ. All are point estimates: no\nguarantee.'
)
_HEAD = ('', 'took part', 'μ', '90 % interval', 'ε', '90 % interval')


def evaluate_runs(
  runs: Mapping[str, Record | Scores], *, delta: float | None = None
) -> list[Row]:
  """Random effects over runs of each attack statistic that all of them have.

  Args:
    runs: name -> what the run recorded, or external scores; all of one kind.
    delta: δ, in (0, 1); None for that of the runs.

  Returns:
    Rows with threat_model, sees, statistic, delta, confidence, tau, i_squared,
    p_value, doubts; runs, a row for each with run, num_observed, mu,
    standard_error and epsilon; mean, new_run and pooled, with mu, mu_interval,
    epsilon and interval. pooled, with the cluster bootstrap, is None where the
    null law is that of unobserved canaries, and has no mu.

  Raises:
    ValueError: as `over_runs.estimate_shifts`; recorded runs beside external
      scores; runs of several δ, or external scores, without delta.
  """
  found = [_readings(scores) for scores in runs.values()]
  if len({isinstance(scores, Scores) for scores in runs.values()}) > 1:
    raise ValueError(
      'some files are runs of ours and others external scores; give one kind.'
    )
  if delta is None:
    delta = _delta_of(list(runs.values()))
  shared = [name for name in found[0] if all(name in each for each in found)]
  return [
    _row(list(runs), [each[name] for each in found], delta) for name in shared
  ]


def format_over_runs(rows: Sequence[Row], *, markdown: bool = False) -> str:
  """A table for each attack statistic, and what its columns are.

  Args:
    rows: as `evaluate_runs` gives them.
    markdown: tables in Markdown instead of text.

  Returns:
    Text without a final newline.
  """
  draw = tables.format_markdown if markdown else tables.format_text
  return '\n\n'.join([*(draw(_table(row)) for row in rows), _COLUMNS])


def _readings(
  scores: Record | Scores,
) -> dict[ThreatModel, AttackScores]:
  if isinstance(scores, Scores):
    attack_scores = external_scores.score_external(scores)
    return {attack_scores.threat_model: attack_scores}
  return {
    attack_scores.threat_model: attack_scores
    for attack_scores in threat_models.score_all(scores)
    if attack_scores.threat_model in threat_models.SHIFTED
  }


def _delta_of(runs: Sequence[Record | Scores]) -> float:
  deltas = {run.delta for run in runs if isinstance(run, Record)}
  if len(deltas) != 1:
    raise ValueError(
      f'delta=None, and the files name {sorted(deltas) or "none"}; give one δ, '
      'as --delta=1e-5.'
    )
  return deltas.pop()


def _row(
  names: Sequence[str],
  all_scores: Sequence[AttackScores],
  delta: float,
) -> Row:
  scores = _alike([attack_scores.scores for attack_scores in all_scores])
  mu, variance = over_runs.estimate_shifts(scores)
  effects = over_runs.random_effects(mu, variance)
  epsilon = np.asarray(tradeoff_curves.epsilon_gdp(mu, delta))
  pooled = None
  if scores[0].dim is not None:
    rng = np.random.default_rng(0)
    estimate = over_runs.cluster_bootstrap(rng, _POINT, scores, delta=delta)
    pooled = _cells_of(estimate, None, None)
  mean = over_runs.epsilon_of_mean(effects, delta=delta)
  new_run = over_runs.epsilon_of_new_run(effects, delta=delta)
  return {
    'threat_model': all_scores[0].threat_model.key,
    'sees': all_scores[0].sees,
    'statistic': all_scores[0].threat_model.statistic,
    'delta': delta,
    'confidence': effects.confidence,
    'tau': effects.tau,
    'i_squared': effects.i_squared,
    'p_value': effects.p_value,
    'runs': [
      {
        'run': name,
        'num_observed': each.observed.size,
        'mu': float(mu[i]),
        'standard_error': float(np.sqrt(variance[i])),
        'epsilon': float(epsilon[i]),
      }
      for i, (name, each) in enumerate(zip(names, scores))
    ],
    'mean': _cells_of(mean, effects.mu, effects.interval),
    'new_run': _cells_of(new_run, effects.mu, effects.prediction),
    'pooled': pooled,
    'doubts': [
      f'{name}: {doubt}'
      for name, attack_scores in zip(names, all_scores)
      for doubt in attack_scores.doubts
    ],
  }


def _alike(runs: Sequence[Scores]) -> list[Scores]:
  """Without the null law in all runs, if unobserved canaries reject it in one."""
  dims = {scores.dim for scores in runs}
  if None not in dims or len(dims) != 2:
    return list(runs)
  return [dataclasses.replace(scores, dim=None) for scores in runs]


def _cells_of(
  estimate: Estimate,
  mu: float | None,
  mu_interval: tuple[float, float] | None,
) -> Row:
  return {
    'mu': mu,
    'mu_interval': mu_interval,
    'epsilon': float(estimate.epsilon),
    'interval': estimate.interval,
  }


def _table(row: Row) -> tables.Table:
  sees, runs = row['sees'], row['runs']
  body = [
    [
      run['run'],
      f'{run["num_observed"]:,}',
      f'{narrative.format_number(run["mu"])} ± {narrative.format_number(run["standard_error"])}',
      '-',
      narrative.format_number(run['epsilon']),
      '-',
    ]
    for run in runs
  ]
  body.append(['mean of runs', '', *_cells(row['mean'])])
  body.append(['a new run', '', *_cells(row['new_run'])])
  if row['pooled'] is not None:
    body.append(['pooled, cluster bootstrap', '', *_cells(row['pooled'])])
  return tables.Table(
    f'{sees[0].upper()}{sees[1:]}: {row["statistic"]}, '
    f'{len(runs)} runs, δ = {narrative.format_delta(row["delta"])}',
    _HEAD,
    body,
    [
      f'Between runs μ has a standard deviation τ of {narrative.format_number(row["tau"])}; '
      f'I² = {100 * row["i_squared"]:.0f} % of the scatter of the estimates is '
      'not from canaries (p = '
      f'{row["p_value"]:.2g} if all runs had the same μ).',
      *row['doubts'],
    ],
  )


def _cells(estimate: Row) -> list[str]:
  mu = (
    '-' if estimate['mu'] is None else narrative.format_number(estimate['mu'])
  )
  mu_interval = narrative.format_interval(estimate['mu_interval']) or '-'
  interval = narrative.format_interval(estimate['interval']) or '-'
  return [
    mu,
    mu_interval,
    narrative.format_number(estimate['epsilon']),
    interval,
  ]
