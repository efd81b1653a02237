"""Models of example-level audits: sizes, and gradients of each example."""

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from papers import models
from tests.helpers import draw_params


def count_parameters(task):
  leaves = jax.tree.leaves(jax.eval_shape(task.init, jax.random.key(0)))
  assert all(leaf.dtype == jnp.float32 for leaf in leaves)
  return sum(leaf.size for leaf in leaves)


def test_the_convnet_has_the_parameters_of_its_table():
  conv = lambda c, f: 9 * c * f + f
  expected = (
    conv(3, 32) + conv(32, 32) + conv(32, 64) + conv(64, 64)
    + conv(64, 128) + conv(128, 128) + (4 * 4 * 128 + 1) * 128 + 129 * 10
  )  # fmt: skip
  # Papernot et al. and Tramèr and Boneh: 0.55 million.
  assert count_parameters(models.convnet()) == expected == 550_570


def test_the_wide_residual_network_has_the_parameters_of_its_definition():
  # Kernel, gain and bias; scale and offset.
  conv = lambda i, c, f: i * i * c * f + 2 * f
  norm = lambda c: 2 * c
  total, c = conv(3, 3, 16), 16
  for f in (64, 128, 256):
    total += norm(c) + conv(1, c, f)
    for _ in range(2):
      total += norm(c) + conv(3, c, f) + norm(f) + conv(3, f, f)
      c = f
  total += norm(256) + 257 * 10
  assert count_parameters(models.wide_resnet()) == total == 2_753_818
  # Zagoruyko and Komodakis' WRN-16-4 has no gains and biases of convolutions,
  # and no normalization of its own on a shortcut.
  gains_and_biases = 2 * (16 + 5 * (64 + 128 + 256))
  assert total - gains_and_biases - 2 * (16 + 64 + 128) == 2_748_890
  # Their WRN-40-4: 8.9 million.
  assert 8.9e6 < count_parameters(models.wide_resnet(depth=40)) < 9.0e6


def test_the_fully_connected_network_has_three_layers():
  expected = 601 * 256 + 257 * 256 + 257 * 100
  assert count_parameters(models.fully_connected()) == expected == 245_348


@pytest.mark.integration
@pytest.mark.parametrize('size', [1, 3])
@pytest.mark.parametrize('stride', [1, 2])
@pytest.mark.parametrize('shape', [(2, 6, 7, 3)])
def test_the_convolution_is_that_of_flax(shape, stride, size):
  x = jax.random.normal(jax.random.key(0), shape)
  ours = models.Conv(5, size, stride)
  theirs = nn.Conv(5, (size, size), strides=stride, padding='SAME')
  params = ours.init(jax.random.key(1), x)

  def gradients(layer):
    def total(params, x):
      out = layer.apply(params, x)
      return jnp.sum(jnp.sin(out)), out

    return jax.jit(jax.grad(total, (0, 1), has_aux=True))(params, x)

  found, expected = gradients(ours), gradients(theirs)
  for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected)):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.integration
def test_standardized_weights_have_mean_0_and_variance_of_the_fan_in():
  kernel = 3 + jax.random.normal(jax.random.key(0), (3, 3, 8, 5))
  weights = models.standardize_weights(kernel)
  np.testing.assert_allclose(weights.mean(axis=(0, 1, 2)), 0, atol=1e-6)
  np.testing.assert_allclose(weights.var(axis=(0, 1, 2)), 1 / 72, rtol=1e-4)
  # The scale and the mean of what is learnt change nothing.
  np.testing.assert_allclose(
    models.standardize_weights(7 * kernel - 1), weights, atol=1e-5
  )


def test_pooled_maxima_are_those_of_flax():
  x = jax.random.normal(jax.random.key(0), (2, 7, 6, 3))
  expected = nn.max_pool(x, (2, 2), strides=(2, 2))
  np.testing.assert_array_equal(models.pool_maxima(x), expected)


TASKS = {
  'convnet': (models.convnet(4, image_shape=(8, 8, 3), width=2), 'pixels'),
  'wide_resnet': (
    models.wide_resnet(4, image_shape=(8, 8, 3), depth=10, width=1),
    'pixels',
  ),
  'fully_connected': (
    models.fully_connected(4, num_features=9, hidden=(5, 6)),
    'features',
  ),
}


@pytest.mark.parametrize(
  'name',
  [
    'fully_connected',
    # They compile for long: pytest tests/papers/test_models.py -m slow
    pytest.param('convnet', marks=pytest.mark.slow),
    pytest.param('wide_resnet', marks=pytest.mark.slow),
  ],
)
def test_gradients_of_examples_add_up_to_that_of_the_batch(name):
  task, inputs = TASKS[name]
  params = draw_params(task)
  shape = (5, 9) if inputs == 'features' else (5, 8, 8, 3)
  batch = {
    inputs: jax.random.uniform(jax.random.key(1), shape),
    'label': jnp.array([0, 1, 2, 3, 3]),
  }
  key = jax.random.key(2)

  def loss(params, batch):
    return task.loss(params, batch, key).sum()

  def gradient(example):
    one = jax.tree.map(lambda x: x[None], example)
    return jax.grad(loss)(params, one)

  of_each = jax.jit(jax.vmap(gradient))(batch)
  of_all = jax.jit(jax.grad(loss))(params, batch)
  for each, all_ in zip(jax.tree.leaves(of_each), jax.tree.leaves(of_all)):
    np.testing.assert_allclose(each.sum(0), all_, rtol=1e-3, atol=1e-4)
  # Every parameter takes part in the loss of some example.
  assert all(jnp.any(leaf != 0) for leaf in jax.tree.leaves(of_all))


@pytest.mark.slow  # pytest tests/papers/test_models.py -m slow
def test_examples_of_a_batch_do_not_see_each_other():
  task, _ = TASKS['wide_resnet']
  params = draw_params(task)
  batch = {
    'pixels': jax.random.uniform(jax.random.key(1), (3, 8, 8, 3)),
    'label': jnp.array([0, 1, 2]),
  }
  loss = jax.jit(lambda batch: task.loss(params, batch, jax.random.key(0)))
  losses = loss(batch)
  others = batch | {'pixels': batch['pixels'].at[1:].set(0)}
  np.testing.assert_allclose(loss(others)[0], losses[0], rtol=1e-5)
  assert loss(others)[1] != losses[1]
