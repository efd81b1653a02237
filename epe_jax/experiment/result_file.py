"""result.json: what a run found."""

from collections.abc import Mapping
import os
from typing import Any

from epe_jax import io
from epe_jax.audit import audit_json

SCHEMA = 3
"""Version of result.json."""


def write_result(path: str | os.PathLike, result: Mapping[str, Any]) -> None:
  """Writes result.json.

  Args:
    path: of the file.
    result: its fields, of which audit is an `estimates.Audit`.
  """
  audit = audit_json.to_json(result['audit'])
  io.write_json(path, {'schema': SCHEMA, **result, 'audit': audit})


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
  io.check_schema(path, result.pop('schema'), reads=SCHEMA)
  result['audit'] = audit_json.from_json(result['audit'])
  return result
