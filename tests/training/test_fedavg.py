"""DP-FedAvg: each law of Algorithm 2 against a derivation or plain NumPy."""

import functools

import jax
from jax.flatten_util import ravel_pytree
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from epe_jax.training import algorithms, clipping, fedavg
from tests import helpers

pytestmark = pytest.mark.usefixtures('quick_compilation')

NO_CLIP = clipping.fixed(1e6)


def algorithm(task=None, **changes):
  settings = dict(
    client_opt=optax.sgd(0.1),
    server_opt=optax.sgd(1.0),
    clipping=NO_CLIP,
    noise_multiplier=0.0,
    expected_clients=4.0,
  )
  return fedavg.dp_fedavg(task or helpers.linear_task(), **settings | changes)


@functools.cache
def compiled(alg):
  """The step of an algorithm, traced once for each layout of cohorts."""
  return jax.jit(alg.step)


def one_round(alg, params, cohort, injection=None, seed=0):
  state, info = compiled(alg)(
    alg.init(params),
    cohort,
    injection or algorithms.no_canaries(),
    *helpers.keys(seed),
  )
  return ravel_pytree(state.params)[0], info, state


def numpy_delta(params, xs, ys, *, batch, learning_rate):
  """Client SGD, written as a plain loop in float64."""
  w, b = np.float64(params['w']), float(params['b'])
  for i in range(0, len(ys), batch):
    x, y = xs[i : i + batch], ys[i : i + batch]
    error = x @ w + b - y
    w = w - learning_rate * x.T @ error / len(y)
    b = b - learning_rate * error.mean()
  return np.append(b - float(params['b']), w - np.float64(params['w']))


def test_no_clip_and_no_noise_is_fedavg_as_a_numpy_loop():
  rng = np.random.default_rng(0)
  clients = helpers.random_clients(rng, [5, 2, 9, 4])
  params = helpers.linear_task().init(jax.random.key(0))
  alg = algorithm(server_opt=optax.sgd(0.7, momentum=0.9))
  cohort = helpers.make_cohort(clients, batch=4, chunk=2)
  state = alg.init(params)
  velocity = np.zeros(4)
  expected = np.float64(ravel_pytree(params)[0])
  for _ in range(3):
    now = {'b': expected[0], 'w': expected[1:]}
    mean = np.mean(
      [numpy_delta(now, *c, batch=4, learning_rate=0.1) for c in clients],
      axis=0,
    )
    velocity = 0.9 * velocity + mean
    expected = expected + 0.7 * velocity
    state, _ = compiled(alg)(
      state, cohort, algorithms.no_canaries(), *helpers.keys()
    )
    theta, _ = ravel_pytree(state.params)
    np.testing.assert_allclose(theta, expected, rtol=2e-5, atol=2e-6)


def test_updates_are_clipped_one_by_one_before_the_sum():
  rng = np.random.default_rng(1)
  clients = helpers.random_clients(rng, [5, 2, 9, 4])
  params = helpers.linear_task().init(jax.random.key(0))
  deltas = np.stack(
    [numpy_delta(params, *c, batch=4, learning_rate=0.1) for c in clients]
  )
  norms = np.linalg.norm(deltas, axis=1)
  bound = float(np.sort(norms)[1:3].mean())  # two below, two above
  alg = algorithm(clipping=clipping.fixed(bound))
  _, info, _ = one_round(
    alg, params, helpers.make_cohort(clients, batch=4, chunk=1)
  )
  clipped = deltas * np.minimum(1, bound / norms)[:, None]
  np.testing.assert_allclose(
    info.aggregate, clipped.sum(axis=0) / 4, rtol=1e-4, atol=1e-6
  )
  assert float(info.metrics.fraction_unclipped) == 0.5


@pytest.mark.integration
def test_how_the_cohort_is_laid_out_changes_nothing():
  rng = np.random.default_rng(2)
  clients = helpers.random_clients(rng, [5, 2, 9, 4, 1])
  params = helpers.linear_task().init(jax.random.key(0))
  # A momentum optimizer moves in an empty step; dropout-like noise in the loss
  # would depend on the slot if keys did.
  task = helpers.linear_task()
  noisy = task._replace(
    loss=lambda p, batch, key: (
      task.loss(p, batch, key) * jax.random.uniform(key, batch['y'].shape)
    )
  )
  alg = algorithm(
    noisy,
    client_opt=optax.sgd(0.1, momentum=0.9),
    clipping=clipping.fixed(0.5),
    noise_multiplier=1.0,
  )
  base = dict(batch=4, chunk=1)
  expected, info, _ = one_round(
    alg, params, helpers.make_cohort(clients, **base)
  )
  for name, changed, layout in (
    ('padding', clients, dict(steps=7)),
    ('chunk', clients, dict(chunk=3)),
    ('order', clients[::-1], dict(ids=[4, 3, 2, 1, 0])),
    ('empty slots', clients, dict(slots=8)),
  ):
    theta, other, _ = one_round(
      alg, params, helpers.make_cohort(changed, **base | layout)
    )
    np.testing.assert_allclose(
      theta, expected, rtol=1e-5, atol=1e-6, err_msg=name
    )
    others = other.by_name()
    for metric, value in info.by_name().items():
      np.testing.assert_allclose(
        others[metric],
        value,
        rtol=1e-5,
        atol=1e-6,
        err_msg=name,
      )


