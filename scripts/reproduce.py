r"""Makes a table or figure of the paper, beside the paper's own numbers.

  python scripts/reproduce.py --list
  python scripts/reproduce.py algorithm1 --scale=small
  python scripts/reproduce.py emnist emnist_bars --scale=small \
    --emnist=emnist_all.sqlite

In WORKDIR/SCALE/ITEM: table.txt, .md and .tex, and figures as .png and .pdf. The
runs they are made from are in WORKDIR/SCALE/runs; items that need the same runs
share them, finished ones are not made again, and killed ones go on.
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
  from epe_jax.experiment import audited_run, finished_runs, sweep, workloads
  from epe_jax.papers.one_shot import files, items, product
  from epe_jax.report import run_comparison, tables

_SCALE = flags.DEFINE_enum(
  'scale', 'small', ['smoke', 'small', 'paper'], 'Sizes, see configs/paper.py.'
)
_LIST = flags.DEFINE_bool('list', False, 'Name everything there is.')
_WORKDIR = flags.DEFINE_string('workdir', 'runs/paper', 'Where it all goes.')
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


def listing() -> str:
  """All items, in columns."""
  body = [[name, item.title, item.source] for name, item in items.ITEMS.items()]
  widths = [max(map(len, column)) for column in zip(*body)]
  return '\n'.join(
    '  '.join(cell.ljust(w) for cell, w in zip(line, widths)).rstrip()
    for line in body
  )


def _config(name: str) -> Any:
  """The config of a file in configs/, given as FILE or FILE:MODE."""
  stem, _, mode = name.partition(':')
  module = importlib.import_module(f'epe_jax.configs.{stem}')
  return module.get_config(mode) if mode else module.get_config()


def _base(settings: Any) -> Any:
  """The config of an experiment, on the data that were given."""
  config = _config(settings.config)
  for some in settings.sets:
    config.update(some)
  if config.task == 'digits':
    return config
  path = (_EMNIST if config.task == 'emnist' else _STACKOVERFLOW).value
  config.data.path = path
  if config.task == 'stackoverflow':
    config.data.word_count = _WORD_COUNT.value
  asked = _SYNTHETIC.value or (_SCALE.value == 'smoke' and path is None)
  config.data.synthetic = asked
  if path is None and not asked:
    raise ValueError(
      f'--{config.task} is not given. Give the data file, or --synthetic to '
      'train on generated data.'
    )
  return config


def _made(name: str, settings: Any) -> product.Product:
  item = items.ITEMS[name]
  if item.kind == 'mechanism':
    return item.make(settings)
  folder = pathlib.Path(_WORKDIR.value, _SCALE.value, 'runs', item.experiment)
  base = _base(settings)
  if item.kind == 'comparison':
    return _compared(item, base, settings, folder)
  points = sweep.make_grid(base, settings.axes)
  outcome = sweep.run_sweep(
    points, folder, jobs=_JOBS.value, retry=_RETRY.value
  )
  if outcome.failed:
    whys = '\n'.join(f'  {k}: {why}' for k, why in outcome.failed.items())
    raise ValueError(
      f'{name}: {len(outcome.failed)} of {len(points)} runs failed; --retry '
      f'tries them again.\n{whys}'
    )
  return item.make(
    [
      product.Run(
        p.settings, finished_runs.load_finished_run(outcome.finished[p.name])
      )
      for p in points
    ]
  )


def _compared(
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
    print(listing())
    return
  names = list(items.ITEMS) if argv[1:] == ['all'] else argv[1:]
  unknown = [name for name in names if name not in items.ITEMS]
  if unknown or not names:
    said = f'{unknown[0]!r} is no item' if unknown else 'no item is given'
    raise app.UsageError(f'{said}; give some of these, or all:\n{listing()}')
  signal.signal(signal.SIGTERM, lambda *_: sys.exit('stopped'))
  settings = _config(f'paper:{_SCALE.value}')
  for name in names:
    try:
      made = _made(name, settings[items.ITEMS[name].experiment])
    except (ValueError, FileNotFoundError) as error:
      raise SystemExit(f'error: {error}') from error
    folder = pathlib.Path(_WORKDIR.value, _SCALE.value, name)
    about = {
      'scale': _SCALE.value,
      'command': _command(name),
      'versions': audited_run.versions(),
    }
    files.write_item(folder, name, made, about)
    print(
      '\n\n'.join(
        [f'# {items.ITEMS[name].title}', *map(tables.format_text, made.tables)]
      )
    )
    print(f'\nTables and figures: {folder}\n')


def _command(name: str) -> str:
  """How to make it again; where data lie is the business of their owner."""
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
