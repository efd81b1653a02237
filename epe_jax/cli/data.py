"""Imports federated data into the Arrow files that runs read.

  epe-jax data stackoverflow.sqlite --out=data/stackoverflow
  epe-jax data --download=emnist --out=data/emnist
  epe-jax data --clear_cache

The source is a file or folder in a supported format (the error for any other file lists
them), or package.module:function, which yields (client id, name -> rows). Every split
becomes a file SPLIT.arrow in --out, the data.path of configs. To resume an interrupted
import, repeat the command.

What a run imports without this command is kept in the user's cache folder, next to
compiled programs. --clear_cache removes both.
"""

from collections.abc import Sequence
import os
import pathlib
import shutil

from absl import app, flags

from epe_jax.cli import command_flags
from epe_jax.cli.command_flags import Flag
from epe_jax.data import data_sets


def define_flags(values: flags.FlagValues) -> None:
  """Defines the flags of `data`."""
  command_flags.define(
    values,
    command_flags.OUT._replace(help='Folder of the Arrow files.'),
    Flag(
      'download',
      'Public data to download to OUT/public, instead of a source.',
      tuple(data_sets.list_downloads()),
    ),
    Flag(
      'clear_cache',
      "Only remove the user's cache folder, from which no run may be starting.",
      bool,
      False,
    ),
    Flag('splits', 'Splits to import. Default: all.', list),
    Flag('vocabulary_size', 'Text: words in the vocabulary.', int, 10_000),
    Flag(
      'max_words',
      'Text: words per sentence; the rest is dropped.',
      int,
      20,
    ),
    Flag(
      'word_count',
      'Text: file of "word count" lines, most frequent first. Without it, the '
      'words of the train split are counted.',
    ),
    Flag(
      'workers',
      'Processes that decode; 0: decode in the process that reads.',
      int,
      len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else 2,
    ),
  )


def execute(values: flags.FlagValues, argv: Sequence[str]) -> int:
  """Runs the command, as `program` does."""
  given = values(list(argv))[1:]
  if values.clear_cache:
    print(_clear_cache())
    return 0
  if values.out is None:
    raise app.UsageError('give --out, the folder of the columns.')
  if len(given) != (values.download is None):
    raise app.UsageError(f'give one source, or --download, and not {given}.')
  from epe_jax import io

  io.check_folder('out', values.out)
  try:
    for written in _prepare(values, given):
      print(
        f'{written.split}: {written.clients:,} clients, '
        f'{written.examples:,} examples, {written.bytes:,} bytes, '
        f'{written.seconds:.1f} s' + ('' if written.seconds else ' (was there)')
      )
  except RuntimeError as error:
    raise ValueError(str(error)) from error
  return 0


def _clear_cache() -> str:
  from epe_jax import io

  folder = io.user_cache()
  size = sum(x.stat().st_size for x in folder.rglob('*') if x.is_file())
  shutil.rmtree(folder)
  return f'Removed {folder}, {size:,} bytes.'


def _prepare(values: flags.FlagValues, given: Sequence[str]):
  from epe_jax.data import imports, vocabulary

  out = pathlib.Path(values.out)
  word_count = values.word_count
  if values.download is None:
    source = given[0]
  else:
    from epe_jax.data import download

    source, *others = download.fetch(values.download, out / 'public')
    if others and word_count is None:
      word_count = download.unpack_word_count(others[0])
  text = vocabulary.Text(values.vocabulary_size, values.max_words, word_count)
  return imports.import_(
    source,
    out,
    splits=values.splits,
    text=text,
    public=values.download,
    workers=values.workers,
  )
