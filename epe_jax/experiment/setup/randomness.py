"""The randomness of a run, from its seed or a secret of the operating system.

A simulation is a function of its seed, which is public. A run whose model will be
released draws its noise and its participation from 256 secret bits. Each purpose
has a key of its own, which reveals nothing about the secret or about any other key.
"""

import dataclasses
import functools
import hashlib
import hmac
import secrets

import jax
import jax.numpy as jnp
import numpy as np

from epe_jax import streams
from epe_jax.experiment import workdirs
from epe_jax.experiment.setup import threefry_seeds
from epe_jax.experiment.setup.config import Config
from epe_jax.parallel import hosts
from epe_jax.types import Array, Key

SECRET_BYTES = 32
"""Length of a secret in bytes."""


@dataclasses.dataclass(frozen=True, repr=False)
class Randomness:
  """The keys and seeds of a run. It has no repr, because it must not be shown."""

  noise: Key  # Of the privacy noise of all rounds.
  training: Key  # Of the clients, for dropout and the like.
  clients: int  # Seed of the clients' participation, >= 0.
  # Seed of the canaries' participation and of their coins, >= 0.
  canaries: int
  order: int  # Seed of the order of each client's examples, >= 0.


def make_randomness(config: Config, secret: bytes | None) -> Randomness:
  """Derives the keys and seeds of a run.

  Args:
    secret: 256 bits, as `draw_secret` gives them; None for a simulation, whose keys
      and seeds follow from config.seed.

  Raises:
    ValueError: a simulation has a secret, or another run has none.
  """
  if config.simulation != (secret is None):
    raise ValueError(
      f'simulation={config.simulation}, '
      f'{"without" if secret is None else "with"} a secret; a simulation '
      'draws from its seed and has none, any other run draws from a secret.'
    )
  if secret is not None:
    return derive_randomness(secret)
  return Randomness(
    noise=derive_key(config.seed, 'noise'),
    training=derive_key(config.seed, 'training'),
    clients=config.seed,
    canaries=config.seed,
    order=config.seed,
  )


def derive_key(seed: int, purpose: str) -> Key:
  """Derives the key of one purpose, such as 'noise', from all bits of a seed.

  `jax.random.key` would take the seed modulo 2^32.
  """
  words = streams.sequence(seed, f'{purpose} key').generate_state(2)
  return jax.random.wrap_key_data(jnp.asarray(words), impl='threefry2x32')


def load_or_draw_secret(
  config: Config, files: workdirs.Workdir
) -> bytes | None:
  """Gives the secret of a run: that of its workdir, or a new one if it is new.

  A resumed run repeats rounds, and must repeat them with the same noise: a
  round that is released under two noises is worth two releases. So the first
  process keeps the secret, readable by its owner alone, until the run is
  finished. All processes call this function and get the same bytes.

  Returns:
    The secret; None for a simulation. Nothing is written.

  Raises:
    ValueError: the workdir holds a run whose secret is missing or damaged.
  """
  if config.simulation:
    return None
  words = np.zeros(SECRET_BYTES // 4, np.uint32)
  if hosts.is_primary():
    if files.secret.exists():
      secret = files.secret.read_bytes()
      check_secret(secret, str(files.secret))
    elif not files.config.exists():
      secret = draw_secret()
    else:
      raise ValueError(
        f'{files.secret} is missing, from which the noise of this run follows. '
        'With other noise the rounds that it has made would be released twice. '
        'Restore it, or start again in another --workdir and publish nothing of '
        'this one.'
      )
    words = np.frombuffer(secret, np.uint32)
  return hosts.broadcast_from_primary(words).tobytes()


def draw_secret() -> bytes:
  """Draws a new secret of `SECRET_BYTES` bytes from the operating system."""
  return secrets.token_bytes(SECRET_BYTES)


def check_secret(secret: bytes, name: str) -> None:
  """Refuses a secret that does not have `SECRET_BYTES` bytes."""
  if len(secret) != SECRET_BYTES:
    raise ValueError(
      f'{name} has {len(secret)} bytes and not {SECRET_BYTES}: it is damaged, '
      'or of another version of epe_jax. Restore it, or start again in another '
      '--workdir and publish nothing of this one.'
    )


def fingerprint_secret(secret: bytes) -> str:
  """Computes a digest that identifies a secret and reveals nothing else.

  It is the HMAC of a purpose of its own: it reveals neither the 256 random bits nor
  a key.
  """
  return _derive(secret, 'fingerprint').hex()


@functools.cache
def fingerprint_generators() -> str:
  """Computes a digest of what JAX and NumPy draw here from fixed keys.

  It changes with a setting or a version that gives other bits, but not with the
  device or its rounding.
  """

  def draw(key: Key) -> tuple[Array, Array]:
    first, second = jax.random.split(jax.random.fold_in(key, 3))
    bits = jax.random.bits(first, (64,), jnp.uint32)
    normals = jax.random.normal(second, (64,), jnp.float32)
    return bits, jnp.round(100 * normals)

  # It draws by Threefry, as all other keys of a run do.
  key = threefry_seeds.wrap_key(b'of no secret run')
  rng = streams.host_rng(0, 'fingerprint')
  drawn = [*jax.jit(draw)(key), rng.permutation(64), rng.random(64)]
  numbers = [np.asarray(x, np.float64).tobytes() for x in drawn]
  return hashlib.sha256(b''.join(numbers)).hexdigest()


def derive_randomness(secret: bytes) -> Randomness:
  """Derives keys and seeds from a secret; the same secret gives the same ones.

  Raises:
    ValueError: it does not have 256 bits.

  References:
    HMAC is the pseudorandom function of HKDF-Expand, RFC 5869.
  """
  check_secret(secret, 'the secret')

  def derive_seed(purpose: str) -> int:
    return int.from_bytes(_derive(secret, purpose), 'little')

  return Randomness(
    noise=threefry_seeds.wrap_key(_derive(secret, 'noise')[:16]),
    training=jax.random.wrap_key_data(
      jnp.asarray(np.frombuffer(_derive(secret, 'training')[:8], np.uint32)),
      impl='threefry2x32',
    ),
    clients=derive_seed('clients'),
    canaries=derive_seed('canaries'),
    order=derive_seed('order'),
  )


def _derive(secret: bytes, purpose: str) -> bytes:
  """Derives the 256 bits of one purpose."""
  return hmac.digest(secret, purpose.encode(), 'sha256')
