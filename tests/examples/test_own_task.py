"""The example that people copy audits what it says, and runs as it says."""

import pathlib
import runpy
import sys

import jax
import numpy as np
import pytest

from epe_jax import audit, epsilon

pytestmark = pytest.mark.usefixtures('quick_compilation')

PATH = pathlib.Path(__file__).parents[2] / 'examples' / 'own_task.py'


@pytest.mark.parametrize(
  'model',
  [
    'make_jax_task',
    pytest.param('make_flax_task', marks=pytest.mark.integration),
    pytest.param('make_haiku_task', marks=pytest.mark.integration),
  ],
)
def test_the_estimate_lies_around_the_analytic_epsilon(model):
  example = runpy.run_path(str(PATH))
  record = example['train_audited'](example[model](), jax.random.key(7))
  delta, z, k = example['DELTA'], example['NOISE'], example['CANARIES']
  found = audit.evaluate(record, floors=False)
  assert {attack.num_observed for attack in found.attacks} == {k}
  own = next(a for a in found.attacks if a.threat_model.key == 'own_round')
  assert own.is_calibrated
  epsilon_of_own_round = own.first.epsilon
  # The mean of k scores has a standard error of 1 / sqrt(k) in units in which
  # the gap is 1 / z; 5 of them. Other clients add little noise: 8 against d.
  low, high = (
    epsilon.epsilon_two_gaussians(0, 1, 1 / z + side / np.sqrt(k), 1, delta)
    for side in (-5, 5)
  )
  assert low < epsilon_of_own_round < high


def test_it_prints_estimates_beside_their_floor(monkeypatch, capsys):
  monkeypatch.setattr(sys, 'argv', [str(PATH), 'jax'])
  runpy.run_path(str(PATH), run_name='__main__')
  printed = capsys.readouterr().out
  for words in ('analytic', 'jax: ', 'floor 5-95 %', 'lower bound, 95 %'):
    assert words in printed
  assert 'haiku' not in printed


def test_it_is_short():
  lines = [line for line in PATH.read_text().splitlines() if line.strip()]
  assert lines[0].startswith('"""')
  assert len(lines[1:]) <= 60
