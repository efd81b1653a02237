"""Updates that are sent: of norm S or huge, spread or alone, with others or against."""

from __future__ import annotations

from collections.abc import Sequence
import functools
import math

from jaxtyping import Float
import numpy as np

from epe_jax.conformance.claim import Claim
from epe_jax.conformance.noise import Layout
from epe_jax.conformance.session import Cohort

HUGE = 1e6
"""Norm of an update that has to be clipped, in clip norms."""
HEAVY = 1000.0
"""Weight of a client that has to count like the others, over theirs."""


class Inputs:
  """Updates and cohorts for a claim, in clip norms.

  Attributes:
    claim: of the mechanism.
    layout: of the coordinates of an update and of a release.
    zero: an update without effect.
    uniform: an update of norm S, of equal size in all coordinates.
    equal: the same, of equal norm in all tensors.
  """

  def __init__(self, claim: Claim, rng: np.random.Generator):
    self.claim = claim
    self.layout = Layout(claim.sizes)
    self.zero = np.zeros(claim.dim)
    self._rng = rng
    signs = rng.choice([-1.0, 1.0], claim.dim)
    # Rounding of float32 must not lift an update of norm S above S.
    self.uniform = signs * (1 - 1e-6) / math.sqrt(claim.dim)
    self.equal = np.concatenate(
      [
        tensor / np.linalg.norm(tensor) / math.sqrt(len(claim.sizes))
        for tensor in self.layout.split(self.uniform)
      ]
    ) * (1 - 1e-6)

  def in_tensor(self, k: int) -> Float[np.ndarray, 'd']:
    """An update of norm S in one tensor alone."""
    parts = self.layout.split(np.zeros(self.claim.dim))
    parts[k] = self.layout.split(self.uniform)[k]
    vector = np.concatenate(parts)
    return vector / np.linalg.norm(vector) * (1 - 1e-6)

  @functools.cached_property
  def background(self) -> Sequence[Float[np.ndarray, 'd']]:
    """A few updates of half the clip norm, for clients that do not matter."""
    vectors = self._rng.standard_normal((3, self.claim.dim))
    return list(vectors / np.linalg.norm(vectors, axis=1, keepdims=True) / 2)

  def cohort(
    self,
    update: Float[np.ndarray, 'd'] | None,
    others: Sequence[Float[np.ndarray, 'd']] = (),
    *,
    present: int | None = None,
    weight: float = 1.0,
    claim: Claim | None = None,
  ) -> Cohort:
    """A round of one client in question and others.

    Args:
      update: of the client; None if it is absent.
      others: updates that the others take in turn; zeros by default.
      present: clients, with the one in question; n by default.
      weight: of the client; the others have weight 1.
      claim: the claim that says n.
    """
    num = (present or (claim or self.claim).num_clients) - 1
    options = list(others) or [self.zero]
    updates = [options[i % len(options)] for i in range(num)]
    weights = [1.0] * num
    if update is None:
      return Cohort(updates, weights)
    return Cohort([update, *updates], [weight, *weights])
