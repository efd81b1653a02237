"""Simulated scores of audits: a Gaussian model of what a run releases.

Nothing is trained, and no vector of d numbers is made. In units of the clip norm a
round releases v = Σ_i c_i + u + z n, with b canaries c_i, the sum u of the clients'
updates and normal noise n, so that |v|² = b + |u|² + z² d. An observed canary scores
⟨c, v⟩ = 1 + noise of variance (|v|² - 1)/d. The other canaries of v add to that noise
alike for all if they are drawn independently, and not at all if they are orthogonal
(docs/canaries.md). A final model adds up the rounds, each weighted as the momentum
of the server makes it.

The scores go to the estimators that an audit chooses for such scores.
"""

from __future__ import annotations

from collections.abc import Callable
import functools
import itertools
from typing import NamedTuple

from jaxtyping import Float, Int
import numpy as np

from epe_jax.audit import record
from epe_jax.audit.record import Record, respond_at_end
from epe_jax.audit.threat_models import (
  CHANGE,
  FINAL,
  MAXIMUM,
  OWN,
  RESIDUAL,
  ThreatModel,
  shifted_scores,
)
from epe_jax.epsilon import registry
from epe_jax.epsilon.null_laws import noise_floor
from epe_jax.epsilon.points import maximum, shift_fit
from epe_jax.epsilon.types import (
  Gaussian,
  NullLaw,
  Scores,
  Sphere,
  Unknown,
)
from epe_jax.planning.planned_run import PlannedRun
from epe_jax.training.round_scalars import RoundScalars

DrawAudits = Callable[[np.random.Generator, int], Scores]
"""(rng, audits) -> scores of so many audits, along the first axis."""


class PlannedAttacker(NamedTuple):
  """An attacker with a calibrated estimate, and how its audits are simulated.

  Attributes:
    threat_model: the attacker.
    draw: draws the scores of audits.
    estimator: the point estimator that an audit shows first.
    is_crowded: canaries make up so much of a vector that its null law is not that
      of random directions.
  """

  threat_model: ThreatModel
  draw: DrawAudits
  estimator: registry.Estimator = registry.MIXTURE
  is_crowded: bool = False

  @property
  def key(self) -> str:
    """The key of the threat model."""
    return self.threat_model.key

  def draw_null(self, scores: Scores, rounds: int) -> noise_floor.Draw:
    """A source of audits like the given ones in which nothing leaks.

    Args:
      scores: of this attacker.
      rounds: T, of the run.
    """
    tau = 1.0
    if self.threat_model is MAXIMUM:
      tau = maximum.fit_rounds(scores.unobserved, rounds)
    return noise_floor.draw_from_null(
      scores.observed.shape[-1],
      scores.unobserved.shape[-1],
      null=scores.null,
      rounds=tau,
      shift=scores.shift,
    )


