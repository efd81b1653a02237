"""Clipping: the rule of Andrew et al. 2021, its fixed point and its budget."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from epe_jax import auditor
from epe_jax.training import (
  aggregation,
  clipping,
  exact_noise,
  secure_aggregation,
)
from epe_jax.training.round_scalars import MAX_CLIP_NORM, MIN_CLIP_NORM


def adaptive(**changes):
  settings = dict(
    quantile=0.5, learning_rate=0.2, count_noise=5.0, expected_clients=100.0
  )
  return clipping.adaptive(0.1, **settings | changes)


def test_clip_cuts_to_the_bound_and_leaves_shorter_vectors_alone():
  x = jnp.array([3.0, 4.0])
  cut, norm = clipping.clip(x, jnp.float32(1.0))
  np.testing.assert_allclose(cut, [0.6, 0.8], rtol=1e-6)
  assert float(norm) == 5
  kept, _ = clipping.clip(x, jnp.float32(6.0))
  np.testing.assert_array_equal(kept, x)
  zero, _ = clipping.clip(jnp.zeros(2), jnp.float32(1.0))
  np.testing.assert_array_equal(zero, [0, 0])


@pytest.mark.parametrize('quantile', [0.2, 0.5, 0.8])
@pytest.mark.parametrize('noisy', [False, True])
def test_the_bound_reaches_the_quantile_of_the_norms(quantile, noisy):
  norms = np.exp(np.random.default_rng(0).normal(size=100))
  rule = adaptive(quantile=quantile)

  def step(state, key):
    num_unclipped = jnp.sum(
      jnp.asarray(norms, jnp.float32) <= rule.clip_norm(state)
    )
    state = rule.update(
      key if noisy else None,
      state,
      num_unclipped.astype(jnp.float32),
      jnp.float32(100),
    )
    return state, rule.clip_norm(state)

  keys = jax.random.split(jax.random.key(0), 600)
  _, path = jax.lax.scan(step, rule.init(), keys)
  share = np.mean([(norms <= s).mean() for s in np.asarray(path[200:])])
  # The count moves in steps of 1 %.
  assert share == pytest.approx(quantile, abs=0.015)
  wrong = adaptive(quantile=quantile / 2)
  assert abs(quantile / 2 - share) > 0.05
  assert wrong.vector_noise(1.0) == rule.vector_noise(1.0)


def test_count_noise_has_the_stated_std():
  rule = adaptive(learning_rate=1.0)
  keys = jax.random.split(jax.random.key(0), 20_000)
  update = jax.vmap(
    lambda key: rule.update(
      key, jnp.float32(1), jnp.float32(50), jnp.float32(100)
    )
  )
  # log S = -(b - 1/2) with b - 1/2 = noise / m when half are below.
  noise = -np.log(np.asarray(update(keys))) * 100
  assert noise.std() == pytest.approx(5.0, rel=5 / np.sqrt(2 * 20_000))


@pytest.mark.parametrize('z', [0.05, 0.5, 1.0, 5.0])
def test_sum_and_count_together_cost_what_z_costs(z):
  # Gaussian releases add up in 1 / noise^2; the shifted count has sensitivity
  # 1/2, so its noise multiplier is 2 sigma_b.
  vectors = adaptive().vector_noise(z)
  assert vectors**-2 + (2 * 5.0) ** -2 == pytest.approx(z**-2, rel=1e-12)
  assert vectors > z


def test_without_noise_there_is_none_anywhere():
  rule = adaptive()
  assert rule.vector_noise(0.0) == 0
  same = [
    rule.update(None, rule.init(), jnp.float32(50), jnp.float32(100))
    for _ in range(2)
  ]
  assert float(same[0]) == float(same[1]) == pytest.approx(0.1)


def test_a_count_noise_that_would_take_the_whole_budget_is_refused():
  with pytest.raises(ValueError, match=r'count_noise=0.4 .*noise_multiplier=1'):
    adaptive(count_noise=0.4).vector_noise(1.0)


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    (dict(quantile=0.0), 'quantile=0.0'),
    (dict(quantile=1.0), 'quantile=1.0'),
    (dict(learning_rate=-1.0), 'learning_rate=-1.0'),
    (dict(expected_clients=0.0), 'expected_clients=0.0'),
  ],
)
def test_settings_out_of_range_are_refused(changes, message):
  with pytest.raises(ValueError, match=message):
    adaptive(**changes)


WAYS = {
  'float32': aggregation.float32(1.0),
  'exact': exact_noise.exact(10)(1.0),
  'secure_aggregation': secure_aggregation.plan(
    bits=24, dim=2**16, noise_multiplier=1.0, clients=10
  ).make_aggregation(1.0),
}


@pytest.mark.parametrize('way', WAYS)
@pytest.mark.parametrize('clip_norm', [MIN_CLIP_NORM, 1e-6, 1e6, MAX_CLIP_NORM])
@pytest.mark.parametrize('spread', [1, 2**16])
def test_an_update_of_any_length_is_cut_to_any_valid_clip_norm(
  way, clip_norm, spread
):
  dim = 2**16
  x = np.zeros(dim)
  x[:spread] = np.random.default_rng(0).standard_normal(spread)
  clip = jax.jit(
    lambda x, key: clipping.clip(x, jnp.float32(clip_norm), WAYS[way], key)[0]
  )
  for length in (1.0, 100.0, 1e6, 1e12):
    given = jnp.asarray(x * (length * clip_norm / np.linalg.norm(x)), 'float32')
    sent = WAYS[way].decode(
      clip(given, jax.random.key(0)), jnp.float32(clip_norm)
    )
    sent = np.linalg.norm(np.asarray(sent, np.float64)) / clip_norm
    # A ring has room for what is rounded to the steps of its grid.
    assert sent <= (1.001 if way == 'secure_aggregation' else 1 + 1e-5)
    # Squares of a norm beyond 1.8e19 overflow, and nothing of it is sent.
    assert sent > 0.99 or length * clip_norm > 1e19


@pytest.mark.parametrize(
  'clip_norm', [0.0, -1.0, 1e-19, 1e19, float('inf'), float('nan')]
)
def test_a_clip_norm_whose_square_float32_does_not_hold_is_refused(clip_norm):
  match = r'give a number in \[1e-10, 1e\+18\]'
  refuse = lambda: pytest.raises(ValueError, match=match)
  with refuse():
    clipping.fixed(clip_norm)
  with refuse():
    clipping.adaptive(
      clip_norm,
      quantile=0.5,
      learning_rate=0.2,
      count_noise=5.0,
      expected_clients=10.0,
    )
  with refuse():
    auditor.AuditConfig(dim=10, rounds=1, clip_norm=clip_norm, delta=0.1)


@pytest.mark.parametrize(
  ('num_unclipped', 'end'), [(100, MIN_CLIP_NORM), (0, MAX_CLIP_NORM)]
)
def test_a_clip_norm_that_adapts_for_ever_stays_valid(num_unclipped, end):
  rule = adaptive(learning_rate=2.0)
  state = rule.init()
  for _ in range(100):
    state = rule.update(
      None, state, jnp.float32(num_unclipped), jnp.float32(100)
    )
  assert float(rule.clip_norm(state)) == np.float32(end)
