"""Trains and audits every point of a grid, and compares them.

  epe-jax sweep digits --grid=repetitions
  epe-jax sweep digits --config.canaries.observed=400 --grid=repetitions --jobs=2
  epe-jax sweep digits --axis=noise_multiplier=0.1,0.2 --axis=seed=0,1,2
  epe-jax sweep digits --axis=noise_multiplier=0.1,0.2 --seeds=50

A grid is the name of one in epe_jax.configs.grids, or FILE.py:NAME. --axis adds axes to it.
The last axis changes fastest.

With --seeds=50, one compiled program runs every point with 50 seeds, vmapped over seeds
where that is fast. The tables show means and standard deviations, and how much ε varies
between runs that differ in the seed alone.

Finished points are not trained again. Failed points are reported; --retry tries them
again. For each point the workdir has a folder with an ordinary run and a .log of its
output. sweep.md, sweep.tex and sweep.png compare the points of this command, and are
written again whenever one ends. They say how many others the workdir has.

  epe-jax sweep --status=runs/digits-repetitions

shows, from any machine that sees the folder, how far the points of a sweep are, and the
results of those that have finished.

Exit status: 130 after Ctrl-C, 143 after SIGTERM. What is finished is kept, and the same
command goes on from there.
"""

from collections.abc import Sequence
import functools
import pathlib
from typing import Any

from absl import app, flags

from epe_jax.cli import command_flags, config_flags, launching
from epe_jax.cli.command_flags import Flag
from epe_jax.experiment import stopping


def define_flags(values: flags.FlagValues) -> None:
  """Defines the flags of `sweep`."""
  command_flags.define(
    values,
    command_flags.CONFIG,
    Flag('grid', 'Axes: the name of a grid, or FILE.py:NAME.'),
    Flag(
      'axis',
      'FIELD=VALUE,VALUE,...: one more axis; the last axis changes fastest',
      set,
      [],
    ),
    command_flags.WORKDIR._replace(
      help='Folder of the sweep. Default: runs/ and the config and grid.'
    ),
    Flag(
      'seeds', 'Run every point with this many seeds, for small models.', int
    ),
    *launching.FLAGS,
    command_flags.RETRY,
    Flag('status', 'Folder of a sweep; show how far it is, and run nothing.'),
  )


@stopping.exit_on_signal
def execute(values: flags.FlagValues, argv: Sequence[str]) -> int:
  """Runs the command, as `program` does."""
  parsed = config_flags.parse(values, argv)
  if values.status is not None:
    from epe_jax.report.comparisons import sweeps

    print(sweeps.format_progress(values.status))
    return 0
  name, config = config_flags.require_config(parsed)
  grid, own_axes = values.grid, values.axis
  if not grid and not own_axes:
    raise app.UsageError('nothing varies; give --grid or --axis.')
  from epe_jax import io
  from epe_jax.experiment.setup import config as config_lib
  from epe_jax.experiment.sweeps import sweep, sweep_points
  from epe_jax.report.comparisons import sweeps

  axes = [
    *(config_lib.load_grid(grid).axes if grid else ()),
    *map(_parse_axis, own_axes),
  ]
  workdir = values.workdir or _name_workdir(name, grid)
  io.check_folder('workdir', workdir)
  points = sweep_points.make_grid(config, axes)
  if values.seeds is not None:
    points = sweep_points.add_seeds(points, values.seeds)
  write = functools.partial(sweeps.write_sweep, workdir, points)
  written: list[str] = []
  outcome = sweep.run_sweep(
    points,
    workdir,
    launch=launching.make_launch(values, workdir),
    retry=values.retry,
    watch=lambda outcome: written.append(write(outcome)),
  )
  # Where none was run, none has ended.
  print(written[-1] if written else write(outcome))
  print(f'\nTable, figure and runs: {workdir}')
  if outcome.failed:
    raise ValueError(
      f'{len(outcome.failed)} of {len(points)} points failed; --retry tries '
      f'them again.\n\n{sweeps.quote_logs(workdir, outcome.failed)}'
    )
  return 0


def _name_workdir(name: str, grid: str | None) -> str:
  from epe_jax.experiment.setup import config as config_lib

  varied = config_lib.name_run(grid) if grid else 'sweep'
  return str(pathlib.Path('runs', f'{config_lib.name_run(name)}-{varied}'))


def _parse_axis(text: str) -> tuple[str, list[Any]]:
  field, _, values = text.partition('=')
  if not field or not values:
    raise app.UsageError(f'--axis={text!r}; give FIELD=VALUE,VALUE,...')
  return field, [config_flags.parse_value(value) for value in values.split(',')]
