"""Reproduces tables and figures of papers, with the papers' numbers in brackets.

  epe-jax reproduce --list
  epe-jax reproduce algorithm1 --scale=small
  epe-jax reproduce emnist emnist_bars --scale=small --emnist=emnist_all.sqlite
  epe-jax reproduce tight:figure3 tight:figure4 --scale=paper

Items of "Tight Auditing of Differentially Private Machine Learning" have names that
begin with tight:. Names of the first paper's items may begin with one_shot:.

Tables are written to WORKDIR/SCALE/ITEM as table.txt, .md and .tex, and figures as .png
and .pdf. Their runs are in WORKDIR/SCALE/runs. Items share runs. Finished runs are not
repeated, and interrupted ones are resumed.
"""

from collections.abc import Sequence
import pathlib
import shlex
from typing import TYPE_CHECKING, Any

from absl import app, flags

from epe_jax.experiment import stopping

if TYPE_CHECKING:
  from epe_jax.papers import product
  from epe_jax.papers.item import Item


def define_flags(values: flags.FlagValues) -> None:
  """Defines the flags of `reproduce`."""
  own: Any = {'flag_values': values}
  flags.DEFINE_enum(
    'scale',
    'small',
    ['smoke', 'small', 'paper'],
    'Sizes, see configs/paper.py.',
    **own,
  )
  flags.DEFINE_bool('list', False, 'List all items.', **own)
  flags.DEFINE_string('workdir', 'runs/paper', 'Folder for all files.', **own)
  flags.DEFINE_string(
    'emnist', None, 'Data, as data.path of its config.', **own
  )
  flags.DEFINE_bool(
    'emnist_only_digits',
    False,
    'Train on the split of digits alone, for a file of few writers. '
    'Always at small scale.',
    **own,
  )
  flags.DEFINE_string(
    'stackoverflow', None, 'Data, as data.path of its config.', **own
  )
  flags.DEFINE_string(
    'word_count',
    None,
    'Word counts of StackOverflow, as data.word_count of its config.',
    **own,
  )
  flags.DEFINE_multi_string(
    'data', [], 'NAME=PATH of the data of an item that trains by itself', **own
  )
  flags.DEFINE_bool(
    'synthetic',
    False,
    'Train on generated data. Default at smoke scale.',
    **own,
  )
  flags.DEFINE_integer('jobs', 1, 'Number of runs in parallel.', **own)
  flags.DEFINE_bool('retry', False, 'Repeat failed runs.', **own)


@stopping.end_politely
def execute(values: flags.FlagValues, argv: Sequence[str]) -> int:
  """Runs the command, as `program` does."""
  names = values(list(argv))[1:]
  from epe_jax import io
  from epe_jax.experiment import config_files, summary
  from epe_jax.papers import files, registry
  from epe_jax.text import tables

  if values.list:
    print(_format_items())
    return 0
  try:
    selected = registry.select_items(names)
  except ValueError as error:
    raise _ask_for_items(str(error)) from None
  if not selected:
    raise _ask_for_items('no item is given')
  io.check_folder('workdir', values.workdir)
  scale = values.scale
  settings = config_files.load_config(f'paper:{scale}')
  for name in selected:
    item = registry.ITEMS[name]
    made = _make_item(values, name, settings[item.experiment])
    folder = pathlib.Path(values.workdir, scale, registry.folder_of(name))
    origin = {
      'scale': scale,
      'command': _format_command(values, name),
      'versions': summary.collect_versions(),
    }
    files.write_item(folder, name, made, origin)
    parts = [f'# {item.title}', *map(tables.format_text, made.tables)]
    print('\n\n'.join(parts))
    print(f'\nTables and figures: {folder}\n')
  return 0


def _ask_for_items(problem: str) -> app.UsageError:
  return app.UsageError(
    f'{problem}; give some of these, or all:\n{_format_items()}'
  )


def _format_items() -> str:
  """The name, title and source of all items, in columns."""
  from epe_jax.papers import registry
  from epe_jax.text import tables

  rows = [
    [name, item.title, item.source] for name, item in registry.ITEMS.items()
  ]
  return tables.align_columns(rows, '<<<')


