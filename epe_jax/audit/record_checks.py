"""What is impossible in the numbers of a record, or of an auditor's file."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from epe_jax.audit.record import find_fault_of_strategy, weigh_canaries
from epe_jax.training.round_scalars import (
  CLIP_NORMS,
  MAX_CLIP_NORM,
  MIN_CLIP_NORM,
  RoundScalars,
)

NOISE = '0, or a number from 1e-30 to 1e38'
"""The valid noise multipliers, in words: float32 holds no others."""

COSINES, ROUNDS = 'cosines_', 'rounds_'
"""What names of arrays in a file begin with."""

_MAY_BE_UNKNOWN = tuple(
  f'{ROUNDS}{name}'
  for name in ('noise_std', 'num_clients', 'sum_norm', 'residual_norm')
)

_ROUNDING = 1e-3
_MAX_COSINE = 1.01  # 1, and a margin for rounding.

MAX_DIM = 10**15
"""Larger dimensions are of no model."""


def find_fault(fields: Mapping[str, Any]) -> str | None:
  """Says what is impossible in the fields of a record; None if nothing is."""
  if fields['included'].ndim != 2:
    return f'included has shape {fields["included"].shape}'
  rounds, num = fields['included'].shape
  shaped = {
    f'rounds_{name}': (x, [(rounds,)])
    for name, x in fields['rounds']._asdict().items()
  }
  shaped |= {
    f'cosines_{name}': (x, [(num,), (rounds, num)])
    for name, x in fields['cosines'].items()
  }
  shaped['assigned'] = fields['assigned'], [(rounds, num)]
  if fields['weight'] is not None:
    shaped['weight'] = fields['weight'], [(num,)]
  for name, (array, shapes) in shaped.items():
    if fault := find_fault_of_array(name, array, shapes):
      return fault
  strategy = fields['strategy']
  if strategy is not None and (
    fault := find_fault_of_strategy(strategy, rounds)
  ):
    return fault
  needed = {
    'residual_norm': 'residual' in fields['cosines'],
    'noise_std': fields['noise_multiplier'] is not None,
  }
  for name, is_needed in needed.items():
    if is_needed and np.isnan(getattr(fields['rounds'], name)).any():
      return f'{ROUNDS}{name} has numbers that are not finite'
  ranges = {
    'dim': lambda x: 2 <= x <= MAX_DIM,
    'delta': lambda x: 0 < x < 1,
    'design': lambda x: x in ('fixed', 'coin_flip'),
    'momentum': lambda x: x is None or 0 <= x < 1,
    'noise_multiplier': lambda x: x is None or is_noise_multiplier(x),
    'periods': lambda x: x is None or 1 <= x <= rounds,
    'planned': lambda x: x is None or 0 <= x <= rounds * num,
    'ring': lambda x: x is None or (min(x[:3]) > 0 and min(x[3:]) >= 0),
  }
  for name, is_valid in ranges.items():
    if not is_valid(fields[name]):
      return f'{name}={fields[name]!r} is out of range'
  is_whole, momentum = fields['is_whole'], fields['momentum']
  if fault := find_fault_of_rounds(
    fields['rounds'], fields['noise_multiplier'], fields['dim']
  ):
    return fault
  if is_whole and momentum is not None:
    weight = weigh_canaries(momentum, fields['rounds'], fields['assigned'])
    if fields['weight'] is None or not np.allclose(
      fields['weight'], weight, rtol=_ROUNDING, atol=0
    ):
      return 'weight is not what momentum keeps of rounds_canary_norm'
  return None


def find_fault_of_rounds(
  rounds: RoundScalars, noise_multiplier: float | None, dim: int
) -> str | None:
  """Says what in the numbers of rounds contradicts the rest; None if nothing does.

  Args:
    rounds: numbers that `find_fault_of_array` finds possible, of rounds that were made.
    noise_multiplier: z of the run, or None.
    dim: d.
  """
  # Up to rounding to float32.
  low, high = (1 - _ROUNDING) * MIN_CLIP_NORM, (1 + _ROUNDING) * MAX_CLIP_NORM
  if not np.all((rounds.clip_norm >= low) & (rounds.clip_norm <= high)):
    return f'{ROUNDS}clip_norm has numbers that are not in {CLIP_NORMS}'
  canary_norm = np.asarray(rounds.canary_norm, np.float64)
  if not np.all(canary_norm > 0):
    return f'{ROUNDS}canary_norm has numbers that are not > 0'
  dimensions = np.asarray(rounds.effective_dimension)
  if np.any(dimensions > 1.01 * dim):
    return f'{ROUNDS}effective_dimension has numbers > dim={dim}'
  if noise_multiplier is None or not canary_norm.size:
    return None
  z = np.asarray(rounds.noise_std, np.float64) / canary_norm
  # Where the clip norm adapts its noise takes a share, and that of updates is larger.
  adapts = canary_norm.size == 1 or np.ptp(rounds.clip_norm) > 0
  claimed = max(z.max(), noise_multiplier) if adapts else noise_multiplier
  if not np.allclose(z, claimed, rtol=_ROUNDING, atol=0):
    return (
      f'{ROUNDS}noise_std is not noise_multiplier={noise_multiplier:.6g} times '
      f'{ROUNDS}canary_norm'
    )
  return None


def find_fault_of_array(
  name: str, array: np.ndarray, shapes: Sequence[tuple[int, ...]]
) -> str | None:
  """Says what is impossible in an array of a file; None if nothing is.

  Args:
    name: name of the array in the file: cosines_..., rounds_..., or another.
    array: the array.
    shapes: the shapes that are valid.
  """
  if array.shape not in shapes:
    return (
      f'{name} has shape {array.shape}, and not {" or ".join(map(str, shapes))}'
    )
  if array.dtype.kind not in 'biuf':
    return f'{name} has no numbers, but {array.dtype}'
  of_rounds = name.startswith(ROUNDS)
  # Norms of models that have not diverged, and cosines with them. What a loop does
  # not know it knows of no round.
  is_nan = np.isnan(array)
  if name in _MAY_BE_UNKNOWN and is_nan.all():
    array = array[~is_nan]
  if not np.all(np.isfinite(array)):
    return f'{name} has numbers that are not finite'
  if of_rounds and np.any(array < 0):
    return f'{name} has numbers < 0'
  if name.startswith(COSINES) and np.any(np.abs(array) > _MAX_COSINE):
    return f'{name} has numbers that are no cosines'
  return None


def is_noise_multiplier(z: Any) -> bool:
  """Whether z is a valid noise multiplier, see `NOISE`."""
  return bool(z == 0 or 1e-30 <= z <= 1e38)
