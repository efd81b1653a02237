"""Scores of audits that have not been made: the Gaussian model of what is released.

Nothing is trained, and no vector of d numbers is made. In units of the clip norm a
round releases v = Σ_i c_i + u + z n, for its b canaries c_i, a sum u of clients and
normal noise n, so that |v|² = b + |u|² + z² d. A canary that took part scores
⟨c, v⟩ = 1 + noise of variance (|v|² - 1)/d, in which the other canaries of v are
noise to all in the same way if canaries are drawn independently, and none if they are
orthogonal (docs/dependence.md). A final model adds rounds up, each with the weight
that the momentum of the server gives it.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import itertools
from typing import Literal

from jaxtyping import Float, Int
import numpy as np

from epe_jax.audit import attack_scores, record, server_response
from epe_jax.audit.attack_scores import ThreatModel
from epe_jax.audit.threat_models import CHANGE, FINAL, OWN
from epe_jax.canaries import requirements
from epe_jax.epsilon import noise_floor
from epe_jax.epsilon.types import Scores, check_delta

DrawAudits = Callable[[np.random.Generator, int], Scores]
"""(rng, audits) -> scores of so many audits, along the first axis."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedRun:
  """A training run that is to be audited, as far as its audit depends on it.

  Attributes:
    dim: d, the number of trained parameters, >= 2.
    rounds: T, the number of rounds, >= 1.
    clients_per_round: n, the mean number of real clients in a round, > 0.
    noise_multiplier: z >= 0, the standard deviation of the noise in the sum of
      updates, in units of the clip norm.
    delta: δ, in (0, 1).
    clip_norm: S > 0. Cosines are of no scale, so it counts only beside
      `initial_norm`.
    num_observed: canaries that take part, >= 2; with coins half of all do.
    num_unobserved: canaries that do not, 0 or >= 2.
    repetitions: rounds of a canary, one random round of each of as many equal
      periods, in [1, rounds].
    client_participations: rounds in which a client takes part at most, in [1,
      rounds]; None if that is not known. The plan is of canaries; it says what
      follows for a client.
    family: of the canaries, as `canaries.family` has them.
    design: 'fixed', or 'coin_flip' if a fair coin decides for each canary.
    server_momentum: in [0, 1), of a server that is SGD.
    server_learning_rate: > 0, of a server that is SGD; it counts only beside
      `initial_norm`.
    client_agreement: cosine of the updates of any two clients, of one round or of
      two, in [0, 1]: 0 if they are orthogonal, 1 if all are the same.
    initial_norm: norm of the initial model, >= 0. None: the attacker of the final
      model knows the initial one and removes it.

  Raises:
    ValueError: a field is out of range.
  """

  dim: int
  rounds: int
  clients_per_round: float
  noise_multiplier: float
  delta: float
  clip_norm: float = 1.0
  num_observed: int = 1000
  num_unobserved: int = 1000
  repetitions: int = 1
  client_participations: int | None = None
  family: str = 'sphere'
  design: Literal['fixed', 'coin_flip'] = 'fixed'
  server_momentum: float = 0.0
  server_learning_rate: float = 1.0
  client_agreement: float = 0.0
  initial_norm: float | None = None

  def __post_init__(self):
    check_delta(self.delta)
    norm = self.initial_norm
    ranges = {
      'dim': (self.dim >= 2, 'an integer >= 2'),
      'rounds': (self.rounds >= 1, 'an integer >= 1'),
      'clients_per_round': (self.clients_per_round > 0, 'a number > 0'),
      'noise_multiplier': (
        record.is_noise_multiplier(self.noise_multiplier),
        record.NOISE,
      ),
      'clip_norm': (0 < self.clip_norm < np.inf, 'a norm > 0'),
      'num_observed': (self.num_observed >= 2, 'at least 2'),
      'num_unobserved': (
        self.num_unobserved == 0 or self.num_unobserved >= 2,
        '0, or at least 2',
      ),
      'repetitions': (1 <= self.repetitions <= self.rounds, '1 to rounds'),
      'client_participations': (
        self.client_participations is None
        or 1 <= self.client_participations <= self.rounds,
        '1 to rounds, or None if it is not known',
      ),
      'family': (
        self.family in requirements.FAMILIES,
        f'one of {requirements.FAMILIES}',
      ),
      'design': (
        self.design in ('fixed', 'coin_flip'),
        "'fixed' or 'coin_flip'",
      ),
      'server_momentum': (0 <= self.server_momentum < 1, 'a number in [0, 1)'),
      'server_learning_rate': (
        0 < self.server_learning_rate < np.inf,
        'a number > 0',
      ),
      'client_agreement': (
        0 <= self.client_agreement <= 1,
        'a cosine in [0, 1]',
      ),
      'initial_norm': (
        norm is None or 0 <= norm < np.inf,
        'a norm >= 0, or None if the attacker knows the initial model',
      ),
    }
    for name, (is_valid, cure) in ranges.items():
      if not is_valid:
        raise ValueError(f'{name}={getattr(self, name)!r}; give {cure}.')
    if self.num_canaries > self.dim:
      raise ValueError(
        f'num_observed={self.num_observed} and num_unobserved='
        f'{self.num_unobserved}, but dim={self.dim}; random directions are nearly '
        'orthogonal only if they are far fewer than dim. Give fewer canaries.'
      )

  @property
  def num_canaries(self) -> int:
    """k, of all canaries."""
    return self.num_observed + self.num_unobserved

  @property
  def num_inside(self) -> int:
    """Canaries that take part: with coins half of all, on average."""
    coins = self.design == 'coin_flip'
    return self.num_canaries // 2 if coins else self.num_observed

  @property
  def is_orthogonal(self) -> bool:
    """Whether canaries are orthogonal to each other and not drawn independently."""
    return self.family not in requirements.ONE_BY_ONE


