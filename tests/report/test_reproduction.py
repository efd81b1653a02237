"""The command to reproduce a run is the one that makes its config."""

import dataclasses
import importlib
import re
import shlex

from absl import flags
from ml_collections import config_flags
import pytest

from epe_jax import io
from epe_jax.audit import attack_results
from epe_jax.configs import digits  # pyright: ignore[reportMissingImports]
from epe_jax.experiment import config_files
from epe_jax.report import page, report, reproduction
from tests import recorded_runs


def config_of(command):
  """What the flags of a command line say, as `epe-jax run` parses them."""
  program, command_name, name, *rest = shlex.split(command)
  assert (program, command_name) == ('epe-jax', 'run')
  stem, colon, mode = name.partition(':')
  folder = digits.__file__.rpartition('/')[0]
  given = ['run', f'--config={folder}/{stem}.py{colon}{mode}', *rest]
  values = flags.FlagValues()
  config_flags.DEFINE_config_file('config', flag_values=values, sys_argv=given)
  flags.DEFINE_string('workdir', None, '', flag_values=values)
  values(given)
  return values.config.to_dict()


# Of ml_collections, which loads files so.
@pytest.mark.filterwarnings('ignore:the load_module')
@pytest.mark.parametrize(
  ('mode', 'changes', 'num_flags'),
  [
    ('full', {}, 0),
    ('smoke', {}, 0),
    ('full', {'noise_multiplier': 0.5, 'seed': 3}, 2),
    ('smoke', {'audit.claim': 20.0, 'canaries.family': 'hadamard'}, 2),
    ('full', {'data.concentration': 0.1, 'simulation': False}, 2),
  ],
)
def test_the_command_gives_the_config_of_the_run(mode, changes, num_flags):
  config = digits.get_config(mode)
  config.update_from_flattened_dict(changes)
  wanted = config.to_dict()
  command = reproduction.find_command(wanted)
  assert command.count('--config.') == num_flags
  assert (':smoke' in command) == (mode == 'smoke')
  assert io.flatten(config_of(command)) == io.flatten(wanted)


@pytest.mark.parametrize('name', config_files.list_configs())
def test_every_mode_of_a_config_goes_by_its_name(name):
  modes = importlib.import_module(f'epe_jax.configs.{name}').MODES
  for mode in modes:
    job = name if mode == 'full' else f'{name}:{mode}'
    config = config_files.load_config(f'{name}:{mode}').to_dict()
    command = reproduction.find_command(config)
    assert command.split() == ['epe-jax', 'run', job, '\\', '--workdir=NEW']


def test_a_config_that_does_not_ship_is_read_from_its_workdir():
  config = digits.get_config().to_dict() | {'task': 'package.module:mine'}
  assert reproduction.find_command(config) is None
  result = recorded_runs.result(config=config, audit=attack_results.Audit(()))
  (text, code), _ = reproduction.list_commands(result)
  assert 'the config in its workdir' in text
  compile(code, 'code', 'exec')
  assert f'```python\n{code}' in page.render_markdown(
    report.make_page(result, {})
  )


def test_paths_of_the_machine_are_in_no_command():
  config = digits.get_config()
  config.participation.log = '/home/ada/logs/rounds.csv'
  hidden = io.hide_paths(config.to_dict())
  command = reproduction.find_command(hidden)
  assert '--config.participation.log=PATH_TO/rounds.csv' in command
  result = dataclasses.replace(recorded_runs.result(), config=hidden)
  assert not re.search(
    'home|ada/', page.render_markdown(report.make_page(result, {}))
  )
