"""Formats of score files by name, and which one a file has."""

from collections.abc import Callable
import functools
import os
import pathlib
from typing import NamedTuple

from epe_jax import io
from epe_jax.epsilon.types import Scores
from epe_jax.scores.formats import (
  groups,
  lira,
  privacy_estimates,
  privacy_meter,
)


class ScoreFormat(NamedTuple):
  """A format of another tool.

  Attributes:
    name: as in --from.
    label: what it is, for people.
    higher: who scores higher, unless the user says otherwise.
    read: `(path, *, higher, design, inclusion_probability) -> Scores`, where
      what is left out has the convention of the tool; None for counts, which
      are no scores.
  """

  name: str
  label: str
  higher: groups.Higher
  read: Callable[..., Scores] | None


_LIRA: dict[str, lira.Attack] = {
  'lira': 'online',
  'lira_offline': 'offline',
  'lira_global': 'global',
}

FORMATS = {
  one.name: one
  for one in (
    ScoreFormat(
      'privacy_meter',
      'a report of ML Privacy Meter',
      'in',
      privacy_meter.read_privacy_meter,
    ),
    ScoreFormat(
      'rmia', "scores of the RMIA paper's code", 'out', privacy_meter.read_rmia
    ),
    *(
      ScoreFormat(
        name,
        f'a model of LiRA, attack {attack}',
        'in',
        functools.partial(lira.read_lira, attack=attack),
      )
      for name, attack in _LIRA.items()
    ),
    ScoreFormat('privacy_estimates', 'counts of privacy-estimates', 'in', None),
  )
}


def recognize(path: str | os.PathLike) -> ScoreFormat | None:
  """The format of another tool that a file unmistakably has.

  Args:
    path: a file, or the folder of a model.

  Returns:
    The format, or None, as for all files of this package.
  """
  path = pathlib.Path(path)
  if path.is_dir():
    # A folder of models is none itself, as the reader says.
    models = [path / 'keep.npy', *path.glob('*/keep.npy')]
    return FORMATS['lira'] if any(p.is_file() for p in models) else None
  if not path.is_file():
    return None
  if path.suffix == '.json':
    fields = set(privacy_estimates.FIELDS)
    return FORMATS['privacy_estimates'] if _keys(path) == fields else None
  if path.suffix == '.npz':
    names = _names(path)
    if {'scores', 'memberships'} <= names:
      return FORMATS['privacy_meter']
    if {'scores', 'answers'} <= names:
      return FORMATS['rmia']
  return None


def _keys(path):
  try:
    values = io.read_json(path)
  except ValueError:
    return set()  # Whoever reads it says what is wrong.
  return set(values) if isinstance(values, dict) else set()


def _names(path):
  try:
    return io.list_arrays(path)
  except ValueError:
    return set()  # Likewise.
