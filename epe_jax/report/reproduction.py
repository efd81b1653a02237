"""The commands that reproduce a run and its report."""

from collections.abc import Iterator, Mapping
import importlib
import importlib.util
import pkgutil
import shlex
from typing import Any

from epe_jax import io
from epe_jax.experiment.run_result import RunResult


def list_commands(result: RunResult) -> list[tuple[str, str]]:
  """The purpose and the text of each command that reproduces a run.

  Args:
    result: what result.json holds.
  """
  command = find_command(result.config)
  again = 'To repeat the run in a new directory'
  if not result.is_simulation:
    again += ' (with new noise and clients)'
  if command is None:
    # A user's own config, which only the workdir has.
    training = (
      f'{again}, from the config in its workdir:',
      'import json\n'
      'from ml_collections import config_dict\n'
      'from epe_jax.experiment import audited_run\n\n'
      "with open('WORKDIR/config.json') as file:\n"
      '  config = config_dict.ConfigDict(json.load(file))\n'
      "audited_run.run(config, 'NEW')",
    )
  else:
    training = f'{again}:', command
  return [
    training,
    (
      'To write this page and its figures again, without training:',
      'epe-jax report WORKDIR',
    ),
  ]


def find_command(config: Mapping[str, Any]) -> str | None:
  """The command line that trains with a config.

  Args:
    config: every field, nested, as result.json has it.

  Returns:
    The command for the config that ships with the package and differs in the fewest
    fields, with these as flags; None if no config has the same fields, or a
    difference cannot be written as a flag.
  """
  wanted, best = io.flatten(config), None
  for name, fields in _iterate_configs(str(config.get('task'))):
    differences = {
      field: value
      for field, value in wanted.items()
      if field not in fields or fields[field] != value
    }
    is_possible = fields.keys() == wanted.keys() and all(
      isinstance(value, bool | int | float | str)
      for value in differences.values()
    )
    if is_possible and (best is None or len(differences) < len(best[1])):
      best = name, differences
  if best is None:
    return None
  name, differences = best
  overrides = [
    f'--config.{field}={shlex.quote(str(value))}'
    for field, value in differences.items()
  ]
  lines = [f'epe-jax run {name}', *overrides]
  return ' \\\n  '.join([*lines, '--workdir=NEW'])


def _iterate_configs(task: str) -> Iterator[tuple[str, dict[str, Any]]]:
  """Name, with its mode, and flat fields of each config of a task."""
  try:
    spec = importlib.util.find_spec('epe_jax.configs')
  except ModuleNotFoundError:
    return
  folders = spec and spec.submodule_search_locations
  for found in pkgutil.iter_modules(folders or ()):
    try:
      module = importlib.import_module(f'epe_jax.configs.{found.name}')
    except ImportError:  # It needs an extra that is not installed.
      continue
    # Those of sweeps and papers are no jobs.
    for mode in getattr(module, 'MODES', ()):
      fields = module.get_config(mode).to_dict()
      if fields['task'] == task:
        is_default = mode == module.MODES[0]
        name = found.name if is_default else f'{found.name}:{mode}'
        yield name, io.flatten(fields)
