"""scripts/gaussian.py end to end, and what it says to bad input."""

import json
import math
import re

import pytest

from tests.in_process import run_script

_SMALL = ('--dim=1000', '--num_canaries=20', '--simulations=4')
_PNG = b'\x89PNG\r\n\x1a\n'


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  return tmp_path_factory.mktemp('gaussian')


@pytest.fixture(scope='module')
def results(folder):
  """How the script ends with each of some lists of flags, by a name."""
  commands = {
    'sigma': [*_SMALL, '--sigma=2,0.5', f'--out={folder}/sigma.json'],
    'seed': [*_SMALL, '--sigma=0.5', '--seed=1', f'--out={folder}/seed.json'],
    'epsilon': [*_SMALL, '--epsilon=1,10', f'--out={folder}/epsilon.json'],
    'literal': [
      *(*_SMALL, '--literal', '--sigma=1'),
      *(f'--out={folder}/literal.json', f'--plot={folder}/elsewhere.svg'),
    ],
    'hadamard': [
      *(*_SMALL, '--literal', '--family=hadamard', '--sigma=1'),
      f'--out={folder}/hadamard.json',
    ],
    'plot': [*_SMALL, '--sigma=1', f'--plot={folder}/alone.png'],
    'default': _SMALL,
    'no noise': [*_SMALL, '--sigma=0', f'--out={folder}/zero.json'],
  }
  return {
    name: run_script('gaussian', *arguments)
    for name, arguments in commands.items()
  }


def _rows(folder, name):
  return json.loads((folder / f'{name}.json').read_text())


@pytest.mark.integration
def test_every_run_succeeds(results):
  assert {name: code for name, (code, _, _) in results.items()} == (
    dict.fromkeys(results, 0)
  )


def test_epsilon_is_solved_for_sigma(results, folder):
  del results
  rows = _rows(folder, 'epsilon')
  assert [row['analytic_epsilon'] for row in rows] == pytest.approx(
    [1, 1, 10, 10]
  )
  assert rows[0]['sigma'] == pytest.approx(4.224, abs=1e-3)


def test_another_seed_and_another_family_give_other_means(results, folder):
  del results
  for one, other in (
    (_rows(folder, 'sigma')[2], _rows(folder, 'seed')[0]),
    (_rows(folder, 'literal')[0], _rows(folder, 'hadamard')[0]),
  ):
    assert one.pop('mean') != other.pop('mean')
    assert one.pop('std') != other.pop('std')
    assert one == other


def test_no_noise_gives_infinite_analytic_epsilon(results, folder):
  del results
  row = _rows(folder, 'zero')[0]
  assert float(row['analytic_epsilon']) == math.inf
  assert math.isfinite(row['mean'])


def test_plot_goes_beside_the_json_unless_told_otherwise(results, folder):
  del results
  for name in ('sigma', 'epsilon', 'alone', 'zero'):
    assert (folder / f'{name}.png').read_bytes().startswith(_PNG)
  assert b'<svg' in (folder / 'elsewhere.svg').read_bytes()
  assert not (folder / 'literal.png').exists()


def test_table_shows_the_calibrated_reading_first_and_explains(results):
  _, text, _ = results['sigma']
  assert 'd = 1,000, k = 20, δ = 1e-06, 4 simulations' in text
  assert text.index('null') < text.index('fitted')
  assert 'std fitted, as Algorithm 1 prints it' in text
  rows = [line.split() for line in text.splitlines()[3:5]]
  assert [row[0] for row in rows] == ['2', '0.5']
  assert all(row.count('±') == 2 for row in rows)


def test_default_is_the_three_noise_levels_of_the_paper(results):
  _, text, _ = results['default']
  rows = [line.split() for line in text.splitlines()[3:6]]
  assert [row[:2] for row in rows] == [
    ['4.22', '1.001'],
    ['1.54', '3.008'],
    ['0.541', '10'],
  ]


_BAD = {
  '--sigma=1 --epsilon=1': 'not both',
  '--sigma=-1': r"--sigma=\['-1'\]: .*Pass for instance --sigma=",
  '--epsilon=0': r"--epsilon=\['0'\]: .*Pass for instance --epsilon=",
  '--dim=1': r'--dim=1: .*Pass --dim=2 or more',
  '--num_canaries=2 --sigma=1,0': r'Pass --num_canaries=3 or more',
  '--delta=0': r'--delta=0.*Pass for instance --delta=1e-6',
  '--family=hadamard': r'Pass --literal too',
  '--out=/nowhere/x.json': r'--out=/nowhere/x.json: .*Create the directory',
  '--out=x.png': r'--out=x.png: this must be a .json file',
  '--plot=x.gif': r'--plot=x.gif: .*\.png, \.pdf, \.svg',
  'sigma=1': "'sigma=1' is not a flag",
}


@pytest.mark.parametrize('command', _BAD)
def test_bad_input_is_refused_by_name_with_a_cure(command):
  code, _, err = run_script('gaussian', *command.split())
  assert code != 0
  assert 'audit/s' not in err  # The progress bar: work had begun.
  assert re.search(_BAD[command], err), err
