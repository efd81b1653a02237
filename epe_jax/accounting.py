"""The analytic ε of a run, with what it assumes."""

import math
from typing import NamedTuple

import dp_accounting


class Analytic(NamedTuple):
  """An upper bound on ε from the mechanism alone.

  Attributes:
    epsilon: the bound; inf without noise.
    assumes: the attacker and the participation it holds for, in words.
  """

  epsilon: float
  assumes: str


def releases(
  noise_multiplier: float, *, delta: float, participations: int = 1
) -> Analytic:
  """ε of one who takes part n times in rounds with noise z.

  n adaptive releases of the Gaussian mechanism are one with noise z / sqrt(n),
  exactly, so no composition theorem and no numerical convolution is needed.

  Args:
    noise_multiplier: z >= 0.
    delta: in (0, 1).
    participations: n >= 1.

  Raises:
    ValueError: an argument is out of range.

  Source: Balle and Wang 2018; Dong, Roth and Su 2022, corollary 3.3.

  >>> round(releases(4.22, delta=1e-6).epsilon, 2)
  1.0
  """
  if not noise_multiplier >= 0:
    raise ValueError(f'noise_multiplier={noise_multiplier}; give z >= 0.')
  if not 0 < delta < 1:
    raise ValueError(f'delta={delta}; give a delta in (0, 1).')
  if participations < 1:
    raise ValueError(f'participations={participations}; give n >= 1.')
  sigma = noise_multiplier / math.sqrt(participations)
  times = 'one round' if participations == 1 else f'{participations} rounds'
  return Analytic(
    epsilon=float(dp_accounting.get_epsilon_gaussian(sigma, delta)),
    assumes=(
      f'one who takes part in {times}; an attacker who sees every round, knows '
      'which rounds these are and every other update; no amplification by '
      'sampling or shuffling'
    ),
  )
