"""The fusion barrier: the same values, by the means that each platform honors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from epe_jax.parallel.sharding import fusion_barrier


def scale(x, barrier=fusion_barrier):
  y = barrier(x[0] <= jnp.inf, lambda: jnp.sin(x) * 2)
  return y.sum() * y


def fused(always, make):
  del always
  return make()


@pytest.mark.parametrize('platform', ['cpu', 'cuda', 'tpu'])
def test_each_platform_gets_the_barrier_that_it_honors(platform):
  traced = jax.jit(scale).trace(jnp.arange(3.0))
  text = traced.lower(lowering_platforms=(platform,)).as_text()
  assert ('optimization_barrier' in text) == (platform != 'cpu')


def test_on_a_cpu_the_barrier_is_a_conditional_that_is_compiled():
  if jax.default_backend() != 'cpu':
    pytest.skip('compiles for the CPU')
  compile_text = lambda f: jax.jit(f).lower(jnp.arange(3.0)).compile().as_text()
  assert ' conditional(' in compile_text(scale)
  # The choice of the platform is not a conditional of its own.
  assert compile_text(scale).count(' conditional(') == 1
  assert ' conditional(' not in compile_text(lambda x: scale(x, fused))


@pytest.mark.integration
def test_values_and_derivatives_are_those_without_it():
  x = jnp.linspace(-1, 1, 6).reshape(2, 3)
  for transform in (lambda f: f, jax.jit):
    for of in (scale, lambda x: jax.grad(lambda x: scale(x).sum())(x)):
      np.testing.assert_allclose(transform(of)(x[0]), of(x[0]), rtol=1e-6)
  plain = lambda x: scale(x, fused)
  both = jax.jit(jax.vmap(scale))(x), jax.vmap(plain)(x)
  np.testing.assert_allclose(*both, rtol=1e-6)
  slope = lambda f: jax.vmap(jax.grad(lambda x: f(x).sum()))(x)
  np.testing.assert_allclose(slope(scale), slope(plain), rtol=1e-6)
