"""Configs by name and by path, and what is said of those that are none."""

import pytest

from epe_jax.experiment.setup import config_files


def test_the_jobs_that_ship_are_found_by_their_names(tmp_path, monkeypatch):
  # From a folder without any.
  monkeypatch.chdir(tmp_path)
  assert config_files.list_configs() == ['digits', 'emnist', 'stackoverflow']
  for name in config_files.list_configs():
    assert config_files.load_config(name).task == name
    full = config_files.load_config(name).rounds
    assert config_files.load_config(f'{name}:smoke').rounds < full


def test_grids_are_found_by_their_names_and_in_files(tmp_path):
  axes = config_files.load_grid('repetitions').axes
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
  assert config_files.load_grid(f'{path}:seed').axes == (('seed', (1, 2)),)


def test_a_file_of_ones_own_builds_on_the_common_fields(tmp_path):
  path = tmp_path / 'mine.py'
  path.write_text(
    'from epe_jax.configs import common\n'
    'def get_config():\n'
    "  return common.make_config(task='digits', rounds=3)\n"
  )
  assert config_files.load_config(path).rounds == 3
  with pytest.raises(ValueError, match='takes no mode; leave out :smoke'):
    config_files.load_config(f'{path}:smoke')


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    ('x = 1', r'no function get_config\(\); give a file that has'),
    ('def get_config(:', r'mine\.py, line 1: .*Give a file of Python'),
  ],
)
def test_a_file_that_is_no_config_is_refused(tmp_path, text, message):
  path = tmp_path / 'mine.py'
  path.write_text(text)
  with pytest.raises(ValueError, match=message):
    config_files.load_config(path)


@pytest.mark.parametrize('name', ['common', 'nothing', 'os'])
def test_a_name_that_is_none_is_refused_with_those_that_are(name):
  # Modules beside the jobs are no jobs, though a grid and the paper's sizes are
  # loaded by their names elsewhere.
  if name == 'common':
    message = 'no function get_config'
  else:
    message = 'is not a config.*digits, emnist, stackoverflow'
  with pytest.raises(ValueError, match=message):
    config_files.load_config(name)


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
  assert config_files.load_config(path).rounds == 3


def test_what_a_config_raises_names_its_file_and_line(tmp_path):
  path = tmp_path / 'mine.py'
  path.write_text('def get_config():\n  return 1 / 0\n')
  with pytest.raises(ValueError, match=r'mine\.py, line 2: ZeroDivisionError'):
    config_files.load_config(path)


def test_modules_beside_a_config_are_found(tmp_path):
  (tmp_path / 'beside_mine.py').write_text('ROUNDS = 3\n')
  path = tmp_path / 'mine.py'
  path.write_text(
    'import beside_mine\n\ndef get_config():\n  return beside_mine.ROUNDS\n'
  )
  assert config_files.load_config(path) == 3
