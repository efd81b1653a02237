"""One run of many canaries against several runs of a share of them each.

An audit in one run rests on canaries not disturbing each other. If they did, ε
found from k canaries of one run would differ from ε found from as many canaries
of R runs with k/R each. Both are repeated, for ε̂ scatters.

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
from typing import Any, Literal, NamedTuple

from jaxtyping import Float
import numpy as np
import tqdm

from epe_jax import io
from epe_jax.epsilon import gaussian, noise_floor, pooling
from epe_jax.epsilon.types import Scores
from epe_jax.experiment import build, seeds, workdirs
from epe_jax.report import narrative

QUANTILES = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Of ε̂ over experiments, as the paper has them."""

Std = Literal['null', 'fitted']

STDS: tuple[Std, ...] = ('null', 'fitted')
"""Which std `gaussian.two_gaussian` takes: the calibrated one and the paper's."""

Row = dict[str, Any]


class Cosines(NamedTuple):
  """What one experiment keeps: cosines with the final models.

  Attributes:
    seeds: of the runs; the first is that of the single run.
    observed: of each run, [k] and R times [k / R].
    unobserved: the same for those that took no part.
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
  config: build.Config,
  *,
  experiments: int,
  runs: int,
  workdir: str | os.PathLike,
  progress: seeds.Progress = tqdm.tqdm,
) -> list[Row]:
  """ε̂ of one run and of several, in a number of independent experiments.

  Experiment i has the single run of seed s + i (1 + R), where s is that of the
  config, and R runs of the seeds that follow. A seed decides all there is to
  draw, so the experiments scatter as new audits of newly drawn data would.

  What a finished experiment kept is in workdir/experiment_<i>.npz, and is not
  made again: a comparison that was killed goes on, one that is asked for more
  experiments adds to them. rows.json holds the rows.

  Args:
    config: every field set; of the single run.
    experiments: how often both are repeated, >= 1.
    runs: R >= 1, must divide the numbers of canaries.
    workdir: a folder of its own; made if missing.
    progress: makes the bar that counts runs, as `tqdm.tqdm` does.

  Returns:
    Rows with experiment, design ('single' or 'several'), runs, canaries (in
    each), std, epsilon, delta, dim, noise_multiplier, accuracy (its mean over
    runs), seeds and floor_quantiles.

  Raises:
    ValueError: as `seeds.run_each`; canaries cannot be dealt to so many runs; the
      workdir holds something else.
  """
  share = _shared(config, experiments, runs)
  workdir = pathlib.Path(workdir)
  # By this its folder is known.
  asked = build.replace_fields(config, comparison={'runs': runs})
  workdirs.claim(workdir, asked)
  paths = [workdir / f'experiment_{i:04}.npz' for i in range(experiments)]
  missing = [i for i, path in enumerate(paths) if not path.exists()]
  if missing:
    # Any error of the config comes before the folder is one of this config.
    for one in (config, share):
      seeds.check_seeds(one, [one.seed])
      build.build(one)
    made = _experiments(config, share, missing, runs)
    io.write_json(workdir / 'config.json', asked.to_dict())
    with progress(total=len(missing) * (1 + runs), unit='run') as bar:
      for i, cosines in zip(missing, made):
        _write(paths[i], cosines)
        bar.update(1 + runs)
  rows = [
    row
    for i, path in enumerate(paths)
    for row in _rows(_read(path), i, config.noise_multiplier)
  ]
  io.write_json(workdir / 'rows.json', rows)
  return rows


def make_table(rows: Sequence[Mapping[str, Any]]) -> str:
  """Quantiles of ε̂ over experiments, of one run and of several.

  Args:
    rows: as `compare` gives them.

  Returns:
    Text without a final newline.
  """
  first = rows[0]
  num = 1 + max(row['experiment'] for row in rows)
  lines = [
    f'{num} experiments, d = {first["dim"]:,}, δ = {narrative.format_delta(first["delta"])}'
    f', noise multiplier {first["noise_multiplier"]:g}: quantiles of ε̂ from the '
    'final model',
    '',
    f'{"std":<7}{"runs x canaries":>16}'
    + ''.join(f'{q:>8g}' for q in QUANTILES)
    + f'{"mean ± its error":>20}{"accuracy":>10}',
  ]
  for std in STDS:
    for design in ('single', 'several'):
      mine = select_rows(rows, design, std)
      lines.append(_line(mine))
    said = 'is what it finds in 9 of 10 audits where nothing leaks'
    quantiles = mine[0]['floor_quantiles']
    low, high = (narrative.format_number(quantiles[q]) for q in ('5', '95'))
    lines.append(f'{"":7}{low} to {high} {said}')
  return '\n'.join(lines)


def select_rows(
  rows: Sequence[Mapping[str, Any]], design: str, std: str
) -> list[Mapping[str, Any]]:
  """The rows of a design and an estimator, one of each experiment."""
  return [row for row in rows if (row['design'], row['std']) == (design, std)]


def _line(rows: Sequence[Mapping[str, Any]]) -> str:
  values = np.array([float(row['epsilon']) for row in rows])
  # An infinite ε has a quantile, but no spread.
  with np.errstate(invalid='ignore'):
    quantiles = np.quantile(values, QUANTILES, method='inverted_cdf')
    error = (
      np.std(values, ddof=1) / np.sqrt(len(values)) if len(rows) > 1 else 0
    )
  mean = narrative.format_number(float(values.mean()))
  if len(rows) > 1:
    mean += f' ± {narrative.format_number(float(error))}'
  first = rows[0]
  shape = f'{first["runs"]} x {first["canaries"]:,}'
  accuracy = np.mean([row['accuracy'] for row in rows])
  return (
    f'{first["std"]:<7}{shape:>16}'
    + ''.join(f'{narrative.format_number(float(q)):>8}' for q in quantiles)
    + f'{mean:>20}{100 * accuracy:>8.1f} %'
  )


def _shared(config: build.Config, experiments: int, runs: int) -> build.Config:
  """The config of each of several runs."""
  for name, value in (('experiments', experiments), ('runs', runs)):
    if value < 1:
      raise ValueError(f'{name}={value}; give 1 or more.')
  share = config.copy_and_resolve_references()
  for name, least in (('observed', 2), ('unobserved', 0)):
    num = config.canaries[name]
    if num % runs or num // runs < least:
      raise ValueError(
        f'canaries.{name}={num} cannot be dealt to runs={runs}, at least '
        f'{least} to each; give a multiple of {runs}.'
      )
    share.canaries[name] = num // runs
  return share


def _experiments(
  config: build.Config,
  share: build.Config,
  which: Sequence[int],
  runs: int,
) -> Iterator[Cosines]:
  """The experiments of these numbers, one by one."""
  firsts = [config.seed + i * (1 + runs) for i in which]
  others = [first + 1 + j for first in firsts for j in range(runs)]
  hidden = functools.partial(tqdm.tqdm, disable=True)
  single = seeds.run_each(config, firsts, progress=hidden)
  several = seeds.run_each(share, others, progress=hidden)
  for outcome in single:
    yield _cosines([outcome, *itertools.islice(several, runs)])


def _cosines(outcomes: Sequence[seeds.Outcome]) -> Cosines:
  record = [outcome.record for outcome in outcomes]
  return Cosines(
    seeds=[outcome.seed for outcome in outcomes],
    observed=[r.cosines['final'][r.observed] for r in record],
    unobserved=[r.cosines['final'][~r.observed] for r in record],
    accuracy=[outcome.accuracy for outcome in outcomes],
    dim=record[0].dim,
    delta=record[0].delta,
  )


def _rows(cosines: Cosines, number: int, noise_multiplier: float) -> list[Row]:
  """What an experiment found, of each design and estimator."""
  rows = []
  for design, part in (('single', slice(0, 1)), ('several', slice(1, None))):
    runs = zip(cosines.observed[part], cosines.unobserved[part])
    scores = pooling.pool_scores(
      [Scores(*groups, cosines.dim) for groups in runs]
    )
    num, count = scores.observed.size, len(cosines.observed[part])
    for std in STDS:
      estimate = gaussian.two_gaussian(scores, delta=cosines.delta, std=std)
      rows.append(
        {
          'experiment': number,
          'design': design,
          'runs': count,
          'canaries': num // count,
          'std': std,
          'epsilon': float(estimate.epsilon),
          'delta': cosines.delta,
          'dim': cosines.dim,
          'noise_multiplier': noise_multiplier,
          'accuracy': float(np.mean(cosines.accuracy[part])),
          'seeds': list(cosines.seeds[part]),
          'floor_quantiles': _floor(std, num, cosines.dim, cosines.delta),
        }
      )
  return rows


@functools.cache
def _floor(std: Std, num: int, dim: int, delta: float) -> dict[str, float]:
  """What an estimator finds in so many cosines that hide nothing."""
  null = noise_floor.estimate_noise_floor(
    np.random.default_rng(0),
    functools.partial(gaussian.two_gaussian, std=std),
    delta=delta,
    num_observed=num,
    num_unobserved=0,
    dim=dim,
  )
  return {'5': null.q05, '50': null.q50, '95': null.q95}


def _write(path: pathlib.Path, cosines: Cosines) -> None:
  arrays = {
    'seeds': np.asarray(cosines.seeds),
    'accuracy': np.asarray(cosines.accuracy),
    'dim': np.int64(cosines.dim),
    'delta': np.float64(cosines.delta),
  }
  # Runs may differ in how many canaries took part.
  for j, groups in enumerate(zip(cosines.observed, cosines.unobserved)):
    arrays[f'observed_{j}'], arrays[f'unobserved_{j}'] = groups
  io.write_arrays(path, arrays)


def _read(path: pathlib.Path) -> Cosines:
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
