"""The example of a one-shot audit of DP-SGD."""

import importlib
import pathlib

import pytest

pytest.importorskip('jax_privacy', reason='jax-privacy is not installed')

# jax_privacy 2.0 calls what optax 0.2.8 has renamed.
pytestmark = [
  pytest.mark.filterwarnings('ignore:optax.global_norm'),
  pytest.mark.usefixtures('quick_compilation'),
]

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.integration
@pytest.mark.usefixtures('no_floors')
def test_estimates_lie_around_the_analytic_epsilon(monkeypatch):
  monkeypatch.chdir(ROOT)
  monkeypatch.syspath_prepend(ROOT)
  example = importlib.import_module('examples.dpsgd_one_shot')
  found, accuracy = example.train_and_audit(
    steps=10, num=100, width=8, noise=1.0, seed=0
  )
  residual = found.attacks[-1]
  assert residual.threat_model.key == 'residual'
  assert residual.is_calibrated
  # The most exposed canary has the analytic ε; all others have less.
  assert 0 < residual.first.epsilon < 1.5 * residual.analytic.epsilon
  assert 0 <= accuracy <= 1
