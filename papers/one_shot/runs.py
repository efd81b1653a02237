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
from typing import Any, Literal, NamedTuple

from matplotlib import figure
import numpy as np

from epe_jax import progress as progress_bars
from epe_jax.epsilon import noise_floor, two_gaussians
from epe_jax.epsilon.types import Scores, Sphere
from epe_jax.experiment import stopping
from epe_jax.experiment.setup import build, workloads
from epe_jax.experiment.setup.config import Config
from epe_jax.experiment.sweeps import seeds
from epe_jax.report import cells, tables
from epe_jax.report.figures import style
from papers import grid, item, reported

QUANTILES = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Of ε̂ over experiments, as the paper has them."""

Std = Literal['null', 'fitted']

_REPORTED = reported.Reported('papers.one_shot')
# Which std `two_gaussians.two_gaussian` takes: the calibrated one and the paper's.
_STDS: tuple[Std, ...] = ('null', 'fitted')
_TITLES: dict[Std, str] = {
  'fitted': 'std fitted, as the paper has it',
  'null': 'std of the null: calibrated',
}
# They differ by the line too, for prints without colours.
_STYLES: dict[str, dict[str, Any]] = {
  'single': {'color': style.BLUE, 'ls': '-', 'lw': 2.5, 'marker': 'o'},
  'several': {'color': style.VERMILLION, 'ls': '--', 'lw': 2, 'marker': 's'},
}


class DesignEstimate(NamedTuple):
  """ε̂ of one experiment, by one design and one estimator.

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
    floor: the 5 % and 95 % quantiles of what the estimator reports when nothing
      leaks.
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
  floor: tuple[float, float]


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

  The cosines of a finished run are in workdir/run_<seed>.json, and no run is repeated:
  a comparison that was killed is resumed, and one of more experiments adds to those
  that are there.

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
  share = _share_canaries(config, runs)
  experiment_seeds = [
    range(first, first + 1 + runs)
    for first in itertools.islice(
      itertools.count(config.seed, 1 + runs), experiments
    )
  ]
  firsts = {each[0] for each in experiment_seeds}
  paths = {
    seed: pathlib.Path(workdir, f'run_{seed}.json')
    for seed in itertools.chain(*experiment_seeds)
  }
  missing = [seed for seed, path in paths.items() if not path.exists()]
  if missing:
    # Any error of the config comes before a run.
    for checked in (config, share):
      seeds.check_seeds(checked, [checked.seed])
      build.build(checked)
  silent = functools.partial(progress_bars.bar, disable=True)
  single, several = (
    seeds.run_seeds(
      each,
      [seed for seed in missing if (seed in firsts) == is_single],
      progress=silent,
    )
    for each, is_single in ((config, True), (share, False))
  )
  found = {}
  with progress(total=len(missing), unit='run') as bar:
    for seed, path in paths.items():
      is_single = seed in firsts

      def make(outcomes=single if is_single else several) -> dict[str, Any]:
        bar.update(1)
        return _read_outcome(next(outcomes))

      settings = (config if is_single else share).to_dict()
      found[seed] = item.cached(path, settings, make)
  return [
    row
    for i, (first, *others) in enumerate(experiment_seeds)
    for design, part in (('single', [first]), ('several', others))
    for row in _estimate(design, [found[seed] for seed in part], i, config)
  ]


def _share_canaries(config: Config, runs: int) -> Config:
  """The config of each of several runs."""
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


def _read_outcome(outcome: seeds.SeedRun) -> dict[str, Any]:
  record = outcome.record
  assert record is not None, 'these runs have canaries'
  final = record.cosines['final']
  return dict(
    observed=final[record.observed].tolist(),
    unobserved=final[~record.observed].tolist(),
    accuracy=float(outcome.accuracy),
    dim=record.dim,
    delta=record.delta,
  )


