"""What a client trains on: real examples, each as much as it weighs."""

import re

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from epe_jax.tasks import digits, emnist, stackoverflow
from epe_jax.training import local_training
from epe_jax.types import Weighted
from tests import helpers


def batches(steps=3, b=4, seed=0):
  rng = np.random.default_rng(seed)
  return {
    'x': rng.normal(size=(steps, b, 3)).astype(np.float32),
    'y': rng.normal(size=(steps, b)).astype(np.float32),
    # Integers, so that sums of weights are exact.
    'words': rng.integers(1, 9, (steps, b)).astype(np.float32),
  }


def weighing(column):
  """The linear task, of which an example counts as often as `column` says."""
  plain = helpers.linear_task()

  def loss(params, batch, key):
    weight = column(batch)
    return Weighted(weight * plain.loss(params, batch, key), weight)

  return plain._replace(loss=loss)


def trained(task, data, mask, opt=None):
  params = helpers.linear_task().init(jax.random.key(0))
  train = jax.jit(local_training.local_training(task, opt or optax.sgd(0.1)))
  rows = local_training.count_rows_in_use(jnp.asarray(mask))
  return train(params, data, mask, rows, jax.random.key(1))


def assert_equal(one, other):
  for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
    np.testing.assert_array_equal(a, b)


def test_weights_of_one_leave_every_bit():
  data = batches()
  mask = np.array([[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 0, 0]], bool)
  ones = weighing(lambda batch: jnp.ones_like(batch['y']))
  assert_equal(
    trained(ones, data, mask), trained(helpers.linear_task(), data, mask)
  )


def test_an_example_counts_as_often_as_it_weighs():
  # One step over examples of weight w is one step over w copies of each.
  data = batches(steps=1)
  copies = {
    name: np.repeat(x[0], data['words'][0].astype(int), axis=0)[None]
    for name, x in data.items()
  }
  one = trained(
    weighing(lambda batch: batch['words']), data, np.ones((1, 4), bool)
  )
  many = trained(
    helpers.linear_task(), copies, np.ones(copies['y'].shape, bool)
  )
  for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(many), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5)


def test_padded_examples_never_count_whatever_they_weigh():
  data = batches()
  mask = np.array([[1, 1, 1, 1], [1, 0, 1, 1], [1, 0, 0, 0]], bool)
  task = weighing(lambda batch: batch['words'])
  other = {
    k: np.where(mask if x.ndim == 2 else mask[..., None], x, 77.0)
    for k, x in data.items()
  }
  assert_equal(
    trained(task, data, mask),
    trained(task, {k: x.astype(np.float32) for k, x in other.items()}, mask),
  )


@pytest.mark.parametrize('why', ['masked', 'weightless'])
def test_a_step_in_which_nothing_weighs_changes_nothing(why):
  data = batches()
  mask = np.ones((3, 4), bool)
  if why == 'masked':
    mask[1:] = False
  else:
    data['words'][1:] = 0
  task = weighing(lambda batch: batch['words'])
  # Momentum and weight decay move the model without a gradient.
  opt = optax.chain(
    optax.add_decayed_weights(0.1), optax.sgd(0.1, momentum=0.9)
  )
  first = {name: x[:1] for name, x in data.items()}
  assert_equal(
    trained(task, data, mask, opt), trained(task, first, mask[:1], opt)
  )


def test_the_loss_of_a_client_is_the_mean_over_all_weights():
  data = batches()
  mask = np.array([[1, 1, 1, 1], [1, 0, 1, 1], [1, 0, 0, 0]], bool)
  task = weighing(lambda batch: batch['words'])
  # A model that does not move has the same loss at every step.
  update = trained(task, data, mask, optax.sgd(0.0))
  params = task.init(jax.random.key(0))
  w = data['words'] * mask
  each = np.asarray(helpers.linear_task().loss(params, data, None))
  assert float(update.loss) == pytest.approx(
    (w * each).sum() / w.sum(), rel=1e-5
  )


def test_a_client_without_examples_sends_zero():
  update = trained(helpers.linear_task(), batches(), np.zeros((3, 4), bool))
  assert float(update.loss) == 0
  assert all(not x.any() for x in jax.tree.leaves(update.client_update))


