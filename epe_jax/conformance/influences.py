"""What one client does to a release, read with next to no noise.

By a claim with a tiny noise multiplier: the release of a round with the client, less
that of a round without. All is in units of the largest influence that the claim
allows a client.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import functools
import math

from jaxtyping import Float
import numpy as np

from epe_jax.conformance.claim import Claim
from epe_jax.conformance.findings import TOLERANCE
from epe_jax.conformance.inputs import HUGE, Inputs
from epe_jax.conformance.session import (
  Cohort,
  Make,
  NotChecked,
  Run,
  Session,
  norm,
)

_READABLE = 1e-3


class Influences(Inputs):
  """Influences of clients, each measured when a rule first needs it.

  Attributes:
    session: in which rounds are run.
  """

  def __init__(
    self, make: Make, claim: Claim, *, budget: float, rng: np.random.Generator
  ):
    super().__init__(claim, rng)
    self.session = Session(make, claim, seconds=budget)

  @property
  def unit(self) -> str:
    """What influences are measured in, for people."""
    return 'S / n' if self.claim.release == 'mean' else 'S'

  @property
  def is_readable(self) -> bool:
    """Whether a tiny noise multiplier leaves next to no noise."""
    return self.floor < _READABLE

  def quiet(self, claim: Claim | None = None) -> Run:
    """A fresh run with next to no noise."""
    claim = claim or self.claim
    tiny = min(1e-8, 1e-5 / math.sqrt(claim.dim))
    return self.session.start(dataclasses.replace(claim, noise_multiplier=tiny))

  def influence(
    self, cohort: Cohort, without: Cohort, claim: Claim | None = None
  ) -> Float[np.ndarray, 'd']:
    """Release of one cohort less that of the other, nearly without noise.

    Raises:
      NotChecked: releases of the same cohort differ as much.
    """
    self.check_quiet()
    return self.quiet(claim).release(cohort) - self.quiet(claim).release(
      without
    )

  def influence_of(
    self,
    update: Float[np.ndarray, 'd'],
    others: Sequence[Float[np.ndarray, 'd']] = (),
    *,
    present: int | None = None,
    weight: float = 1.0,
    claim: Claim | None = None,
  ) -> Float[np.ndarray, 'd']:
    """Influence of a client, against a zero update of the same weight."""
    make = functools.partial(
      self.cohort, others=others, present=present, weight=weight, claim=claim
    )
    return self.influence(make(update), make(self.zero), claim)

  def influences_of(
    self,
    updates: Sequence[Float[np.ndarray, 'd']],
    others: Sequence[Float[np.ndarray, 'd']] = (),
  ) -> list[Float[np.ndarray, 'd']]:
    """Influences of clients, each against the same round with a zero update."""
    self.check_quiet()
    without = self.quiet().release(self.cohort(self.zero, others))
    return [
      self.quiet().release(self.cohort(update, others)) - without
      for update in updates
    ]

  def check_quiet(self) -> None:
    """Checks that with a tiny noise multiplier releases have next to no noise.

    Raises:
      NotChecked: they have noise, so that no influence can be read.
    """
    if not self.is_readable:
      raise NotChecked(
        'influences cannot be read: with next to no noise claimed, releases of '
        f'the same updates still differ by {self.floor:.2g} clients. If they are '
        'rounded at random, or clients are drawn, leave that out for the check'
      )

  @functools.cached_property
  def floor(self) -> float:
    """Norm of the difference of two quiet releases of the same updates.

    Of zeros, and of updates: what is drawn may be multiplied with them.
    """
    cohorts = [
      self.cohort(self.zero),
      self.cohort(self.uniform / 2, self.background),
    ]
    return max(
      norm(self.quiet().release(cohort) - self.quiet().release(cohort))
      for cohort in cohorts
    )

  @functools.cached_property
  def exact(self) -> Sequence[tuple[Float[np.ndarray, 'd'], ...]]:
    """Updates of norm S, spread over tensors in several ways, and influences."""
    some = range(min(len(self.claim.sizes), 8))
    updates = [self.uniform, self.equal, *map(self.in_tensor, some)]
    # Where tensors have clip norms of their own, only one way arrives whole: that
    # in which an update arrives that is too large in each of them.
    clipped = self.influence_of(HUGE * self.equal) * np.sign(self.claim.unit)
    if 0 < norm(clipped) < math.inf:
      updates.append(clipped / norm(clipped) * (1 - 1e-6))
    return [(u, self.influence_of(u)) for u in updates]

  @functools.cached_property
  def base(self) -> Float[np.ndarray, 'd']:
    """Largest influence of an update of norm S of an ordinary client."""
    return self._best[1]

  @functools.cached_property
  def base_update(self) -> Float[np.ndarray, 'd']:
    """The update that has this influence."""
    return self._best[0]

  @functools.cached_property
  def _best(self) -> tuple[Float[np.ndarray, 'd'], ...]:
    best = max(norm(influence) for _, influence in self.exact)
    return next(
      pair for pair in self.exact if norm(pair[1]) >= (1 - TOLERANCE) * best
    )
