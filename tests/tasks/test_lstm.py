"""The LSTM has the numbers and gradients of Haiku's, alone and vmapped."""

import functools

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from epe_jax.tasks.kernels import lstm

T, E, H = 7, 3, 5


@hk.without_apply_rng
@hk.transform
def oracle(inputs):
  core = hk.LSTM(H)
  state = core.initial_state(inputs.shape[0])
  return hk.dynamic_unroll(core, inputs, state, time_major=False)[0]


def ours(params, inputs):
  linear = params['lstm/linear']
  return lstm(inputs, linear['w'], linear['b'])


def arguments(batch=4, seed=0):
  keys = jax.random.split(jax.random.key(seed), 4)
  inputs = jax.random.normal(keys[0], (batch, T, E))
  params = jax.jit(oracle.init)(keys[1], inputs)
  bias = params['lstm/linear']['b']
  # Away from zero, where a wrong bias would not show.
  params['lstm/linear']['b'] = jax.random.normal(keys[2], bias.shape)
  seed_grad = jax.random.normal(keys[3], (batch, T, H))
  return params, inputs, seed_grad


@functools.partial(jax.jit, static_argnums=0)
def value_and_grads(f, params, inputs, seed_grad):
  out, pull = jax.vjp(f, params, inputs)
  return out, pull(seed_grad)


def assert_close(one, other):
  for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.integration
@pytest.mark.parametrize('batch', [1, 4])
def test_states_and_gradients_are_those_of_haiku(batch):
  args = arguments(batch)
  expected = value_and_grads(oracle.apply, *args)
  assert expected[0].shape == (batch, T, H)
  assert_close(value_and_grads(ours, *args), expected)


@pytest.mark.integration
def test_vmapped_over_clients_it_is_the_loop_over_them():
  clients = [arguments(seed=s) for s in range(3)]
  stacked = jax.tree.map(lambda *x: jnp.stack(x), *clients)
  together = jax.vmap(lambda *a: value_and_grads(ours, *a))(*stacked)
  for i, args in enumerate(clients):
    one = jax.tree.map(lambda x, i=i: x[i], together)
    assert_close(one, value_and_grads(ours, *args))