def test_momentum_on_the_mean_loss_of_each_batch_is_that_of_a_numpy_loop():
  # Two epochs of 5 examples: the partial batches stand amid full ones too.
  rng = np.random.default_rng(0)
  x = rng.normal(size=(4, 4, 3)).astype(np.float32)
  y = rng.normal(size=(4, 4)).astype(np.float32)
  mask = np.array([[1, 1, 1, 1], [1, 0, 0, 0]] * 2, bool)
  task, opt = helpers.linear_task(), optax.sgd(0.1, momentum=0.9)
  update = trained(task, {'x': x, 'y': y}, mask, opt)
  start = task.init(jax.random.key(0))
  w, b = np.float64(start['w']), float(start['b'])
  w_velocity, b_velocity = np.zeros(3), 0.0
  for i in range(4):
    features, error = x[i][mask[i]], x[i][mask[i]] @ w + b - y[i][mask[i]]
    w_velocity = 0.9 * w_velocity + features.T @ error / len(error)
    b_velocity = 0.9 * b_velocity + error.mean()
    w, b = w - 0.1 * w_velocity, b - 0.1 * b_velocity
  np.testing.assert_allclose(
    update.client_update['w'], w - np.float64(start['w']), rtol=1e-4, atol=1e-6
  )
  assert float(update.client_update['b']) == pytest.approx(
    b - float(start['b']), rel=1e-4
  )


def precise(precision, task=None):
  task = task or helpers.linear_task()
  return local_training.local_training(
    task, optax.sgd(0.1), precision=precision
  )


def test_bfloat16_rounds_what_a_client_computes_and_not_what_it_sends():
  task = stackoverflow.task(20, embedding_size=8, hidden_size=8)
  params = task.init(jax.random.key(0))
  words = np.random.default_rng(0).integers(1, 20, (20, 4, 6), np.int32)
  mask = jnp.ones((20, 4), bool)
  exact, low = (
    jax.jit(precise(name, task))(
      params,
      {'words': words},
      mask,
      local_training.count_rows_in_use(mask),
      jax.random.key(1),
    )
    for name in ('float32', 'bfloat16')
  )
  scale = np.abs(jax.flatten_util.ravel_pytree(exact.client_update)[0]).max()
  for a, b in zip(jax.tree.leaves(low), jax.tree.leaves(exact), strict=True):
    assert a.dtype == jnp.float32
    assert np.any(a != b)
    # 8 bits of each factor are right; errors add up over 20 steps.
    np.testing.assert_allclose(a, b, rtol=0.05, atol=0.02 * scale)


@pytest.mark.parametrize(
  ('task', 'batch'),
  [
    (
      digits.task(),
      {'pixels': ((8, 8), jnp.float32), 'label': ((), jnp.int32)},
    ),
    (
      emnist.task(10),
      {'pixels': ((28, 28), jnp.float32), 'label': ((), jnp.int32)},
    ),
    (stackoverflow.task(), {'words': ((20,), jnp.int16)}),
  ],
  ids=['digits', 'emnist', 'stackoverflow'],
)
def test_products_of_clients_are_as_precise_as_they_are_asked_to_be(
  task, batch
):
  params = jax.eval_shape(task.init, jax.random.key(0))
  data = {
    name: jax.ShapeDtypeStruct((2, 4, *shape), dtype)
    for name, (shape, dtype) in batch.items()
  }
  mask = jnp.ones((2, 4), bool)
  args = (
    params,
    data,
    mask,
    local_training.count_rows_in_use(mask),
    jax.random.key(0),
  )
  for precision, asked in (
    ('float32', 'Precision.HIGHEST'),
    ('tensorfloat32', 'Precision.HIGH,'),
  ):
    jaxpr = str(jax.make_jaxpr(precise(precision, task))(*args))
    assert jaxpr.count('dot_general[') > 2
    assert jaxpr.count(f'precision=({asked.rstrip(",")}') >= jaxpr.count(
      'dot_general['
    )
  traced = jax.jit(precise('bfloat16', task)).trace(*args)
  products = lambda platform: re.findall(
    r'dot_general .* : \(tensor<.*x(\w+)>, tensor<.*x(\w+)>\)',
    traced.lower(lowering_platforms=(platform,)).as_text(),
  )
  assert {*products('tpu')} == {('bf16', 'bf16')}
  # A CPU is faster at these alone.
  has_lstm = 'words' in batch
  assert (('bf16', 'bf16') in products('cpu')) == has_lstm
  update = jax.eval_shape(precise('bfloat16', task), *args)
  assert {x.dtype for x in jax.tree.leaves(update)} == {jnp.dtype('float32')}


def test_an_unknown_precision_is_refused():
  with pytest.raises(ValueError, match="precision='float16'; give one of"):
    precise('float16')
