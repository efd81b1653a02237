"""Simulated audits: a Gaussian model of what a run releases.

Nothing is trained, and no vector of d numbers is made. In units of the clip norm a
round releases v = Σ_i c_i + u + z n, with b canaries c_i, the sum u of the clients'
updates and normal noise n, so that |v|² = b + |u|² + z² d. An observed canary scores
⟨c, v⟩ = 1 + noise of variance (|v|² - 1)/d. The other canaries of v add to that noise
alike for all if they are drawn independently, and not at all if they are orthogonal
(docs/canaries.md). A final model adds up the rounds, each weighted as the momentum
of the server makes it.

`simulate` draws the scores of the attackers of `_LAWS` from their law, and an audit's
own code says which estimators suit them.
"""

from collections.abc import Callable, Mapping
import functools
from typing import Literal, NamedTuple

from jaxtyping import Float, Int
import numpy as np

from epe_jax.audit import attack_scores, attackers, statistics
from epe_jax.audit.attack_scores import AttackScores, ThreatModel
from epe_jax.audit.attackers import CHANGE, FINAL, MAXIMUM, OWN, RESIDUAL
from epe_jax.epsilon import known_shifts, noise_floor
from epe_jax.epsilon.types import (
  Gaussian,
  NullLaw,
  Scores,
  Sphere,
  Unknown,
)
from epe_jax.fact import Facts
from epe_jax.planning.geometry import Geometry
from epe_jax.planning.planned_run import PlannedRun

Reason = Literal[
  'no_noise',
  'no_unobserved',
  'no_initial_norm',
  'not_calibrated',
]
"""Why an attacker is not planned for."""


class Simulation(NamedTuple):
  """Audits of one attacker.

  Attributes:
    draw: (rng, audits) -> the scores of so many audits, along the first axis.
    describe: the scores of one audit -> the estimators, the null law and the floor
      that an audit chooses for them.
  """

  draw: noise_floor.Draw
  describe: Callable[[Scores], AttackScores]


def simulate(
  geometry: Geometry, threat_model: ThreatModel
) -> Simulation | Reason:
  """How audits of an attacker are drawn, or why they are not."""
  law = _LAWS.get(threat_model.key)
  return 'not_calibrated' if law is None else law(geometry, threat_model)


def _simulate_model(
  geometry: Geometry, threat_model: ThreatModel
) -> Simulation | Reason:
  """Cosines with the final model, or with its change, which hold all canaries."""
  run, kept, square = geometry.run, geometry.kept, geometry.change_square
  if threat_model == FINAL:
    square = geometry.final_square
  if square is None:
    return 'no_initial_norm'
  null = geometry.choose_null(float(np.sum(kept**2)) / square)
  overlap = known_shifts.compute_overlap(
    kept, 0 * geometry.own[0], Sphere(run.dim)
  )

  def draw(rng: np.random.Generator, audits: int) -> Scores:
    inside, outside = _draw_model(rng, audits, geometry, square)
    return Scores(inside, outside, null, run.design, kept, overlap)

  notes = _note_null(run, null)
  return Simulation(draw, _describe_as(threat_model, notes=notes))


def _note_null(run: PlannedRun, null: NullLaw) -> Facts:
  """Why the null law is that of unobserved canaries, if it is."""
  crowded = attack_scores.note_crowding(run.design)
  return (crowded,) if null == Unknown() else ()


