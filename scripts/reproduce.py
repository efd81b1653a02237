r"""Makes tables and figures of the paper, with the paper's own numbers in brackets.

  python scripts/reproduce.py --list
  python scripts/reproduce.py algorithm1 --scale=small
  python scripts/reproduce.py emnist emnist_bars --scale=small \
    --emnist=emnist_all.sqlite

WORKDIR/SCALE/ITEM has table.txt, .md and .tex, and figures as .png and .pdf. The
runs behind them are in WORKDIR/SCALE/runs; items that need the same runs share
them, finished runs are not repeated, and killed ones are resumed.
"""

import importlib
import pathlib
import shlex
import signal
import sys
from typing import Any

from absl import app, flags

from epe_jax import extras

with extras.explain_missing():
  from epe_jax.experiment import (
    finished_runs,
    run_comparison,
    summary,
    sweep,
    workloads,
  )
  from epe_jax.papers.one_shot import files, items, product
  from epe_jax.text import tables

_SCALE = flags.DEFINE_enum(
  'scale', 'small', ['smoke', 'small', 'paper'], 'Sizes, see configs/paper.py.'
)
_LIST = flags.DEFINE_bool('list', False, 'List all items.')
_WORKDIR = flags.DEFINE_string('workdir', 'runs/paper', 'Folder of all files.')
_EMNIST = flags.DEFINE_string(
  'emnist', None, 'Data, as data.path of its config.'
)
_STACKOVERFLOW = flags.DEFINE_string(
  'stackoverflow', None, 'Data, as data.path of its config.'
)
_WORD_COUNT = flags.DEFINE_string(
  'word_count', None, 'Of StackOverflow, as data.word_count of its config.'
)
_SYNTHETIC = flags.DEFINE_bool(
  'synthetic', False, 'Train on generated data; at smoke scale the default.'
)
_JOBS = flags.DEFINE_integer('jobs', 1, 'Runs side by side.')
_RETRY = flags.DEFINE_bool('retry', False, 'Try again the runs that failed.')


def format_items() -> str:
  """The name, title and source of all items, in columns."""
  rows = [[name, item.title, item.source] for name, item in items.ITEMS.items()]
  return tables.align_columns(rows, '<<<')


def _load_config(name: str) -> Any:
  """The config of a file in configs/, given as FILE or FILE:MODE."""
  stem, _, mode = name.partition(':')
  module = importlib.import_module(f'epe_jax.configs.{stem}')
  return module.get_config(mode) if mode else module.get_config()


def _make_base(settings: Any) -> Any:
  """The config of an experiment, with the data that flags name."""
  config = _load_config(settings.config)
  for fields in settings.sets:
    config.update(fields)
  if config.task == 'digits':
    return config
  path = (_EMNIST if config.task == 'emnist' else _STACKOVERFLOW).value
  config.data.path = path
  if config.task == 'stackoverflow':
    config.data.word_count = _WORD_COUNT.value
  is_smoke = _SCALE.value == 'smoke'
  config.data.synthetic = _SYNTHETIC.value or (is_smoke and path is None)
  if path is None and not config.data.synthetic:
    raise ValueError(
      f'--{config.task} is not given. Give the data file, or --synthetic to '
      'train on generated data.'
    )
  return config


def _make_item(name: str, settings: Any) -> product.Product:
  """Makes an item, from runs that are trained first if they are missing."""
  item = items.ITEMS[name]
  if item.kind == 'mechanism':
    return item.make(settings)
  folder = pathlib.Path(_WORKDIR.value, _SCALE.value, 'runs', item.experiment)
  base = _make_base(settings)
  if item.kind == 'comparison':
    return _compare_runs(item, base, settings, folder)
  points = sweep.make_grid(base, settings.axes)
  outcome = sweep.run_sweep(
    points, folder, jobs=_JOBS.value, retry=_RETRY.value
  )
  if outcome.failed:
    reasons = '\n'.join(f'  {k}: {why}' for k, why in outcome.failed.items())
    raise ValueError(
      f'{name}: {len(outcome.failed)} of {len(points)} runs failed; --retry '
      f'tries them again.\n{reasons}'
    )
  workdirs = [outcome.finished[point.name] for point in points]
  runs = [product.Run(*finished_runs.load_finished_run(w)) for w in workdirs]
  return item.make(runs)


def _compare_runs(
  item: items.Item, base: Any, settings: Any, folder: pathlib.Path
) -> product.Product:
  rows = []
  for z in settings.noises:
    base.noise_multiplier = z
    rows += run_comparison.compare(
      base,
      experiments=settings.experiments,
      runs=settings.runs,
      workdir=folder / f'noise_multiplier={z}',
    )
  return item.make(rows, source=workloads.load_workload(base).source)


def main(argv: list[str]) -> None:
  if _LIST.value:
    print(format_items())
    return
  names = list(items.ITEMS) if argv[1:] == ['all'] else argv[1:]
  unknown = [name for name in names if name not in items.ITEMS]
  if unknown or not names:
    problem = f'{unknown[0]!r} is no item' if unknown else 'no item is given'
    raise app.UsageError(
      f'{problem}; give some of these, or all:\n{format_items()}'
    )
  signal.signal(signal.SIGTERM, lambda *_: sys.exit('stopped'))
  settings = _load_config(f'paper:{_SCALE.value}')
  for name in names:
    try:
      item = _make_item(name, settings[items.ITEMS[name].experiment])
    except (ValueError, FileNotFoundError) as error:
      raise SystemExit(f'error: {error}') from error
    folder = pathlib.Path(_WORKDIR.value, _SCALE.value, name)
    origin = {
      'scale': _SCALE.value,
      'command': _format_command(name),
      'versions': summary.collect_versions(),
    }
    files.write_item(folder, name, item, origin)
    print(
      '\n\n'.join(
        [f'# {items.ITEMS[name].title}', *map(tables.format_text, item.tables)]
      )
    )
    print(f'\nTables and figures: {folder}\n')


def _format_command(name: str) -> str:
  """The command that makes an item, with the names of data files alone."""
  words = ['python', 'scripts/reproduce.py', name, f'--scale={_SCALE.value}']
  task = items.ITEMS[name].experiment.partition('_')[0]
  task = 'stackoverflow' if task == 'accuracy' else task
  for flag in (_EMNIST, _STACKOVERFLOW, _WORD_COUNT):
    belongs = flag.name == task or (
      flag.name == 'word_count' and task == 'stackoverflow'
    )
    if flag.value and belongs:
      words.append(f'--{flag.name}={pathlib.Path(flag.value).name}')
  if _SYNTHETIC.value:
    words.append('--synthetic')
  return shlex.join(words)


if __name__ == '__main__':
  app.run(main)
