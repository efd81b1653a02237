"""DP-SGD: each law of its step against a derivation or plain NumPy."""

import functools

import jax
from jax.flatten_util import ravel_pytree
import jax.numpy as jnp
import numpy as np
import optax
import pytest

pytest.importorskip('jax_privacy', reason='jax-privacy is not installed')

from epe_jax.dpsgd import dp_sgd
from epe_jax.training import algorithms
from epe_jax.types import Weighted
from tests import helpers

# jax_privacy 2.0 calls what optax 0.2.8 has renamed.
pytestmark = [
  pytest.mark.filterwarnings('ignore:optax.global_norm'),
  pytest.mark.usefixtures('quick_compilation'),
]

TASK = helpers.linear_task()
M = 5.0


def algorithm(task=TASK, **changes):
  settings = dict(
    optimizer=optax.sgd(0.1),
    clip_norm=1e6,
    noise_multiplier=0.0,
    expected_batch=M,
  )
  return dp_sgd.dpsgd(task, **settings | changes)


def make_batch(n=6, padding=2, seed=0):
  """n real examples and padding, which is not finite, among them."""
  rng = np.random.default_rng(seed)
  x = np.full((n + padding, 3), np.nan, np.float32)
  y = np.full(n + padding, np.nan, np.float32)
  mask = np.zeros(n + padding, bool)
  real = np.sort(rng.permutation(n + padding)[:n])
  x[real], y[real] = rng.normal(size=(n, 3)), rng.normal(size=n)
  mask[real] = True
  return dp_sgd.ExampleBatch(
    {'x': jnp.asarray(x), 'y': jnp.asarray(y)}, jnp.asarray(mask)
  )


PARAMS = TASK.init(jax.random.key(0))
BATCH = make_batch()


@functools.cache
def compiled(alg):
  return jax.jit(alg.step)


def one_step(alg, batch=BATCH, injection=None, seed=0, state=None):
  return compiled(alg)(
    alg.init(PARAMS) if state is None else state,
    batch,
    injection or algorithms.no_canaries(),
    *helpers.keys(seed),
  )


def numpy_gradients(params, batch):
  """Of each real example, [n, 4], b before w, in float64."""
  x, y = (np.float64(batch.examples[k])[batch.mask] for k in 'xy')
  error = x @ np.float64(params['w']) + float(params['b']) - y
  return np.concatenate([error[:, None], error[:, None] * x], axis=1)


def test_no_noise_and_no_clip_is_sgd_on_the_batch_mean():
  alg = algorithm(optimizer=optax.sgd(0.1, momentum=0.9))
  state, theta = alg.init(PARAMS), np.float64(ravel_pytree(PARAMS)[0])
  velocity = np.zeros(4)
  for t in range(3):
    batch = make_batch(seed=t)
    now = {'b': theta[0], 'w': theta[1:]}
    velocity = 0.9 * velocity + numpy_gradients(now, batch).sum(axis=0) / M
    theta = theta - 0.1 * velocity
    state, _ = one_step(alg, batch, state=state)
  np.testing.assert_allclose(ravel_pytree(state.params)[0], theta, rtol=1e-5)
  assert int(state.round) == 3


def clipped_sum(gradients, clip_norm):
  total = np.zeros(gradients.shape[1])
  for g in gradients:  # The oracle: one after another.
    total += g * min(1.0, clip_norm / np.linalg.norm(g))
  return total


def test_gradients_are_clipped_one_by_one_before_the_sum():
  gradients = numpy_gradients(PARAMS, BATCH)
  norms = np.linalg.norm(gradients, axis=1)
  clip_norm = float(np.sort(norms)[2:4].mean())  # Three below, three above.
  _, info = one_step(algorithm(clip_norm=clip_norm))
  expected = -clipped_sum(gradients, clip_norm) / M
  np.testing.assert_allclose(info.aggregate, expected, rtol=1e-5)
  np.testing.assert_allclose(info.client_part, expected, rtol=1e-5)
  # Clipping the mean instead is something else.
  mean = gradients.sum(axis=0)
  assert np.linalg.norm(expected * M + mean) > 0.1 * clip_norm
  metrics = {k: float(v) for k, v in info.by_name().items()}
  assert metrics['fraction_unclipped'] == 0.5
  assert metrics['num_clients'] == 6
  assert metrics['update_norm'] == pytest.approx(norms.mean(), rel=1e-5)
  assert metrics['sum_norm'] == pytest.approx(
    M * np.linalg.norm(expected), rel=1e-5
  )


