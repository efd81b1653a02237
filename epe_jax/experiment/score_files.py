"""Files of scores: of a run of this package, or of any other system."""

from collections.abc import Sequence
import csv
import os
import pathlib
from typing import Any

import numpy as np

from epe_jax import io
from epe_jax.audit.record import Record, load_record
from epe_jax.epsilon.types import Scores
from epe_jax.experiment import workdirs
from epe_jax.experiment.score_formats import groups, registry

_PAIRS = (
  ('observed', 'unobserved'),
  ('in_canary_scores', 'out_canary_scores'),
  ('in', 'out'),
  ('member', 'nonmember'),
)
_LABELS = ('observed', 'label', 'member', 'membership', 'challenge_bit')
_YES, _NO = (
  {'1', '1.0', 'true', 'in', 'yes', 'member'},
  {'0', '0.0', 'false', 'out', 'no', 'nonmember'},
)
_DELIMITERS = {'.csv': ',', '.tsv': '\t'}
CURE = (
  'Give the workdir of a finished run, its private/scores.npz, an .npz with '
  'arrays observed and unobserved, or a CSV with columns score and observed '
  '(1 or 0); docs/scores.md has these and the files of other tools.'
)
"""The cure that ends every error about a file that is none of these."""


def load_scores(
  path: str | os.PathLike,
  *,
  dim: int | None = None,
  design: str | None = None,
  inclusion_probability: float | None = None,
  source: str = 'auto',
  higher: str | None = None,
) -> Record | Scores:
  """Reads scores from a workdir, an .npz, a table or a file of another tool.

  Args:
    path: the workdir of a finished run; its private/scores.npz; an .npz with
      arrays `observed` and `unobserved` (or `in_canary_scores`,
      `out_canary_scores`); a CSV or TSV with a header; or what `score_formats`
      reads. The columns of a table are `score` and `observed` (or `label`,
      `member`, `membership`, `challenge_bit`), where 1, true, in, yes or member
      says that the canary took part; or one for each group, `in` and `out`,
      `member` and `nonmember` or the names of the arrays, of which the shorter
      one ends in empty cells.
    dim: d, if external scores are cosines in R^d; otherwise None.
    design: 'coin_flip' if each canary of external scores took part by a coin
      of its own; otherwise 'fixed'. None for what is known of the tool, and
      'fixed' where nothing is.
    inclusion_probability: of these coins, in (0, 1); the largest, if they
      differ. None for what is known of the tool, and 1/2 where nothing is.
    source: a name of `registry.FORMATS`, or 'auto' to recognize the format.
    higher: who scores higher in the file, canaries that took part ('in') or the
      others ('out'); None for the convention of the tool, and 'in' of no tool.

  Returns:
    The record of a run, or external scores.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: it is none of these, a line of the table is no score, or a
      setting does not fit the file.
  """
  path = find_scores(path) if source == 'auto' else pathlib.Path(path)
  settings: dict[str, Any] = {
    name: value
    for name, value in (
      ('design', design),
      ('inclusion_probability', inclusion_probability),
      ('higher', higher),
    )
    if value is not None
  }
  if tool := find_format(path, source):
    if tool.read is None:
      raise ValueError(
        f'{path} has counts of guesses and no scores. Give it alone to '
        'scripts/estimate.py, or to score_formats.read_counts.'
      )
    if dim is not None:
      raise ValueError(
        f'dim={dim} says that scores are cosines, but {path} is {tool.label}; '
        'leave dim out.'
      )
    return tool.read(path, **settings)
  if path.suffix == '.npz':
    arrays = io.read_arrays(path)
    if 'schema' in arrays:
      if higher is not None:
        raise ValueError(
          f'higher={higher!r} is of files of other systems, but {path} is the '
          'record of a run; leave it out.'
        )
      return load_record(path)
    observed, unobserved = (
      _read_group(path, arrays, names) for names in zip(*_PAIRS[:2])
    )
  elif path.suffix in _DELIMITERS:
    observed, unobserved = _read_table(path)
  else:
    raise ValueError(f'{path} is neither .npz nor .csv nor .tsv. {CURE}')
  return groups.make_scores(path, observed, unobserved, dim=dim, **settings)