def _make_base(values: flags.FlagValues, settings: Any) -> Any:
  """The config of an experiment, with the data that flags name."""
  from epe_jax.experiment import config_files

  config = config_files.load_config(settings.config)
  for fields in settings.sets:
    config.update(fields)
  if config.task == 'digits':
    return config
  path = getattr(values, config.task)
  config.data.path = path
  if values.emnist_only_digits and config.task == 'emnist':
    config.data.only_digits = True
  if config.task == 'stackoverflow':
    config.data.word_count = values.word_count
  is_smoke = values.scale == 'smoke'
  config.data.synthetic = values.synthetic or (is_smoke and path is None)
  if path is None and not config.data.synthetic:
    raise ValueError(
      f'--{config.task} is not given. Give the data file, or --synthetic to '
      'train on generated data.'
    )
  return config


def _make_item(
  values: flags.FlagValues, name: str, settings: Any
) -> 'product.Product':
  """Makes an item, from runs that are trained first if they are missing."""
  from epe_jax.experiment import finished_runs, sweep
  from epe_jax.papers import registry
  from epe_jax.papers.one_shot import grid_runs

  item = registry.ITEMS[name]
  if item.kind == 'mechanism':
    return stopping.wait_for(lambda: item.make(settings))
  folder = pathlib.Path(values.workdir, values.scale, 'runs', item.experiment)
  if item.kind == 'training':
    train = item.train
    assert train is not None, 'items of kind training can be trained'
    data = _parse_data(values)
    return item.make(stopping.wait_for(lambda: train(settings, folder, data)))
  base = _make_base(values, settings)
  if item.kind == 'comparison':
    return stopping.wait_for(
      lambda: _compare_runs(item, base, settings, folder)
    )
  axes = [
    (field, [item.fixed[field]] if field in item.fixed else values_of_field)
    for field, values_of_field in settings.axes
  ]
  points = sweep.make_grid(base, axes)
  outcome = sweep.run_sweep(
    points, folder, jobs=values.jobs, retry=values.retry
  )
  if outcome.failed:
    reasons = '\n'.join(f'  {k}: {why}' for k, why in outcome.failed.items())
    raise ValueError(
      f'{name}: {len(outcome.failed)} of {len(points)} runs failed; --retry '
      f'tries them again.\n{reasons}'
    )
  workdirs = [outcome.finished[point.name] for point in points]
  runs = [grid_runs.Run(*finished_runs.load_finished_run(w)) for w in workdirs]
  return item.make(runs)


def _parse_data(values: flags.FlagValues) -> dict[str, pathlib.Path]:
  """The path of each --data, by its name."""
  paths = {}
  for written in values.data:
    name, _, path = written.partition('=')
    if not (name and path):
      raise app.UsageError(f'--data={written!r}; give NAME=PATH.')
    paths[name] = pathlib.Path(path)
  return paths


def _compare_runs(
  item: 'Item', base: Any, settings: Any, folder: pathlib.Path
) -> 'product.Product':
  from epe_jax.experiment import workloads
  from epe_jax.papers.one_shot import run_comparison

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


def _format_command(values: flags.FlagValues, name: str) -> str:
  """The command that makes an item, with the names of data files without folders."""
  from epe_jax.papers import registry

  scale = values.scale
  words = ['epe-jax', 'reproduce', name, f'--scale={scale}']
  task = registry.ITEMS[name].experiment.partition('_')[0]
  task = 'stackoverflow' if task == 'accuracy' else task
  for flag in ('emnist', 'stackoverflow', 'word_count'):
    belongs = flag == task or (flag == 'word_count' and task == 'stackoverflow')
    if getattr(values, flag) and belongs:
      words.append(f'--{flag}={pathlib.Path(getattr(values, flag)).name}')
  if task == 'emnist' and values.emnist_only_digits:
    words.append('--emnist_only_digits')
  if registry.ITEMS[name].kind == 'training':
    for key, path in _parse_data(values).items():
      words.append(f'--data={key}={path.name}')
  if values.synthetic:
    words.append('--synthetic')
  return shlex.join(words)
