"""A grid in which every point is run with many seeds, by one program each.

For models so small that a process and a compilation would cost more than the
run. What is kept of a run is its accuracy and its calibrated estimates.
"""

from collections.abc import Mapping, Sequence
import os
import pathlib
from typing import Any

import numpy as np
import tqdm

from epe_jax import io
from epe_jax.audit import threat_models
from epe_jax.experiment import build, seeds, sweep, workdirs
from epe_jax.report import narrative, tables

Row = dict[str, Any]


def run_seed_sweep(
  points: Sequence[sweep.Point],
  workdir: str | os.PathLike,
  *,
  num_seeds: int,
  at_once: int | None = None,
  progress: seeds.Progress = tqdm.tqdm,
) -> dict[str, list[Row]]:
  """Runs every point with the seeds s, s + 1, ..., s of its config.

  Args:
    points: as `sweep.make_grid` makes them; no axis sets the seed.
    workdir: a folder with a folder for each point, whose rows.json is made last:
      a point that has one is not run again.
    num_seeds: runs of each point, >= 1.
    at_once: as for `seeds.run_seeds`.
    progress: makes the bar of each point, as `tqdm.tqdm` does.

  Returns:
    Point -> a row for each seed, with seed, accuracy and
    'epsilon': statistic -> ε of the attackers whose scores are shifted by known
    multiples.

  Raises:
    ValueError: num_seeds is out of range, a point sets the seed, its folder
      holds something else, or as `seeds.run_seeds`.
  """
  if num_seeds < 1:
    raise ValueError(f'num_seeds={num_seeds}; give 1 or more.')
  for point in points:
    if 'seed' in point.settings:
      raise ValueError(
        'an axis sets the seed, as num_seeds does; give one of them.'
      )
  found = {}
  for point in points:
    folder = pathlib.Path(workdir, point.name)
    # By this its folder is known.
    config = build.replace_fields(point.config, num_seeds=num_seeds)
    workdirs.claim(folder, config)
    path = folder / 'rows.json'
    if not path.exists():
      wanted = range(point.config.seed, point.config.seed + num_seeds)
      outcomes = seeds.run_seeds(
        point.config, wanted, at_once=at_once, progress=progress
      )
      io.write_json(folder / 'config.json', config.to_dict())
      io.write_json(path, [_row(outcome) for outcome in outcomes])
    found[point.name] = io.read_json(path)
  return found


def make_table(
  points: Sequence[sweep.Point], found: Mapping[str, Sequence[Row]]
) -> tables.Table:
  """Mean ± standard deviation over seeds, a line for each point."""
  names = list(
    dict.fromkeys(
      name for rows in found.values() for row in rows for name in row['epsilon']
    )
  )
  body = []
  for point in points:
    rows = found[point.name]
    accuracy = _spread([100 * row['accuracy'] for row in rows])
    epsilons = [
      _spread(
        [float(row['epsilon'][name]) for row in rows if name in row['epsilon']]
      )
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
      'canaries, noise and models. ε are calibrated point estimates.'
    ],
  )


def _row(outcome: seeds.Outcome) -> Row:
  return {
    'seed': outcome.seed,
    'accuracy': outcome.accuracy,
    'epsilon': {
      attack_scores.threat_model.statistic: float(
        attack_scores.points[0](
          attack_scores.scores, delta=outcome.record.delta
        ).epsilon
      )
      for attack_scores in threat_models.score_all(outcome.record)
      # What a single run rejects by chance must not leave a gap in the mean.
      if attack_scores.scores.shift is not None
    },
  }


def _spread(values: Sequence[float]) -> str:
  mean = narrative.format_number(float(np.mean(values)))
  if len(values) < 2 or not np.isfinite(values).all():
    return mean
  return f'{mean} ± {narrative.format_number(float(np.std(values, ddof=1)))}'
