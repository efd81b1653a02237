"""Which of some sums is that of a release? The attacker of the analytic ε.

  python -m tests.naming_attack exact 1000

Candidates differ by a twentieth of the noise's deviation in all, so that who has
nothing but what noise does not hide is right in 6.8 % (in 1/16 by guessing).
Prints how many each attack has right.
"""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np

from epe_jax.experiment.setup import threefry_seeds
from epe_jax.training import aggregation, clipping, exact_noise

CANDIDATES, DIM, Z, CLIP_NORM = 16, 20_000, 1.0, 0.3
SPREAD, HALF = 512, 2**13


@functools.cache
def normals():
  """All values of `jax.random.normal` in float32 between -1 and 1, in order."""
  low = np.nextafter(np.float32(-1), np.float32(0))
  u = np.arange(2**23, dtype=np.float32) * np.float32(2.0**-22) + low
  values = np.sqrt(np.float32(2)) * np.asarray(jax.lax.erf_inv(jnp.asarray(u)))
  return np.sort(values[np.abs(values) < 1]).astype(np.float64)


def distance_to_normals(residual):
  """From the values of float32 normals, in their spacings: the median."""
  values = normals()

  def of_one(x):
    x = x[np.abs(x) < 0.9]
    above = np.searchsorted(values, x)
    low, high = values[above - 1], values[above]
    return np.median(np.minimum(x - low, high - x) / (high - low))

  return np.array([of_one(x) for x in residual])


def distance_to_steps(residual):
  """From whole steps of the grid of `exact_noise.exact`."""
  steps = residual * exact_noise.STD
  return np.abs(steps - np.rint(steps)).max(axis=-1).round(3)


def low_bits(residual):
  """How unlike the law the last nine bits are, as chi-square of residues."""
  steps = np.rint(residual * exact_noise.STD).astype(int) % 512
  return np.stack(
    [np.square(np.bincount(x, minlength=512)).sum() for x in steps]
  )


def impossible(residual):
  """How many values the noise never has."""
  steps = np.rint(residual * exact_noise.STD)
  return np.sum(np.abs(steps) > exact_noise.MAX, axis=-1)


@functools.cache
def law():
  """-log P of 512 A + B = x, from the table; [x + 512 · 2^14]."""
  p = np.zeros(2 * HALF)
  table = exact_noise.make_table()
  own = (table[:, 0] * 2.0**32 + table[:, 1]) / 2.0**64
  np.add.at(p, np.arange(2 * HALF), own)
  np.add.at(p, table[:, 2], 1 - own)
  p = np.pad(p / (2 * HALF), HALF).reshape(-1, SPREAD)
  # x = 512 q + r is of A = q - i and B = 512 i + r.
  total = np.zeros((4 * HALF, SPREAD))
  for i in range(-16, 16):
    total += np.roll(p.ravel(), i)[:, None] * p[2 * HALF // SPREAD + i]
  with np.errstate(divide='ignore'):
    return -np.log(total).ravel()


def unlikelihood(residual):
  """-log of the probability by the very table: no attack is better."""
  steps = np.rint(residual * exact_noise.STD).astype(int)
  end = 2 * HALF * SPREAD
  return law()[np.clip(steps, -end, end - 1) + end].sum(axis=-1)


def by_norm(residual):
  """-log of the normal density: what the analytic ε allows."""
  return np.square(residual).sum(axis=-1)


ATTACKS = {
  'values of float32 normals': distance_to_normals,
  'whole steps': distance_to_steps,
  'low bits': low_bits,
  'impossible values': impossible,
  'likelihood by the table': unlikelihood,
  'norm': by_norm,
}


def count_hits(make, releases, attacks=ATTACKS):
  """Attack -> in how many releases it names the right candidate."""
  way = make(Z)
  rng = np.random.default_rng(0)
  clip = jax.jit(jax.vmap(lambda x: clipping.clip(x, CLIP_NORM, way)[0]))

  @jax.jit
  def release(total, key):
    clip_norm = jnp.float32(CLIP_NORM)
    return way.decode(total + way.draw(key, DIM, clip_norm), clip_norm)

  hits = dict.fromkeys(attacks, 0)
  for _ in range(releases):
    # A client like all candidates, but for what tells them apart.
    x = rng.standard_normal(DIM)
    moved = rng.standard_normal((CANDIDATES, DIM))
    moved /= np.linalg.norm(moved, axis=1, keepdims=True)
    x = 0.9 * CLIP_NORM * x / np.linalg.norm(x) + 0.05 * Z * CLIP_NORM * moved
    sums = clip(jnp.asarray(x, jnp.float32))
    right = rng.integers(CANDIDATES)
    key = threefry_seeds.wrap_key(rng.bytes(16))
    seen = np.asarray(release(sums[right], key), np.float64)
    known = np.asarray(jax.vmap(lambda s: way.decode(s, CLIP_NORM))(sums))
    residual = (seen - known.astype(np.float64)) / (Z * CLIP_NORM)
    # Ties are broken at random: no attack profits from its order.
    order = rng.permutation(CANDIDATES)
    for name, attack in attacks.items():
      hits[name] += order[np.argmin(attack(residual[order]))] == right
  return hits


if __name__ == '__main__':
  kind, number = sys.argv[1], int(sys.argv[2])
  made = {'float32': aggregation.float32, 'exact': exact_noise.exact(100)}[kind]
  for way, right in count_hits(made, number).items():
    print(f'{kind}: {way}: {right} of {number}')
