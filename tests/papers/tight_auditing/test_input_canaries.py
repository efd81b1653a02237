"""Canaries that are inputs: which example they are, and its gradient."""

import jax
from jax.flatten_util import ravel_pytree
import jax.numpy as jnp
import numpy as np
import pytest

from papers import models
from papers.tight_auditing import input_canaries

TASK = models.fully_connected(4, num_features=20, hidden=(9,))
RNG = np.random.default_rng(0)
PARAMS = jax.tree.map(
  lambda x: jnp.asarray(RNG.normal(size=x.shape) / 3, jnp.float32),
  jax.eval_shape(TASK.init, jax.random.key(0)),
)
# Classes that differ in brightness, so that there is something to learn.
LABEL = np.arange(12) % 4
POOL = {
  'features': np.float32(
    (0.1 + 0.2 * LABEL)[:, None] + RNG.uniform(0, 0.2, (12, 20))
  ),
  'label': LABEL.astype(np.int32),
}


def loss(example, params=PARAMS):
  one = jax.tree.map(lambda x: x[None], example)
  return TASK.loss(params, one, jax.random.key(0)).sum()


@jax.jit
def expected_gradient(params, example):
  return ravel_pytree(jax.grad(lambda p: loss(example, p))(params))[0]


LABELLED = input_canaries.Pool(POOL, 'features', 4)


def make_canary(name, **settings):
  return input_canaries.KINDS[name](TASK, LABELLED, **settings)


@pytest.mark.parametrize('name', input_canaries.KINDS)
def test_the_gradient_is_that_of_the_loss_at_the_example(name):
  canary = make_canary(name)
  step = jax.jit(canary.gradient)
  state, params = canary.init(jax.random.key(1), PARAMS), PARAMS
  for t in range(4):
    found, state = step(state, params, jnp.int32(t))
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(
      found,
      expected_gradient(params, state.example),
      rtol=1e-4,
      atol=1e-6,
    )
    params = jax.tree.map(lambda x: 0.9 * x, params)
  # One program serves all steps, as the model moves.
  assert step._cache_size() == 1


def test_a_mislabelled_example_is_one_of_the_pool_with_a_wrong_label():
  canary = make_canary('mislabelled')
  seen = set()
  for i in range(40):
    example = canary.init(jax.random.key(i), PARAMS).example
    same = np.all(POOL['features'] == example['features'], axis=1)
    (row,) = np.flatnonzero(same)
    assert 0 <= example['label'] < 4
    seen.add((int(example['label']) - int(POOL['label'][row])) % 4)
  # Never the own label; each other one is missed once in 10^4 keys.
  assert seen == {1, 2, 3}


@pytest.mark.parametrize('value', [0.0, 1.0])
def test_a_blank_example_is_of_one_value(value):
  canary = make_canary('blank', value=value)
  example = canary.init(jax.random.key(0), PARAMS).example
  np.testing.assert_array_equal(
    example['features'], np.full(20, value, np.float32)
  )


@pytest.mark.integration
def test_an_adversarial_example_has_a_higher_loss_within_its_ball():
  canary = make_canary('adversarial')
  state, radius = canary.init(jax.random.key(1), PARAMS), 8 / 255
  before = loss(state.example)
  _, new = jax.jit(canary.gradient)(state, PARAMS, jnp.int32(0))
  move = np.abs(new.example['features'] - state.original['features'])
  assert 0 < move.max() <= radius + 1e-6
  assert new.example['features'].min() >= 0
  assert new.example['features'].max() <= 1
  assert new.example['label'] == state.original['label']
  # No random point of the ball, of 50, is as good.
  noise = RNG.uniform(-radius, radius, (50, 20))
  points = jnp.clip(state.original['features'] + noise, 0, 1)
  labels = jnp.full(50, state.original['label'])
  others = TASK.loss(
    PARAMS, {'features': points, 'label': labels}, jax.random.key(0)
  )
  after = loss(new.example)
  assert after > before
  assert after > others.max()


