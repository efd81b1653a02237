"""Fields of configs: any wrong value is refused by name, before any work."""

import math
import pathlib
import re

from absl import flags
from ml_collections import config_dict
import numpy as np
import pytest

from epe_jax import io
from epe_jax.cli import command_flags, config_flags
from epe_jax.configs import common, digits, emnist, stackoverflow
from epe_jax.experiment import audited_run
from epe_jax.experiment.setup import config as config_lib
from epe_jax.experiment.setup import workloads

CONFIGS = {
  f'{module.__name__}:{mode}': lambda m=module, mode=mode: m.get_config(mode)
  for module, modes in (
    (digits, ('full', 'smoke')),
    (emnist, ('full', '5x34', 'smoke')),
    (stackoverflow, ('full', 'smoke')),
  )
  for mode in modes
}

# Of no field: wrong types, and what is not a number.
ODD = (math.nan, math.inf, -math.inf, '', (), [1], {'a': 1}, object(), 1j, b'x')
NUMBERS = (-1, -1.0, -1e300)
HUGE = (10**12, 10**400, 1e300)
TEXTS = ('3', 'nonsense', '0.5')

# Values that are wrong for a field as a file in configs/ has it, by its type.
WRONG = {
  int: (*ODD, *NUMBERS, *HUGE, *TEXTS, 2.5, 3.0, True, np.True_, np.float64(3)),
  float: (*ODD, *NUMBERS, *HUGE[1:], *TEXTS, True, np.float32(np.inf)),
  bool: (*ODD, *NUMBERS, *HUGE, *TEXTS, 0, 1, 1.0),
  str: (*ODD, *NUMBERS, *HUGE, 0, 1.5, True, 'a\0b'),
}
# Fields of which no integer is too large.
ENDLESS = ('seed',)
# Fields that are None where they are not set, and their types.
NONE = {
  'chunk': int,
  'client.max_examples': int,
  'evaluate_examples': int,
  'participation.max_rounds': int,
  'participation.log': str,
  'participation.log_only': str,
  'canaries.schedule': str,
  'noise.restart': int,
  'secure_aggregation.bits': int,
  'secure_aggregation.granularity': float,
  'audit.buffer': int,
  'audit.delta': float,
  'audit.claim': float,
  'data.path': str,
  'data.cache': str,
  'data.word_count': str,
  'data.num_clients': int,
  'data.num_examples': int,
  'data.vocabulary_size': int,
}


def with_field(config, name, value):
  """The config with anything at all in a field, as Python can make it."""
  changed = config.copy_and_resolve_references()
  *groups, last = name.split('.')
  place = changed
  for group in groups:
    place = place[group]
  with changed.unlocked(), changed.ignore_type():
    del place[last]
    place[last] = value
  return changed


def wrong_values(name, value):
  kind = NONE[name] if value is None else type(value)
  for wrong in WRONG[kind]:
    if not (name in ENDLESS and isinstance(wrong, int) and wrong >= 0):
      yield wrong
  if name not in NONE:
    yield None


@pytest.mark.parametrize('which', CONFIGS)
def test_every_config_has_the_common_fields_and_repeats_none(
  monkeypatch, which
):
  make, given = common.make_config, {}
  shared = io.flatten(make().to_dict())
  assert len(shared) > 20
  monkeypatch.setattr(
    common, 'make_config', lambda **own: given.update(own) or make(**own)
  )
  whole, own = io.flatten(CONFIGS[which]().to_dict()), io.flatten(given)
  assert whole == shared | {name: whole[name] for name in own}
  for name in shared.keys() & own.keys():
    assert whole[name] != shared[name], name


