"""Participation of canaries: 0/1 matrices [rounds, canaries], which is all an audit needs.

`epe_jax.sampling` says what the arguments are.
"""

from collections.abc import Sequence
import itertools

from jaxtyping import Bool, Float
import numpy as np

# Share of the sensitivity that rounds of canaries may lack.
_SPARED = 0.01


def once_per_period(
  rng: np.random.Generator, *, rounds: int, num: int, periods: int = 1
) -> Bool[np.ndarray, 'rounds num']:
  """Assigns each canary one round in each of n equal periods.

  Within a period canaries are assigned to rounds in random order and evenly, so
  that the rounds differ by at most one canary.

  Args:
    periods: n, 1 to T. If it does not divide T, periods differ by at most one round.

  References:
    One-shot Empirical Privacy Estimation, section 5.2.

  >>> m = once_per_period(np.random.default_rng(0), rounds=6, num=4, periods=2)
  >>> m[:3].sum(axis=0), m[3:].sum(axis=0)
  (array([1, 1, 1, 1]), array([1, 1, 1, 1]))
  """
  if num < 0:
    raise ValueError(f'num={num} canaries; give num >= 0.')
  if periods < 1:
    raise ValueError(f'periods={periods}; give periods >= 1.')
  if rounds < periods:
    raise ValueError(
      f'rounds={rounds} cannot be cut into periods={periods}: a canary takes '
      f'part once in each. Train for at least {periods} rounds.'
    )
  matrix = np.zeros((rounds, num), bool)
  bounds = np.arange(periods + 1) * rounds // periods
  for start, stop in itertools.pairwise(bounds):
    rows = rng.permutation(stop - start)[np.arange(num) % (stop - start)]
    matrix[start + rng.permutation(rows), np.arange(num)] = True
  return matrix


def worst_case(
  rng: np.random.Generator,
  patterns: Sequence[Sequence[int]],
  sensitivities: Float[np.ndarray, ' n'],
  *,
  rounds: int,
  num: int,
) -> Bool[np.ndarray, 'rounds num']:
  """Assigns each canary a worst-case participation pattern.

  Noise that is correlated over rounds hides some sets of rounds less than others, and
  its ε is that of the worst. Canaries are shared out evenly among the sets whose
  sensitivity is within 1 % of the largest. How many have which set is not random, so
  that shapes which follow from it tell nothing of a secret; rng says which have it.

  Args:
    patterns: sets of rounds that a client may have, one or more.
    sensitivities: of each, as `accounting.matrix_mechanism.measure_patterns` gives them.

  >>> patterns = [(0, 2), (1, 3), (0,)]
  >>> norms = np.sqrt([2, 2, 1])
  >>> m = worst_case(np.random.default_rng(0), patterns, norms, rounds=4, num=2)
  >>> m.sum(axis=0)
  array([2, 2])
  """
  near = np.flatnonzero(sensitivities >= (1 - _SPARED) * sensitivities.max())
  chosen = near[np.arange(num) * len(near) // max(num, 1)]
  matrix = np.zeros((rounds, num), bool)
  for i, p in enumerate(rng.permutation(chosen)):
    matrix[patterns[p], i] = True
  return matrix


def flip_coins(
  rng: np.random.Generator, assigned: Bool[np.ndarray, 'rounds num']
) -> Bool[np.ndarray, 'rounds num']:
  """Includes each canary in its rounds by an independent Bernoulli(1/2).

  Lower bounds from one run need this design: given everything else, the
  inclusion of a canary is Bernoulli(1/2). Rounds are assigned before the coins
  are flipped, so that a coin affects no other canary, and an attacker who knows
  the assigned rounds learns nothing about any coin.

  Args:
    assigned: the rounds of each canary, should it be included.

  Returns:
    The same matrix with the columns of about half of the canaries set to 0.

  References:
    Steinke, Nasr and Jagielski 2023, "Privacy Auditing with One (1) Training
    Run", Algorithm 1.

  >>> rng = np.random.default_rng(5)
  >>> flip_coins(rng, once_per_period(rng, rounds=5, num=6)).sum(axis=0)
  array([1, 1, 1, 0, 0, 1])
  """
  return assigned & (rng.random(assigned.shape[1]) < 0.5)
