"""A JAX key of 128 bits, made of two Threefry keys.

A key of Threefry-2x32 has 64 bits, too few to protect noise. The random
bits of this one are the sums modulo 2 of the bits of two Threefry keys, so that
predicting them takes both. Like the bits of one key they follow from the key
and the position alone, on any number of devices.
"""

from typing import Any

import jax
from jax.extend import random as extend
import jax.numpy as jnp
import numpy as np

from epe_jax.types import Array, Key


def wrap_key(data: bytes) -> Key:
  """Makes a JAX key of 128 bits.

  Args:
    data: 16 bytes, all of whose bits count.
  """
  words = np.frombuffer(data, np.uint32)
  return jax.random.wrap_key_data(jnp.asarray(words), impl=_IMPL)


def _split_words(words: Array) -> tuple[Key, Key]:
  first, second = (
    jax.random.wrap_key_data(half, impl='threefry2x32')
    for half in (words[:2], words[2:])
  )
  return first, second


def _join_keys(first: Key, second: Key) -> Array:
  both = (jax.random.key_data(first), jax.random.key_data(second))
  return jnp.concatenate(both, axis=-1)


def _seed(seed: Array) -> Array:
  first, second = jax.random.split(jax.random.key(seed, impl='threefry2x32'))
  return _join_keys(first, second)


def _split(words: Array, shape: tuple[int, ...]) -> Array:
  first, second = (
    jax.random.split(half, shape) for half in _split_words(words)
  )
  return _join_keys(first, second)


def _fold_in(words: Array, number: Any) -> Array:
  first, second = (
    jax.random.fold_in(half, number) for half in _split_words(words)
  )
  return _join_keys(first, second)


def _bits(words: Array, bit_width: int, shape: tuple[int, ...]) -> Array:
  first, second = (
    jax.random.bits(half, shape, f'uint{bit_width}')
    for half in _split_words(words)
  )
  return first ^ second


_IMPL = extend.define_prng_impl(
  key_shape=(4,),
  seed=_seed,
  split=_split,
  random_bits=_bits,
  fold_in=_fold_in,
  name='threefry2x32_twice',
  tag='twice',
)