def find_format(
  path: str | os.PathLike, source: str = 'auto'
) -> registry.ScoreFormat | None:
  """The format of another tool that a file is to be read as.

  Args:
    path: the file.
    source: a name of `registry.FORMATS`, or 'auto' to recognize the format.

  Returns:
    The format; None for files of this package, and tables.

  Raises:
    ValueError: there is no format of that name.
  """
  if source == 'auto':
    return registry.recognize(path)
  if source not in registry.FORMATS:
    raise ValueError(
      f"source={source!r} is neither 'auto' nor one of "
      f'{", ".join(registry.FORMATS)}.'
    )
  return registry.FORMATS[source]


def find_scores(path: str | os.PathLike) -> pathlib.Path:
  """Finds the file that scores are read from.

  Args:
    path: a workdir, whose private/scores.npz it is; the folder of a model of
      LiRA, which it is itself; or the file.

  Raises:
    FileNotFoundError: there is no such file.
  """
  path = pathlib.Path(path)
  if path.is_dir():
    if registry.recognize(path) is not None:
      return path
    path = workdirs.workdir_at(path).scores
  if not path.is_file():
    raise FileNotFoundError(f'{path} does not exist. {CURE}')
  return path


def _read_group(
  path: pathlib.Path, arrays: dict[str, np.ndarray], names: tuple[str, ...]
) -> np.ndarray:
  for name in names:
    if name in arrays:
      group = np.squeeze(arrays[name])
      if group.ndim > 1:
        raise ValueError(
          f'{path}: {name} has shape {group.shape}, but one audit has an '
          'array [n]. Write one file for each audit.'
        )
      return np.atleast_1d(group)
  raise ValueError(
    f'{path} has the arrays {sorted(arrays)} and none named '
    f'{" or ".join(names)}. {CURE}'
  )


def _read_table(path: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
  with open(path, newline='', encoding='utf-8-sig') as f:
    rows = csv.DictReader(f, delimiter=_DELIMITERS[path.suffix])
    try:
      rows.fieldnames = [name.strip() for name in rows.fieldnames or ()]
      columns = _choose_columns(path, rows.fieldnames)
      read = _read_labelled if columns[0] == 'score' else _read_two_columns
      return read(path, rows, columns)
    except (csv.Error, UnicodeDecodeError) as error:
      raise ValueError(
        f'{path}, line {rows.line_num}: no CSV in UTF-8 ({error}). {CURE}'
      ) from error


def _choose_columns(
  path: pathlib.Path, names: Sequence[str]
) -> tuple[str, str]:
  """The columns of scores and labels, or those of both groups."""
  labels = [name for name in _LABELS if name in names]
  pairs = [pair for pair in _PAIRS if set(pair) <= set(names)]
  if 'score' in names and labels:
    # A table of ours may have more columns.
    if len(labels) > 1 and 'observed' not in labels:
      raise ValueError(
        f'{path} has the columns {labels}, each of which may say who took part; '
        'leave one of them, or name it observed.'
      )
    columns = 'score', labels[0]
  elif len(pairs) == 1 and 'score' not in names:
    (columns,) = pairs
  else:
    raise ValueError(f'{path} has the columns {list(names)}. {CURE}')
  for name in columns:
    if names.count(name) > 1:
      raise ValueError(f'{path} has two columns {name!r}; leave one of them.')
  return columns


def _read_labelled(path, rows, columns):
  score, label = columns
  read: dict[bool, list[float]] = {True: [], False: []}
  for row in rows:
    took_part = str(row[label]).strip().lower()
    if took_part not in _YES | _NO:
      raise ValueError(
        f'{path}, line {rows.line_num}: {label}={row[label]!r}; write 1 or 0.'
      )
    read[took_part in _YES].append(_read_number(path, rows, row, score))
  return np.array(read[True]), np.array(read[False])


def _read_two_columns(path, rows, columns):
  read: dict[str, list[float]] = {name: [] for name in columns}
  for row in rows:
    for name in columns:
      # One group may be smaller than the other.
      if (row[name] or '').strip():
        read[name].append(_read_number(path, rows, row, name))
  return tuple(np.array(read[name]) for name in columns)


def _read_number(path, rows, row, name):
  try:
    return float(row[name])
  except (TypeError, ValueError) as error:
    raise ValueError(
      f'{path}, line {rows.line_num}: {name}={row[name]!r} is no number.'
    ) from error
