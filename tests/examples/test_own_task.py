"""The example that people copy audits what it says, and runs as it says."""

import importlib
import pathlib
import re
import runpy
import sys

import numpy as np
import pytest

from epe_jax import epsilon, experiment

pytestmark = pytest.mark.usefixtures('quick_compilation')

ROOT = pathlib.Path(__file__).parents[2]
PATH = ROOT / 'examples' / 'own_task.py'


@pytest.fixture
def example(monkeypatch):
  monkeypatch.chdir(ROOT)
  monkeypatch.syspath_prepend(ROOT)
  return importlib.import_module('examples.own_task')


@pytest.mark.integration
@pytest.mark.parametrize('kind', ['jax', 'flax', 'haiku'])
@pytest.mark.usefixtures('no_floors')
def test_the_estimate_lies_around_the_analytic_epsilon(example, kind, tmp_path):
  config = example.get_config()
  config.model.kind = kind
  result = experiment.run(config, tmp_path / 'run')
  assert result.task == 'examples.own_task:load'
  k, z = config.canaries.observed, config.noise_multiplier
  found = result.audit
  assert {attack.num_observed for attack in found.attacks} == {k}
  own = next(a for a in found.attacks if a.threat_model.key == 'own_round')
  assert own.is_calibrated
  # The mean of k scores has a standard error of 1 / sqrt(k) in units in which
  # the gap is 1 / z; 5 of them. Other clients add little noise: 8 against d.
  low, high = (
    epsilon.epsilon_two_gaussians(
      0, 1, 1 / z + side / np.sqrt(k), 1, result.delta
    )
    for side in (-5, 5)
  )
  assert low < own.first.epsilon < high
  # A finished run is read and not made again; another seed is another run.
  assert experiment.run(config, tmp_path / 'run') == result


@pytest.mark.integration
def test_it_prints_estimates_beside_their_floor(monkeypatch, capsys):
  monkeypatch.setattr(sys, 'argv', [str(PATH), 'jax'])
  module = sys.modules['__main__']
  try:
    # As an interpreter has it: the task is a function of the program.
    space = runpy.run_path(str(PATH), run_name='own_task_of_a_test')
    monkeypatch.setattr(module, 'load', space['load'], raising=False)
    runpy.run_path(str(PATH), run_name='__main__')
  finally:
    sys.modules['__main__'] = module
  printed = capsys.readouterr().out
  for words in ('limit', 'jax: ', 'floor', 'worst case'):
    assert words in printed
  assert 'haiku' not in printed


def test_it_is_short():
  lines = [
    line
    for line in PATH.read_text().partition('"""\n\n')[2].splitlines()
    if line.strip()
  ]
  assert len(lines) <= 60


@pytest.mark.integration
@pytest.mark.usefixtures('no_floors')
def test_the_job_of_the_page_is_whole(tmp_path, monkeypatch):
  page = (ROOT / 'docs' / 'own_models.md').read_text()
  (code,) = [
    block
    for block in re.findall(r'```python\n(.*?)```', page, re.S)
    if 'def get_config' in block
  ]
  (tmp_path / 'my_job.py').write_text(code)
  monkeypatch.syspath_prepend(tmp_path)
  config = importlib.import_module('my_job').get_config()
  config.rounds = 4
  result = experiment.run(config, tmp_path / 'run')
  assert (result.dim, result.data) == (2001, 'normal numbers')
  assert len(result.audit.attacks) == 6
