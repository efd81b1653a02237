"""Crafting and attacks, at sizes at which gradients can be made whole."""

import functools

import jax
from jax.flatten_util import ravel_pytree
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from epe_jax.training import algorithms, clipping, fedavg
from papers.canife import crafting, training, two_layer
from tests import helpers

P, H, C = 12, 6, 4
SETTINGS = dict(minibatch=8, learning_rate=0.3, clip_norm=1.0, norm_target=1.0)


@functools.cache
def make_problem(num=16):
  task = two_layer.make_task(P, width=H, classes=C)
  params = jax.device_get(jax.jit(task.init)(jax.random.key(0)))
  rng = np.random.default_rng(1)
  labels = rng.integers(C, size=num)
  x = rng.random((num, P), np.float32) + np.eye(P)[2 * labels].astype(
    np.float32
  )
  return task, params, x, labels.astype(np.int32)


def one_hot(labels):
  return np.eye(C, dtype=np.float32)[labels]


@functools.cache
def make_factors(clip_norm=None):
  """Factors of the problem's gradients, clipped if a norm is given."""
  _, params, x, labels = make_problem()

  @jax.jit
  def make(params, x, y):
    factors = two_layer.factor_gradients(params, x, y)
    return factors if clip_norm is None else two_layer.clip(factors, clip_norm)

  return jax.device_get(make(params, x, one_hot(labels)))


def stack(*trees):
  return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


@functools.cache
def whole_gradients():
  task, params, x, labels = make_problem()

  def loss(params, x, y):
    batch = {'x': x[None], 'y': y[None]}
    return task.loss(params, batch, jax.random.key(0))[0]

  @jax.jit
  def gradients(params, x, labels):
    grads = jax.vmap(jax.grad(loss), (None, 0, 0))(params, x, labels)
    return jax.vmap(lambda g: ravel_pytree(g)[0])(grads)

  return jax.device_get(gradients(params, x, labels))


def test_factors_have_the_inner_products_and_norms_of_gradients():
  whole = whole_gradients()
  inner = jax.jit(jax.vmap(two_layer.inner_products, (0, None)))
  norms = jax.jit(two_layer.norms)
  got = inner(make_factors(), make_factors())
  np.testing.assert_allclose(got, whole @ whole.T, rtol=2e-4, atol=1e-5)
  lengths = np.linalg.norm(whole, axis=1)
  np.testing.assert_allclose(norms(make_factors()), lengths, rtol=1e-4)
  clipped = norms(make_factors(0.5))
  np.testing.assert_allclose(clipped, np.minimum(lengths, 0.5), rtol=1e-4)


def test_the_update_of_a_client_is_minus_its_clipped_gradient():
  task, params, x, labels = make_problem()
  algorithm = fedavg.dp_fedavg(
    task,
    client_opt=optax.sgd(1.0),
    server_opt=optax.sgd(0.5),
    clipping=clipping.fixed(0.7),
    noise_multiplier=0.0,
    expected_clients=len(x),
  )
  cohort = training.make_cohort(
    jnp.asarray(x), jnp.asarray(labels), jnp.arange(len(x), dtype=jnp.int32)
  )
  _, made = jax.jit(algorithm.step)(
    algorithm.init(params), cohort, algorithms.no_canaries(), *helpers.keys()
  )
  whole = whole_gradients()
  lengths = np.linalg.norm(whole, axis=1, keepdims=True)
  clipped = whole * np.minimum(1, 0.7 / lengths)
  np.testing.assert_allclose(
    made.client_part, -clipped.mean(axis=0), rtol=1e-3, atol=1e-5
  )


@functools.cache
def make_crafting():
  return jax.jit(functools.partial(crafting.craft, steps=300, **SETTINGS))


@functools.cache
def draw_two():
  draw = functools.partial(crafting.draw_canaries, num=2, inputs=P, classes=C)
  return jax.device_get(jax.jit(draw)(jax.random.key(3)))


@functools.cache
def crafted(shift=0):
  """Two random examples and what becomes of them; the second's pool may be another."""
  params, pool = make_problem()[1], make_factors(1.0)
  other = pool._replace(inputs=np.roll(pool.inputs, shift, axis=1))
  begin = draw_two()
  made, losses = make_crafting()(
    jax.random.key(4), stack(params, params), begin, stack(pool, other)
  )
  return begin, made, losses


@functools.cache
def make_attack(noise_multiplier):
  def score(key, params, canary, x, y, included):
    return crafting.score_rounds(
      key,
      params,
      crafting.factor_canary(params, canary),
      x,
      y,
      included,
      clip_norm=1.0,
      noise_multiplier=noise_multiplier,
    )

  return jax.jit(score)


def score(canary, included, num):
  _, params, x, labels = make_problem()
  rng = np.random.default_rng(5)
  clients = np.stack([rng.choice(len(x), 8, replace=False) for _ in range(num)])
  scores = make_attack(0.05)(
    jax.random.key(6),
    params,
    jax.tree.map(lambda leaf: leaf[0], canary),
    x[clients],
    one_hot(labels)[clients],
    np.full(num, included, np.float32),
  )
  return np.asarray(scores)


def separation(canary):
  """Means apart, in standard deviations of the scores without the canary."""
  excluded = score(canary, 0, 60)
  return (score(canary, 1, 60).mean() - excluded.mean()) / excluded.std()


@pytest.mark.integration
def test_a_crafted_canary_is_told_apart_better_than_the_example_it_began_as():
  begin, made, losses = crafted()
  assert losses.shape == (300, 2)
  assert np.all(losses[-20:].mean(axis=0) < 0.1 * losses[:20].mean(axis=0))
  assert separation(made) > 2 * separation(begin)


@pytest.mark.integration
def test_canaries_of_a_batch_do_not_depend_on_each_other():
  _, made, _ = crafted()
  _, others, _ = crafted(shift=3)
  first, second = ((made.pixels - others.pixels) ** 2).sum(axis=1)
  assert first == 0
  assert second > 1e-3


def test_a_score_is_the_inner_product_with_the_noisy_sum():
  _, params, x, labels = make_problem()
  whole = whole_gradients()
  lengths = np.linalg.norm(whole, axis=1)
  clipped = whole / np.maximum(lengths, 1)[:, None]
  others = clipped @ (whole[3] / lengths[3])
  # A label that is as good as certain.
  canary = crafting.Canary(x[3], 50 * one_hot(labels)[3])
  got = make_attack(0.0)(
    jax.random.key(0),
    params,
    canary,
    np.stack([x, x]),
    np.stack([one_hot(labels)] * 2),
    np.array([0.0, 1.0], np.float32),
  )
  expected = [others.sum(), others[1:].sum() + min(1, lengths[3])]
  np.testing.assert_allclose(got, expected, rtol=1e-3)
