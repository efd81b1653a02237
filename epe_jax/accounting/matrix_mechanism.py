"""Noise that is correlated over rounds: how far one participant moves all of it.

A matrix mechanism releases the rounds G + B Z of a run, with Z independent and
B C = I, or the prefix sums of such rounds. It is post-processing of C G + Z, so
that a participant of the rounds p, who sends vectors of at most norm S, is hidden
as by a Gaussian mechanism with |C p| S/σ. A participant with the largest |C p| of
all that the participation allows has the sensitivity of the mechanism.
"""

from collections.abc import Sequence
import itertools
import math
from typing import NamedTuple

from jaxtyping import Bool, Float
import numpy as np

from epe_jax.accounting.analytic import Analytic
from epe_jax.epsilon import arguments
from epe_jax.epsilon.trade_offs import tradeoff_curves
from epe_jax.epsilon.types import check_delta
from epe_jax.fact import Fact

# First rounds from which a climb begins.
_STARTS = 64


class ParticipationSchema(NamedTuple):
  """The rounds that a participant may have.

  Attributes:
    min_separation: b >= 1, the least distance between two of them.
    max_participations: k >= 1, the largest number of them; None for no limit.
    is_fixed: they come back after b rounds, no sooner and no later, as in epochs of
      one order.
  """

  min_separation: int = 1
  max_participations: int | None = None
  is_fixed: bool = False


class Sensitivity(NamedTuple):
  """How far one participant moves C G, in clip norms.

  Attributes:
    bound: no participant moves it further.
    pattern: rounds of one who moves it nearly as far, or just as far, [T].
    norm: how far that one does, <= bound. They are equal for a banded C whose bands
      are no more than the separation, and for Toeplitz matrices with falling
      coefficients.
  """

  bound: float
  pattern: Bool[np.ndarray, ' T']
  norm: float


