"""result.json: what a run found."""

import os
from typing import Any

from epe_jax import io

SCHEMA = 2
"""Version of result.json."""


def load_result(path: str | os.PathLike) -> dict[str, Any]:
  """Reads the result.json of a finished run.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: it is damaged, or of another version of this library.
  """
  result = io.read_json(path)
  if not isinstance(result, dict) or 'schema' not in result:
    raise ValueError(
      f'{path} is not the result of a run; restore it or use another workdir.'
    )
  io.check_schema(path, result['schema'], reads=SCHEMA)
  return result
