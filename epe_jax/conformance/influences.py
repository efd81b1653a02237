"""The inputs of the suite, and the influence of one client on a release.

Influences are read with a tiny noise multiplier: the release of a round with the
client less that of a round without it, in units of the largest influence that the
claim allows a client.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import functools
import math

import numpy as np

from epe_jax.conformance.claim import Claim
from epe_jax.conformance.laws import TOLERANCE
from epe_jax.conformance.noise import Layout
from epe_jax.conformance.session import (
  Cohort,
  Make,
  NotChecked,
  Run,
  Session,
  Vector,
  norm,
)

HUGE = 1e6
"""Norm of an update that has to be clipped, in clip norms."""
HEAVY = 1000.0
"""Weight, relative to the other clients, of one that must count as they do."""

_READABLE = 1e-3
# Rounding to float32 must not lift an update of norm S above S.
_BELOW = 1 - 1e-6


class Influences:
  """Influences of clients, each measured when a rule first needs it.

  Attributes:
    claim: of the mechanism.
    layout: of the coordinates of an update and of a release.
    session: in which rounds are run.
    zero: an update without effect: zeros, or next to them if zeros fail.
    zero_error: what zeros lead to if they fail, else None.
    place: of the client in question among those of a round.
    uniform: an update of norm S, of equal size in all coordinates.
    equal: the same, of equal norm in all tensors.
  """

  def __init__(
    self, make: Make, claim: Claim, *, budget: float, rng: np.random.Generator
  ):
    self.claim = claim
    self.layout = Layout(claim.sizes, claim.order, claim.granularity > 0)
    self.session = Session(make, claim, seconds=budget)
    self._rng = rng
    self.zero, self.zero_error = np.zeros(claim.dim), None
    self.place = 0
    self._signs = rng.choice([-1.0, 1.0], claim.dim)
    self.uniform = self._scale(self._signs)
    tensors = self.layout.split(self._signs)
    self.equal = self._scale(
      np.concatenate([t / claim.measure(t) for t in tensors])
    )

  def try_zeros(self) -> None:
    """Runs a round of zeros; if it fails, other rounds have tiny updates instead."""
    try:
      released = self.session.start(self.claim).release(self.cohort(self.zero))
    except NotChecked as error:
      self.zero_error = str(error)
    else:
      if not np.all(np.isfinite(released)):
        self.zero_error = 'numbers are released that are not finite'
    if self.zero_error is not None:
      self.zero = 1e-12 * self.uniform

  def find_place(self) -> None:
    """Puts the client in question where a client counts least, but counts."""
    if self.claim.num_clients > 1:
      counts = {place: size for place, size in self.counts.items() if size > 0}
      self.place = min(
        counts, key=lambda place: (counts[place], place), default=0
      )

  @functools.cached_property
  def counts(self) -> dict[int, float]:
    """Influence of an update of half the clip norm, by its place in the round.

    They are equal to the precision of arithmetic, or not equal at all; two digits
    say how much less than the largest they are.
    """
    n = self.claim.num_clients
    sizes = {}
    for place in sorted({0, n // 2, n - 1}):
      make = functools.partial(self.cohort, place=place)
      moved = self.influence(make(self.uniform / 2), make(self.zero))
      size = norm(moved) / norm(self.uniform / 2)
      sizes[place] = size if size > _READABLE else 0.0
    most = max(sizes.values())
    if not 0 < most < math.inf:
      return sizes
    return {
      place: most * float(f'{size / most:.2g}') for place, size in sizes.items()
    }

  def check_counts(self) -> None:
    """Checks that clients count alike, wherever they are in a round.

    Raises:
      NotChecked: they do not, or influences cannot be read.
    """
    if not self.count_alike:
      raise NotChecked('clients do not count alike; see places')

  @property
  def count_alike(self) -> bool:
    """Whether clients count alike, wherever they are in a round."""
    return max(self.counts.values()) <= 1.02 * min(self.counts.values())

  def in_coordinate(self, k: int) -> Vector:
    """An update of norm S that is zero outside one coordinate."""
    vector = np.zeros(self.claim.dim)
    vector[k] = _BELOW
    return vector

  def in_tensor(self, k: int) -> Vector:
    """An update of norm S that is zero outside one tensor."""
    parts = self.layout.split(np.zeros(self.claim.dim))
    parts[k] = self.layout.split(self._signs)[k]
    return self._scale(np.concatenate(parts))

  def _scale(self, vector: Vector) -> Vector:
    """Scales an update to norm S, with numbers on the claimed grid if there is one."""
    vector, step, p = (
      vector / self.claim.measure(vector),
      self.step,
      self.claim.norm,
    )
    if 0 < step <= 1:
      # To a step below, then as many to the next as the norm allows.
      steps = np.floor(np.abs(vector) / step + 1e-6)
      if math.isfinite(p):
        costs = ((steps + 1) ** p - steps**p) * (vector != 0)
        steps += (np.cumsum(costs) <= step**-p - np.sum(steps**p)) * (
          vector != 0
        )
      vector = step * np.sign(vector) * steps
    return vector * _BELOW

  @property
  def step(self) -> float:
    """Step of the claimed grid over S, 0 if there is none."""
    return self.claim.granularity / self.claim.clip_norm

  @functools.cached_property
  def background(self) -> Sequence[Vector]:
    """Three updates of half the clip norm, for the other clients."""
    vectors = self._rng.standard_normal((3, self.claim.dim))
    return [vector / self.claim.measure(vector) / 2 for vector in vectors]

  def cohort(
    self,
    update: Vector | None,
    others: Sequence[Vector] = (),
    *,
    present: int | None = None,
    weight: float = 1.0,
    claim: Claim | None = None,
    place: int | None = None,
  ) -> Cohort:
    """The clients of a round: the one in question, and others.

    Args:
      update: of the client; None if it is absent.
      others: updates that the others send in turn; zeros by default.
      present: number of clients, with the one in question; n by default.
      weight: of the client; the others have weight 1.
      claim: the claim that gives n.
      place: of the client; `self.place` by default.
    """
    num = (present or (claim or self.claim).num_clients) - 1
    options = list(others) or [self.zero]
    updates = [options[i % len(options)] for i in range(num)]
    weights = [1.0] * num
    if update is None:
      return Cohort(updates, weights)
    place = min(self.place if place is None else place, num)
    updates.insert(place, update)
    weights.insert(place, weight)
    return Cohort(updates, weights)

  def check_others(self) -> None:
    """Checks that rounds have a second client.

    Raises:
      NotChecked: they have one client only.
    """
    if self.claim.num_clients < 2:
      raise NotChecked('it needs num_clients of 2 or more')

  @property
  def unit(self) -> str:
    """The unit of influences, as text."""
    return 'S / n' if self.claim.release == 'mean' else 'S'

  def quiet(self, claim: Claim | None = None) -> Run:
    """A fresh run with next to no noise."""
    claim = claim or self.claim
    tiny = min(1e-8, 1e-5 / math.sqrt(claim.dim))
    return self.session.start(dataclasses.replace(claim, noise_multiplier=tiny))

  @property
  def is_readable(self) -> bool:
    """Whether a tiny noise multiplier leaves next to no noise."""
    return self.floor < _READABLE

  def check_quiet(self) -> None:
    """Checks that a tiny noise multiplier leaves next to no noise.

    Raises:
      NotChecked: noise is left, so that influences cannot be read.
    """
    if not self.is_readable:
      raise NotChecked(
        'influences cannot be read: with next to no noise claimed, releases of '
        f'the same updates still differ by {self.floor:.2g} clients. If they are '
        'rounded at random, or clients are drawn, leave that out for the check'
      )

  @functools.cached_property
  def floor(self) -> float:
    """Norm of the difference of two quiet releases of the same updates."""
    cohorts = [
      self.cohort(self.zero),
      # Randomness may multiply updates, so zeros are not enough; nor is a sum of 0.
      self.cohort(0.3 * self.uniform, self.background),
    ]
    # Few coordinates, or clients, may agree by accident if some are left out at random.
    fewest = min(self.claim.dim / 128, self.claim.num_clients / 20)
    repeats = math.ceil(1 / fewest)
    return max(
      norm(self.quiet().release(cohort) - self.quiet().release(cohort))
      for cohort in cohorts * repeats
    )

  def influence(
    self, cohort: Cohort, without: Cohort, claim: Claim | None = None
  ) -> Vector:
    """Release of one cohort less that of the other, nearly without noise.

    Raises:
      NotChecked: influences cannot be read.
    """
    self.check_quiet()
    released = self.quiet(claim).release(cohort)
    return released - self.quiet(claim).release(without)

  def influence_of(
    self,
    update: Vector,
    others: Sequence[Vector] = (),
    *,
    present: int | None = None,
    weight: float = 1.0,
    claim: Claim | None = None,
    place: int | None = None,
  ) -> Vector:
    """Influence of a client, against a zero update of the same weight.

    With adjacency 'replace' it is half of that against the opposite update.
    """
    make = functools.partial(
      self.cohort,
      others=others,
      present=present,
      weight=weight,
      claim=claim,
      place=place,
    )
    without = self._neighbour(update)
    influence = self.influence(make(update), make(without), claim)
    return influence / self.claim.distance

  def influences_of(
    self, updates: Sequence[Vector], others: Sequence[Vector] = ()
  ) -> list[Vector]:
    """Influences of several clients, as `influence_of`, in fewer rounds."""
    if self.claim.adjacency == 'replace':
      return [self.influence_of(update, others) for update in updates]
    self.check_quiet()
    without = self.quiet().release(self.cohort(self.zero, others))
    return [
      self.quiet().release(self.cohort(update, others)) - without
      for update in updates
    ]

  def _neighbour(self, update: Vector) -> Vector:
    """What the client sends in the neighbouring round."""
    return -update if self.claim.adjacency == 'replace' else self.zero

  @functools.cached_property
  def exact(self) -> Sequence[tuple[Vector, Vector]]:
    """(update, influence) of updates of norm S, spread over tensors in many ways."""
    some = range(min(len(self.claim.sizes), 8))
    updates = [self.uniform, self.equal, *map(self.in_tensor, some)]
    if self.claim.norm < self.claim.order:
      # Longest in the norm of the noise if it is in one coordinate.
      updates.append(self.in_coordinate(0))
    # If tensors have clip norms of their own, an update arrives whole only if it is
    # spread as an update that is clipped in every tensor arrives.
    clipped = self.influence_of(HUGE * self.equal) * np.sign(self.claim.unit)
    if 0 < norm(clipped) < math.inf:
      updates.append(self._scale(clipped))
    return [(u, self.influence_of(u)) for u in updates]

  @property
  def base(self) -> Vector:
    """Largest influence of an ordinary client whose update has norm S."""
    return self._best[1]

  @property
  def base_update(self) -> Vector:
    """The update that has this influence."""
    return self._best[0]

  @functools.cached_property
  def _best(self) -> tuple[Vector, Vector]:
    lengths = [self.layout.length(influence) for _, influence in self.exact]
    is_best = np.array(lengths) >= (1 - TOLERANCE) * max(lengths)
    return self.exact[int(np.argmax(is_best))]
