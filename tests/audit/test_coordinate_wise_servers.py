"""Unobserved cosines behind servers that work coordinate by coordinate."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from epe_jax import canaries
from epe_jax.configs import digits
from epe_jax.epsilon import diagnostics
from epe_jax.epsilon.types import Sphere
from epe_jax.experiment.setup import build

_SPARE = 2000
_ROUNDS = 10


def _find_min_noise(name, dim, together):
  sums = {'hadamard': together, 'hadamard2': math.sqrt(together), 'sphere': 0}
  return 4 * sums[name] / math.sqrt(dim)


def null_p_values(name, noises, *, dim, together, server=None):
  """Of the test of Anderson and Darling, for canaries that are in no round.

  Args:
    name: family.
    noises: standard deviations in each coordinate; the clip norm is 1.
    dim: d.
    together: canaries of each round.
    server: of optax, whose change over some rounds is looked at; None: the sign
      of what one round gives.
  """
  rounds = 1 if server is None else _ROUNDS

  @jax.jit
  def cosines(key, noise):
    c = canaries.family(name)(key, rounds * together + _SPARE, dim)

    def aggregate(t):
      normal = jax.random.normal(jax.random.fold_in(key, t), (dim,))
      ids = t * together + jnp.arange(together)
      return c.superpose(ids, jnp.ones(together)) + noise * normal

    def step(carry, t):
      state, model = carry
      change, state = server.update(aggregate(t), state)
      return (state, model + change), None

    if server is None:
      v = jnp.sign(aggregate(0))
    else:
      start = jnp.zeros(dim)
      carry = (server.init(start), start)
      (_, v), _ = jax.lax.scan(step, carry, jnp.arange(rounds))
    return c.project(v)[rounds * together :] / jnp.linalg.norm(v)

  return [
    diagnostics.anderson_darling_null(
      np.asarray(cosines(jax.random.key(0), noise), np.float64),
      null=Sphere(dim),
    ).p_value
    for noise in noises
  ]


@pytest.mark.integration
@pytest.mark.parametrize('together', [1, 3, 10])
@pytest.mark.parametrize('name', ['hadamard', 'hadamard2'])
def test_null_cosines_of_signs_keep_their_law_from_the_least_noise_on(
  name, together
):
  dim = 100_000
  least = _find_min_noise(name, dim, together)
  enough, little, none = null_p_values(
    name, (least, least / 20, 0.0), dim=dim, together=together
  )
  # Were the law to hold, one p-value in 10^4 would be less than that.
  assert enough > 1e-4
  assert little < 1e-4
  assert none < 1e-4


@pytest.mark.integration
@pytest.mark.parametrize('name', ['sphere', 'hadamard', 'hadamard2'])
def test_behind_adam_hadamard_canaries_need_noise_and_those_of_the_sphere_none(
  name,
):
  dim, together = 20_000, 3
  # As in build, but for an ε that leaves all coordinates far above it.
  adam = optax.adam(1.0, b1=0.9, b2=0.99, eps=1e-12)
  least = _find_min_noise(name, dim, together)
  assert (least == 0) == (name == 'sphere')
  enough, none = null_p_values(
    name, (least, 0.0), dim=dim, together=together, server=adam
  )
  assert enough > 1e-4
  assert (none > 1e-4) == (name == 'sphere')


@pytest.mark.parametrize(
  ('family', 'share', 'is_refused'),
  [
    ('hadamard', 0.0, True),
    ('hadamard', 0.99, True),
    ('hadamard', 1.0, False),
    ('hadamard2', 0.99, True),
    ('hadamard2', 1.0, False),
    ('sphere', 0.0, False),
  ],
)
def test_a_run_that_needs_more_noise_for_its_server_is_refused(
  family, share, is_refused
):
  config = digits.get_config('smoke')
  config.model.width = 2
  config.canaries.family = family
  # 20 canaries in 6 rounds: up to 4 in one.
  run = build.build(config)
  assert run.participants.canaries.sum(axis=1).max() == 4
  noise = share * _find_min_noise(family, run.dim, 4)
  config.noise_multiplier = noise
  config.server.update(dict(optimizer='adam', momentum=0.0))
  if not is_refused:
    build.build(config)
    return
  with pytest.raises(ValueError, match=r"Give canaries\.family='sphere'") as e:
    build.build(config)
  assert f'noise_multiplier={noise}' in str(e.value)
