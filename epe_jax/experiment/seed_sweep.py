"""A grid in which every point is run with many seeds, by one program each.

This is for models so small that a process and a compilation would cost more than
the run. A run leaves its accuracy and its calibrated estimates.
"""

from collections.abc import Mapping, Sequence
import functools
import os
import pathlib
from typing import NamedTuple

from epe_jax import io
from epe_jax import progress as progress_bars
from epe_jax.audit import threat_models, upper_bounds
from epe_jax.epsilon.scatter import over_runs
from epe_jax.epsilon.scatter.over_runs import ShiftEstimate
from epe_jax.experiment import build, seeds, sweep, workdirs
from epe_jax.experiment.config_files import Config


class SeedEstimates(NamedTuple):
  """The estimates of the run of one seed; a row of rows.json.

  Attributes:
    seed: of the run.
    accuracy: of the final model on the test data, in [0, 1].
    epsilon: key of an attacker -> calibrated point estimate of ε, of the attackers
      whose scores are shifted by known multiples.
    shift: key of an attacker -> by how much a canary is shifted on average.
    analytic: ε that the mechanism of the run allows, if its noise is known.
    delta: of every ε.
  """

  seed: int
  accuracy: float
  epsilon: Mapping[str, float]
  shift: Mapping[str, ShiftEstimate]
  analytic: float | None
  delta: float


def run_seed_sweep(
  points: Sequence[sweep.Point],
  workdir: str | os.PathLike,
  *,
  num_seeds: int,
  at_once: int | None = None,
  progress: seeds.Progress = progress_bars.bar,
) -> dict[str, list[SeedEstimates]]:
  """Runs every point with the seeds s, s + 1, ..., where s is that of its config.

  Args:
    points: as `sweep.make_grid` makes them; no axis sets the seed.
    workdir: a folder with a folder for each point, whose rows.json is written
      last: a point that has one is not run again.
    num_seeds: runs of each point, >= 1.
    at_once: as for `seeds.run_seeds`.
    progress: makes the bar of each point, as `tqdm.tqdm` does.

  Returns:
    Name of a point -> a row for each seed.

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
  paths = {
    point.name: pathlib.Path(workdir, point.name, 'rows.json')
    for point in points
  }
  sweep.check_points([p for p in points if not paths[p.name].exists()])
  results = {}
  for point in points:
    path = paths[point.name]
    # The folder is recognized by this config.
    config = build.replace_fields(point.config, num_seeds=num_seeds)
    workdirs.claim(path.parent, config)
    make = functools.partial(
      _run_point, config, point.config, at_once=at_once, progress=progress
    )
    results[point.name] = io.make_once(
      path, make, _read_rows, remake_damaged=False
    )
  return results


def _run_point(
  claimed: Config,
  config: Config,
  draft: pathlib.Path,
  *,
  at_once: int | None,
  progress: seeds.Progress,
) -> None:
  """Runs a point with all seeds, and writes its config and its rows."""
  numbers = range(config.seed, config.seed + claimed.num_seeds)
  outcomes = seeds.run_seeds(
    config, numbers, at_once=at_once, progress=progress
  )
  rows = [_estimate_seed(outcome)._asdict() for outcome in outcomes]
  io.write_json(draft.parent / 'config.json', claimed.to_dict())
  io.write_json(draft, rows)


def _estimate_seed(outcome: seeds.Outcome) -> SeedEstimates:
  record = outcome.record
  # What a single run rejects by chance must not leave a gap in the mean.
  shifted = {
    attack_scores.threat_model.key: attack_scores
    for attack_scores in threat_models.score_all(record)
    if attack_scores.scores.shift is not None
  }
  analytic = upper_bounds.bound_known_rounds(record, record.delta)
  return SeedEstimates(
    outcome.seed,
    outcome.accuracy,
    epsilon={
      name: float(
        attack_scores.points[0](
          attack_scores.scores, delta=record.delta
        ).epsilon
      )
      for name, attack_scores in shifted.items()
    },
    shift={
      name: over_runs.estimate_shift(attack_scores.scores)
      for name, attack_scores in shifted.items()
    },
    analytic=analytic and analytic.epsilon,
    delta=record.delta,
  )


def _read_rows(path: pathlib.Path) -> list[SeedEstimates]:
  try:
    # An infinite ε is a string in JSON.
    return [
      SeedEstimates(
        row['seed'],
        row['accuracy'],
        {name: float(value) for name, value in row['epsilon'].items()},
        {name: ShiftEstimate(*pair) for name, pair in row['shift'].items()},
        None if row['analytic'] is None else float(row['analytic']),
        row['delta'],
      )
      for row in io.read_json(path)
    ]
  except (KeyError, TypeError, ValueError) as error:
    raise ValueError(
      f'{path} is damaged or of another version of this library: {error!r}. '
      'Delete it, and its runs are made again.'
    ) from error