class Geometry:
  """The lengths of what a run is expected to release, in units of the clip norm.

  Attributes:
    run: the run.
    own: [repetitions, k] rounds of each canary that takes part.
    weights: [T] what the final model keeps of each round.
    kept: [k] what it keeps of each canary.
    squares: [T] |v|² of each round.
    in_round: [T] canaries of each round.
    final_square: |v|² of the change of the model, or of the final model if the
      initial one is not known.
  """

  def __init__(self, run: PlannedRun):
    self.run = run
    n, a, z = run.clients_per_round, run.client_agreement, run.noise_multiplier
    self.own = _assign_rounds(run)
    self.in_round = np.bincount(self.own.ravel(), minlength=run.rounds)
    of_noise = z**2 * run.dim
    self.squares = self.in_round + n + a * n * max(n - 1, 0) + of_noise
    self.weights = server_response.respond_at_end(
      run.rounds, momentum=run.server_momentum
    )
    self.kept = self.weights[self.own].sum(axis=0)
    of_clients = n * np.sum(self.weights**2)
    of_clients += a * (n**2 * np.sum(self.weights) ** 2 - of_clients)
    self.final_square = float(
      np.sum(self.kept**2)
      + of_clients
      + of_noise * np.sum(self.weights**2)
      + self._initial_square()
    )

  @property
  def final_share(self) -> float:
    """How much of `final_square` canaries make."""
    return float(np.sum(self.kept**2) / self.final_square)

  @property
  def correlation(self) -> float:
    """Of the cosines of one canary with two rounds, in which clients agree."""
    shared = self.run.client_agreement * self.run.clients_per_round**2
    return float(min(np.mean(shared / self.squares), 1.0))

  def _initial_square(self) -> float:
    run = self.run
    expected = run.clients_per_round + self.own.size / run.rounds
    unit = run.server_learning_rate * run.clip_norm / expected
    return ((run.initial_norm or 0.0) / unit) ** 2


def final_model(geometry: Geometry) -> DrawAudits:
  """Cosines with the final model, in which all canaries are."""
  run, kept = geometry.run, geometry.kept
  in_all = np.zeros_like(geometry.own[0])
  share, dim = geometry.final_share, _choose_dim(run, geometry.final_share)

  def draw(rng: np.random.Generator, audits: int) -> Scores:
    square = np.array([geometry.final_square])
    return Scores(
      _draw_inside(rng, audits, run, kept, square, in_all),
      _draw_outside(rng, audits, run, share),
      dim,
      run.design,
      kept,
      _overlap(kept, in_all, dim),
    )

  return draw


