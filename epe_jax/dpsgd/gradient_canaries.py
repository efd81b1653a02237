"""Canaries of the white-box game: gradients that join a batch of DP-SGD."""

from collections.abc import Callable
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int

from epe_jax.types import Array, Key, Params


class GradientCanary(NamedTuple):
  """A canary of DP-SGD: in each step a gradient, chosen before the noise is.

  Attributes:
    init: (canary key, params) -> state.
    gradient: (state, params, step) -> the unclipped gradient g' [d], float32, and
      the new state. Steps come in order, from 0.
  """

  init: Callable[[Key, Params], Any]
  gradient: Callable[
    [Any, Params, Int[Array, '']], tuple[Float[Array, ' d'], Any]
  ]


class _State(NamedTuple):
  """The canary key, and the gradient drawn from it; None if each step draws one."""

  key: Key
  gradient: Float[Array, ' d'] | None


def _draw_dirac(key: Key, dim: int, norm: float) -> Float[Array, ' d']:
  place = jax.random.randint(key, (), 0, dim)
  return jnp.zeros(dim, jnp.float32).at[place].set(norm)


def _make_constant(key: Key, dim: int, norm: float) -> Float[Array, ' d']:
  del key
  return jnp.full(dim, norm / math.sqrt(dim), jnp.float32)


def _draw_random(key: Key, dim: int, norm: float) -> Float[Array, ' d']:
  x = jax.random.normal(key, (dim,), jnp.float32)
  return x * (norm / jnp.linalg.norm(x))


KINDS: dict[str, Callable[[Key, int, float], Float[Array, ' d']]] = {
  'dirac': _draw_dirac,
  'constant': _make_constant,
  'random': _draw_random,
}
"""The canary gradients of Tight Auditing, appendix C.2: (key, d, norm) -> gradient."""


def make_gradient_canary(
  kind: str, *, norm: float, moving: bool = False
) -> GradientCanary:
  """A canary gradient of a kind of `KINDS`, in d dimensions.

  'dirac' is zero except in one random coordinate; 'constant' has equal
  coordinates; 'random' is uniform on the sphere.

  Args:
    kind: one of `KINDS`.
    norm: |g'|, finite and > 0; at least the clip norm, so that exactly the clip
      norm enters the sum.
    moving: whether each step draws a new one; otherwise all steps have the same.

  Raises:
    ValueError: kind or norm is out of range, or a constant canary is to move.

  References:
    Tight Auditing of Differentially Private Machine Learning, section 5.3 and
    appendix C.2.

  >>> canary = make_gradient_canary('constant', norm=2.0)
  >>> state = canary.init(jax.random.key(0), {'w': jnp.zeros(4)})
  >>> canary.gradient(state, {'w': jnp.zeros(4)}, jnp.int32(0))[0].tolist()
  [1.0, 1.0, 1.0, 1.0]
  """
  if kind not in KINDS:
    raise ValueError(f'kind={kind!r}; give one of {tuple(KINDS)}.')
  if not (norm > 0 and math.isfinite(norm)):
    raise ValueError(f'norm={norm}; give a finite number > 0.')
  if moving and kind == 'constant':
    raise ValueError(
      "kind='constant' has nothing to draw in each step; set moving=False."
    )

  def draw(key: Key, params: Params) -> Float[Array, ' d']:
    dim = sum(leaf.size for leaf in jax.tree.leaves(params))
    return KINDS[kind](key, dim, norm)

  def init(key: Key, params: Params) -> _State:
    # A copy, so that a caller may donate the state and keep the key.
    key = jax.random.clone(key)
    return _State(key, None if moving else draw(key, params))

  def gradient(
    state: _State, params: Params, step: Int[Array, '']
  ) -> tuple[Float[Array, ' d'], _State]:
    if state.gradient is not None:
      return state.gradient, state
    return draw(jax.random.fold_in(state.key, step), params), state

  return GradientCanary(init, gradient)
