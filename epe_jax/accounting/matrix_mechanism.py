"""Noise that is correlated over rounds: how far one participant moves all of it.

A matrix mechanism releases the rounds G + B Z of a run, with Z independent and
B C = I, or the prefix sums of such rounds. It is post-processing of C G + Z, so
that a participant of the rounds p, who sends vectors of at most norm S, is hidden
as by a Gaussian mechanism with |C p| S/σ. A participant with the largest |C p| of
all that the participation allows has the sensitivity of the mechanism.
"""

from collections.abc import Sequence
import math
from typing import NamedTuple

from jaxtyping import Bool, Float, Int
import numpy as np

from epe_jax.accounting import nested_sums
from epe_jax.accounting.analytic import Analytic
from epe_jax.epsilon import checks, tradeoff
from epe_jax.epsilon.checks import check_delta
from epe_jax.fact import Fact


class ParticipationSchema(NamedTuple):
  """The rounds that a participant may have.

  Attributes:
    min_separation: b >= 1, the least distance between two of them.
    max_participations: k >= 1, the largest number of them; None for no limit.
    is_fixed: they come back after b rounds, no sooner and no later, as in epochs of
      one order.
    in_blocks: b is not a distance: each is in another block of b rounds, as in epochs
      that are shuffled each.
  """

  min_separation: int = 1
  max_participations: int | None = None
  is_fixed: bool = False
  in_blocks: bool = False

  def find_places(self, rounds: int) -> tuple[Int[np.ndarray, ' T'], int]:
    """Places of rounds, and by how much those of two of a participant differ."""
    t, b = np.arange(rounds), self.min_separation
    return (t // b, 1) if self.in_blocks else (t, b)


class Sensitivity(NamedTuple):
  """How far one participant moves C G, in clip norms.

  Attributes:
    bound: no participant moves it further.
    pattern: rounds of one who moves it just as far, or nearly, [T].
    norm: how far that one does, <= bound.
  """

  bound: float
  pattern: Bool[np.ndarray, ' T']
  norm: float


def find_sensitivity(
  strategy: Float[np.ndarray, '*n'], schema: ParticipationSchema
) -> Sensitivity:
  """Finds the sensitivity of a strategy matrix, and a participant who has it.

  It is exact for rounds that come back after b; for Toeplitz matrices with falling
  coefficients, and rounds at least b apart; for nested sums of rounds, as of a tree;
  and where columns of C overlap only with those of the next participation, as of
  up to 2 b bands. Otherwise it is a bound, in tests at most 16 % above the norm of
  the pattern: no round adds more to |C p|² than its largest products with rounds
  that a participant may have.

  Args:
    strategy: C, a column for each round.
    schema: of its participants.

  Raises:
    ValueError: an argument is out of range, or two columns of C have a negative
      product, so that a participant who changes sign moves more.

  References:
    Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization", algorithms
    2 to 4; Choquette-Choo et al. 2023, "Multi-Epoch Matrix Factorization Mechanisms";
    Kalinin and Lampert 2024, "Banded Square Root Matrix Factorization", theorem 2.

  >>> find_sensitivity(np.eye(5), ParticipationSchema(2)).pattern.astype(int)
  array([1, 0, 1, 0, 1])
  """
  c = checks.check_numbers('strategy', strategy, '[-1e100, 1e100]')
  if c.ndim != 2 or not c.size:
    raise ValueError(
      f'strategy has shape {c.shape}; give a finite matrix with a column for each '
      'round.'
    )
  checks.check_integer('min_separation', schema.min_separation)
  if schema.max_participations is not None:
    checks.check_integer('max_participations', schema.max_participations)
  gram = c.T @ c
  if gram.min() < -1e-9 * gram.max():
    raise ValueError(
      'strategy has columns with a negative product; give C and not its inverse.'
    )
  rounds = c.shape[1]
  places, step = schema.find_places(rounds)
  k = min(schema.max_participations or rounds, 1 + int(places[-1]) // step)
  bound, starts = None, list_starts(rounds, schema)
  if k == rounds:
    pattern = np.ones(rounds, bool)
  elif schema.is_fixed:
    pattern = max(starts, key=lambda p: _measure(gram, p))
  elif not schema.in_blocks and _is_falling_toeplitz(c):
    pattern = starts[0]
  elif (rows := nested_sums.find_rows(c)) is not None:
    pattern = nested_sums.find_worst(rows, places, step, k)
  else:
    # The number of rounds before each that are far enough from it.
    allowed = np.searchsorted(places, places - step, side='right')
    linked = _link(gram, allowed, k)
    pattern = max((linked, *starts), key=lambda p: _measure(gram, p))
    # Of three participations, the first and the last.
    twice = np.append(0, allowed)[allowed]
    far = [gram[: twice[t], t].max(initial=0) for t in range(rounds)]
    if k > 2 and max(far) > 1e-12 * gram.max():
      added = _sum_largest(gram, allowed, k)
      bound = math.sqrt(_sum_largest(added[None], allowed, k)[0])
  norm = _measure(gram, pattern)
  return Sensitivity(norm if bound is None else max(norm, bound), pattern, norm)


def list_starts(
  rounds: int, schema: ParticipationSchema
) -> Bool[np.ndarray, 'n T']:
  """The rounds of those who come back after b rounds as often as they may."""
  b, k = schema.min_separation, schema.max_participations or rounds
  t = np.arange(rounds)
  after = t - t[:, None]
  starts = (after >= 0) & (after % b == 0) & (after < k * b)
  return starts[(t < b) | (starts.sum(axis=1) == k)]


def list_moved(
  pattern: Bool[np.ndarray, ' T'], schema: ParticipationSchema
) -> list[list[int]]:
  """Rounds with the distances of a pattern, wherever a participant may have them."""
  rounds = len(pattern)
  if schema.is_fixed:
    return [np.flatnonzero(p).tolist() for p in list_starts(rounds, schema)]
  places, step = schema.find_places(rounds)
  used = np.flatnonzero(pattern)
  moved = [used - used[0] + i for i in range(rounds - np.ptp(used))]
  return [x.tolist() for x in moved if np.all(np.diff(places[x]) >= step)]


def measure_patterns(
  strategy: Float[np.ndarray, 'n T'], patterns: Sequence[Sequence[int]]
) -> Float[np.ndarray, ' patterns']:
  """|C p| of each set of rounds p, in clip norms."""
  gram = np.asarray(strategy).T @ strategy
  return np.sqrt([gram[np.ix_(p, p)].sum() for p in patterns])


def whiten(noising: Float[np.ndarray, 'T n']) -> Float[np.ndarray, 'T T']:
  """The square strategy of an attacker who sees rounds with the noise B Z.

  It is L⁻¹ where B Bᵀ = L Lᵀ, lower triangular with a positive diagonal: what L⁻¹
  makes of the releases has independent noise, and all of their information.

  Args:
    noising: B, of rank T.

  Raises:
    ValueError: noising has another rank, so that some sum of rounds has no noise.
  """
  b = checks.check_numbers('noising', noising, '[-1e100, 1e100]')
  lower = np.zeros((1, 1))
  if b.ndim == 2 and b.size:
    lower = np.asarray(np.linalg.qr(b.T, mode='r')).T
  diagonal = np.abs(np.diagonal(lower))
  if len(lower) != lower.shape[1] or diagonal.min() <= 1e-12 * diagonal.max():
    raise ValueError(
      f'noising has shape {b.shape}; give finite numbers, and a row of its own noise '
      'for each round.'
    )
  lower = lower * np.sign(np.diagonal(lower))
  return np.tril(np.linalg.inv(lower))


def epsilon_of_matrix_mechanism(
  noise_multiplier: float, sensitivity: float, *, delta: float
) -> Analytic:
  """Computes ε of the participant who moves C G furthest.

  Args:
    sensitivity: in clip norms, > 0, as `Sensitivity.bound`.

  Returns:
    ε, whose assumptions have ρ = μ²/2 of zero-concentrated DP, by which deployed
    models are stated.

  References:
    Dong, Roth and Su 2022; Bun and Steinke 2016, proposition 1.6.

  >>> round(epsilon_of_matrix_mechanism(8.44, 2.0, delta=1e-6).epsilon, 2)
  1.0
  """
  checks.check_number('noise_multiplier', noise_multiplier, '[0, inf)')
  checks.check_number('sensitivity', sensitivity, '(0, inf)')
  check_delta(delta)
  mu = sensitivity / noise_multiplier if noise_multiplier else math.inf
  return Analytic(
    epsilon=float(tradeoff.epsilon_gdp(mu, delta)),
    assumes=(
      Fact('sensitivity', {'clip_norms': sensitivity, 'rho': mu * mu / 2}),
      Fact('known_rounds'),
      Fact('no_amplification'),
    ),
    is_gaussian=True,
  )


def _measure(gram: Float[np.ndarray, 'T T'], pattern: np.ndarray) -> float:
  return math.sqrt(float(gram[np.ix_(pattern, pattern)].sum()))


def _is_falling_toeplitz(c: Float[np.ndarray, 'n T']) -> bool:
  if c.shape[0] != c.shape[1]:
    return False
  first = c[:, 0]
  if np.any(np.diff(first) > 0) or first[-1] < 0:
    return False
  same = np.allclose(c[1:, 1:], c[:-1, :-1], rtol=1e-9, atol=1e-12)
  return bool(same and not np.any(np.triu(c, 1)))


def _link(
  gram: Float[np.ndarray, 'T T'], allowed: Int[np.ndarray, ' T'], k: int
) -> Bool[np.ndarray, ' T']:
  """Up to k rounds that move most, if only neighbors among them overlap."""
  rounds = len(gram)
  # By the number of participations up to a round of them, less one.
  largest = np.full((k, rounds), -np.inf)
  before = np.full((k, rounds), -1)
  for t in range(rounds):
    largest[0, t] = gram[t, t]
    if allowed[t]:
      sums = largest[:-1, : allowed[t]] + 2 * gram[: allowed[t], t]
      before[1:, t] = sums.argmax(axis=1)
      largest[1:, t] = gram[t, t] + sums.max(axis=1)
  n, t = np.unravel_index(largest.argmax(), largest.shape)
  pattern = np.zeros(rounds, bool)
  while t >= 0:
    pattern[t] = True
    n, t = n - 1, before[n, t]
  return pattern


def _sum_largest(
  values: Float[np.ndarray, 'rows T'], allowed: Int[np.ndarray, ' T'], k: int
) -> Float[np.ndarray, ' rows']:
  """The largest sum of up to k values of each row that one participant may have."""
  sums = np.zeros((values.shape[1] + 1, len(values)))
  for _ in range(k):
    added = sums[allowed] + np.maximum(values.T, 0)
    sums[1:] = np.maximum.accumulate(added, axis=0)
  return sums[-1]
