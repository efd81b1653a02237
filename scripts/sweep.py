r"""Trains and audits every point of a grid, and sets them side by side.

  python scripts/sweep.py --config=configs/digits.py \
    --config.canaries.observed=400 --grid=configs/grids.py:repetitions \
    --workdir=runs/repetitions

Axes can be given on the command line too, also on top of a grid:

  python scripts/sweep.py --config=configs/digits.py --workdir=runs/seeds \
    --axis=noise_multiplier=0.1,0.2 --axis=seed=0,1,2

With --seeds=50 every point is run with 50 seeds by one compiled program, vmapped
over seeds where that is fast. The tables have means and standard deviations, and how
much ε varies between runs that claim the same.

Finished points are not trained again; those that failed are reported, and tried
again with --retry. The workdir has a folder with an ordinary run and a .log of its
output for each point, and sweep.md, sweep.tex and sweep.png of all points.
"""

import ast
import signal
import sys
from typing import Any

from absl import app, flags

from epe_jax import extras

with extras.explain_missing():
  from ml_collections import config_flags

  from epe_jax.experiment import config_fields, stopping, sweep
  from epe_jax.report import seed_sweep, sweep_report

_CONFIG = config_flags.DEFINE_config_file(
  'config', None, 'Config of all points; an axis overrides its fields.'
)
_GRID = config_flags.DEFINE_config_file(
  'grid', None, 'Axes, as configs/grids.py:NAME.'
)
_AXIS = flags.DEFINE_multi_string(
  'axis', [], 'FIELD=VALUE,VALUE,...: one more axis; the last changes fastest.'
)
_WORKDIR = flags.DEFINE_string('workdir', None, 'Folder of the sweep.')
_JOBS = flags.DEFINE_integer('jobs', 1, 'Points that run side by side.')
_SEEDS = flags.DEFINE_integer(
  'seeds', None, 'Run every point with so many seeds, for small models.'
)
_RETRY = flags.DEFINE_bool('retry', False, 'Try again what failed.')


def _parse_axis(text: str) -> sweep.Axis:
  field, _, values = text.partition('=')
  if not field or not values:
    raise app.UsageError(f'--axis={text!r}; give FIELD=VALUE,VALUE,...')
  return field, [_parse_value(value) for value in values.split(',')]


def _parse_value(text: str) -> Any:
  try:
    return ast.literal_eval(text)
  except (ValueError, SyntaxError):
    return text


@stopping.end_politely
def main(argv: list[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'{argv[1]!r} is no flag; see --help.')
  # A polite end reaches the points too.
  signal.signal(signal.SIGTERM, lambda *_: sys.exit('stopped'))
  axes = [
    *(_GRID.value.axes if _GRID.value else ()),
    *map(_parse_axis, _AXIS.value),
  ]
  if not axes:
    raise app.UsageError('nothing varies; give --grid or --axis.')
  workdir = str(_WORKDIR.value)
  try:
    points = sweep.make_grid(_CONFIG.value, axes)
    if _SEEDS.value is not None:
      results = seed_sweep.run_seed_sweep(
        points, workdir, num_seeds=_SEEDS.value
      )
      print(seed_sweep.write_tables(workdir, points, results))
      return
    outcome = sweep.run_sweep(
      points, workdir, jobs=_JOBS.value, retry=_RETRY.value
    )
  except ValueError as error:
    raise SystemExit(f'error: {error}') from error
  print(sweep_report.write_sweep(workdir, points, outcome))
  print(f'\nTable, figure and runs: {workdir}')
  if outcome.failed:
    raise SystemExit(
      f'{len(outcome.failed)} of {len(points)} points failed; --retry tries '
      'them again.'
    )


if __name__ == '__main__':
  flags.mark_flags_as_required(['config', 'workdir'])
  app.run(main, flags_parser=config_fields.parse_flags)