@pytest.mark.integration
@pytest.mark.parametrize('which', CONFIGS)
def test_each_wrong_value_of_each_field_is_refused_by_name_before_any_work(
  tmp_path, monkeypatch, which
):
  def worked(*_):
    raise AssertionError('data were loaded')

  monkeypatch.setattr(workloads, 'load_workload', worked)
  config = CONFIGS[which]()
  tried = 0
  for name, value in io.flatten(config.to_dict()).items():
    for wrong in wrong_values(name, value):
      changed = with_field(config, name, wrong)
      said = f'^{re.escape(name)}.*(give|did you mean)'
      with pytest.raises(ValueError, match=said):
        audited_run.run(changed, tmp_path / 'run')
      tried += 1
  assert tried > 500
  assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize('which', CONFIGS)
def test_a_config_with_a_field_less_or_more_is_refused(which):
  config = CONFIGS[which]()
  for name in io.flatten(config.to_dict()):
    changed = with_field(config, name, 0)
    *groups, last = name.split('.')
    place = changed
    for group in groups:
      place = place[group]
    del place[last]
    with pytest.raises(ValueError, match=f'^{name}'):
      config_lib.check_config(changed)
  more = config_lib.replace_fields(config, momentun=0.9)
  with pytest.raises(ValueError, match=r'momentun=0\.9 is not a field'):
    config_lib.check_config(more)
  config.server = config_dict.ConfigDict(dict(config.server) | {'mometum': 0.9})
  with pytest.raises(ValueError, match=r"mean 'server\.momentum'"):
    config_lib.check_config(config)


@pytest.mark.parametrize('which', CONFIGS)
def test_a_right_config_stays_what_it_is(which):
  config = CONFIGS[which]()
  # What suits the noise.
  config.canaries.schedule = 'once_per_period'
  assert config_lib.check_config(config).to_dict() == config.to_dict()
  assert config_lib.check_config(config_lib.check_config(config)) == (
    config_lib.check_config(config)
  )


def test_canaries_of_correlated_noise_take_part_in_the_worst_rounds():
  config = digits.get_config()
  config.noise.correlation = 'tree'
  assert config_lib.check_config(config).canaries.schedule == 'worst_case'


def test_numbers_of_numpy_and_paths_become_those_of_python():
  config = digits.get_config()
  for name, value, plain in (
    ('rounds', np.int64(7), 7),
    ('noise_multiplier', np.float32(0.5), 0.5),
    ('noise_multiplier', 1, 1.0),
    ('server.momentum', np.float64(0.0), 0.0),
    ('simulation', np.False_, False),
    ('seed', np.uint64(2**63), 2**63),
    ('seed', 2**200, 2**200),
    ('audit.delta', None, None),
    ('participation.log', pathlib.Path('a', 'b'), 'a/b'),
    ('client.learning_rate', 0, 0.0),
  ):
    checked = config_lib.check_config(with_field(config, name, value))
    found = io.flatten(checked.to_dict())[name]
    assert found == plain
    assert type(found) is type(plain)


@pytest.mark.parametrize('text', ['3', 'as_clients'])
def test_repetitions_are_a_number_or_those_of_clients(text):
  values = flags.FlagValues()
  command_flags.define(values, command_flags.CONFIG)
  argv = ['run', 'digits', f'--config.canaries.repetitions={text}']
  config = config_flags.parse(values, argv).config
  found = config_lib.check_config(config).canaries.repetitions
  assert found == (text if text == 'as_clients' else 3)


@pytest.mark.parametrize(
  ('name', 'wrong', 'right'),
  [
    ('server.momentum', (-1.0, 1.0, 1.5), (0.0, 0.999)),
    ('server.learning_rate', (0.0, -1.0), (1e-9, 5.0)),
    ('client.learning_rate', (-0.1, math.nan), (0.0, 1.0)),
    ('clipping.count_noise', (math.inf, -0.1), (0.0, 0.05)),
    ('clipping.quantile', (0.0, 1.0), (0.5,)),
    ('audit.delta', (0.0, 1.0), (1e-12, None)),
    ('audit.claim', (-1e-12, math.inf), (0.0, 100.0, None)),
    ('rounds', (0, 10**12), (1, 10**6)),
    ('chunk', (0, 10**12), (1, None)),
    ('canaries.repetitions', (0, 10**12), (1, 'as_clients')),
  ],
)
def test_the_ends_of_ranges_are_where_they_should_be(name, wrong, right):
  config = digits.get_config()
  for value in wrong:
    with pytest.raises(ValueError, match=f'^{name}={value}; give'):
      config_lib.check_config(with_field(config, name, value))
  for value in right:
    config_lib.check_config(with_field(config, name, value))


