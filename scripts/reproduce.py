"""Reproduces tables and figures of papers, with the papers' numbers in brackets.

  python scripts/reproduce.py --list
  python scripts/reproduce.py algorithm1 --scale=small
  python scripts/reproduce.py emnist emnist_bars --scale=small --emnist=emnist_all.sqlite
  python scripts/reproduce.py tight:figure3 tight:figure4 --scale=paper
  python scripts/reproduce.py stackoverflow --scale=medium --stackoverflow=stackoverflow.sqlite \\
    --field=rounds=120 --field=server.learning_rate=0.56
  python scripts/reproduce.py emnist_bars --scale=paper --emnist=emnist_all.sqlite \\
    --field=noise_multiplier=0.0487

Items of "Tight Auditing of Differentially Private Machine Learning" have names that
begin with tight:. Names of the first paper's items may begin with one_shot:.

Tables are written to WORKDIR/SCALE/ITEM as table.txt, .md and .tex, and figures as .png
and .pdf. Their runs are in WORKDIR/SCALE/runs. Items share runs. Finished runs are not
repeated, and interrupted ones are resumed. A field that differs between the runs of an
item, such as noise_multiplier, has the given value alone.
"""

from collections.abc import Mapping, Sequence
import pathlib
import shlex
import sys
import time

from absl import app, flags

from epe_jax import extras

# The papers are next to the package, and no part of it.
sys.path.append(str(pathlib.Path(__file__).parents[1]))

with extras.explain_missing():
  from epe_jax.cli import command_flags, config_flags, launching, program
  from epe_jax.cli.command_flags import Flag
  from epe_jax.experiment import stopping
  from epe_jax.report import tables
  from papers import origins, registry
  from papers.item import SIZES, Experiment, Workspace

# Data sets that have a flag of their own.
_DATA_FLAGS = ('emnist', 'stackoverflow', 'word_count')


def define_flags(values: flags.FlagValues) -> None:
  """Defines the flags of `reproduce`."""
  command_flags.define(
    values,
    Flag(
      'scale',
      'Sizes, as papers/item.py says.',
      tuple(SIZES),
      'small',
    ),
    Flag('list', 'List all items.', bool, False),
    command_flags.WORKDIR._replace(
      help='Folder for all files.', default='runs/paper'
    ),
    Flag('emnist', 'Data, as data.path of its config.'),
    Flag(
      'emnist_only_digits',
      'Train on the split of digits alone, for a file of few writers. Always at '
      'small scale.',
      bool,
      False,
    ),
    Flag('stackoverflow', 'Data, as data.path of its config.'),
    Flag(
      'word_count',
      'Word counts of StackOverflow, as data.word_count of its config.',
    ),
    Flag(
      'data',
      'NAME=PATH of any other data set that an item reads.',
      set,
      [],
    ),
    Flag(
      'synthetic',
      'Train on generated data. Default at smoke scale.',
      bool,
      False,
    ),
    Flag(
      'field',
      'FIELD=VALUE of the config of all runs, such as rounds=100; give a workdir of '
      'its own.',
      set,
      [],
    ),
    *launching.FLAGS,
    command_flags.RETRY,
  )


@stopping.exit_on_signal
def execute(values: flags.FlagValues, argv: Sequence[str]) -> int:
  """Runs the command, as `program` does."""
  names = values(list(argv))[1:]
  from epe_jax import io
  from papers import files

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
  _check_scale(values, selected)
  data = _collect_data(values, selected)
  for name in selected:
    item = registry.ITEMS[name]
    workspace = _make_workspace(values, item.experiment, data)
    start = time.monotonic()
    product = item.make(item.experiment.load(values.scale), workspace)
    folder = pathlib.Path(
      values.workdir, values.scale, registry.folder_of(name)
    )
    command = _format_command(values, name, workspace.data)
    origin = origins.describe_origin(command, start)
    # Finished runs are not repeated, so the minutes of earlier calls count.
    written = folder / 'item.json'
    earlier = io.read_json(written) if written.is_file() else {}
    if earlier.get('command') == command:
      minutes = origin['minutes'] + earlier.get('minutes', 0.0)
      origin['minutes'] = round(minutes, 1)
    origin['scale'] = values.scale
    files.write_item(folder, name, product, origin)
    parts = [f'# {item.title}', *map(tables.format_text, product.tables)]
    print('\n\n'.join(parts))
    print(f'\nTables and figures: {folder}\n')
  return 0


