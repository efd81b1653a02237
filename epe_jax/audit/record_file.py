"""The file of a record, scores.npz."""

from collections.abc import Mapping
import dataclasses
import os
from typing import Any

import numpy as np

from epe_jax import io
from epe_jax.accounting import Ring
from epe_jax.audit.record import Record, check_shapes
from epe_jax.training.round_scalars import RoundScalars

SCHEMA = 8
"""Version of scores.npz."""

COSINES, ROUNDS = 'cosines_', 'rounds_'
"""What names of its arrays begin with."""


def write_record(path: str | os.PathLike, record: Record) -> None:
  """Writes scores.npz, readable by its owner alone.

  Raises:
    ValueError: the record holds differences of models, which `release` derives from
      the file of the whole run.
  """
  if record.rounds is None:
    raise ValueError(
      f'this part of a run, view={record.view!r}, cannot be written; keep the '
      'run that it was made of.'
    )
  fields = {
    field.name: value
    for field in dataclasses.fields(record)
    if field.name not in ('cosines', 'rounds')
    and (value := getattr(record, field.name)) is not None
  }
  cosines = {COSINES + name: x for name, x in record.cosines.items()}
  rounds = {ROUNDS + name: x for name, x in record.rounds._asdict().items()}
  fields |= {'schema': np.int64(SCHEMA)}
  io.write_arrays(path, fields | cosines | rounds, private=True)


def load_record(path: str | os.PathLike) -> Record:
  """Reads scores.npz.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: the file is damaged, lacks arrays or is of another version.
  """
  arrays = io.read_arrays(path)
  # First, because another version has other arrays.
  if 'schema' in arrays:
    io.check_schema(path, int(arrays['schema']), reads=SCHEMA)
  optional = {'momentum', 'weight', 'noise_multiplier', 'periods', 'strategy'}
  optional |= {'planned', 'ring'}
  names = {field.name for field in dataclasses.fields(Record)}
  names -= {'cosines', 'rounds'}
  scalars = {ROUNDS + name for name in RoundScalars._fields}
  required = {'schema'} | (names - optional) | scalars
  if lacks := required - arrays.keys():
    raise ValueError(
      f'{path} lacks {sorted(lacks)}; give the scores.npz of a '
      'run, or a file that `epe-jax estimate --help` describes.'
    )
  fields: dict[str, Any] = {name: arrays.get(name) for name in names | optional}
  fields['cosines'] = select_prefixed(arrays, COSINES)
  fields['rounds'] = RoundScalars(**select_prefixed(arrays, ROUNDS))
  for name in ('included', 'assigned'):
    fields[name] = fields[name].astype(bool)
  types = {'design': str, 'dim': int, 'delta': float, 'is_whole': bool}
  types |= {'momentum': float, 'noise_multiplier': float}
  types |= {'periods': int, 'planned': int, 'ring': Ring.from_array}
  try:
    for name, type_ in types.items():
      if name not in optional or fields[name] is not None:
        fields[name] = type_(fields[name])
    checked = 'cosines', 'rounds', 'included', 'assigned', 'strategy'
    check_shapes(*(fields[name] for name in checked))
  except (TypeError, ValueError) as error:
    # Those of NumPy and Python end without a stop.
    fault = str(error).removesuffix('.')
    raise ValueError(
      f'{path} is damaged: {fault}. Restore the file, or make the run again in a '
      'new workdir.'
    ) from error
  return Record(**fields)


def select_prefixed(
  arrays: Mapping[str, np.ndarray], prefix: str
) -> dict[str, np.ndarray]:
  """The arrays whose names begin with a prefix, by the rest of their names."""
  return {
    name.removeprefix(prefix): x
    for name, x in arrays.items()
    if name.startswith(prefix)
  }
