"""One run of many canaries against several runs of a share of them each.

An audit in one run rests on canaries not disturbing each other. If they did, the
estimate from k canaries of one run would differ from the estimate from as many
canaries of R runs with k/R each. Both are repeated, since ε̂ scatters.

Canaries count among the m clients that a sum is divided by, and as clipped ones
where the clip norm adapts. So the two designs train alike only if k / rounds is
small against the clients of a round; if not, they differ for a reason that is no
disturbance of canaries by each other.

Source: One-shot Empirical Privacy Estimation, section 5.3.
"""

from collections.abc import Iterator, Mapping, Sequence
import functools
import itertools
import os
import pathlib
from typing import Literal, NamedTuple

from jaxtyping import Float
import numpy as np

from epe_jax import io
from epe_jax import progress as progress_bars
from epe_jax.epsilon.null_laws import noise_floor
from epe_jax.epsilon.points import gaussian
from epe_jax.epsilon.scatter import over_runs
from epe_jax.epsilon.types import (
  Scores,
  Sphere,
)
from epe_jax.experiment import build, seeds, workdirs
from epe_jax.experiment.config_files import Config

QUANTILES = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Of ε̂ over experiments, as the paper has them."""

Std = Literal['null', 'fitted']

STDS: tuple[Std, ...] = ('null', 'fitted')
"""Which std `gaussian.two_gaussian` takes: the calibrated one and the paper's."""


class DesignEstimate(NamedTuple):
  """ε̂ of one experiment, by one design and one estimator; a row of rows.json.

  Attributes:
    experiment: its number, from 0.
    design: 'single' run of all canaries, or 'several' of a share each.
    runs: how many, 1 or R.
    canaries: number of observed canaries in each run.
    std: which std the estimator takes.
    epsilon: the estimate; inf where it is infinite.
    delta: δ of the runs.
    dim: d.
    noise_multiplier: of the runs.
    accuracy: of the final models on the test data, the mean over runs, in [0, 1].
    seeds: of the runs.
    floor_quantiles: '5', '50' and '95' -> that percentile of what the estimator
      reports when nothing leaks.
  """

  experiment: int
  design: str
  runs: int
  canaries: int
  std: Std
  epsilon: float
  delta: float
  dim: int
  noise_multiplier: float
  accuracy: float
  seeds: Sequence[int]
  floor_quantiles: Mapping[str, float]


class Cosines(NamedTuple):
  """Cosines with the final models of one experiment, which its file keeps.

  Attributes:
    seeds: of the runs; the first is that of the single run.
    observed: of each run, [k] and R times [k / R].
    unobserved: the same for unobserved canaries.
    accuracy: of each final model on the test data.
    dim: d.
    delta: δ of the runs.
  """

  seeds: Sequence[int]
  observed: Sequence[Float[np.ndarray, ' k']]
  unobserved: Sequence[Float[np.ndarray, ' k']]
  accuracy: Sequence[float]
  dim: int
  delta: float


def compare(
  config: Config,
  *,
  experiments: int,
  runs: int,
  workdir: str | os.PathLike,
  progress: seeds.Progress = progress_bars.bar,
) -> list[DesignEstimate]:
  """Estimates ε of one run and of several, in independent experiments.

  Experiment i has the single run of seed s + i (1 + R), where s is that of the
  config, and R runs of the seeds that follow. A seed decides all there is to
  draw, so the experiments scatter as new audits of newly drawn data would.

  The cosines of a finished experiment are in workdir/experiment_<i>.npz, and no
  experiment is repeated: a comparison that was killed is resumed, and one of more
  experiments adds to those that are there. rows.json holds the rows.

  Args:
    config: every field set; of the single run.
    experiments: how often both are repeated, >= 1.
    runs: R >= 1, must divide the numbers of canaries.
    workdir: a folder of its own; created if it is missing.
    progress: makes the bar that counts runs, as `tqdm.tqdm` does.

  Returns:
    A row for each experiment, design and estimator.

  Raises:
    ValueError: as `seeds.run_seeds`; canaries cannot be dealt to so many runs; the
      workdir holds something else.
  """
  share = _share_canaries(config, experiments, runs)
  workdir = pathlib.Path(workdir)
  # The folder is recognised by this config.
  claimed = build.replace_fields(config, comparison={'runs': runs})
  workdirs.claim(workdir, claimed)
  paths = [workdir / f'experiment_{i:04}.npz' for i in range(experiments)]
  missing = [i for i, path in enumerate(paths) if not path.exists()]
  if missing:
    # Any error of the config comes before the folder is one of this config.
    for checked in (config, share):
      seeds.check_seeds(checked, [checked.seed])
      build.build(checked)
    outcomes = _run_experiments(config, share, missing, runs)
    io.write_json(workdir / 'config.json', claimed.to_dict())
    with progress(total=len(missing) * (1 + runs), unit='run') as bar:
      for i, cosines in zip(missing, outcomes):
        _write_cosines(paths[i], cosines)
        bar.update(1 + runs)
  rows = [
    row
    for i, path in enumerate(paths)
    for row in _estimate_designs(_read_cosines(path), i, config)
  ]
  io.write_json(workdir / 'rows.json', [row._asdict() for row in rows])
  return rows


