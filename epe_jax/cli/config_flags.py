"""Configs on a command line: by name or path, with fields set by flags.

  digits:smoke --config.rounds=10

A typing error in a field, a file or a mode is one line with a cure.
"""

import ast
from collections.abc import Sequence
import re
from typing import Any, NamedTuple

from absl import app, flags

from epe_jax import extras, io

_FIELD = re.compile(r'--?(?:no)?config\.([^=]+)')


class Parsed(NamedTuple):
  """What a command line says.

  Attributes:
    name: of the config, as it was given.
    config: with its fields set; None if no config was named.
    arguments: those that are no flags and do not name the config.
  """

  name: str | None
  config: Any
  arguments: list[str]


def parse(values: flags.FlagValues, argv: Sequence[str]) -> Parsed:
  """Parses flags, loads the config that is named, and sets fields of it.

  Raises:
    FileNotFoundError: the config is a file that does not exist.
    ValueError: there is no such config, mode or field.
    flags.Error: a flag is unknown or has a wrong value.
  """
  from epe_jax.experiment.setup import config as config_lib

  program, *rest = values(list(argv), known_only=True)
  name = values.config
  if name is None:
    at = _find_positional(rest)
    name = None if at is None else rest.pop(at)
  if name is None:
    return Parsed(None, None, _refuse_flags(values, [program, *rest]))
  config = config_lib.load_config(name)
  fields = _define_fields(config, name, rest)
  try:
    arguments = fields([program, *rest])[1:]
  except flags.UnrecognizedFlagError as error:
    name = error.flagname
    names = (f'config.{x}' for x in io.flatten(config.to_dict()))
    similar = config_lib.find_similar(name, [*values, *names])
    raise flags.UnrecognizedFlagError(name, suggestions=similar) from error
  return Parsed(name, fields.config, arguments)


def parse_value(text: str) -> Any:
  """The value of a field, as Python writes it; other text is a string.

  >>> parse_value('0.5'), parse_value('sphere')
  (0.5, 'sphere')
  """
  try:
    return ast.literal_eval(text)
  except (ValueError, SyntaxError):
    return text


def require_config(parsed: Parsed) -> tuple[str, Any]:
  """The name and the config of a command line that needs one.

  Raises:
    app.UsageError: no config is named, or there are more arguments.
  """
  name, config, rest = parsed
  if rest:
    raise app.UsageError(
      f'{rest[0]!r} is not a flag, and one config is enough.'
    )
  if name is None:
    raise app.UsageError('give a config, such as digits or digits:smoke.')
  return name, config


def _find_positional(rest: Sequence[str]) -> int | None:
  """Finds the first argument that is neither a flag nor the value of one."""
  for i, text in enumerate(rest):
    before = rest[i - 1] if i else ''
    is_value = _FIELD.match(before) and '=' not in before
    if not text.startswith('-') and not is_value:
      return i
  return None


def _refuse_flags(values: flags.FlagValues, argv: Sequence[str]) -> list[str]:
  if any(_FIELD.match(text) for text in argv[1:]):
    raise ValueError(
      '--config.FIELD=VALUE sets a field of a config, but no config is named; '
      'give one, such as digits.'
    )
  return values(list(argv))[1:]


def _define_fields(
  config: Any, name: str, rest: Sequence[str]
) -> flags.FlagValues:
  from epe_jax.experiment.setup import config as config_lib

  with extras.explain_missing():
    from ml_collections import config_dict, config_flags
  if not isinstance(config, config_dict.ConfigDict):
    raise ValueError(
      f'get_config() of {name} returns a {type(config).__name__}; return a '
      'ConfigDict of ml_collections.'
    )
  fields = list(io.flatten(config.to_dict()))
  for text in rest:
    if match := _FIELD.match(text):
      config_lib.check_field(match[1], fields)
  values = flags.FlagValues()
  config_flags.DEFINE_config_dict(
    'config', config, flag_values=values, sys_argv=['', *rest]
  )
  return values


def parse_assignments(flag: str, arguments: Sequence[str]) -> dict[str, Any]:
  """Parses what was given to a flag of NAME=VALUE that may be repeated.

  Args:
    flag: its name.
    arguments: what was given.

  Returns:
    Name -> value, as `parse_value` gives it.

  Raises:
    app.UsageError: an argument is not a NAME=VALUE.
  """
  parsed = {}
  for argument in arguments:
    name, equals, value = argument.partition('=')
    if not (name and equals and value):
      raise app.UsageError(f'--{flag}={argument!r}; give NAME=VALUE.')
    parsed[name] = parse_value(value)
  return parsed