def own_round(geometry: Geometry) -> DrawAudits:
  """Cosines with the own round; of several rounds their sum over √n."""
  run, own = geometry.run, geometry.own
  root, n = np.sqrt(run.dim), len(own)
  shares = geometry.in_round / geometry.squares
  dim = _choose_dim(run, float(np.max(shares))) if n == 1 else None
  expected = root * np.sum(1 / np.sqrt(geometry.squares[own]), axis=0)
  expected /= np.sqrt(n)

  def draw(rng: np.random.Generator, audits: int) -> Scores:
    inside = draw_own_rounds(rng, audits, geometry).sum(axis=1)
    outside = np.zeros((audits, run.num_canaries - run.num_inside))
    shared = rng.standard_normal(outside.shape) / root
    share, r = float(np.mean(shares)), geometry.correlation
    for _ in range(n):
      alone = _draw_outside(rng, audits, run, share)
      outside += alone if n == 1 else _mix(alone, shared, r)
    return Scores(
      inside / np.sqrt(n),
      outside / np.sqrt(n),
      dim,
      run.design,
      expected,
      _overlap(expected, own[0], dim),
    )

  return draw


def maximum(geometry: Geometry) -> DrawAudits:
  """The largest cosine of all rounds, in units of 1/√d."""
  run, n = geometry.run, len(geometry.own)
  root, r = np.sqrt(run.dim), geometry.correlation
  # Orthogonal canaries find nothing of those that a round holds.
  share = np.mean(geometry.in_round / geometry.squares)
  scale = np.sqrt(1 - share) if run.is_orthogonal else 1.0

  def largest(rng: np.random.Generator, shared, rounds: int):
    alone = noise_floor.draw_null(rng, shared.shape, dim=run.dim, rounds=rounds)
    return scale * _mix(root * alone, shared, r)

  def draw(rng: np.random.Generator, audits: int) -> Scores:
    shape = audits, run.num_inside
    shared = rng.standard_normal(shape)
    inside = root * draw_own_rounds(rng, audits, geometry, shared).max(axis=1)
    if run.rounds > n:
      inside = np.maximum(inside, largest(rng, shared, run.rounds - n))
    shared = rng.standard_normal((audits, run.num_canaries - run.num_inside))
    return Scores(inside, largest(rng, shared, run.rounds), None, run.design)

  return draw


def residual(geometry: Geometry) -> DrawAudits:
  """Inner products with the noise, in its units: the Gaussian mechanism itself."""
  run = geometry.run
  shift = np.sqrt(run.repetitions) / run.noise_multiplier

  def draw(rng: np.random.Generator, audits: int) -> Scores:
    outside = rng.standard_normal((audits, run.num_canaries - run.num_inside))
    inside = shift + rng.standard_normal((audits, run.num_inside))
    shifts = np.full(run.num_inside, shift)
    return Scores(inside, outside, np.inf, run.design, shifts)

  return draw


def expect_own_shifts(geometry: Geometry) -> Float[np.ndarray, 'k n']:
  """By how much own rounds shift a cosine, in units of 1/√d, largest first."""
  shifts = np.sqrt(geometry.run.dim / geometry.squares[geometry.own])
  return -np.sort(-shifts, axis=0).T


def draw_own_rounds(
  rng: np.random.Generator,
  audits: int,
  geometry: Geometry,
  shared: Float[np.ndarray, 'audits k'] | None = None,
) -> Float[np.ndarray, 'audits n k']:
  """Cosines of canaries that take part with each of their rounds.

  Args:
    rng: source of the scores.
    audits: how many.
    geometry: of the run.
    shared: standard normal scores of what clients put into all rounds; None to draw
      them.
  """
  run, one = geometry.run, np.ones(geometry.own.shape[1])
  if shared is None:
    shared = rng.standard_normal((audits, one.size))
  return np.stack(
    [
      _draw_inside(
        rng,
        audits,
        run,
        one,
        geometry.squares,
        rounds,
        shared=shared,
        correlation=geometry.correlation,
      )
      for rounds in geometry.own
    ],
    axis=1,
  )


