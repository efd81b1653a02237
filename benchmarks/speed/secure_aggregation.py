"""What secure aggregation costs the cosine of a canary, and ε, in rings of b bits.

  python -m benchmarks.speed.secure_aggregation

Cosines are those of 100 canaries with their sum and the noise of z = 1, in a ring and
without, in the dimension of the StackOverflow LSTM; ε is of one round at δ = 1e-6.
"""

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks import harness
from epe_jax import accounting
from epe_jax.training import secure_aggregation

_BITS, _DELTA = (8, 12, 16, 20), 1e-6


def measure_cosines(bits: int, dim: int, num: int) -> dict[str, Any]:
  """What is left of the cosine of a canary, and what the grid costs in ε."""
  way = secure_aggregation.plan(
    bits=bits, dim=dim, noise_multiplier=1.0, clients=float(num)
  )
  made = way.make_aggregation(1.0)

  @jax.jit
  def run():
    def add(sums, key):
      canary = jax.random.normal(key, (dim,))
      canary /= jnp.linalg.norm(canary)
      message = made.encode(canary, 1.0, 1.0, key)
      return (sums[0] + canary, sums[1] + message), None

    zero = jnp.zeros(dim), jnp.zeros(way.size, jnp.int32)
    keys = jax.random.split(jax.random.key(0), num)
    (exact, total), _ = jax.lax.scan(add, zero, keys)
    draw = lambda key: made.draw(key, way.size, 1.0)
    key, state = jax.random.key(1), made.init(dim)
    seen, _, wrapped = made.finish(draw, key, total, state)
    noise = made.decode(draw(key), 1.0)
    release = made.decode(seen, 1.0)
    # The mean product of a canary with what rounding adds, and so of its own.
    product = 1 + jnp.vdot(exact, release - exact - noise) / num
    ratio = jnp.linalg.norm(exact + noise) / jnp.linalg.norm(release)
    return product * ratio, wrapped

  kept, wrapped = run()
  return {
    'std': way.ring.std,
    'l2_over_clip': way.ring.l2 * way.granularity,
    'epsilon': accounting.epsilon_of_ring(way.ring, delta=_DELTA).epsilon,
    'epsilon_gaussian': accounting.epsilon_of_releases(
      1.0, delta=_DELTA
    ).epsilon,
    'cosine_lost': 1 - float(kept),
    'wrapped': int(wrapped),
  }


def measure(quick: bool) -> dict:
  dim, num = (5000, 10) if quick else (4_050_748, 100)
  return {'rings': {str(b): measure_cosines(b, dim, num) for b in _BITS}}


if __name__ == '__main__':
  harness.run(measure, 'jax')
