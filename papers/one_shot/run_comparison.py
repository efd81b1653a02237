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

from collections.abc import Iterator, Mapping, Sequence, Set
import functools
import itertools
import os
import pathlib
from typing import Literal, NamedTuple

from jaxtyping import Float
import numpy as np

from epe_jax import io
from epe_jax import progress as progress_bars
from epe_jax.epsilon import noise_floor, two_gaussians
from epe_jax.epsilon.types import Scores, Sphere
from epe_jax.experiment import workdirs
from epe_jax.experiment.setup import build, config_files
from epe_jax.experiment.setup.config_files import Config
from epe_jax.experiment.sweeps import seeds
from epe_jax.several_runs import over_runs

QUANTILES = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Of ε̂ over experiments, as the paper has them."""

Std = Literal['null', 'fitted']

STDS: tuple[Std, ...] = ('null', 'fitted')
"""Which std `two_gaussians.two_gaussian` takes: the calibrated one and the paper's."""


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
  """Cosines with the final model of one run, which its file keeps.

  Attributes:
    observed: of observed canaries.
    unobserved: of unobserved canaries.
    accuracy: of the final model on the test data.
    dim: d.
    delta: δ of the run.
  """

  observed: Float[np.ndarray, ' k']
  unobserved: Float[np.ndarray, ' k0']
  accuracy: float
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

  The cosines of a finished run are in workdir/run_<seed>.npz, and no run is repeated:
  a comparison that was killed is resumed, and one of more experiments adds to those
  that are there. rows.json holds the rows.

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
  claimed = config_files.replace_fields(config, comparison={'runs': runs})
  workdirs.reserve(workdir, claimed)
  firsts = [config.seed + i * (1 + runs) for i in range(experiments)]
  all_seeds = [range(first, first + 1 + runs) for first in firsts]
  missing = [
    seed
    for seed in itertools.chain(*all_seeds)
    if not _locate(workdir, seed).exists()
  ]
  if missing:
    # Any error of the config comes before the folder is one of this config.
    for checked in (config, share):
      seeds.check_seeds(checked, [checked.seed])
      build.build(checked)
    io.write_json(workdir / 'config.json', claimed.to_dict())
    with progress(total=len(missing), unit='run') as bar:
      for outcome in _run_all(config, share, missing, {*firsts}):
        _write_cosines(_locate(workdir, outcome.seed), outcome)
        bar.update(1)
  rows = [
    row
    for i, several in enumerate(all_seeds)
    for row in _estimate_designs(workdir, several, i, config)
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


def _locate(workdir: pathlib.Path, seed: int) -> pathlib.Path:
  """The file of a run."""
  return workdir / f'run_{seed}.npz'


def _run_all(
  config: Config, share: Config, missing: Sequence[int], firsts: Set[int]
) -> Iterator[seeds.Outcome]:
  """The runs of these seeds, in their order, of which some are single."""
  silent = functools.partial(progress_bars.bar, disable=True)
  single, several = (
    seeds.run_seeds(
      each,
      [seed for seed in missing if (seed in firsts) == is_single],
      progress=silent,
    )
    for each, is_single in ((config, True), (share, False))
  )
  for seed in missing:
    yield next(single if seed in firsts else several)


def _estimate_designs(
  workdir: pathlib.Path,
  of_seeds: Sequence[int],
  experiment: int,
  config: Config,
) -> Iterator[DesignEstimate]:
  """ε̂ of an experiment, by each design and estimator."""
  for design, part in (('single', of_seeds[:1]), ('several', of_seeds[1:])):
    cosines = [_read_cosines(_locate(workdir, seed)) for seed in part]
    dim, delta = cosines[0].dim, cosines[0].delta
    scores = over_runs.pool_scores(
      [Scores(x.observed, x.unobserved, Sphere(dim)) for x in cosines]
    )
    num = scores.observed.size
    for std in STDS:
      estimate = two_gaussians.two_gaussian(scores, delta=delta, std=std)
      yield DesignEstimate(
        experiment=experiment,
        design=design,
        runs=len(part),
        canaries=num // len(part),
        std=std,
        epsilon=float(estimate.epsilon),
        delta=delta,
        dim=dim,
        noise_multiplier=config.noise_multiplier,
        accuracy=float(np.mean([x.accuracy for x in cosines])),
        seeds=list(part),
        floor_quantiles=_estimate_floor(std, num, dim, delta),
      )


@functools.cache
def _estimate_floor(
  std: Std, num: int, dim: int, delta: float
) -> dict[str, float]:
  """What an estimator reports of so many cosines when nothing leaks."""
  floor = noise_floor.estimate_noise_floor(
    np.random.default_rng(0),
    functools.partial(two_gaussians.two_gaussian, std=std),
    delta=delta,
    num_observed=num,
    num_unobserved=0,
    null=Sphere(dim),
  )
  return {'5': floor.q05, '50': floor.q50, '95': floor.q95}


def _write_cosines(path: pathlib.Path, outcome: seeds.Outcome) -> None:
  record = outcome.record
  final = record.cosines['final']
  cosines = Cosines(
    observed=final[record.observed],
    unobserved=final[~record.observed],
    accuracy=outcome.accuracy,
    dim=record.dim,
    delta=record.delta,
  )
  io.write_arrays(
    path, {name: np.asarray(x) for name, x in cosines._asdict().items()}
  )


def _read_cosines(path: pathlib.Path) -> Cosines:
  arrays = io.read_arrays(path)
  return Cosines(
    observed=arrays['observed'],
    unobserved=arrays['unobserved'],
    accuracy=float(arrays['accuracy']),
    dim=int(arrays['dim']),
    delta=float(arrays['delta']),
  )