def select_rows(
  rows: Sequence[DesignEstimate], design: str, std: str
) -> list[DesignEstimate]:
  """The rows of a design and an estimator, one of each experiment."""
  return [row for row in rows if (row.design, row.std) == (design, std)]


def _share_canaries(config: Config, experiments: int, runs: int) -> Config:
  """The config of each of several runs."""
  for name, value in (('experiments', experiments), ('runs', runs)):
    if value < 1:
      raise ValueError(f'{name}={value}; give 1 or more.')
  share = config.copy_and_resolve_references()
  for name, minimum in (('observed', 2), ('unobserved', 0)):
    num = config.canaries[name]
    if num % runs or num // runs < minimum:
      raise ValueError(
        f'canaries.{name}={num} cannot be dealt to runs={runs}, at least '
        f'{minimum} to each; give a multiple of {runs}.'
      )
    share.canaries[name] = num // runs
  return share


def _run_experiments(
  config: Config,
  share: Config,
  numbers: Sequence[int],
  runs: int,
) -> Iterator[Cosines]:
  """The experiments of these numbers, one by one."""
  firsts = [config.seed + i * (1 + runs) for i in numbers]
  others = [first + 1 + j for first in firsts for j in range(runs)]
  silent = functools.partial(progress_bars.bar, disable=True)
  single = seeds.run_seeds(config, firsts, progress=silent)
  several = seeds.run_seeds(share, others, progress=silent)
  for outcome in single:
    yield _collect_cosines([outcome, *itertools.islice(several, runs)])


def _collect_cosines(outcomes: Sequence[seeds.Outcome]) -> Cosines:
  records = [outcome.record for outcome in outcomes]
  return Cosines(
    seeds=[outcome.seed for outcome in outcomes],
    observed=[r.cosines['final'][r.observed] for r in records],
    unobserved=[r.cosines['final'][~r.observed] for r in records],
    accuracy=[outcome.accuracy for outcome in outcomes],
    dim=records[0].dim,
    delta=records[0].delta,
  )


def _estimate_designs(
  cosines: Cosines, experiment: int, config: Config
) -> Iterator[DesignEstimate]:
  """ε̂ of an experiment, by each design and estimator."""
  for design, part in (('single', slice(0, 1)), ('several', slice(1, None))):
    groups = zip(cosines.observed[part], cosines.unobserved[part])
    scores = over_runs.pool_scores(
      [Scores(*group, Sphere(cosines.dim)) for group in groups]
    )
    num, runs = scores.observed.size, len(cosines.observed[part])
    for std in STDS:
      estimate = gaussian.two_gaussian(scores, delta=cosines.delta, std=std)
      yield DesignEstimate(
        experiment=experiment,
        design=design,
        runs=runs,
        canaries=num // runs,
        std=std,
        epsilon=float(estimate.epsilon),
        delta=cosines.delta,
        dim=cosines.dim,
        noise_multiplier=config.noise_multiplier,
        accuracy=float(np.mean(cosines.accuracy[part])),
        seeds=list(cosines.seeds[part]),
        floor_quantiles=_estimate_floor(std, num, cosines.dim, cosines.delta),
      )


@functools.cache
def _estimate_floor(
  std: Std, num: int, dim: int, delta: float
) -> dict[str, float]:
  """What an estimator reports of so many cosines when nothing leaks."""
  floor = noise_floor.estimate_noise_floor(
    np.random.default_rng(0),
    functools.partial(gaussian.two_gaussian, std=std),
    delta=delta,
    num_observed=num,
    num_unobserved=0,
    null=Sphere(dim),
  )
  return {'5': floor.q05, '50': floor.q50, '95': floor.q95}


def _write_cosines(path: pathlib.Path, cosines: Cosines) -> None:
  arrays = {
    'seeds': np.asarray(cosines.seeds),
    'accuracy': np.asarray(cosines.accuracy),
    'dim': np.int64(cosines.dim),
    'delta': np.float64(cosines.delta),
  }
  # Runs may differ in their number of observed canaries.
  for j, groups in enumerate(zip(cosines.observed, cosines.unobserved)):
    arrays[f'observed_{j}'], arrays[f'unobserved_{j}'] = groups
  io.write_arrays(path, arrays)


def _read_cosines(path: pathlib.Path) -> Cosines:
  arrays = io.read_arrays(path)
  runs = range(len(arrays['seeds']))
  return Cosines(
    seeds=arrays['seeds'].tolist(),
    observed=[arrays[f'observed_{j}'] for j in runs],
    unobserved=[arrays[f'unobserved_{j}'] for j in runs],
    accuracy=arrays['accuracy'].tolist(),
    dim=int(arrays['dim']),
    delta=float(arrays['delta']),
  )