class Geometry:
  """The norms of what a run is expected to release, in units of the clip norm.

  Attributes:
    run: the run.
    own: [repetitions, k] rounds of each canary that takes part.
    weights: [T] weight of each round in the final model.
    kept: [k] weight of each canary in the final model.
    squares: [T] |v|² of each round.
    in_round: [T] number of canaries in each round.
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
    self.weights = respond_at_end(run.rounds, momentum=run.server_momentum)
    self.kept = self.weights[self.own].sum(axis=0)
    of_clients = n * np.sum(self.weights**2)
    of_clients += a * (n**2 * np.sum(self.weights) ** 2 - of_clients)
    # The initial model, in units of what the server adds for a canary.
    canary_norm = run.server_learning_rate * run.clip_norm
    canary_norm /= n + self.own.size / run.rounds
    self.final_square = float(
      np.sum(self.kept**2)
      + of_clients
      + of_noise * np.sum(self.weights**2)
      + ((run.initial_norm or 0.0) / canary_norm) ** 2
    )

  @property
  def final_share(self) -> float:
    """The share of `final_square` that canaries make up."""
    return float(np.sum(self.kept**2) / self.final_square)

  @property
  def correlation(self) -> float:
    """Of the cosines of one canary with two rounds, in which clients agree."""
    shared = self.run.client_agreement * self.run.clients_per_round**2
    return float(min(np.mean(shared / self.squares), 1.0))

  @property
  def own_shifts(self) -> Float[np.ndarray, 'k n']:
    """By how much own rounds shift a cosine, in units of 1/√d, largest first."""
    shifts = np.sqrt(self.run.dim / self.squares[self.own])
    return -np.sort(-shifts, axis=0).T

  def choose_null(self, share: float) -> NullLaw:
    """The null law of a vector of which canaries make up a share."""
    can_fit = self.run.num_outside >= 2
    return shifted_scores.choose_null(self.run.dim, share, can_fit=can_fit)

  def make_record(self) -> Record:
    """The record of such a run, without a score: the limits of attackers read it."""
    run = self.run
    assigned = np.zeros((run.rounds, run.num_inside), bool)
    assigned[self.own, np.arange(run.num_inside)] = True
    one, z = np.ones(run.rounds), run.noise_multiplier
    rounds = RoundScalars(
      clip_norm=one,
      canary_norm=one,
      noise_std=z * one,
      num_clients=run.clients_per_round * one,
      num_canaries=self.in_round,
      sum_norm=np.sqrt(self.squares - self.in_round - z**2 * run.dim),
      aggregate_norm=np.sqrt(self.squares),
      residual_norm=z * np.sqrt(run.dim) * one,
      effective_dimension=run.dim * one,
    )
    return record.make_record(
      {},
      rounds,
      included=assigned,
      dim=run.dim,
      delta=run.delta,
      design=run.design,
      momentum=run.server_momentum,
      noise_multiplier=z,
      periods=run.repetitions,
    )


def list_attackers(geometry: Geometry) -> list[PlannedAttacker]:
  """The attackers with a calibrated estimate, weakest first."""
  run, once = geometry.run, geometry.run.repetitions == 1
  share = float(np.max(geometry.in_round / geometry.squares))
  attackers = [
    PlannedAttacker(
      CHANGE if run.initial_norm is None else FINAL,
      _draw_final_model(geometry),
      is_crowded=geometry.choose_null(geometry.final_share) == Unknown(),
    )
  ]
  # Without unobserved canaries the law of a maximum is not known.
  if run.num_outside:
    estimator = functools.partial(
      maximum.maximum_over_rounds, own=geometry.own_shifts, rounds=run.rounds
    )
    attackers.append(
      PlannedAttacker(MAXIMUM, _draw_maximum(geometry), estimator)
    )
  attackers.append(
    PlannedAttacker(
      OWN,
      _draw_own_round(geometry),
      is_crowded=once and geometry.choose_null(share) == Unknown(),
    )
  )
  if run.noise_multiplier:
    attackers.append(PlannedAttacker(RESIDUAL, _draw_residual(run)))
  return attackers


def _draw_final_model(geometry: Geometry) -> DrawAudits:
  """Cosines with the final model, which holds all canaries."""
  run, kept = geometry.run, geometry.kept
  in_all = np.zeros_like(geometry.own[0])
  share = geometry.final_share
  null = geometry.choose_null(share)
  overlap = shift_fit.compute_overlap(kept, in_all, null)

  def draw(rng: np.random.Generator, audits: int) -> Scores:
    square = np.array([geometry.final_square])
    inside = _draw_inside(rng, audits, run, kept, square, in_all)
    outside = _draw_outside(rng, audits, run, share)
    return Scores(inside, outside, null, run.design, kept, overlap)

  return draw


def _draw_own_round(geometry: Geometry) -> DrawAudits:
  """Cosines with the own round; for several rounds their sum over √n."""
  run, own = geometry.run, geometry.own
  root, n = np.sqrt(run.dim), len(own)
  shares = geometry.in_round / geometry.squares
  # A sum over several rounds has no known null law.
  null = Unknown()
  if n == 1:
    null = geometry.choose_null(float(np.max(shares)))
  shift = geometry.own_shifts.sum(axis=1) / np.sqrt(n)
  overlap = shift_fit.compute_overlap(shift, own[0], null)

  def draw(rng: np.random.Generator, audits: int) -> Scores:
    inside = _draw_rounds(rng, audits, geometry).sum(axis=1)
    outside = np.zeros((audits, run.num_outside))
    shared = rng.standard_normal(outside.shape) / root
    share, r = float(np.mean(shares)), geometry.correlation
    for _ in range(n):
      alone = _draw_outside(rng, audits, run, share)
      outside += alone if n == 1 else _mix(alone, shared, r)
    inside, outside = inside / np.sqrt(n), outside / np.sqrt(n)
    return Scores(inside, outside, null, run.design, shift, overlap)

  return draw


def _draw_maximum(geometry: Geometry) -> DrawAudits:
  """The largest cosine of all rounds, in units of 1/√d."""
  run, n = geometry.run, len(geometry.own)
  root, r = np.sqrt(run.dim), geometry.correlation
  # Unobserved orthogonal canaries see nothing of those that a round holds.
  share = np.mean(geometry.in_round / geometry.squares)
  scale = np.sqrt(1 - share) if run.is_orthogonal else 1.0

  def largest(rng: np.random.Generator, shared, rounds: int):
    alone = noise_floor.draw_null(
      rng, shared.shape, null=Sphere(run.dim), rounds=rounds
    )
    return scale * _mix(root * alone, shared, r)

  def draw(rng: np.random.Generator, audits: int) -> Scores:
    shared = rng.standard_normal((audits, run.num_inside))
    inside = root * _draw_rounds(rng, audits, geometry, shared).max(axis=1)
    if run.rounds > n:
      inside = np.maximum(inside, largest(rng, shared, run.rounds - n))
    shared = rng.standard_normal((audits, run.num_outside))
    return Scores(
      inside, largest(rng, shared, run.rounds), Unknown(), run.design
    )

  return draw


def _draw_residual(run: PlannedRun) -> DrawAudits:
  """Inner products with the noise, in its units: the Gaussian mechanism itself."""
  shift = np.sqrt(run.repetitions) / run.noise_multiplier
  shifts = np.full(run.num_inside, shift)

  def draw(rng: np.random.Generator, audits: int) -> Scores:
    outside = rng.standard_normal((audits, run.num_outside))
    inside = shift + rng.standard_normal((audits, run.num_inside))
    return Scores(inside, outside, Gaussian(), run.design, shifts)

  return draw


def _draw_rounds(
  rng: np.random.Generator,
  audits: int,
  geometry: Geometry,
  shared: Float[np.ndarray, 'audits k'] | None = None,
) -> Float[np.ndarray, 'audits n k']:
  """Cosines of observed canaries with each of their rounds.

  Args:
    rng: source of the scores.
    audits: how many.
    geometry: of the run.
    shared: standard normal scores of what clients put into all rounds; None to draw
      them.
  """
  one = np.ones(geometry.own.shape[1])
  if shared is None:
    shared = rng.standard_normal((audits, one.size))
  of_clients = functools.partial(_mix, shared=shared, r=geometry.correlation)
  cosines = [
    _draw_inside(
      rng, audits, geometry.run, one, geometry.squares, rounds, of_clients
    )
    for rounds in geometry.own
  ]
  return np.stack(cosines, axis=1)


def _assign_rounds(run: PlannedRun) -> Int[np.ndarray, 'n k']:
  """Rounds of each canary, as the schedule `once_per_period` assigns them."""
  rng = np.random.default_rng(0)
  bounds = np.arange(run.repetitions + 1) * run.rounds // run.repetitions
  return np.stack(
    [
      rng.permutation(start + np.arange(run.num_inside) % (stop - start))
      for start, stop in itertools.pairwise(bounds)
    ]
  )


def _draw_inside(
  rng: np.random.Generator,
  audits: int,
  run: PlannedRun,
  own: Float[np.ndarray, ' k'],
  squares: Float[np.ndarray, ' vectors'],
  vector: Int[np.ndarray, ' k'],
  mix: Callable = lambda noise: noise,
) -> Float[np.ndarray, 'audits k']:
  """Cosines of canaries with vectors that hold them.

  Args:
    rng: source of the scores.
    audits: how many.
    run: gives d, and whether canaries are orthogonal.
    own: the weight of each canary in its vector.
    squares: |v|² of each vector.
    vector: the vector of each canary.
    mix: adds to the noise what other vectors hold too.
  """
  d = run.dim
  of_canaries = np.bincount(vector, own**2, minlength=len(squares))
  others = of_canaries[vector] if run.is_orthogonal else own**2
  # In each coordinate, of everything but the canary itself.
  variance = np.maximum(squares[vector] - others, 0.0) / d
  common = np.zeros(own.size) if run.is_orthogonal else own / np.sqrt(d)
  alone = np.sqrt(np.maximum(variance - common**2, 0.0))
  noise = mix(rng.standard_normal((audits, own.size)))
  of_others = rng.standard_normal((audits, len(squares)))[:, vector]
  along = own + alone * noise + common * of_others
  rest = np.maximum(squares[vector] - own**2, 0.0) / d
  length = rest * rng.chisquare(d - 1, noise.shape)
  norm = np.sqrt(along**2 + length)
  return along / np.where(norm > 0, norm, 1)


def _draw_outside(
  rng: np.random.Generator, audits: int, run: PlannedRun, share: float
) -> Float[np.ndarray, 'audits k0']:
  """Cosines of unobserved canaries with a vector of which others make up a share."""
  cosines = noise_floor.draw_null(
    rng, (audits, run.num_outside), null=Sphere(run.dim)
  )
  # Orthogonal ones see nothing of the observed canaries.
  return cosines * np.sqrt(1 - share if run.is_orthogonal else 1.0)


def _mix(alone, shared, r: float):
  """Scores of rounds that have something in common."""
  return np.sqrt(1 - r) * alone + np.sqrt(r) * shared if r else alone
