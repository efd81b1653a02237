"""Clients train adapters alone, which an audit finds as it finds whole models."""

import jax
import numpy as np
import pytest

from epe_jax import epsilon, experiment
from epe_jax.audit import attackers
from examples import own_adapters

pytestmark = pytest.mark.usefixtures('quick_compilation')


def test_adapters_start_as_the_public_model_and_are_all_that_is_trained():
  x, y = own_adapters.draw(np.random.default_rng(0), 8, turn=0)
  public = own_adapters.pretrain(x, y, steps=1)
  task = own_adapters.make_task(public, rank=2)
  adapters, batch = task.init(jax.random.key(0)), {'x': x, 'y': y}
  sizes = [leaf.size for leaf in jax.tree.leaves(adapters)]
  assert sum(sizes) == 2 * (64 + 128 + 128 + 4)
  np.testing.assert_array_equal(
    task.metrics(adapters, batch)['accuracy'],
    np.argmax(own_adapters.NET.apply(public, x), axis=-1) == y,
  )
  # Of a product A B with B = 0, B moves first.
  grads = jax.grad(lambda p: task.loss(p, batch, jax.random.key(0)).mean())(
    adapters
  )
  for layer in grads.values():
    assert not layer['a'].any()
    assert layer['b'].any()


@pytest.mark.integration
@pytest.mark.usefixtures('no_floors')
def test_adapters_learn_and_leak_what_the_noise_allows(tmp_path):
  result = experiment.run(own_adapters.get_config(), tmp_path / 'run')
  first = (tmp_path / 'run/private/metrics.jsonl').read_text().splitlines()[0]
  assert '"test_accuracy": 0.2' in first  # Of four classes.
  assert result.accuracy > 0.7
  assert result.dim == 8 * (64 + 128 + 128 + 4)
  own = result.audit.find(attackers.RESIDUAL)
  assert own.is_calibrated
  # Within 5 standard errors of a mean of 200 scores, as in `test_own_task`.
  low, high = (
    epsilon.epsilon_two_gaussians(
      0, 1, 2 + side / np.sqrt(200), 1, result.delta
    )
    for side in (-5, 5)
  )
  assert low < own.first.epsilon < high
  assert own.bounds[0].epsilon < result.analytic_epsilon