# By name and by path.


def test_the_jobs_that_ship_are_found_by_their_names(tmp_path, monkeypatch):
  # From a folder without any.
  monkeypatch.chdir(tmp_path)
  assert config_lib.list_configs() == ['digits', 'emnist', 'stackoverflow']
  for name in config_lib.list_configs():
    assert config_lib.load_config(name).task == name
    full = config_lib.load_config(name).rounds
    assert config_lib.load_config(f'{name}:smoke').rounds < full


def test_grids_are_found_by_their_names_and_in_files(tmp_path):
  axes = config_lib.load_grid('repetitions').axes
  assert [name for name, _ in axes] == [
    'noise_multiplier',
    'canaries.repetitions',
  ]
  path = tmp_path / 'mine.py'
  path.write_text(
    'from ml_collections import config_dict\n'
    'def get_config(mode):\n'
    '  return config_dict.create(axes=((mode, (1, 2)),))\n'
  )
  assert config_lib.load_grid(f'{path}:seed').axes == (('seed', (1, 2)),)


def test_a_file_of_ones_own_builds_on_the_common_fields(tmp_path):
  path = tmp_path / 'mine.py'
  path.write_text(
    'from epe_jax.configs import common\n'
    'def get_config():\n'
    "  return common.make_config(task='digits', rounds=3)\n"
  )
  assert config_lib.load_config(path).rounds == 3
  with pytest.raises(ValueError, match='takes no mode; leave out :smoke'):
    config_lib.load_config(f'{path}:smoke')


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    ('x = 1', r'no function get_config\(\); give a file that has'),
    ('def get_config(:', r'mine\.py: SyntaxError: .*line 1'),
  ],
)
def test_a_file_that_is_no_config_is_refused(tmp_path, text, message):
  path = tmp_path / 'mine.py'
  path.write_text(text)
  with pytest.raises(ValueError, match=message):
    config_lib.load_config(path)


@pytest.mark.parametrize('name', ['common', 'nothing', 'os', 'digts'])
def test_a_name_that_is_none_is_refused_with_those_that_are(name):
  # Modules beside the jobs are no jobs, though a grid and the paper's sizes are
  # loaded by their names elsewhere.
  if name == 'common':
    message = 'no function get_config'
  elif name == 'digts':
    message = "did you mean 'digits'"
  else:
    message = 'is not a config; give one of digits, emnist, stackoverflow'
  with pytest.raises(ValueError, match=message):
    config_lib.load_config(name)


def test_a_config_may_have_dataclasses_with_late_annotations(tmp_path):
  path = tmp_path / 'mine.py'
  path.write_text(
    'from __future__ import annotations\n'
    'import dataclasses\n'
    'from ml_collections import config_dict\n'
    '@dataclasses.dataclass\n'
    'class Sizes:\n'
    '  rounds: int = 3\n'
    'def get_config():\n'
    '  return config_dict.ConfigDict(dataclasses.asdict(Sizes()))\n'
  )
  assert config_lib.load_config(path).rounds == 3


def test_what_a_config_raises_names_its_file(tmp_path):
  path = tmp_path / 'mine.py'
  path.write_text('def get_config():\n  return 1 / 0\n')
  with pytest.raises(
    ValueError, match=r'mine\.py: ZeroDivisionError: division'
  ):
    config_lib.load_config(path)


def test_modules_beside_a_config_are_found(tmp_path):
  (tmp_path / 'beside_mine.py').write_text('ROUNDS = 3\n')
  path = tmp_path / 'mine.py'
  path.write_text(
    'import beside_mine\n\ndef get_config():\n  return beside_mine.ROUNDS\n'
  )
  assert config_lib.load_config(path) == 3