def _estimate(
  design: str,
  found: Sequence[Mapping[str, Any]],
  experiment: int,
  config: Config,
) -> Iterator[DesignEstimate]:
  """ε̂ of the runs of a design, by each estimator."""
  dim, delta = found[0]['dim'], found[0]['delta']
  # Cosines with models of one d have one law, so that those of all runs are pooled.
  observed, unobserved = (
    np.concatenate([np.asarray(run[group], np.float32) for run in found])
    for group in ('observed', 'unobserved')
  )
  scores = Scores(observed, unobserved, Sphere(dim))
  num = scores.observed.size
  for std in _STDS:
    estimate = two_gaussians.two_gaussian(scores, delta=delta, std=std)
    yield DesignEstimate(
      experiment=experiment,
      design=design,
      runs=len(found),
      canaries=num // len(found),
      std=std,
      epsilon=float(estimate.epsilon),
      delta=delta,
      dim=dim,
      noise_multiplier=config.noise_multiplier,
      accuracy=float(np.mean([run['accuracy'] for run in found])),
      floor=_estimate_floor(std, num, dim, delta),
    )


@functools.cache
def _estimate_floor(
  std: Std, num: int, dim: int, delta: float
) -> tuple[float, float]:
  floor = noise_floor.estimate_noise_floor(
    np.random.default_rng(0),
    functools.partial(two_gaussians.two_gaussian, std=std),
    delta=delta,
    num_observed=num,
    num_unobserved=0,
    null=Sphere(dim),
  )
  return floor.q05, floor.q95


def select_rows(
  rows: Sequence[DesignEstimate], design: str, std: str
) -> list[DesignEstimate]:
  """The rows of a design and an estimator, one of each experiment."""
  return [row for row in rows if (row.design, row.std) == (design, std)]


def make_runs(settings: Any, workspace: item.Workspace) -> item.Product:
  """Compares both designs at each noise level, training what is missing.

  Args:
    settings: config and sets, as for `grid.make_base_config`; noises,
      experiments and runs.
    workspace: of the item.
  """
  base = grid.make_base_config(settings, workspace)

  def compare_at(noise: float) -> list[DesignEstimate]:
    base.noise_multiplier = noise
    return compare(
      base,
      experiments=settings.experiments,
      runs=settings.runs,
      workdir=workspace.folder / f'noise_multiplier={noise}',
    )

  noises = grid.choose_values(
    'noise_multiplier', settings.noises, workspace.fields
  )
  by_noise = stopping.wait_for(lambda: [compare_at(noise) for noise in noises])
  workload = workloads.load_workload(base)
  assert workload.baseline is not None, 'a workload that was loaded has one'
  return item.Product(
    make_tables(by_noise, source=workload.source, baseline=workload.baseline),
    {
      f'runs_{rows[0].noise_multiplier:g}': draw_single_or_several(rows)
      for rows in by_noise
    },
  )


def make_tables(
  by_noise: Sequence[Sequence[DesignEstimate]],
  *,
  source: str,
  baseline: float = 0.0,
) -> list[tables.Table]:
  """Makes a table of quantiles over experiments for each estimator.

  The paper's numbers, which are of the fitted std, are in brackets.

  Args:
    by_noise: the rows of each noise level.
    source: of the data, in words.
    baseline: the accuracy of the majority class, in [0, 1].
  """
  first, paper_delta = by_noise[0][0], _REPORTED.find_delta('runs')
  experiments = len(select_rows(by_noise[0], 'single', first.std))
  return [
    tables.Table(
      f'{title}; δ = {cells.format_delta(first.delta)}',
      [
        'noise',
        'runs x canaries',
        *(f'{q:g}' for q in QUANTILES),
        'mean ± its error',
        'accuracy',
      ],
      [
        _list_cells(select_rows(rows, design, std))
        for rows in by_noise
        for design in _STYLES
      ],
      [
        *(_REPORTED.explain_brackets('runs') if std == 'fitted' else ()),
        *(
          [f"The paper's δ is {cells.format_delta(paper_delta)}."]
          if std == 'fitted' and paper_delta
          else []
        ),
        f'Quantiles of the ε of the final model over {experiments} experiments, '
        'each of other seeds throughout.',
        *(
          _describe_floor(select_rows(rows, 'single', std)[0])
          for rows in by_noise
        ),
        f'Data: {source}. d = {first.dim:,}.',
        *grid.warn_of_models(
          (
            (f'noise {row.noise_multiplier:g}', row.accuracy)
            for rows in by_noise
            for row in rows
          ),
          baseline,
        ),
        *grid.warn_of_few(first.runs * first.canaries),
      ],
    )
    for std, title in _TITLES.items()
  ]


def _describe_floor(row: DesignEstimate) -> str:
  low, high = map(cells.format_number, row.floor)
  return (
    f'Noise {row.noise_multiplier:g}: the estimator reports {low} to {high} in 9 '
    'of 10 audits when nothing leaks.'
  )


