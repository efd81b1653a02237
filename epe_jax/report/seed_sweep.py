"""Tables and the comparison of a sweep in which every point is run with many seeds."""

from collections.abc import Mapping, Sequence
import math
import os
import pathlib

import numpy as np

from epe_jax import io
from epe_jax.audit import threat_models
from epe_jax.epsilon import over_runs
from epe_jax.experiment import sweep
from epe_jax.experiment.seed_sweep import SeedEstimates
from epe_jax.report import comparison, variation_table
from epe_jax.text import cells, tables


def write_tables(
  folder: str | os.PathLike,
  points: Sequence[sweep.Point],
  results: Mapping[str, Sequence[SeedEstimates]],
) -> str:
  """Writes sweep.md with both tables, and the comparison of the points.

  The comparison is of means over seeds: comparison.html, .md, .png and .svg, where two
  points of two seeds or more have one δ.

  Args:
    folder: where it goes.
    points: of the grid.
    results: what `experiment.seed_sweep` returned for them.

  Returns:
    The tables as text, without a final newline.
  """
  both = [make_table(points, results), make_variation_table(points, results)]
  some = [table for table in both if table is not None]
  text = '\n\n'.join(map(tables.format_markdown, some))
  io.write_text(pathlib.Path(folder, 'sweep.md'), f'{text}\n')
  compared = [
    _compare_point(point.name, results[point.name])
    for point in points
    if len(results[point.name]) > 1
  ]
  if comparison.is_comparable(compared):
    comparison.write_comparison(folder, compared, name='comparison')
  return '\n\n'.join(map(tables.format_text, some))


def make_table(
  points: Sequence[sweep.Point], results: Mapping[str, Sequence[SeedEstimates]]
) -> tables.Table:
  """Mean ± standard deviation over seeds, a line for each point."""
  names = list(
    dict.fromkeys(
      name for rows in results.values() for row in rows for name in row.epsilon
    )
  )
  body = []
  for point in points:
    rows = results[point.name]
    accuracy = _format_spread([100 * row.accuracy for row in rows])
    epsilons = [
      _format_spread([row.epsilon[name] for row in rows if name in row.epsilon])
      for name in names
    ]
    settings = [f'{value}' for value in point.settings.values()]
    body.append([*settings, f'{len(rows)}', f'{accuracy} %', *epsilons])
  return tables.Table(
    '',
    [*points[0].settings, 'seeds', 'accuracy', *(f'ε, {n}' for n in names)],
    body,
    [
      'Mean ± standard deviation over seeds, each of other data, clients, '
      'canaries, noise and models. ε are calibrated point estimates, whose scatter is '
      'in part that of their canaries.'
    ],
  )


def make_variation_table(
  points: Sequence[sweep.Point], results: Mapping[str, Sequence[SeedEstimates]]
) -> tables.Table | None:
  """How much ε varies over the seeds of each point; None if they have one each."""
  groups = []
  for point in points:
    rows = results[point.name]
    if rows:
      label = variation_table.label_settings(point.settings)
      shifts = [row.shift for row in rows]
      groups.append(variation_table.collect_runs(label, rows[0].delta, shifts))
  return variation_table.make_table(groups)


def _compare_point(
  name: str, rows: Sequence[SeedEstimates]
) -> comparison.Compared:
  """The means over the seeds of a point, with intervals over seeds."""
  delta, means = rows[0].delta, {}
  for attacker in threat_models.THREAT_MODELS:
    shifts = [
      row.shift[attacker.statistic]
      for row in rows
      if attacker.statistic in row.shift
    ]
    if len(shifts) > 1:
      mu, variance = np.array(shifts, np.float64).T
      effects = over_runs.random_effects(mu, variance)
      means[attacker] = over_runs.epsilon_of_mean(effects, delta=delta)
  analytic = [row.analytic for row in rows if row.analytic is not None]
  return comparison.Compared(
    name,
    delta,
    headline=None,
    estimates=means,
    bounds={},
    analytic=max(analytic, default=math.nan),
  )


def _format_spread(values: Sequence[float]) -> str:
  mean = cells.format_number(float(np.mean(values)))
  if len(values) < 2 or not np.isfinite(values).all():
    return mean
  return f'{mean} ± {cells.format_number(float(np.std(values, ddof=1)))}'
