"""The file result.json of a finished run."""

from collections.abc import Mapping
import os
from typing import Any

from epe_jax import io
from epe_jax.audit import audit_json

SCHEMA = 4
"""The version of result.json."""


def write_result(path: str | os.PathLike, result: Mapping[str, Any]) -> None:
  """Writes result.json.

  Args:
    path: the file.
    result: its fields by name, of which 'audit' is an `audit.Audit`.
  """
  audit = audit_json.to_json(result['audit'])
  io.write_json(path, {'schema': SCHEMA, **result, 'audit': audit})


def load_result(path: str | os.PathLike) -> dict[str, Any]:
  """Reads the result.json of a finished run.

  Args:
    path: the file.

  Returns:
    Its fields by name, of which 'audit' is an `audit.Audit`. Numbers that are
    not finite are strings, as `io.write_json` writes them.

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
