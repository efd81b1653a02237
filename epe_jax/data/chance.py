"""Chance that is the same on every machine, bit for bit.

NumPy keeps the bits of PCG64 for ever, but not what its distributions make of
them, and exp or sin may differ in the last digit between processors. So all
numbers here come from bits by +, -, *, / alone, which IEEE 754 rounds in one
way everywhere.
"""

import numpy as np

from epe_jax import streams


def bits(
  seed: int, purpose: str, place: tuple[int, ...], num: int
) -> np.ndarray:
  """The first bits of a stream of their own, uint64 [num].

  Args:
    seed: as for `streams.sequence`.
    purpose: what the bits are for, likewise.
    place: which of these, likewise.
    num: how many; fewer are the beginning of more.

  Source: O'Neill 2014, PCG; NumPy's SeedSequence.

  >>> some, more = (bits(0, 'docs', (1, 2), n) for n in (2, 3))
  >>> some.tolist() == more[:2].tolist()
  True
  """
  stream = streams.sequence(seed, purpose, *place)
  return np.random.PCG64(stream).random_raw(num)


def uniform(raw: np.ndarray) -> np.ndarray:
  """Numbers in (0, 1), float64, of bits, uint64: 0 and 1 do not occur.

  >>> float(uniform(np.array([1 << 63], np.uint64))[0]) - 0.5 == 2.0**-53
  True
  """
  return ((raw >> 12) + 0.5) * 2.0**-52


def normal(raw: np.ndarray) -> np.ndarray:
  """Nearly normal numbers, float64, mean 0, variance 1, of bits, uint64.

  Each is a sum of four uniform ones, so that none is beyond 3.47, and whoever
  multiplies them knows the range of what comes out.

  >>> float(normal(np.array([0, 2**64 - 1], np.uint64)).sum())
  0.0
  """
  parts = np.ascontiguousarray(raw)[..., None].view(np.uint16)
  total = parts[..., 0].astype(np.int64)
  for i in range(1, 4):
    total += parts[..., i]
  # The variance of 0..n-1 is (n^2 - 1) / 12.
  return (total - 2 * 65535) / np.sqrt((65536**2 - 1) / 3)


def exp(x: np.ndarray) -> np.ndarray:
  """e^x within 1 % for |x| < 4, by ten squarings."""
  y = 1 + x / 1024
  for _ in range(10):
    y = y * y
  return y


def shares(total: int, weights: np.ndarray) -> np.ndarray:
  """Splits a total into positive integers, nearly in proportion to weights.

  Each gets 1, and of the others its share, by largest remainders.

  Args:
    total: what they sum to, len(weights) or more.
    weights: positive integers [n] < 2^31; total * weights is below 2^63.

  Returns:
    int64 [n], which sum to the total.

  >>> shares(10, np.array([1, 1, 4])).tolist()
  [2, 2, 6]
  """
  weights = np.asarray(weights, np.int64)
  spare, whole = total - len(weights), int(weights.sum())
  parts, left = np.divmod(spare * weights, whole)
  # The larger remainder first, and of equal ones the earlier.
  order = np.argsort(-left, kind='stable')
  parts[order[: spare - int(parts.sum())]] += 1
  return parts + 1