def _assign_rounds(run: PlannedRun) -> Int[np.ndarray, 'n k']:
  """Rounds of each canary, as `canary_schedules.once_per_period` deals them."""
  rng = np.random.default_rng(0)
  bounds = np.arange(run.repetitions + 1) * run.rounds // run.repetitions
  return np.stack(
    [
      rng.permutation(start + np.arange(run.num_inside) % (stop - start))
      for start, stop in itertools.pairwise(bounds)
    ]
  )


def list_crowded(geometry: Geometry) -> list[ThreatModel]:
  """Attackers for whom canaries leave no room for a law of random directions."""
  run = geometry.run
  final = CHANGE if run.initial_norm is None else FINAL
  shares = {final: geometry.final_share}
  if run.repetitions == 1:
    shares[OWN] = float(np.max(geometry.in_round / geometry.squares))
  return [
    who for who, share in shares.items() if _choose_dim(run, share) is None
  ]


def _choose_dim(run: PlannedRun, share: float) -> float | None:
  can_fit = run.num_canaries - run.num_inside >= 2
  return attack_scores.choose_dim(run.dim, share, can_fit=can_fit)


def _overlap(
  shift: Float[np.ndarray, ' k'],
  vector: Int[np.ndarray, ' k'],
  dim: float | None,
) -> float:
  """As `attack_scores.split_scores` has it, of canaries in the same vectors."""
  if dim is None:
    return 0.0
  of_vector = np.bincount(vector, shift**2)
  others = np.sum(of_vector**2) - np.sum(shift**4)
  return float(others / (dim * np.sum(shift**2)))


def _draw_inside(
  rng: np.random.Generator,
  audits: int,
  run: PlannedRun,
  own: Float[np.ndarray, ' k'],
  squares: Float[np.ndarray, ' vectors'],
  vector: Int[np.ndarray, ' k'],
  *,
  shared: Float[np.ndarray, 'audits k'] | None = None,
  correlation: float = 0.0,
) -> Float[np.ndarray, 'audits k']:
  """Cosines of canaries with vectors that hold them.

  Args:
    rng: source of the scores.
    audits: how many.
    run: gives d, and whether canaries are orthogonal.
    own: what each vector holds of its canary.
    squares: |v|² of each vector.
    vector: that of each canary.
    shared: what other vectors score too, standard normal.
    correlation: that it makes.
  """
  d = run.dim
  of_canaries = np.bincount(vector, own**2, minlength=len(squares))
  others = of_canaries[vector] if run.is_orthogonal else own**2
  # By each coordinate, of all that is not the canary itself.
  variance = np.maximum(squares[vector] - others, 0.0) / d
  common = np.zeros(own.size) if run.is_orthogonal else own / np.sqrt(d)
  alone = np.sqrt(np.maximum(variance - common**2, 0.0))
  noise = rng.standard_normal((audits, own.size))
  if shared is not None:
    noise = _mix(noise, shared, correlation)
  of_others = rng.standard_normal((audits, len(squares)))[:, vector]
  along = own + alone * noise + common * of_others
  rest = np.maximum(squares[vector] - own**2, 0.0) / d
  length = rest * rng.chisquare(d - 1, noise.shape)
  norm = np.sqrt(along**2 + length)
  return along / np.where(norm > 0, norm, 1)


def _draw_outside(
  rng: np.random.Generator, audits: int, run: PlannedRun, share: float
) -> Float[np.ndarray, 'audits k0']:
  """Cosines of canaries with a vector that holds others, which make a share of it."""
  shape = audits, run.num_canaries - run.num_inside
  cosines = noise_floor.draw_null(rng, shape, dim=run.dim)
  # Orthogonal ones find nothing of those that took part.
  return cosines * np.sqrt(1 - share if run.is_orthogonal else 1.0)


def _mix(alone, shared, correlation: float):
  """Scores of rounds that have something in common."""
  if not correlation:
    return alone
  return np.sqrt(1 - correlation) * alone + np.sqrt(correlation) * shared
