"""A point of a sweep that is run with many seeds, by one program.

This is for models so small that a process and a compilation would cost more than
the run. A run leaves its accuracy and its calibrated estimates.
"""

from collections.abc import Mapping
import os
import pathlib
from typing import NamedTuple

from epe_jax import io, typed_json
from epe_jax.audit import attackers, upper_bounds
from epe_jax.experiment import workdirs
from epe_jax.experiment.setup.config import Config
from epe_jax.experiment.sweeps import seeds, sweep_points
from epe_jax.several_runs import over_runs
from epe_jax.several_runs.over_runs import ShiftEstimate


class SeedEstimates(NamedTuple):
  """The estimates of the run of one seed; a row of rows.json.

  Those by key of an attacker are of attackers whose scores are shifted by known
  multiples.
  """

  seed: int
  accuracy: float  # Of the final model on the test data, in [0, 1].
  # Key of an attacker -> calibrated point estimate of ε.
  epsilon: Mapping[str, float]
  # Key of an attacker -> by how much a canary is shifted on average.
  shift: Mapping[str, ShiftEstimate]
  # ε that the mechanism of the run allows, if its noise is known.
  analytic: float | None
  delta: float  # Of every ε.


def run_seeds(config: Config, workdir: str | os.PathLike) -> None:
  """Runs a point with the seeds s, s + 1, ..., where s is that of its config.

  Args:
    config: of the point, as `sweep_points.add_seeds` makes it.
    workdir: its folder, which a sweep has reserved. What seeds show is kept as they
      end; rows.json is written last, and a point that has one is not run again.

  Raises:
    workdirs.WorkdirLocked: another process runs it.
    ValueError: as `seeds.run_seeds`.
  """
  files = workdirs.workdir_at(workdir)
  of_run, num_seeds = sweep_points.split_seeds(config)
  assert num_seeds is not None, 'a point with many seeds'
  with workdirs.lock(files):
    if files.rows.exists():
      return
    workdirs.clear_other_run(files, config)
    if not files.config.exists():
      io.write_json(files.config, config.to_dict())
    kept = files.private / files.rows.name
    rows = io.read_json(kept) if kept.exists() else []
    first = config.seed + len(rows)
    numbers = range(first, config.seed + num_seeds)
    for outcome in seeds.run_seeds(of_run, numbers) if numbers else ():
      rows.append(typed_json.to_plain(_estimate_seed(outcome)))
      io.write_json(kept, rows, private=True)
    io.write_json(files.rows, rows)
    kept.unlink()


def _estimate_seed(outcome: seeds.SeedRun) -> SeedEstimates:
  record = outcome.record
  if record is None:
    return SeedEstimates(
      outcome.seed, outcome.accuracy, {}, {}, None, outcome.delta
    )
  # What a single run rejects by chance must not leave a gap in the mean.
  shifted = {
    attack_scores.threat_model.key: attack_scores
    for attack_scores in attackers.score_all(record)
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


def read_rows(path: pathlib.Path) -> list[SeedEstimates]:
  """Reads the rows.json of a point, a row for each seed.

  Raises:
    ValueError: it is damaged.
  """
  try:
    return typed_json.from_plain(list[SeedEstimates], io.read_json(path))
  except (KeyError, TypeError, ValueError) as error:
    raise ValueError(
      f'{path} is damaged or of another version of this library: {error!r}. '
      'Delete it, and its runs are made again.'
    ) from error