def test_the_mean_gradient_is_the_mean_of_the_gradients():
  gradients = [
    expected_gradient(PARAMS, jax.tree.map(lambda x, i=i: x[i], POOL))
    for i in range(12)
  ]
  mean = input_canaries.mean_gradient(TASK, PARAMS, POOL, jax.random.key(0))
  np.testing.assert_allclose(mean, np.mean(gradients, 0), rtol=1e-4, atol=1e-6)


def cosine(a, b):
  return abs(float(a @ b / jnp.linalg.norm(a) / jnp.linalg.norm(b)))


def check_crafted(task, params, pool, inputs, key):
  """A crafted gradient is nearly orthogonal to the mean, as the model moves."""
  canary = input_canaries.make_crafted_canary(
    task, input_canaries.Pool(pool, inputs, 4)
  )

  def gradient(params, example):
    one = jax.tree.map(lambda x: x[None], example)
    loss = lambda p: task.loss(p, one, jax.random.key(0)).sum()
    return ravel_pytree(jax.grad(loss)(params))[0]

  of_each = jax.jit(jax.vmap(gradient, in_axes=(None, 0)))
  step = jax.jit(canary.gradient)
  state = canary.init(key, params)
  for t in range(3):
    gradients = of_each(params, pool)
    mean = gradients.mean(axis=0)
    typical = np.median([cosine(g, mean) for g in gradients])
    found, state = step(state, params, jnp.int32(t))
    assert cosine(found, mean) < 0.1 * typical
    assert state.example[inputs].min() >= 0
    assert state.example[inputs].max() <= 1
    # The model moves, and the canary with it.
    _, unravel = ravel_pytree(params)
    params = jax.tree.map(lambda p, g: p - 0.3 * g, params, unravel(mean))
  assert step._cache_size() == 1


@pytest.mark.integration
def test_a_crafted_gradient_is_nearly_orthogonal_to_the_mean():
  # An example of the first class; in so small a model those of the others have
  # no orthogonal gradient within [0, 1].
  check_crafted(TASK, PARAMS, POOL, 'features', jax.random.key(3))


def test_crafting_never_makes_a_gradient_less_orthogonal():
  canary = make_canary('crafted')
  step = jax.jit(canary.gradient)
  mean = input_canaries.mean_gradient(TASK, PARAMS, POOL, jax.random.key(0))
  for i in range(8):
    state = canary.init(jax.random.key(i), PARAMS)
    before = cosine(expected_gradient(PARAMS, state.example), mean)
    found, _ = step(state, PARAMS, jnp.int32(0))
    assert cosine(found, mean) < before


@pytest.mark.slow  # python -m pytest tests/papers/tight_auditing/test_input_canaries.py -m slow
def test_images_are_crafted_through_convolutions_and_pools():
  task, key = (
    models.convnet(4, image_shape=(8, 8, 3), width=4),
    jax.random.key(2),
  )
  pixels = RNG.uniform(0, 0.2, (12, 8, 8, 3)) + 0.2 * LABEL[:, None, None, None]
  pool = {'pixels': jnp.float32(pixels), 'label': jnp.int32(LABEL)}
  check_crafted(task, task.init(jax.random.key(0)), pool, 'pixels', key)


def test_an_adversarial_example_follows_the_model():
  canary = make_canary('adversarial')
  state, step = canary.init(jax.random.key(1), PARAMS), jax.jit(canary.gradient)
  inputs = []
  for t, params in enumerate((PARAMS, jax.tree.map(jnp.flip, PARAMS))):
    _, state = step(state, params, jnp.int32(t))
    inputs.append(state.example['features'])
  assert np.any(inputs[0] != inputs[1])


def test_a_wrong_label_needs_two_classes():
  with pytest.raises(ValueError, match='num_classes=1'):
    input_canaries.make_mislabelled_canary(
      TASK, LABELLED._replace(num_classes=1)
    )
