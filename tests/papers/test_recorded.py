"""The committed results: which command made each, and with which versions."""

import pathlib
import re
import types

import numpy as np
from packaging.requirements import Requirement
import pytest

from epe_jax import io
from papers import agreement, registry

ROOT = pathlib.Path(__file__).parents[2]


def list_commands():
  """Item -> its command on a page, which names files without their folder."""
  commands = {}
  for line in (ROOT / 'papers' / 'recorded.txt').read_text().splitlines():
    words = line.replace('data/', '').split()
    options = [word for word in words if word.startswith('--')]
    for name in registry.select_items(words[: -len(options)]):
      assert name not in commands
      commands[name] = ' '.join(['python scripts/reproduce.py', name, *options])
  return commands


def list_locked():
  """Package -> its version in the lock file, for the Python of the recordings."""
  lines = (ROOT / 'requirements-dev.lock').read_text().splitlines()
  environment = {'python_version': '3.11', 'python_full_version': '3.11.7'}
  requirements = [Requirement(line) for line in lines if line.strip()]
  return {
    r.name: str(r.specifier).removeprefix('==')
    for r in requirements
    if r.marker is None or r.marker.evaluate(environment)
  }


def test_each_page_is_of_a_recorded_command_with_the_locked_versions():
  commands, locked = list_commands(), list_locked()
  found, commits = set(), set()
  for path in (ROOT / 'docs' / 'results').rglob('item.json'):
    record = io.read_json(path)
    found.add(record['name'])
    assert record['command'] == commands[record['name']]
    versions = {k: v for k, v in record['versions'].items() if k in locked}
    assert versions.keys() >= {'jax', 'jaxlib', 'numpy', 'scipy'}
    if agreed := record.get('agreement'):
      # Too long to be repeated: both compilers compute the same first rounds.
      old, new = agreed['jaxlib']
      assert (old, new) == (versions['jaxlib'], locked['jaxlib']), path
      assert agreed['difference'] <= agreement.MOST
      assert agreed['rounds'] >= 10
    else:
      assert versions == {name: locked[name] for name in versions}, path
      assert record['processor'], path
      commits.add(record['commit'])
  (commit,) = commits
  assert re.fullmatch('[0-9a-f]{7,}', commit)
  assert found == commands.keys()


def fake_folders(
  tmp_path, monkeypatch, *, cosines, commands=('one', 'one'), noise=0.0
):
  """Folders of two compilers, with a run of one item in each."""
  records = {}
  for name, value, command in zip(('now', 'then'), cosines, commands):
    folder = tmp_path / name
    item = {'command': command, 'versions': {'jaxlib': name}}
    (folder / 'emnist').mkdir(parents=True)
    io.write_json(folder / 'emnist' / 'item.json', item)
    workdir = folder / 'runs' / registry.ITEMS['emnist'].experiment.name / 'run'
    workdir.mkdir(parents=True)
    (workdir / 'result.json').write_text('{}')
    record = value and types.SimpleNamespace(
      cosines={
        'final': np.array([0.0, value]),
        # What rounding leaves.
        'residual': np.array([[3.0 * value, 1.0]]),
      },
      num_rounds=10,
      noise_multiplier=noise,
    )
    records[workdir] = types.SimpleNamespace(record=record)
  monkeypatch.setattr(
    agreement.finished_runs, 'load_finished_run', records.__getitem__
  )
  return tmp_path / 'now', tmp_path / 'then'


@pytest.mark.parametrize(('noise', 'difference'), [(0.0, 0.25), (0.1, 0.75)])
def test_compilers_agree_by_the_largest_difference_of_a_cosine(
  tmp_path, monkeypatch, noise, difference
):
  folders = fake_folders(
    tmp_path, monkeypatch, cosines=(0.5, 0.25), noise=noise
  )
  assert list(agreement.compare_runs(*folders)) == [
    (
      'emnist',
      {
        'jaxlib': ['then', 'now'],
        'command': 'one',
        'rounds': 10,
        'runs': 1,
        'difference': difference,
      },
    )
  ]


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    (
      {'commands': ('one', 'two')},
      "emnist was made by 'one' in .* but by 'two'",
    ),
    ({'cosines': (None, None)}, 'emnist has no canaries'),
  ],
)
def test_runs_that_cannot_be_compared_are_refused(
  tmp_path, monkeypatch, changes, message
):
  folders = fake_folders(
    tmp_path, monkeypatch, **{'cosines': (0.5, 0.25), **changes}
  )
  with pytest.raises(ValueError, match=message):
    list(agreement.compare_runs(*folders))
  (path,) = folders[0].rglob('result.json')
  path.unlink()
  with pytest.raises(ValueError, match='emnist'):
    list(agreement.compare_runs(*folders))


def test_items_of_another_jax_are_compared_cell_by_cell(tmp_path):
  def write(folder, command='again', body=(('1', '2'),)):
    path = tmp_path / folder / 'tight' / 'figure3' / 'item.json'
    path.parent.mkdir(parents=True, exist_ok=True)
    item = {
      'command': command,
      'versions': {'python': '3', 'jax': '1', 'jaxlib': '2', 'numpy': '3'},
      'tables': [{'body': [[*row] for row in body]}],
    }
    io.write_json(path, item)

  folders = tmp_path / 'new', tmp_path / 'old'
  write('old', body=[('1', '3')])
  assert not list(agreement.compare_tables(*folders))
  write('new')
  versions = {'python': '3', 'jax': '1', 'jaxlib': '2'}
  assert list(agreement.compare_tables(*folders)) == [
    ('tight:figure3', {'versions': versions, 'cells': 2, 'differ': 1})
  ]
  write('new', command='other')
  with pytest.raises(ValueError, match=r"made by 'other' in .* but by 'again'"):
    list(agreement.compare_tables(*folders))
  write('new', body=[('1',)])
  with pytest.raises(ValueError, match='other rows'):
    list(agreement.compare_tables(*folders))