def _simulate_own_round(
  geometry: Geometry, threat_model: ThreatModel
) -> Simulation | Reason:
  """Cosines with the own round; for several rounds their sum over √n."""
  run, own = geometry.run, geometry.own
  root, n = np.sqrt(run.dim), len(own)
  # A sum over several rounds has no known null law.
  if n > 1 and run.num_outside < 2:
    return 'no_unobserved'
  shift = geometry.own_shifts.sum(axis=1) / np.sqrt(n)
  null, overlap = Unknown(), 0.0
  if n == 1:
    null = geometry.choose_null(float(np.max(geometry.shares)))
    overlap = known_shifts.compute_overlap(shift, own[0], Sphere(run.dim))
  share = float(np.mean(geometry.shares))

  def draw(rng: np.random.Generator, audits: int) -> Scores:
    inside = _draw_own_rounds(rng, audits, geometry).sum(axis=1)
    outside = _draw_outside(rng, (audits, n), run, share)
    if n > 1:
      shared = rng.standard_normal((audits, 1, run.num_outside)) / root
      outside = _mix(outside, shared, geometry.correlation)
    inside, outside = inside / np.sqrt(n), outside.sum(axis=1) / np.sqrt(n)
    return Scores(inside, outside, null, run.design, shift, overlap)

  notes = _note_null(run, null) if n == 1 else (attackers.SUM_OVER_ROUNDS,)
  return Simulation(
    draw, _describe_as(threat_model, is_expected=n == 1, notes=notes)
  )


def _simulate_maximum(
  geometry: Geometry, threat_model: ThreatModel
) -> Simulation | Reason:
  """The largest cosine of all rounds, in units of 1/√d."""
  del threat_model
  run, n = geometry.run, len(geometry.own)
  if run.num_outside < 2:
    return 'no_unobserved'
  root, r = np.sqrt(run.dim), geometry.correlation
  # Unobserved orthogonal canaries see nothing of those that a round holds.
  share = np.mean(geometry.shares)
  scale = np.sqrt(1 - share) if run.is_orthogonal else 1.0
  overlap = statistics.measure_overlap(
    1 / np.sqrt(geometry.squares), geometry.in_round, run.dim
  )

  def largest(rng: np.random.Generator, shared, rounds: int):
    alone = noise_floor.draw_null(
      rng, shared.shape, null=Sphere(run.dim), rounds=rounds
    )
    return scale * _mix(root * alone, shared, r)

  def draw(rng: np.random.Generator, audits: int) -> Scores:
    shared = rng.standard_normal((audits, run.num_inside))
    inside = root * _draw_own_rounds(rng, audits, geometry, shared).max(axis=1)
    if run.rounds > n:
      inside = np.maximum(inside, largest(rng, shared, run.rounds - n))
    shared = rng.standard_normal((audits, run.num_outside))
    outside = largest(rng, shared, run.rounds)
    return Scores(inside, outside, Unknown(), run.design, overlap=overlap)

  return Simulation(
    draw,
    lambda scores: attackers.describe_maxima(
      '', scores, geometry.own_shifts, rounds=run.rounds
    ),
  )


def _simulate_residual(
  geometry: Geometry, threat_model: ThreatModel
) -> Simulation | Reason:
  """Inner products with the noise, in its units: the Gaussian mechanism itself."""
  run = geometry.run
  if not run.noise_multiplier:
    return 'no_noise'
  shift = np.sqrt(run.repetitions) / run.noise_multiplier
  shifts = np.full(run.num_inside, shift)
  # The norm by which all scores are divided is known to 1/√(2 d) in each round.
  overlap = float(np.sum(shifts**2) / (2 * run.dim * run.rounds))

  def draw(rng: np.random.Generator, audits: int) -> Scores:
    outside = rng.standard_normal((audits, run.num_outside))
    inside = shift + rng.standard_normal((audits, run.num_inside))
    return Scores(inside, outside, Gaussian(), run.design, shifts, overlap)

  return Simulation(draw, _describe_as(threat_model, is_expected=True))


def _describe_as(
  threat_model: ThreatModel, *, is_expected: bool = False, notes: Facts = ()
) -> Callable[[Scores], AttackScores]:
  """As an audit describes scores that are shifted; plans show them in no unit."""
  return functools.partial(
    attack_scores.describe_shifted,
    threat_model,
    '',
    is_expected=is_expected,
    notes=notes,
  )