@pytest.mark.parametrize('microbatch', [None, 1, 4])
def test_microbatches_change_nothing(microbatch):
  noisy = TASK._replace(
    loss=lambda p, batch, key: (
      TASK.loss(p, batch, key) * jax.random.uniform(key, batch['y'].shape)
    )
  )
  settings = dict(clip_norm=0.5, noise_multiplier=1.0)
  # All places of the batch at once.
  _, plain = one_step(algorithm(noisy, microbatch=8, **settings))
  _, info = one_step(algorithm(noisy, microbatch=microbatch, **settings))
  np.testing.assert_allclose(info.aggregate, plain.aggregate, rtol=1e-5)
  assert info.metrics.loss == pytest.approx(float(plain.metrics.loss))


@pytest.mark.parametrize(('backend', 'chosen'), [('cpu', 1), ('gpu', 8)])
def test_the_default_is_one_example_on_a_cpu_and_all_elsewhere(
  backend, chosen, monkeypatch
):
  def lower(microbatch):
    sum_gradients = dp_sgd.sum_clipped_gradients(
      TASK, clip_norm=1.0, microbatch=microbatch
    )
    return str(jax.make_jaxpr(sum_gradients)(PARAMS, BATCH, jax.random.key(0)))

  monkeypatch.setattr(jax, 'default_backend', lambda: backend)
  # A batch has 8 places. Of all of them at once there is no loop.
  assert ('while' in lower(None)) == (chosen == 1)
  assert 'while' in lower(1)
  assert 'while' in lower(4)


def test_a_canary_adds_exactly_the_clip_norm_in_its_direction():
  alg = algorithm(clip_norm=0.25, noise_multiplier=0.5)
  direction = jnp.array([0.6, 0.0, -0.8, 0.0])
  state, without = one_step(alg)
  moved, with_it = one_step(alg, injection=helpers.injection(direction, 1))
  np.testing.assert_allclose(
    with_it.aggregate - without.aggregate, 0.25 * direction / M, atol=1e-7
  )
  np.testing.assert_array_equal(with_it.client_part, without.client_part)
  # The model moves towards it, as it does towards the update of an example.
  np.testing.assert_allclose(
    ravel_pytree(moved.params)[0] - ravel_pytree(state.params)[0],
    0.1 * 0.25 * direction / M,
    atol=1e-7,
  )
  assert float(with_it.scalars.num_canaries) == 1
  assert float(with_it.scalars.canary_norm) == pytest.approx(0.25 / M)


def test_one_example_more_moves_the_sum_by_at_most_the_clip_norm():
  clip_norm = 0.3
  alg = algorithm(clip_norm=clip_norm)
  _, info = one_step(alg)
  for place in np.flatnonzero(BATCH.mask):
    fewer = BATCH._replace(mask=BATCH.mask.at[place].set(False))
    _, other = one_step(alg, fewer)
    moved = M * np.linalg.norm(info.aggregate - other.aggregate)
    assert 0 < moved <= clip_norm * (1 + 1e-5)


def still_task(dim):
  return TASK._replace(
    init=lambda key: {'theta': jnp.zeros(dim)},
    loss=lambda params, batch, key: 0 * params['theta'].sum() * batch['y'],
  )


def test_the_noise_has_its_standard_deviation_and_is_new_in_each_step():
  dim, z, clip_norm = 100_000, 0.7, 0.3
  task = still_task(dim)
  alg = algorithm(task, clip_norm=clip_norm, noise_multiplier=z)
  state = alg.init(task.init(None))
  noise = [
    np.asarray(one_step(alg, state=state, seed=seed)[1].aggregate)
    for seed in (0, 10)
  ]
  for x in noise:
    # The sample std has a standard error of 1/√(2d); 5 of them.
    assert x.std() / (z * clip_norm / M) == pytest.approx(
      1, abs=5 / np.sqrt(2 * dim)
    )
    assert abs(x.mean()) < 5 * x.std() / np.sqrt(dim)
  assert abs(np.corrcoef(*noise)[0, 1]) < 5 / np.sqrt(dim)
  _, info = one_step(alg, state=state)
  assert float(info.scalars.noise_std) == pytest.approx(z * clip_norm / M)


