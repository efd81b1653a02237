"""JSON that is written whole and read from files of others, and values for it."""

from collections.abc import Mapping
import hashlib
import json
import math
import os
import pathlib
import re
from typing import Any

from epe_jax.io import files

# Ends of lines, and control characters of terminals.
_CONTROLS = dict.fromkeys(
  [*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029], ' '
)
# The folders of an absolute path within a text, but not of a fraction or an address.
_ABSOLUTE_PATH = re.compile(r"""(?<![\w./:~])/(?:[^\s/:;,'"()]+/)+""")


def format_json(value: Any) -> str:
  """Formats JSON as the command line prints it.

  Non-finite numbers become strings, as in `write_json`; letters are not escaped.

  >>> print(format_json({'ε': float('inf')}))
  {
    "ε": "Infinity"
  }
  """
  return json.dumps(
    spell_non_finite(value), indent=2, allow_nan=False, ensure_ascii=False
  )


def write_json(
  path: str | os.PathLike, value: Any, *, private: bool = False
) -> None:
  """Writes JSON with `files.write_atomically`.

  Non-finite numbers, which JSON lacks, are written as the strings 'Infinity',
  '-Infinity' and 'NaN', which `float` reads back.
  """
  text = json.dumps(spell_non_finite(value), indent=2, allow_nan=False) + '\n'
  files.write_text(path, text, private=private)


def read_json(path: str | os.PathLike) -> Any:
  """Reads a JSON file.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: the file is not JSON.
  """
  path = pathlib.Path(path)
  try:
    if path.exists() and not path.is_file():
      raise ValueError('it is not a file')
    return parse_json(path.read_text(encoding='utf-8'))
  except ValueError as error:
    raise ValueError(
      f'{path} is not JSON ({error}); restore it, or make it again.'
    ) from error


def read_fields(path: str | os.PathLike) -> dict[str, Any]:
  """Reads a JSON file of fields by name.

  Raises:
    FileNotFoundError, ValueError: as `read_json`, or it holds something else.
  """
  values = read_json(path)
  if not isinstance(values, dict):
    raise ValueError(
      f'{path} is damaged: it has no fields; restore it, or make the run again.'
    )
  return values


def write_sealed(path: str | os.PathLike, fields: Mapping[str, Any]) -> None:
  """Writes JSON with 'sha256', the digest of all its other fields.

  Args:
    path: the file.
    fields: by name, without 'sha256'.
  """
  write_json(path, {**fields, 'sha256': _hash_fields(fields)})


def read_sealed(path: str | os.PathLike) -> dict[str, Any]:
  """Reads the fields of a JSON file, without the digest that `write_sealed` added.

  Raises:
    FileNotFoundError, ValueError: as `read_fields`, or the digest is missing or that
      of other fields.
  """
  fields = read_fields(path)
  digest = fields.pop('sha256', None)
  if digest != _hash_fields(fields):
    raise ValueError(
      f"{path} is damaged: its fields are not those of its 'sha256'; restore it, or "
      'make it again.'
    )
  return fields


def _hash_fields(fields: Mapping[str, Any]) -> str:
  text = json.dumps(spell_non_finite(fields), sort_keys=True, allow_nan=False)
  return hashlib.sha256(text.encode()).hexdigest()


def parse_json(text: str) -> Any:
  """Parses JSON, with finite numbers as `write_json` writes them.

  Raises:
    ValueError: it is not JSON, or has a number that is not finite.

  >>> parse_json('[1, NaN]')
  Traceback (most recent call last):
  ValueError: NaN is no number of JSON; write the string "NaN"
  """
  try:
    return json.loads(
      text, parse_constant=_refuse_constant, parse_float=_parse_float
    )
  except RecursionError as error:
    raise ValueError('it is nested too deep') from error


def _refuse_constant(name: str) -> None:
  raise ValueError(f'{name} is no number of JSON; write the string "{name}"')


def _parse_float(text: str) -> float:
  if not math.isfinite(value := float(text)):
    raise ValueError(f'{text[:20]} is more than a float holds')
  return value


def flatten(nested: Mapping[str, Any], prefix: str = '') -> dict[str, Any]:
  """Flattens nested groups of fields to dotted names.

  >>> flatten({'rounds': 3, 'client': {'epochs': 1}})
  {'rounds': 3, 'client.epochs': 1}
  """
  flat = {}
  for name, value in nested.items():
    if isinstance(value, Mapping):
      flat |= flatten(value, f'{prefix}{name}.')
    else:
      flat[prefix + name] = value
  return flat


def join_lines(value: Any) -> Any:
  r"""Replaces line ends and other control characters in JSON-like values by spaces.

  Text that is read from a file and printed must not look like lines of the program.

  >>> join_lines({'task': 'digits\n# All is well'})
  {'task': 'digits # All is well'}
  """
  if isinstance(value, Mapping):
    return {join_lines(k): join_lines(v) for k, v in value.items()}
  if isinstance(value, list | tuple):
    return [join_lines(v) for v in value]
  return value.translate(_CONTROLS) if isinstance(value, str) else value


def spell_non_finite(value: Any) -> Any:
  """Replaces non-finite numbers in JSON-like values by strings."""
  if isinstance(value, Mapping):
    return {k: spell_non_finite(v) for k, v in value.items()}
  if isinstance(value, list | tuple):
    return [spell_non_finite(v) for v in value]
  if isinstance(value, float) and not math.isfinite(value):
    return {math.inf: 'Infinity', -math.inf: '-Infinity'}.get(value, 'NaN')
  return value


def hide_paths(value: Any) -> Any:
  """Removes the folders of absolute paths in JSON-like values.

  A published file should reveal neither the user's name nor where data are stored.

  >>> hide_paths({'path': '/home/ada/data/emnist', 'noise': 0.2})
  {'path': 'PATH_TO/emnist', 'noise': 0.2}
  >>> hide_paths('see /tmp/a b/log.txt, N(0, 1/d) and https://x.org/y')
  'see PATH_TO/a b/log.txt, N(0, 1/d) and https://x.org/y'
  """
  if isinstance(value, Mapping):
    return {k: hide_paths(v) for k, v in value.items()}
  if isinstance(value, list | tuple):
    return [hide_paths(v) for v in value]
  if isinstance(value, str):
    if os.path.isabs(value):
      return f'PATH_TO/{os.path.basename(value.rstrip("/"))}'
    return _ABSOLUTE_PATH.sub('PATH_TO/', value)
  return value