def find_sensitivity(
  strategy: Float[np.ndarray, '*n'], schema: ParticipationSchema
) -> Sensitivity:
  """Finds the sensitivity of a strategy matrix, and a participant who has it.

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
  c = np.asarray(strategy, np.float64)
  if c.ndim != 2 or not c.size or not np.isfinite(c).all():
    raise ValueError(
      f'strategy has shape {c.shape}; give a finite matrix with a column for each '
      'round.'
    )
  arguments.check_integer('min_separation', schema.min_separation)
  if schema.max_participations is not None:
    arguments.check_integer('max_participations', schema.max_participations)
  rounds, b = c.shape[1], schema.min_separation
  k = min(schema.max_participations or rounds, -(-rounds // b))
  gram = c.T @ c
  if gram.min() < -1e-9 * gram.max():
    raise ValueError(
      'strategy has columns with a negative product; give C and not its inverse.'
    )
  t = np.arange(rounds)
  starts = [
    (t >= i) & ((t - i) % b == 0) & (t - i < k * b) for i in range(rounds)
  ]
  if schema.is_fixed:
    pattern = max(starts, key=lambda p: _measure(gram, p))
    norm = _measure(gram, pattern)
    return Sensitivity(norm, pattern, norm)
  norms = np.diagonal(gram)
  lags = np.abs(np.subtract.outer(np.arange(rounds), np.arange(rounds)))
  far = gram[lags >= b]
  if k == 1 or not far.size or far.max() <= 1e-12 * gram.max():
    pattern = _choose_largest(norms, b, k)
    norm = _measure(gram, pattern)
    return Sensitivity(norm, pattern, norm)
  if _is_falling_toeplitz(c):
    norm = _measure(gram, starts[0])
    return Sensitivity(norm, starts[0], norm)
  climbed = max(
    (_climb(gram, start, b, k) for start in starts[:_STARTS]),
    key=lambda p: _measure(gram, p),
  )
  parts = _find_parts(gram)
  # No climb leads from one part to another.
  none = np.zeros(rounds, bool)
  pattern = max(
    (_swap(gram, p, b, k) for p in (climbed, _start_parts(parts, b, k), none)),
    key=lambda p: _measure(gram, p),
  )
  norm = _measure(gram, pattern)
  bound = _bound_parts(c, gram, parts, b, k)
  return Sensitivity(max(norm, bound), pattern, norm)


def whiten(noising: Float[np.ndarray, 'T n']) -> Float[np.ndarray, 'T T']:
  """The square strategy of an attacker who sees rounds with the noise B Z.

  It is L⁻¹ where B Bᵀ = L Lᵀ: what L⁻¹ makes of the releases has independent noise, and
  all of their information. It is B⁻¹ of a lower triangular B with a positive diagonal.

  Args:
    noising: B, of rank T.

  Returns:
    Lower triangular, with a positive diagonal.

  Raises:
    ValueError: noising has another rank, so that some sum of rounds has no noise.
  """
  b = np.asarray(noising, np.float64)
  lower = np.zeros((1, 1))
  if b.ndim == 2 and np.isfinite(b).all():
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
    noise_multiplier: z >= 0, the standard deviation of Z in clip norms.
    sensitivity: in clip norms, > 0, as `Sensitivity.bound`.
    delta: δ in (0, 1).

  Returns:
    Beside ε its assumptions have ρ = μ²/2 of zero-concentrated DP, by which deployed
    models are stated.

  References:
    Dong, Roth and Su 2022; Bun and Steinke 2016, proposition 1.6.

  >>> round(epsilon_of_matrix_mechanism(8.44, 2.0, delta=1e-6).epsilon, 2)
  1.0
  """
  arguments.check_number('noise_multiplier', noise_multiplier, '[0, inf)')
  arguments.check_number('sensitivity', sensitivity, '(0, inf)')
  check_delta(delta)
  mu = sensitivity / noise_multiplier if noise_multiplier else math.inf
  return Analytic(
    epsilon=float(tradeoff_curves.epsilon_gdp(mu, delta)),
    assumes=(
      Fact('sensitivity', {'clip_norms': sensitivity, 'rho': mu**2 / 2}),
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


def _add_one(
  values: Float[np.ndarray, 'rows T'],
  sums: Float[np.ndarray, 'T1 rows'],
  b: int,
) -> Float[np.ndarray, 'T1 rows']:
  """Largest sums up to each round, of one value more, b rounds after the others."""
  rounds = values.shape[1]
  before = sums[np.maximum(np.arange(rounds) + 1 - b, 0)]
  added = before + np.maximum(values.T, 0)
  return np.maximum.accumulate(np.vstack([sums[:1], added]), axis=0)


def _sum_largest(
  values: Float[np.ndarray, 'rows T'], b: int, k: int
) -> Float[np.ndarray, 'k1 rows']:
  """Largest sums of up to 0, 1, ... k values of each row that are b rounds apart."""
  if b == 1:
    falling = -np.sort(-np.maximum(values, 0), axis=1)[:, :k].T
    return np.cumsum(np.vstack([np.zeros((1, len(values))), falling]), axis=0)
  sums = np.zeros((values.shape[1] + 1, len(values)))
  largest = [sums[-1]]
  for _ in range(k):
    sums = _add_one(values, sums, b)
    largest.append(sums[-1])
  return np.array(largest)


def _find_parts(gram: Float[np.ndarray, 'T T']) -> list[slice]:
  """Finds parts of rounds that share no noise, as after a restart."""
  is_shared = gram > 1e-12 * gram.max()
  reach = np.maximum.accumulate(
    [np.flatnonzero(row).max(initial=0) for row in is_shared]
  )
  ends = [0, *(np.flatnonzero(reach <= np.arange(len(gram))) + 1)]
  return [slice(i, j) for i, j in itertools.pairwise(ends)]


def _start_parts(
  parts: Sequence[slice], b: int, k: int
) -> Bool[np.ndarray, ' T']:
  """The first rounds of parts and those that leave room for the next part's first."""
  rounds = parts[-1].stop
  chosen: list[int] = []
  for part in parts:
    for t in range(part.start, part.stop, b):
      is_free = not chosen or t - chosen[-1] >= b
      leaves_room = part.stop == rounds or t + b <= part.stop
      if is_free and (leaves_room or t == part.start):
        chosen.append(t)
  return np.isin(np.arange(rounds), chosen[:k])


def _bound_parts(
  c: Float[np.ndarray, 'n T'],
  gram: Float[np.ndarray, 'T T'],
  parts: Sequence[slice],
  b: int,
  k: int,
) -> float:
  """Bounds |C p|, as if rounds of two parts need not be apart."""
  known: dict[bytes, Float[np.ndarray, ' j1']] = {}
  largest = np.zeros(k + 1)
  for part in parts:
    gram_of_part = gram[part, part]
    key = gram_of_part.tobytes()
    if key not in known:
      known[key] = _bound_squares(c[part, part], gram_of_part, b, k)
    sums = [
      np.pad(largest[: k + 1 - n] + square, (n, 0))
      for n, square in enumerate(known[key])
    ]
    largest = np.max(sums, axis=0)
  return math.sqrt(largest[-1])


def _bound_squares(
  c: Float[np.ndarray, 'n T'], gram: Float[np.ndarray, 'T T'], b: int, k: int
) -> Float[np.ndarray, ' j1']:
  """Bounds |C p|² of up to 0, 1, ... rounds."""
  k = min(k, -(-len(gram) // b))
  # Of a C that is not square, c is not all of these rounds.
  if _is_falling_toeplitz(c) and np.allclose(c.T @ c, gram, rtol=1e-9):
    rounds = np.arange(len(gram))
    starts = [(rounds % b == 0) & (rounds < n * b) for n in range(k + 1)]
    return np.square([_measure(gram, p) for p in starts])
  # Whatever its other rounds, a round adds at most this.
  most = _sum_largest(gram, b, k)
  return np.array(
    [_sum_largest(x[None], b, n)[-1, 0] for n, x in enumerate(most)]
  )


def _choose_largest(
  values: Float[np.ndarray, ' T'], b: int, k: int
) -> Bool[np.ndarray, ' T']:
  """The rounds of `_sum_largest`."""
  tables = [np.zeros((values.size + 1, 1))]
  for _ in range(k):
    tables.append(_add_one(values[None], tables[-1], b))
  chosen, t = np.zeros(values.size, bool), values.size
  for table in tables[:0:-1]:
    # The first round from which on nothing is added to the sum up to t.
    t = int(np.searchsorted(table[: t + 1, 0], table[t, 0]))
    if t == 0:
      break
    chosen[t - 1] = True
    t = max(t - b, 0)
  return chosen


def _climb(
  gram: Float[np.ndarray, 'T T'], start: Bool[np.ndarray, ' T'], b: int, k: int
) -> Bool[np.ndarray, ' T']:
  """Moves to the rounds that add most to those of now, while that moves C G more.

  |C p|² is convex in p, so that it falls in no step.
  """
  pattern, norm = start, _measure(gram, start)
  while True:
    other = _choose_largest(gram[:, pattern].sum(axis=1), b, k)
    if (larger := _measure(gram, other)) <= norm * (1 + 1e-12):
      return pattern
    pattern, norm = other, larger


def _swap(
  gram: Float[np.ndarray, 'T T'], start: Bool[np.ndarray, ' T'], b: int, k: int
) -> Bool[np.ndarray, ' T']:
  """Adds and moves single rounds while that moves C G more."""
  t, pattern, sums = np.arange(len(gram)), start, gram[:, start].sum(axis=1)
  while True:
    before = pattern
    for left in (-1, *np.flatnonzero(pattern)):
      others = pattern & (t != left)
      if others.sum() == k or (left >= 0 and not pattern[left]):
        continue
      near = np.convolve(others, np.ones(2 * b - 1, int))[b - 1 :][: t.size]
      adds = np.diagonal(gram) + 2 * (sums - gram[:, left] * (left >= 0))
      best = int(np.argmax(np.where(near > 0, -np.inf, adds)))
      added = adds[left] if left >= 0 else 0.0
      if near[best] == 0 and adds[best] > added * (1 + 1e-12):
        pattern = others | (t == best)
        sums = gram[:, pattern].sum(axis=1)
    if np.array_equal(pattern, before):
      return pattern