def test_gradients_of_augmentations_are_averaged_before_clipping():
  def flip(key, batch):
    signs = jax.random.rademacher(key, batch['y'].shape, jnp.float32)
    return batch | {'x': batch['x'] * signs[:, None]}

  clip_norm = 0.4
  alg = algorithm(clip_norm=clip_norm, augment=flip, augmentations=200)
  _, info = one_step(alg)
  # The mean over signs s of (s x w + b - y) (1, s x) is (b - y, (x w) x).
  x, y = (np.float64(BATCH.examples[k])[BATCH.mask] for k in 'xy')
  w, b = np.float64(PARAMS['w']), float(PARAMS['b'])
  means = np.concatenate([(b - y)[:, None], (x @ w)[:, None] * x], axis=1)
  # Five standard errors of 200 signs, which clipping does not make larger than
  # those of a gradient of norm S: 6 examples, each within 5 S √2 / √200.
  np.testing.assert_allclose(
    -M * np.asarray(info.aggregate),
    clipped_sum(means, clip_norm),
    atol=5 * clip_norm * np.sqrt(2 / 200) * np.sqrt(6),
  )
  once, _ = one_step(
    algorithm(augment=lambda key, batch: batch, augmentations=3)
  )
  plain, _ = one_step(algorithm())
  np.testing.assert_allclose(
    ravel_pytree(once.params)[0], ravel_pytree(plain.params)[0], rtol=1e-5
  )


def test_the_gradient_of_a_weighted_example_is_that_of_its_mean():
  """A sentence of n words counts as one example, whatever n is."""
  heavy = TASK._replace(
    loss=lambda p, batch, key: Weighted(
      7 * TASK.loss(p, batch, key), jnp.full(batch['y'].shape, 7.0)
    )
  )
  _, info = one_step(algorithm(heavy, clip_norm=0.5))
  _, plain = one_step(algorithm(clip_norm=0.5))
  np.testing.assert_allclose(info.aggregate, plain.aggregate, rtol=1e-5)


def test_the_release_of_a_step_is_that_of_the_algorithm_and_clips_its_canary():
  settings = dict(clip_norm=0.25, noise_multiplier=0.5, expected_batch=M)
  release = jax.jit(dp_sgd.noisy_gradient(TASK, **settings))
  _, info = one_step(algorithm(**settings))
  canary = jnp.array([30.0, 0.0, -40.0, 0.0])
  keys = helpers.keys()
  without, with_it, small = (
    release(PARAMS, BATCH, g, jnp.float32(joins), *keys)
    for g, joins in ((canary, 0), (canary, 1), (canary / 1000, 1))
  )
  # Its noise has the same sign in both, which are gradient and update.
  gradients = clipped_sum(numpy_gradients(PARAMS, BATCH), 0.25) / M
  noise = np.asarray(info.aggregate) + gradients
  np.testing.assert_allclose(without, gradients + noise, atol=1e-6)
  np.testing.assert_allclose(
    with_it - without, 0.25 * canary / 50 / M, atol=1e-6
  )
  np.testing.assert_allclose(small - without, canary / 1000 / M, atol=1e-6)


def test_a_batch_without_examples_is_noise_alone():
  empty = BATCH._replace(mask=jnp.zeros_like(BATCH.mask))
  state, info = one_step(algorithm(), empty)
  assert not np.any(info.aggregate)
  np.testing.assert_array_equal(
    ravel_pytree(state.params)[0], ravel_pytree(PARAMS)[0]
  )
  assert float(info.metrics.loss) == 0


def test_it_keeps_the_contract_of_an_algorithm():
  alg = algorithm(optimizer=optax.adam(0.1), noise_multiplier=1.0)
  state = alg.init(PARAMS)
  new, info = one_step(alg)
  same = lambda s: jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), s)
  assert same(new) == same(state)
  assert all(m.shape == () for m in info.by_name().values())
  assert {m.dtype for m in info.by_name().values()} == {jnp.dtype('float32')}


@pytest.mark.parametrize(
  ('changes', 'match'),
  [
    ({'clip_norm': 0.0}, 'clip_norm=0.0'),
    ({'noise_multiplier': -1.0}, 'noise_multiplier=-1.0'),
    ({'expected_batch': 0.0}, 'expected_batch=0.0'),
    ({'augmentations': 4}, 'augment=None'),
    ({'microbatch': 0}, 'microbatch=0'),
  ],
)
def test_settings_out_of_range_are_refused(changes, match):
  with pytest.raises(ValueError, match=match):
    algorithm(**changes)


def test_a_microbatch_that_does_not_divide_the_batch_is_refused():
  with pytest.raises(ValueError, match=r'microbatch=3 does not divide the 8'):
    one_step(algorithm(microbatch=3))