def _list_cells(rows: Sequence[DesignEstimate]) -> list[str]:
  """The line of one design, estimator and noise level, over experiments."""
  first = rows[0]
  noise, runs = first.noise_multiplier, first.runs
  values = np.array([row.epsilon for row in rows])
  paper = None
  if first.std == 'fitted':
    paper = _REPORTED.find_row('runs', noise=noise, runs=runs)
  # An infinite ε has a quantile, but no spread.
  with np.errstate(invalid='ignore'):
    epsilons = np.quantile(values, QUANTILES, method='inverted_cdf')
    error = np.std(values, ddof=1) / np.sqrt(len(values))
  mean, error = (cells.format_number(float(x)) for x in (values.mean(), error))
  return [
    f'{noise:g}',
    f'{runs:,} x {first.canaries:,}',
    *(
      reported.add_reported(float(x), paper, f'{q:g}')
      for x, q in zip(epsilons, QUANTILES)
    ),
    f'{mean} ± {error}',
    cells.format_percent(float(np.mean([row.accuracy for row in rows]))),
  ]


def draw_single_or_several(
  rows: Sequence[DesignEstimate],
) -> figure.Figure:
  """Draws the share of experiments that find at most ε, of both designs.

  A panel for each estimator. Marks are at `QUANTILES`; infinite ε are off the axes.
  Shaded is what the same estimator reports where nothing leaks.
  """
  fig, all_axes = style.make_panels(
    len(_STDS), columns=2, height=4.0, share=True
  )
  for axes, std in zip(all_axes, _STDS):
    for design, options in _STYLES.items():
      selected = select_rows(rows, design, std)
      values = np.sort([row.epsilon for row in selected])
      n, finite = len(values), values[np.isfinite(values)]
      marks = [int(np.ceil(q * n - 1e-9)) for q in QUANTILES]
      runs = selected[0].runs
      axes.step(
        np.concatenate([[0.0], finite]),
        np.arange(len(finite) + 1) / n,
        where='post',
        label=f'{runs} run{"s" if runs > 1 else ""} x '
        f'{selected[0].canaries:,} canaries, n = {n}',
        markevery=[i for i in marks if i <= len(finite)],
        ms=7,
        mfc='white',
        mew=1.5,
        **options,
      )
    axes.axvspan(
      *select_rows(rows, 'single', std)[0].floor,
      color=style.GREY,
      lw=0,
      zorder=0,
      label=style.FLOOR,
    )
    axes.set_title(_TITLES[std])
    axes.set_xlabel(f'ε̂ at δ = {cells.format_delta(rows[0].delta)}')
    axes.set_ylim(0, 1.02)
  all_axes[0].set_xlim(left=0)
  all_axes[0].set_ylabel('share of experiments that find at most this')
  fig.suptitle(
    f'final model, d = {rows[0].dim:,}, noise multiplier '
    f'{rows[0].noise_multiplier:g}',
    fontsize='medium',
  )
  style.draw_legend(fig, all_axes, columns=3)
  return fig


def _choose(scale: str) -> dict[str, Any]:
  settings: dict[str, Any] = dict(
    config='stackoverflow' if scale == 'paper' else 'digits',
    sets=[grid.TEXT['paper']] if scale == 'paper' else [],
    noises=(0.0496, 0.0986),
    experiments=50,
    runs=10,
  )
  if scale == 'small':
    # scikit-learn's digits, whose runs take seconds. Forty canaries, each of one of 50
    # rounds of 20 clients, make the rounds of the single run hardly larger than others.
    sets = dict(
      rounds=50,
      client=dict(epochs=1),
      canaries=dict(observed=40, unobserved=0, repetitions=1),
    )
    settings |= dict(sets=[sets], experiments=20, runs=4)
  if scale == 'smoke':
    sets = dict(
      rounds=2,
      clients_per_round=4,
      client=dict(epochs=1),
      canaries=dict(observed=8, unobserved=0),
      model=dict(width=2),
    )
    settings |= dict(sets=[sets], experiments=2, runs=2, noises=(0.0496,))
  return settings


ITEM = item.Item(
  'One run of many canaries against several runs of few',
  'section 5.3, Table 5',
  item.Experiment('runs', _choose, ('stackoverflow', 'word_count')),
  make_runs,
)
