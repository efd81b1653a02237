"""Tasks: sizes, and layers that give the numbers of the ordinary ones."""

import pathlib

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from epe_jax.tasks import digits, emnist, kernels, layers
from epe_jax.tasks._cpu import winograd
from tests.helpers import draw_params


def test_models_have_the_stated_number_of_parameters():
  for task, parameters in (
    (emnist.task(), 1_206_590),  # REFERENCE: 62 classes
    (emnist.task(num_classes=10), 1_199_882),
    (digits.task(), 55_210),
  ):
    leaves = jax.tree.leaves(jax.eval_shape(task.init, jax.random.key(0)))
    assert sum(leaf.size for leaf in leaves) == parameters
    assert all(leaf.dtype == jnp.float32 for leaf in leaves)


def value_and_grads(f, *args):
  shape = jax.eval_shape(f, *args).shape
  out_grad = np.random.default_rng(7).normal(size=shape).astype(np.float32)

  @jax.jit
  def compute(out_grad, *args):
    out, pull = jax.vjp(f, *args)
    return out, pull(out_grad)

  return compute(out_grad, *args)


# Odd, for the method of Winograd, and too many images for it.
@pytest.mark.integration
@pytest.mark.parametrize(
  ('shape', 'features'),
  [((4, 9, 8, 3), 5), ((4, 6, 8, 32), 33), ((33, 6, 4, 32), 32)],
)
def test_convolution_has_the_numbers_and_gradients_of_flax(shape, features):
  x = jax.random.normal(jax.random.key(0), shape)
  ours = layers.Conv3x3(features)
  theirs = nn.Conv(features, (3, 3), padding='VALID')
  params = ours.init(jax.random.key(1), x)
  assert jax.tree.map(jnp.shape, params) == jax.tree.map(
    jnp.shape, theirs.init(jax.random.key(1), x)
  )
  out, grads = value_and_grads(ours.apply, params, x)
  expected = value_and_grads(theirs.apply, params, x)
  for a, b in zip(jax.tree.leaves((out, grads)), jax.tree.leaves(expected)):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.integration
@pytest.mark.parametrize('shape', [(1, 4, 4, 1), (3, 6, 10, 2), (2, 10, 4, 5)])
def test_winograd_is_the_convolution_exactly_for_whole_numbers(shape):
  rng = np.random.default_rng(0)
  whole = lambda *shape: jnp.float32(rng.integers(-9, 10, shape))
  x, kernel = whole(*shape), whole(3, 3, shape[-1], 7)
  out_grad = whole(shape[0], shape[1] - 2, shape[2] - 2, 7)
  defined, pull = jax.vjp(
    lambda x, kernel: jax.lax.conv_general_dilated(
      x,
      kernel,
      window_strides=(1, 1),
      padding='VALID',
      dimension_numbers=('NHWC', 'HWIO', 'NHWC'),
    ),
    x,
    kernel,
  )
  np.testing.assert_array_equal(winograd.convolve(x, kernel), defined)
  ours = winograd.compute_gradients(x, kernel, out_grad)
  for a, b in zip(ours, pull(out_grad), strict=True):
    np.testing.assert_array_equal(a, b)


def test_kernels_alone_choose_those_of_the_cpu():
  # So that models and layers read as if there were but one backend.
  tasks = pathlib.Path(layers.__file__).parent
  users = {
    path.stem for path in tasks.glob('*.py') if '_cpu' in path.read_text()
  }
  assert users == {'kernels'}


def test_winograd_rounds_little_more_than_the_definition():
  rng = np.random.default_rng(0)
  x = rng.normal(size=(4, 26, 26, 32)).astype(np.float32)
  kernel = rng.normal(size=(3, 3, 32, 64)).astype(np.float32)

  def defined(dtype):
    return sum(
      x[:, i : i + 24, j : j + 24].astype(dtype) @ kernel[i, j].astype(dtype)
      for i in range(3)
      for j in range(3)
    )

  error = lambda found: np.std(np.float64(found) - defined(np.float64))
  ours = winograd.convolve(jnp.asarray(x), jnp.asarray(kernel))
  assert error(ours) < 2 * error(defined(np.float32))


@pytest.mark.parametrize('shape', [(2, 6, 4, 3), (2, 7, 5, 3)])
@pytest.mark.parametrize('ties', [False, True])
def test_pooling_has_the_numbers_and_gradients_of_flax(shape, ties):
  x = jax.random.normal(jax.random.key(0), shape)
  x = jnp.round(x) if ties else x
  theirs = lambda x: nn.max_pool(x, (2, 2), strides=(2, 2))
  ours = value_and_grads(layers.max_pool2x2, x)
  for a, b in zip(
    jax.tree.leaves(ours), jax.tree.leaves(value_and_grads(theirs, x))
  ):
    np.testing.assert_array_equal(a, b)


def test_cross_entropy_has_the_numbers_and_gradients_of_optax():
  keys = jax.random.split(jax.random.key(0), 3)
  x, w = jax.random.normal(keys[0], (6, 4)), jax.random.normal(keys[1], (4, 9))
  b = 3 * jax.random.normal(keys[2], (9,))
  labels = jnp.array([0, 8, 3, 3, 1, 7])

  def theirs(x, w, b):
    return optax.softmax_cross_entropy_with_integer_labels(x @ w + b, labels)

  ours = lambda x, w, b: kernels.cross_entropy(x, w, b, labels)
  # The second would overflow, were the largest logit not taken off first.
  for scale in (1, 100):
    args = x, scale * w, b
    for a, b_ in zip(
      jax.tree.leaves(value_and_grads(ours, *args)),
      jax.tree.leaves(value_and_grads(theirs, *args)),
      strict=True,
    ):
      np.testing.assert_allclose(a, b_, rtol=1e-5, atol=1e-5)