def _ask_for_items(problem: str) -> app.UsageError:
  return app.UsageError(
    f'{problem}; give some of these, or all:\n{_format_items()}\n{problem}.'
  )


def _check_scale(values: flags.FlagValues, names: Sequence[str]) -> None:
  """Refuses items that the scale lacks, and fields of items that are no runs."""
  have = [
    name
    for name, item in registry.ITEMS.items()
    if values.scale in item.experiment.scales
  ]
  if missing := [name for name in names if name not in have]:
    raise app.UsageError(
      f'--scale={values.scale} has no {", ".join(missing)}, but '
      f'{", ".join(have)}; give another scale.'
    )
  fixed = [
    name
    for name in names
    if 'config' not in registry.ITEMS[name].experiment.choose(values.scale)
  ]
  if values.field and fixed:
    raise app.UsageError(
      f'--field={values.field[0]}, but {", ".join(fixed)} have no runs with a '
      'config; leave them out.'
    )


def _format_items() -> str:
  """The name, title and source of all items, in columns."""
  rows = [
    [name, item.title, item.source] for name, item in registry.ITEMS.items()
  ]
  return tables.align_columns(rows, '<<<')


def _collect_data(
  values: flags.FlagValues, selected: Sequence[str]
) -> dict[str, pathlib.Path]:
  """The path of each data set, by its name."""
  names = sorted(
    {n for each in selected for n in registry.ITEMS[each].experiment.data}
  )
  paths = {
    name: pathlib.Path(path)
    for name in _DATA_FLAGS
    if (path := getattr(values, name))
  }
  for argument in values.data:
    name, _, path = argument.partition('=')
    if not (name and path):
      raise app.UsageError(f'--data={argument!r}; give NAME=PATH.')
    if name not in names:
      raise app.UsageError(
        f'--data={argument!r}, but {", ".join(selected)} reads no {name!r}; '
        + (f'give one of {", ".join(names)}.' if names else 'leave it out.')
      )
    paths[name] = pathlib.Path(path)
  return paths


def _make_workspace(
  values: flags.FlagValues,
  experiment: Experiment,
  data: Mapping[str, pathlib.Path],
) -> Workspace:
  """Where an item has its runs, and those of the data sets that it reads."""
  own = {name: path for name, path in data.items() if name in experiment.data}
  is_missing = not own.keys() & experiment.data[:1]
  folder = pathlib.Path(values.workdir, values.scale, 'runs', experiment.name)
  return Workspace(
    folder,
    own,
    synthetic=values.synthetic or (values.scale == 'smoke' and is_missing),
    only_digits=values.emnist_only_digits,
    fields=config_flags.parse_assignments('field', values.field),
    launch=launching.make_launch(values, folder),
    retry=values.retry,
  )


def _format_command(
  values: flags.FlagValues, name: str, data: Mapping[str, pathlib.Path]
) -> str:
  """The command that makes an item, with the names of data files without folders."""
  words = ['python', 'scripts/reproduce.py', name, f'--scale={values.scale}']
  for key, path in data.items():
    flag = key if key in _DATA_FLAGS else f'data={key}'
    words.append(f'--{flag}={path.name}')
  if 'emnist' in data and values.emnist_only_digits:
    words.append('--emnist_only_digits')
  words += [f'--field={argument}' for argument in values.field]
  if values.synthetic:
    words.append('--synthetic')
  return shlex.join(words)


if __name__ == '__main__':
  program.run_script('reproduce', sys.modules[__name__])