_LAWS: Mapping[str, Callable[[Geometry, ThreatModel], Simulation | Reason]] = {
  FINAL.key: _simulate_model,
  CHANGE.key: _simulate_model,
  MAXIMUM.key: _simulate_maximum,
  OWN.key: _simulate_own_round,
  RESIDUAL.key: _simulate_residual,
}


def _draw_model(
  rng: np.random.Generator, audits: int, geometry: Geometry, square: float
) -> tuple[Float[np.ndarray, 'audits k'], Float[np.ndarray, 'audits k0']]:
  """Cosines of both groups with a model of norm √square."""
  run, kept = geometry.run, geometry.kept
  noise = rng.standard_normal((audits, kept.size))
  all_in_one = 0 * geometry.own[0]
  inside = _draw_inside(rng, run, kept, np.array([square]), all_in_one, noise)
  share = float(np.sum(kept**2)) / square
  return inside, _draw_outside(rng, (audits,), run, share)


def _draw_own_rounds(
  rng: np.random.Generator,
  audits: int,
  geometry: Geometry,
  shared: Float[np.ndarray, 'audits k'] | None = None,
) -> Float[np.ndarray, 'audits n k']:
  """Cosines of observed canaries with each of their rounds.

  `shared` are standard normal scores of what clients put into all rounds; None to
  draw them.
  """
  one = np.ones(geometry.own.shape[1])
  if shared is None:
    shared = rng.standard_normal((audits, one.size))
  cosines = []
  for rounds in geometry.own:
    noise = rng.standard_normal((audits, one.size))
    noise = _mix(noise, shared, geometry.correlation)
    cosines.append(
      _draw_inside(rng, geometry.run, one, geometry.squares, rounds, noise)
    )
  return np.stack(cosines, axis=1)


def _draw_inside(
  rng: np.random.Generator,
  run: PlannedRun,
  own: Float[np.ndarray, ' k'],
  squares: Float[np.ndarray, ' vectors'],
  vector: Int[np.ndarray, ' k'],
  noise: Float[np.ndarray, 'audits k'],
) -> Float[np.ndarray, 'audits k']:
  """Cosines of canaries with vectors that hold them.

  Args:
    rng: source of all but the given noise.
    run: gives d, and whether canaries are orthogonal.
    own: the weight of each canary in its vector.
    squares: |v|² of each vector.
    vector: the vector of each canary.
    noise: standard normal, of all in the vector but canaries.
  """
  d = run.dim
  of_canaries = np.bincount(vector, own**2, minlength=len(squares))
  others = of_canaries[vector] if run.is_orthogonal else own**2
  # In each coordinate, of everything but the canary itself.
  variance = np.maximum(squares[vector] - others, 0.0) / d
  common = np.zeros(own.size) if run.is_orthogonal else own / np.sqrt(d)
  alone = np.sqrt(np.maximum(variance - common**2, 0.0))
  of_others = rng.standard_normal((len(noise), len(squares)))[:, vector]
  along = own + alone * noise + common * of_others
  rest = np.maximum(squares[vector] - own**2, 0.0) / d
  length = rest * rng.chisquare(d - 1, noise.shape)
  norm = np.sqrt(along**2 + length)
  return along / np.where(norm > 0, norm, 1)


def _draw_outside(
  rng: np.random.Generator,
  batch: tuple[int, ...],
  run: PlannedRun,
  share: float,
) -> Float[np.ndarray, '*batch k0']:
  """Cosines of unobserved canaries with a vector that others are a share of."""
  cosines = noise_floor.draw_null(
    rng, (*batch, run.num_outside), null=Sphere(run.dim)
  )
  # Orthogonal ones see nothing of the observed canaries.
  return cosines * np.sqrt(1 - share if run.is_orthogonal else 1.0)


def _mix(alone, shared, r: float):
  """Scores of rounds that have something in common."""
  return np.sqrt(1 - r) * alone + np.sqrt(r) * shared if r else alone
