"""Files of scores: of a run of this package, or of any other system."""

from collections.abc import Iterator
import csv
import os
import pathlib
from typing import TextIO

import numpy as np

from epe_jax import io
from epe_jax.audit.record import Record, load_record
from epe_jax.epsilon.types import Scores
from epe_jax.experiment import workdirs

_GROUPS = (
  ('observed', 'in_canary_scores'),
  ('unobserved', 'out_canary_scores'),
)
_YES, _NO = (
  {'1', '1.0', 'true', 'in', 'yes'},
  {'0', '0.0', 'false', 'out', 'no'},
)
CURE = (
  'Give the workdir of a finished run, its private/scores.npz, an .npz with '
  'arrays observed and unobserved, or a CSV with columns score and observed '
  '(1 or 0).'
)
"""The cure that ends every error about a file that is none of these."""


def load_scores(
  path: str | os.PathLike,
  *,
  dim: int | None = None,
  design: str = 'fixed',
  inclusion_probability: float = 0.5,
) -> Record | Scores:
  """Reads scores from a workdir, an .npz or a CSV.

  Args:
    path: the workdir of a finished run; its private/scores.npz; an .npz with
      arrays `observed` and `unobserved` (or `in_canary_scores`,
      `out_canary_scores`); or a CSV with a header and the columns `score` and
      `observed`, where 1, true, in or yes says that the canary took part.
    dim: d, if external scores are cosines in R^d; otherwise None.
    design: 'coin_flip' if each canary of external scores took part by a coin
      of its own; otherwise 'fixed'.
    inclusion_probability: of these coins, in (0, 1); the largest, if they differ.

  Returns:
    The record of a run, or external scores.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: it is none of these, or a line of the CSV is no score.
  """
  path = find_scores(path)
  if path.suffix == '.npz':
    arrays = io.read_arrays(path)
    if 'schema' in arrays:
      return load_record(path)
    observed, unobserved = (
      _read_group(path, arrays, names) for names in _GROUPS
    )
  elif path.suffix == '.csv':
    observed, unobserved = _read_csv(path)
  else:
    raise ValueError(f'{path} is neither .npz nor .csv. {CURE}')
  try:
    return Scores(
      observed,
      unobserved,
      dim,
      design,  # pyright: ignore[reportArgumentType]
      inclusion_probability=inclusion_probability,
    )
  except ValueError as error:
    raise ValueError(f'{path}: {error}') from error


def find_scores(path: str | os.PathLike) -> pathlib.Path:
  """Finds the file that scores are read from.

  Args:
    path: a workdir, whose private/scores.npz it is, or the file itself.

  Raises:
    FileNotFoundError: there is no such file.
  """
  path = pathlib.Path(path)
  if path.is_dir():
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


def _read_csv(path: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
  groups: dict[bool, list[float]] = {True: [], False: []}
  with open(path, newline='', encoding='utf-8-sig') as f:
    for line, row in _iterate_rows(path, f):
      took_part = str(row['observed']).strip().lower()
      if took_part not in _YES | _NO:
        raise ValueError(
          f'{path}, line {line}: observed={row["observed"]!r}; write 1 or 0.'
        )
      try:
        groups[took_part in _YES].append(float(row['score']))
      except (TypeError, ValueError) as error:
        raise ValueError(
          f'{path}, line {line}: score={row["score"]!r} is no number.'
        ) from error
  return np.array(groups[True]), np.array(groups[False])


def _iterate_rows(
  path: pathlib.Path, file: TextIO
) -> Iterator[tuple[int, dict]]:
  """Iterates over the lines behind the header, with their numbers."""
  rows = csv.DictReader(file)
  try:
    rows.fieldnames = [name.strip() for name in rows.fieldnames or ()]
    if not {'score', 'observed'} <= set(rows.fieldnames):
      raise ValueError(f'{path} has the columns {rows.fieldnames}. {CURE}')
    for name in ('score', 'observed'):
      if rows.fieldnames.count(name) > 1:
        raise ValueError(f'{path} has two columns {name!r}; leave one of them.')
    for row in rows:
      yield rows.line_num, row
  except (csv.Error, UnicodeDecodeError) as error:
    raise ValueError(
      f'{path}, line {rows.line_num}: no CSV in UTF-8 ({error}). {CURE}'
    ) from error
