"""Files of a run: written whole or not at all, and read without pickle."""

from collections.abc import Callable, Mapping
import json
import math
import os
import pathlib
import secrets
from typing import Any, BinaryIO
from zipfile import BadZipFile

from jaxtyping import Shaped
import numpy as np

SCHEMA = 1
"""Version of result.json and scores.npz."""


def write_atomically(
  path: str | os.PathLike, fill: Callable[[BinaryIO], Any]
) -> None:
  """Has `fill` write the open file, then puts it in place of `path`."""
  path = pathlib.Path(path)
  draft = path.with_name(f'.{path.name}.{secrets.token_hex(4)}')
  try:
    with open(draft, 'wb') as f:
      fill(f)
    os.replace(draft, path)
  finally:
    draft.unlink(missing_ok=True)


def write_json(path: str | os.PathLike, value: Any) -> None:
  """Writes JSON; numbers that are not finite become 'Infinity' or 'NaN'.

  JSON has no such numbers, and `float` reads those strings back.
  """
  text = json.dumps(_finite(value), indent=2, allow_nan=False) + '\n'
  write_atomically(path, lambda f: f.write(text.encode()))


def read_json(path: str | os.PathLike) -> Any:
  """Reads a JSON file.

  Raises:
    ValueError: the file is not JSON.
  """
  try:
    return json.loads(pathlib.Path(path).read_text())
  except json.JSONDecodeError as error:
    raise ValueError(
      f'{path} is not JSON ({error}); restore it or use another workdir.'
    ) from error


def write_arrays(path: str | os.PathLike, arrays: Mapping[str, Any]) -> None:
  """Writes arrays and numbers as a compressed .npz."""
  write_atomically(path, lambda f: np.savez_compressed(f, **arrays))


def read_arrays(
  path: str | os.PathLike,
) -> dict[str, Shaped[np.ndarray, '...']]:
  """Reads an .npz.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: the file is damaged or would need pickle.
  """
  # Opened here, because np.load leaves a damaged file open.
  with open(path, 'rb') as f:
    try:
      with np.load(f, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}
    except (ValueError, EOFError, OSError, AttributeError, BadZipFile) as error:
      raise ValueError(
        f'{path} is not a readable .npz file ({error}); restore it, or train '
        'again in a new workdir.'
      ) from error


def _finite(value: Any) -> Any:
  if isinstance(value, Mapping):
    return {k: _finite(v) for k, v in value.items()}
  if isinstance(value, list | tuple):
    return [_finite(v) for v in value]
  if isinstance(value, float) and not math.isfinite(value):
    return {math.inf: 'Infinity', -math.inf: '-Infinity'}.get(value, 'NaN')
  return value
