"""Claims, and factories whose noise is the same in every run of the tests."""

import functools

import numpy as np

from epe_jax import conformance
from epe_jax.conformance import Claim

CLAIM = Claim(
  clip_norm=1.0,
  noise_multiplier=1.0,
  num_clients=10,
  shapes=((20, 30), (30,), (30, 10)),
)
# All that differs from the first differs by enough to tell causes apart.
OTHER = Claim(
  clip_norm=0.3,
  noise_multiplier=0.5,
  num_clients=7,
  shapes=((40, 10), (50,), (20,)),
)


def seeded(cls, seed=0):
  """A factory of mechanisms that draw their noise from a stream of seeds."""
  seeds = np.random.default_rng(seed)
  return lambda claim: cls(claim, int(seeds.integers(2**62)))


def check_seeded(cls, claim=CLAIM):
  """The report of a mechanism with the noise of the first seed, made once."""
  return _check(cls, claim)


@functools.cache
def _check(cls, claim):
  return conformance.check(seeded(cls), claim)
