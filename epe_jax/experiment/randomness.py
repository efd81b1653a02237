"""What a run draws from: its seed, or a secret of the operating system.

A simulation is a function of its seed, which everybody may know. A run whose
model will be released draws its noise, and who takes part when, from 256 bits
that nobody knows. Each purpose has a key of its own, from which nothing follows
about the secret or about another key.
"""

import dataclasses
import hmac
import secrets
from typing import Any

import jax
from jax.extend import random as extend
import jax.numpy as jnp
import numpy as np

from epe_jax.types import Array, Key

SECRET_BYTES = 32
"""Length of a secret."""


@dataclasses.dataclass(frozen=True, repr=False)
class Randomness:
  """Where a run draws from; without a repr, for it is what must not be shown.

  Attributes:
    noise: key of the privacy noise of all rounds.
    training: key of the clients, for dropout and the like.
    clients: seed, >= 0, of who takes part when.
    canaries: seed, >= 0, of when canaries do, and of their coins.
    order: seed, >= 0, of the order of a client's examples.
  """

  noise: Key
  training: Key
  clients: int
  canaries: int
  order: int


def draw_secret() -> bytes:
  """A new secret, from the operating system."""
  return secrets.token_bytes(SECRET_BYTES)


def check_secret(secret: bytes, name: str) -> None:
  """Raises a ValueError unless a secret is as long as `draw_secret` makes it."""
  if len(secret) != SECRET_BYTES:
    raise ValueError(
      f'{name} has {len(secret)} bytes and not {SECRET_BYTES}: it is damaged, or '
      'of another version of epe_jax. Restore it, or begin anew in another '
      '--workdir and publish nothing of this one.'
    )


def derive_randomness(secret: bytes) -> Randomness:
  """What follows from a secret; the same for the same one.

  Args:
    secret: 256 bits, as `draw_secret` gives them.

  Raises:
    ValueError: it has another length.
  """
  check_secret(secret, 'the secret')

  def derived(purpose: str, size: int = SECRET_BYTES) -> bytes:
    # HMAC as the pseudorandom function of HKDF-Expand, RFC 5869.
    return hmac.digest(secret, purpose.encode(), 'sha256')[:size]

  def seed(purpose: str) -> int:
    return int.from_bytes(derived(purpose), 'little')

  return Randomness(
    noise=key_128(derived('noise', 16)),
    training=jax.random.wrap_key_data(
      jnp.asarray(np.frombuffer(derived('training', 8), np.uint32)),
      impl='threefry2x32',
    ),
    clients=seed('clients'),
    canaries=seed('canaries'),
    order=seed('order'),
  )


def key_128(data: bytes) -> Key:
  """A JAX key of 128 bits: that of Threefry-2x32 has 64, too few to hide behind.

  Its bits are those of two Threefry keys, added modulo 2: to know them takes
  both. Like the bits of one they follow from the key and the place alone, on any
  number of devices.

  Args:
    data: 16 bytes.
  """
  words = np.frombuffer(data, np.uint32)
  return jax.random.wrap_key_data(jnp.asarray(words), impl=_TWICE)


def _halves(words: Array) -> tuple[Key, Key]:
  first, second = (
    jax.random.wrap_key_data(half, impl='threefry2x32')
    for half in (words[:2], words[2:])
  )
  return first, second


def _joined(first: Key, second: Key) -> Array:
  both = (jax.random.key_data(first), jax.random.key_data(second))
  return jnp.concatenate(both, axis=-1)


def _seed(seed: Array) -> Array:
  first, second = jax.random.split(jax.random.key(seed, impl='threefry2x32'))
  return _joined(first, second)


def _split(words: Array, shape: tuple[int, ...]) -> Array:
  first, second = (jax.random.split(half, shape) for half in _halves(words))
  return _joined(first, second)


def _fold_in(words: Array, number: Any) -> Array:
  first, second = (jax.random.fold_in(half, number) for half in _halves(words))
  return _joined(first, second)


def _bits(words: Array, bit_width: int, shape: tuple[int, ...]) -> Array:
  first, second = (
    jax.random.bits(half, shape, f'uint{bit_width}') for half in _halves(words)
  )
  return first ^ second


_TWICE = extend.define_prng_impl(
  key_shape=(4,),
  seed=_seed,
  split=_split,
  random_bits=_bits,
  fold_in=_fold_in,
  name='threefry2x32_twice',
  tag='twice',
)
