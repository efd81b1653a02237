"""The formats of other tools by name, and which one a file has."""

import os
import pathlib

from epe_jax import io
from epe_jax.scores.formats import privacy_estimates, privacy_meter
from epe_jax.scores.formats.base import ScoreFormat

FORMATS: dict[str, ScoreFormat] = {
  one.name: one
  for module in (privacy_meter, privacy_estimates)
  for one in module.FORMATS
}
"""Every format that is read from files. A new one is a module with its `FORMATS`."""


def recognize(path: str | os.PathLike) -> ScoreFormat | None:
  """The format of another tool that a file unmistakably has.

  Args:
    path: a file, or a folder, which has none.

  Returns:
    The format, or None, as for all files of this package.
  """
  path = pathlib.Path(path)
  fields = _list_fields(path)
  for one in FORMATS.values():
    if one.suffix == path.suffix and one.fields <= fields:
      return one
  return None


def _list_fields(path: pathlib.Path) -> set[str]:
  if not path.is_file():
    return set()
  try:
    if path.suffix == '.npz':
      return set(io.list_arrays(path))
    values = io.read_json(path) if path.suffix == '.json' else {}
  except ValueError:
    return set()  # The reader says what is wrong.
  return set(values) if isinstance(values, dict) else set()
