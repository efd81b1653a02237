"""Files of scores: of a run of this package, or of any other system."""

import os
import pathlib
from typing import NamedTuple, Unpack

import numpy as np

from epe_jax import io
from epe_jax.audit.record import Record, load_record
from epe_jax.epsilon.types import Scores
from epe_jax.experiment import workdirs
from epe_jax.scores import score_tables
from epe_jax.scores.formats import base, registry
from epe_jax.scores.formats.base import ScoreFormat

_TABLES = ('.csv', '.tsv', '.txt')
CURE = (
  'Give the workdir of a finished run, its private/scores.npz, an .npz with '
  'arrays in and out, or a CSV or TSV with columns in and out, or score and label '
  '(1 or 0). epe-jax estimate --help has examples, and names the other tools '
  'whose files are read.'
)
"""The cure that ends every error about a file that is none of these."""


class Loaded(NamedTuple):
  """What was read from a file.

  Attributes:
    scores: the record of a run, or external scores.
    note: how columns without names were read; None of all other files.
    tool: the format of another tool that the file has; None of all other files.
  """

  scores: Record | Scores
  note: str | None = None
  tool: ScoreFormat | None = None


def load(
  path: str | os.PathLike,
  *,
  source: str = 'auto',
  **settings: Unpack[base.Settings],
) -> Loaded:
  """Reads scores from a workdir, an .npz, a table or a file of another tool.

  Args:
    path: the workdir of a finished run; its private/scores.npz; an .npz with an array
      for each group, named as a pair of `score_tables.PAIRS`, or with scores and
      labels; a table .csv, .tsv or .txt as `score_tables.read_table` takes it, or '-'
      for one on stdin; or a file of a tool of `formats`.
    source: a name of `registry.FORMATS`, or 'auto' to recognize the format.
    **settings: of external scores, as in `base.Settings`. Those left out have the
      convention of the tool; without a tool, that higher scores say "took part" and
      the design is 'fixed'.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: it is none of these, a line of the table is no score, or a
      setting does not fit the file.
  """
  path = find_scores(path) if source == 'auto' else pathlib.Path(path)
  dim, higher = settings.get('dim'), settings.get('higher')
  if tool := find_format(path, source):
    if tool.read is None:
      raise ValueError(
        f'{path} has counts of guesses and no scores. Give it alone to '
        'epe-jax estimate, or to formats.read_counts.'
      )
    if dim is not None:
      raise ValueError(
        f'dim={dim} says that scores are cosines, but {path} is {tool.label}; '
        'leave dim out.'
      )
    return Loaded(tool.read(path, **settings), tool=tool)
  if path.suffix == '.npz':
    arrays = io.read_arrays(path)
    if 'schema' not in arrays:
      return Loaded(_read_npz(path, arrays, **settings))
    if higher is not None:
      raise ValueError(
        f'higher={higher!r} is of files of other systems, but {path} is the '
        'record of a run; leave it out.'
      )
    return Loaded(load_record(path))
  if path.suffix in _TABLES or str(path) == score_tables.STDIN:
    observed, unobserved, note = score_tables.read_table(path, higher=higher)
    scores = base.make_scores(path, observed, unobserved, **settings)
    return Loaded(scores, note)
  raise ValueError(f'{path} is neither .npz nor .csv nor .tsv. {CURE}')


def load_groups(
  observed: str | os.PathLike,
  unobserved: str | os.PathLike,
  **settings: Unpack[base.Settings],
) -> Scores:
  """Reads external scores from two files, one of each group.

  Args:
    observed: a file with the scores of canaries that took part, as
      `score_tables.read_column` takes it.
    unobserved: one with those of canaries that did not.
    **settings: as in `load`.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: a file is none of scores, or both are one.
  """
  if os.fspath(observed) == os.fspath(unobserved):
    raise ValueError(
      f'{observed} is given for both groups; give a file for each.'
    )
  where = f'{observed}, {unobserved}'
  arrays = [score_tables.read_column(path) for path in (observed, unobserved)]
  return base.make_scores(where, *arrays, **settings)


def find_format(
  path: str | os.PathLike, source: str = 'auto'
) -> ScoreFormat | None:
  """The format of another tool that a file is to be read as.

  Args:
    path: the file.
    source: a name of `registry.FORMATS`, or 'auto' to recognize the format.

  Returns:
    The format; None for files of this package, and tables.

  Raises:
    ValueError: there is no format of that name, or the file is of another kind.
  """
  if source == 'auto':
    return registry.recognize(path)
  if source not in registry.FORMATS:
    raise ValueError(
      f"source={source!r} (--from on the command line) is neither 'auto' nor one of "
      f'{", ".join(registry.FORMATS)}.'
    )
  tool = registry.FORMATS[source]
  if pathlib.Path(path).suffix != tool.suffix:
    raise ValueError(
      f'{path} is no {tool.suffix} and so not {tool.label}, as source={source!r} '
      '(--from on the command line) says; leave it out, or give such a file.'
    )
  return tool


def find_scores(path: str | os.PathLike) -> pathlib.Path:
  """Finds the file that scores are read from.

  Args:
    path: a workdir, whose private/scores.npz it is; or the file, or '-' for stdin,
      as they are.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: it is a pipe.
  """
  path = pathlib.Path(path)
  if str(path) == score_tables.STDIN:
    return path
  if path.is_dir():
    folder, path = path, workdirs.workdir_at(path).scores
    if not path.is_file():
      workdirs.check_ended(folder)
  if not path.is_file() and path.exists():
    raise ValueError(
      f'{path} is a pipe or device and no file; give - and the table on stdin.'
    )
  if not path.is_file():
    raise FileNotFoundError(f'{path} does not exist. {CURE}')
  return path


def _read_npz(
  path: pathlib.Path,
  arrays: dict[str, np.ndarray],
  **settings: Unpack[base.Settings],
) -> Scores:
  """Reads an array for each group, or scores with a label each."""
  roles = score_tables.choose_by_name(
    path, sorted(arrays), settings.get('higher'), what='array'
  )
  if roles.kind == 'labelled':
    first, second = (arrays[name] for name in roles.titles)
    return base.split_by_label(
      path, first, second, names=roles.titles, **settings
    )
  first, second = (_read_group(path, arrays, name) for name in roles.titles)
  return base.make_scores(path, first, second, **settings)


def _read_group(
  path: pathlib.Path, arrays: dict[str, np.ndarray], name: str
) -> np.ndarray:
  group = np.squeeze(arrays[name])
  if group.ndim > 1:
    raise ValueError(
      f'{path}: {name} has shape {group.shape}, but one audit has an '
      'array [n]. Write one file for each audit.'
    )
  return np.atleast_1d(group)