@pytest.mark.integration
def test_dropout_follows_the_key_in_training_and_is_off_in_evaluation():
  task = emnist.task(10, width=8)
  params = draw_params(task)
  batch = {
    'pixels': jax.random.uniform(jax.random.key(1), (3, 28, 28)),
    'label': jnp.array([0, 5, 9]),
  }
  loss = jax.jit(task.loss)
  one, same, other = (loss(params, batch, jax.random.key(k)) for k in (1, 1, 2))
  np.testing.assert_array_equal(one, same)
  assert np.all(np.asarray(one != other))
  metrics = jax.jit(task.metrics)(params, batch)
  cnn = jax.jit(emnist.Cnn(10, width=8).apply, static_argnums=2)
  logits = cnn({'params': params}, batch['pixels'], False)
  expected = -jax.nn.log_softmax(logits)[jnp.arange(3), batch['label']]
  np.testing.assert_allclose(metrics['loss'], expected, rtol=1e-5)
  np.testing.assert_array_equal(
    metrics['accuracy'], np.argmax(logits, axis=1) == batch['label']
  )


@pytest.mark.integration
@pytest.mark.parametrize(
  ('task', 'shape'),
  [(emnist.task(10, width=4), (28, 28)), (digits.task(width=4), (8, 8))],
)
def test_a_few_steps_fit_a_few_images(task, shape):
  params = draw_params(task)
  batch = {
    'pixels': jax.random.uniform(jax.random.key(1), (8, *shape)),
    'label': jnp.arange(8),
  }

  @jax.jit
  def step(params, key):
    grads = jax.grad(lambda p: task.loss(p, batch, key).mean())(params)
    return jax.tree.map(lambda p, g: p - 0.05 * g, params, grads)

  metrics = jax.jit(task.metrics)
  before = metrics(params, batch)['loss'].mean()
  for i in range(40):
    params = step(params, jax.random.key(i))
  assert metrics(params, batch)['loss'].mean() < before - 0.1


def test_dropout_zeros_its_share_and_leaves_the_mean():
  x = jnp.ones((50, 33, 41))
  drop = layers.Dropout(0.25)
  out = drop.apply({}, x, True, rngs={'dropout': jax.random.key(3)})
  assert set(np.unique(out)) == {np.float32(0), np.float32(4 / 3)}
  n = x.size
  # Five standard deviations: a false alarm once in two million keys.
  assert abs(np.mean(out == 0) - 0.25) < 5 * (0.25 * 0.75 / n) ** 0.5
  # Neighbours share words of random bits, and nothing else.
  zero = np.asarray(out == 0).ravel()
  both = np.mean(zero[1:] & zero[:-1])
  assert abs(both - 0.25**2) < 5 * (0.0625 * (1 - 0.0625) / n) ** 0.5 * 1.5
  np.testing.assert_array_equal(drop.apply({}, x, False), x)


def test_fewer_examples_are_dropped_out_of_as_the_first_of_more():
  # So that a batch that is computed to its half gives the same numbers.
  x = jnp.ones((8, 4, 4))
  drop = lambda x: layers.Dropout(0.5).apply(
    {}, x, True, rngs={'dropout': jax.random.key(3)}
  )
  np.testing.assert_array_equal(drop(x)[:2], drop(x[:2]))


@pytest.mark.parametrize('rate', [-0.25, 0.1, 1.0])
def test_dropout_of_a_share_that_bytes_cannot_tell_is_refused(rate):
  with pytest.raises(ValueError, match=f'rate={rate}'):
    layers.Dropout(rate).apply({}, jnp.ones(3), True)


@pytest.mark.parametrize('rows', [1, 6, 40])
def test_a_dense_layer_has_the_numbers_and_gradients_of_flax(rows):
  x = jax.random.normal(jax.random.key(0), (rows, 7))
  ours, theirs = layers.Dense(5), nn.Dense(5)
  params = ours.init(jax.random.key(1), x)
  np.testing.assert_array_equal(
    params['params']['kernel'],
    theirs.init(jax.random.key(1), x)['params']['kernel'],
  )
  for a, b in zip(
    jax.tree.leaves(value_and_grads(ours.apply, params, x)),
    jax.tree.leaves(value_and_grads(theirs.apply, params, x)),
    strict=True,
  ):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.integration
@pytest.mark.parametrize('platform', ['cpu', 'default'])
def test_every_form_of_a_layer_has_the_same_numbers(platform, monkeypatch):
  # What another backend would run, run here; clients have their own kernels.
  monkeypatch.setattr(
    kernels.jax.lax,
    'platform_dependent',
    lambda *args, **forms: forms[platform](*args),
  )
  x = jax.random.normal(jax.random.key(0), (3, 2, 7, 6, 4))
  kernel = jax.random.normal(jax.random.key(1), (3, 3, 3, 4, 5))
  ours = lambda x, k: layers.max_pool2x2(kernels.conv3x3(x, k))
  conv = nn.Conv(5, (3, 3), padding='VALID', use_bias=False)
  theirs = lambda x, k: nn.max_pool(
    conv.apply({'params': {'kernel': k}}, x), (2, 2), strides=(2, 2)
  )
  mapped = value_and_grads(jax.vmap(ours), x, kernel)
  expected = value_and_grads(jax.vmap(theirs), x, kernel)
  for a, b in zip(
    jax.tree.leaves(mapped), jax.tree.leaves(expected), strict=True
  ):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