@pytest.mark.parametrize('z', [0.3, 2.0])
def test_noise_std_is_clip_norm_times_multiplier_over_clients(z):
  d, bound, m = 20_000, 0.5, 4.0
  task = helpers.linear_task(d - 1)
  clients = [(np.zeros((1, d - 1), np.float32), np.zeros(1, np.float32))]
  params = jax.tree.map(jnp.zeros_like, task.init(jax.random.key(0)))
  alg = algorithm(task, clipping=clipping.fixed(bound), noise_multiplier=z)
  cohort = helpers.make_cohort(clients, batch=1, chunk=1)
  _, info, _ = one_round(alg, params, cohort)
  noise = np.asarray(info.aggregate)
  # The sample std has relative error 1/sqrt(2 d) = 0.5 %; 5 of them.
  assert noise.std() == pytest.approx(z * bound / m, rel=0.025)
  assert abs(noise.mean()) < 5 * z * bound / m / np.sqrt(d)
  assert float(info.scalars.noise_std) == pytest.approx(z * bound / m)
  _, other, _ = one_round(alg, params, cohort, seed=10)
  correlation = np.corrcoef(noise, np.asarray(other.aggregate))[0, 1]
  assert abs(correlation) < 5 / np.sqrt(d)


def test_noise_is_independent_of_the_training_key():
  task = helpers.linear_task()
  params = task.init(jax.random.key(0))
  cohort = helpers.make_cohort(
    helpers.random_clients(np.random.default_rng(0), [3]), batch=4, chunk=1
  )
  alg = algorithm(clipping=clipping.fixed(1.0), noise_multiplier=1.0)
  step = jax.jit(alg.step)
  args = alg.init(params), cohort, algorithms.no_canaries()
  noise_key = jax.random.key(9)
  one, _ = step(*args, jax.random.key(1), noise_key)
  two, _ = step(*args, jax.random.key(2), noise_key)
  three, _ = step(*args, jax.random.key(1), jax.random.key(8))
  np.testing.assert_array_equal(one.params['w'], two.params['w'])
  assert np.all(np.asarray(one.params['w'] != three.params['w']))


def test_canaries_enter_at_the_clip_norm_and_count_as_clients_above_it():
  params = helpers.linear_task().init(jax.random.key(0))
  clients = helpers.random_clients(np.random.default_rng(0), [3, 4])
  cohort = helpers.make_cohort(clients, batch=4, chunk=1)
  bound = 0.25
  adaptive = clipping.adaptive(
    bound, quantile=0.5, learning_rate=0.2, count_noise=0, expected_clients=4
  )
  direction = jnp.array([0.0, 2.0, 0.0, 0.0])
  two = helpers.injection(direction, 2)
  alg = algorithm(clipping=adaptive)
  _, without, _ = one_round(alg, params, cohort)
  _, with_two, state = one_round(alg, params, cohort, two)
  np.testing.assert_allclose(
    with_two.aggregate - without.aggregate, bound * direction / 4, atol=1e-6
  )
  below = float(with_two.metrics.fraction_unclipped) * 2
  b = (below - (2 + 2) / 2) / 4 + 0.5
  assert float(state.clip_state) == pytest.approx(
    bound * np.exp(-0.2 * (b - 0.5)), rel=1e-6
  )


def test_a_canary_is_as_long_as_a_clipped_client_in_every_round():
  d, m = 4, 5.0
  task = helpers.linear_task(d - 1)
  # One client is pulled far along e_0, and clipped to the clip norm; the
  # others never move, so that the clip norm does in every round.
  pull = task._replace(
    loss=lambda p, batch, key: 1e3 * p['b'] * batch['y'] + 0 * p['w'].sum()
  )
  features = np.zeros((1, d - 1), np.float32)
  clients = [(features, np.full(1, y, np.float32)) for y in (-1, 0, 0)]
  alone = helpers.make_cohort(clients, batch=1, chunk=1)
  adaptive = clipping.adaptive(
    0.25, quantile=0.9, learning_rate=1.0, count_noise=0.3, expected_clients=m
  )
  alg = algorithm(
    pull, clipping=adaptive, noise_multiplier=0.1, expected_clients=m
  )
  step, steps = jax.jit(alg.step), []
  state = alg.init(pull.init(jax.random.key(0)))
  e_1 = jnp.eye(d)[1]
  for t in range(5):
    rest = helpers.keys(10 * t)
    # A canary of length 0 is a client who sends nothing: all else is the same.
    _, without = step(state, alone, helpers.injection(jnp.zeros(d), 1), *rest)
    state, with_one = step(state, alone, helpers.injection(e_1, 1), *rest)
    added = np.asarray(with_one.aggregate - without.aggregate) * m
    client = np.asarray(with_one.client_part) * m
    np.testing.assert_allclose(client[1:], 0, atol=1e-6)
    length = float(client[0])
    np.testing.assert_allclose(added, length * e_1, rtol=1e-4, atol=1e-6)
    assert float(with_one.scalars.clip_norm) == pytest.approx(length)
    assert float(with_one.scalars.canary_norm) == pytest.approx(length / m)
    steps.append(length)
  # The clip norm has moved far from the first one, or this would show nothing.
  assert steps[0] == pytest.approx(0.25)
  assert np.abs(np.log(np.array(steps[1:]) / 0.25)).min() > 0.1


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    (dict(noise_multiplier=-1.0), 'noise_multiplier=-1.0'),
    (dict(noise_multiplier=float('inf')), 'noise_multiplier=inf'),
    (dict(expected_clients=0.0), 'expected_clients=0.0'),
  ],
)
def test_settings_out_of_range_are_refused(changes, message):
  with pytest.raises(ValueError, match=message):
    algorithm(**changes)
