"""optax.contrib and jax_privacy, in the project's own environment.

jax_privacy may be that of its repository too: see `jax_newest_subjects`.
"""

import functools
import secrets

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.conformance import subject
from epe_jax.conformance import Claim

try:
  from jax_privacy.experimental import execution_plan
except ImportError:
  # Where it is after 2.0.
  from jax_privacy import execution_plan  # pyright: ignore

_IS_NEWER = hasattr(execution_plan, 'BandMFConfig')


class _Transformation:
  """An optax transformation, which keeps its state between rounds."""

  def __init__(self, state, step):
    self._state, self._step = state, step

  def aggregate(self, updates, weights):
    del weights  # Examples have none.
    stacked = [np.stack(tensors) for tensors in zip(*updates)]
    release, self._state = self._step(stacked, self._state)
    return [np.asarray(tensor) for tensor in release]

  def save(self):
    return self._state

  def restore(self, state):
    self._state = state


def _make_key():
  return jax.random.key(secrets.randbits(31))


# Compiled once for each claim, as a fresh mechanism has another key alone.
@functools.lru_cache
def _compile_optax_contrib(claim: Claim):
  aggregate = optax.contrib.differentially_private_aggregate(
    l2_norm_clip=claim.clip_norm,
    noise_multiplier=claim.noise_multiplier,
    key=jax.random.key(0),
  )
  state = aggregate.init([jnp.zeros(shape) for shape in claim.shapes])
  return state, jax.jit(aggregate.update)


def make_optax_contrib(claim: Claim):
  state, step = _compile_optax_contrib(claim)
  return _Transformation(state._replace(rng_key=_make_key()), step)


@functools.lru_cache
def _compile_jax_privacy(claim: Claim):
  settings = {
    'iterations': 10_000,
    'strategy': [1.0],
    'noise_multiplier': claim.noise_multiplier,
    'l2_clip_norm': claim.clip_norm,
    'rescale_to_unit_norm': False,
    'normalize_by': float(claim.num_clients),
  }
  if _IS_NEWER:
    config = execution_plan.BandMFConfig(expected_participations=1, **settings)
    plan = config.make()
  else:
    plan = execution_plan.BandMFExecutionPlanConfig(
      epsilon=None, delta=None, **settings
    ).plan
  # An example whose gradient is itself.
  inner = lambda params, x: sum(jnp.sum(p * y) for p, y in zip(params, x))
  gradient = plan.clipped_grad(inner, batch_argnums=1)
  zeros = [jnp.zeros(shape) for shape in claim.shapes]
  add_noise = plan.noise_addition_transform
  step = jax.jit(
    lambda updates, state: add_noise.update(gradient(zeros, updates), state)
  )
  return add_noise.init(zeros), step


def make_jax_privacy(claim: Claim):
  (key, inner_state), step = _compile_jax_privacy(claim)
  # Of the kind that the plan has.
  fresh = jax.random.key_data(_make_key())
  if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
    fresh = jax.random.wrap_key_data(fresh)
  return _Transformation((fresh, inner_state), step)


SUBJECTS = (
  subject.Subject(
    'differentially_private_aggregate',
    'optax',
    make_optax_contrib,
    Claim(
      clip_norm=1.0,
      noise_multiplier=1.0,
      num_clients=20,
      shapes=subject.SHAPES,
    ),
    'It divides by the number of examples that are there.',
  ),
  subject.Subject(
    f'BandMF{"" if _IS_NEWER else "ExecutionPlan"}Config, one band',
    'jax-privacy',
    make_jax_privacy,
    Claim(
      clip_norm=1.0,
      noise_multiplier=1.0,
      num_clients=20,
      shapes=subject.SHAPES,
    ),
  ),
)
