"""Imports federated data, once, into the columns that runs read.

  python scripts/prepare_data.py stackoverflow.sqlite --out=data/stackoverflow
  python scripts/prepare_data.py --download=emnist --out=data/emnist
  python scripts/prepare_data.py emnist_all.sqlite --tfds=FederatedEmnist \
    --out=tensorflow_datasets

The source is a file or folder in one of the supported formats (the error for any
other file lists them), or package.module:function, which yields (client id, name
-> rows). Every split becomes a file SPLIT.arrow in --out, which is the folder for
data.path of configs. An import that was stopped is resumed.
"""

import os
import pathlib
import sys

from absl import app, flags

from epe_jax import extras

with extras.explain_missing():
  from epe_jax.data import download, formats, prepare

_OUT = flags.DEFINE_string('out', None, 'Folder of the columns.')
_DOWNLOAD = flags.DEFINE_enum(
  'download',
  None,
  sorted(download.PUBLIC),
  'Public data to fetch into OUT/public, in place of a source.',
)
_TFDS = flags.DEFINE_enum(
  'tfds',
  None,
  ['FederatedEmnist', 'FederatedStackoverflow'],
  'Write a TFDS data set of array_record files by this builder into OUT, in '
  'place of columns. It can be the source of another import.',
)
_SPLITS = flags.DEFINE_list('splits', None, 'Splits to import; all if none.')
_VOCABULARY_SIZE = flags.DEFINE_integer(
  'vocabulary_size', 10_000, 'Text: words in the vocabulary.'
)
_MAX_WORDS = flags.DEFINE_integer(
  'max_words', 20, 'Text: words of a sentence; the rest is cut off.'
)
_WORD_COUNT = flags.DEFINE_string(
  'word_count',
  None,
  'Text: file of "word count" lines, most frequent first. Without it the words '
  'of the split train are counted.',
)
_WORKERS = flags.DEFINE_integer(
  'workers',
  len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else 2,
  'Processes that decode; 0: the one that reads.',
)


def main(argv: list[str]) -> None:
  if len(argv) - 1 != (_DOWNLOAD.value is None):
    raise app.UsageError(
      f'give one source, or --download, and not {argv[1:]}; see --help.'
    )
  # Where the module of package.module:function may be.
  sys.path.insert(0, os.getcwd())
  try:
    if _TFDS.value:
      print(_write_tfds(argv))
      return
    for written in _prepare(argv):
      print(
        f'{written.split}: {written.clients:,} clients, '
        f'{written.examples:,} examples, {written.bytes:,} bytes, '
        f'{written.seconds:.1f} s' + ('' if written.seconds else ' (was there)')
      )
  except (ValueError, OSError, ImportError, RuntimeError) as error:
    raise SystemExit(f'error: {error}') from error


def _prepare(argv: list[str]):
  out, word_count = pathlib.Path(str(_OUT.value)), _WORD_COUNT.value
  if _DOWNLOAD.value is None:
    source = argv[1]
  else:
    source, *others = download.fetch(_DOWNLOAD.value, out / 'public')
    if others and word_count is None:
      word_count = download.unpack_word_count(others[0])
  text = prepare.Text(_VOCABULARY_SIZE.value, _MAX_WORDS.value, word_count)
  return prepare.prepare(
    source,
    out,
    splits=_SPLITS.value,
    text=text,
    public=_DOWNLOAD.value,
    workers=_WORKERS.value,
  )


def _write_tfds(argv: list[str]) -> pathlib.Path:
  from epe_jax.data import tfds

  if len(argv) != 2:
    raise app.UsageError('--tfds takes a source on the disk.')
  with formats.open_source(argv[1]) as source:
    return tfds.prepare(
      getattr(tfds, str(_TFDS.value)), source, str(_OUT.value)
    )


if __name__ == '__main__':
  flags.mark_flag_as_required('out')
  app.run(main)
