"""Bounds that hold after every round at once, and evidence against a claimed ε.

The strongest attacker whose scores a record holds: who knows the round of a canary
and, where that was recorded, removes all others from what the round released. Its
cosine with what is left has an exact law for a canary without a part in the run,
whatever the noise is, so that noise which is weaker than stated is seen as such.
Where noise is correlated over rounds, the attacker combines them, in units of the
noise that is measured. Theory: `anytime`.
"""

import math
from typing import NamedTuple

from jaxtyping import Float, Int
import numpy as np
from scipy import special

from epe_jax.audit import attackers, failed_checks, noise_scale, release
from epe_jax.audit.attack_scores import ThreatModel, can_fit_null, split_scores
from epe_jax.audit.record import Record
from epe_jax.audit.statistics import assign_held_out, score_left
from epe_jax.epsilon import checks, cosine_null, tradeoff
from epe_jax.epsilon.types import Gaussian, Scores
from epe_jax.watch import anytime

_LARGEST = 1 - 2.0**-24
# Of the largest share of a round in what moves, what is none.
_NEGLIGIBLE = 1e-9
# Of the significance, the share that is left to norms.
_OF_NORMS = 0.01


class ClaimTest(NamedTuple):
  """How a claimed ε stands after some rounds.

  Attributes:
    epsilon: the ε that is claimed, of a Gaussian mechanism at δ, of a participant
      with as many rounds as a canary.
    significance: chance that a true claim is ever rejected.
    rejected_after: the first round after which it was; None if it was not.
    log_evidence: log of the evidence against it, the largest so far; it is
      rejected from log 1/significance on.
    epsilon_gdp: lower bound of the ε of a Gaussian mechanism, at all rounds at once.
    num_canaries: observed canaries that had ended.
  """

  epsilon: float
  significance: float
  rejected_after: int | None
  log_evidence: float
  epsilon_gdp: float
  num_canaries: int


class SequentialBounds(NamedTuple):
  """What could be told after each of some rounds, at any of them and all of them.

  Attributes:
    threat_model: the attacker.
    delta: of the ε.
    significance: chance that any of the bounds of a kind exceeds the truth.
    rounds: [m] rounds, from 1, after which a canary had ended.
    num_canaries: [m] observed canaries that had ended by then.
    mu: [m] lower bounds of μ, if the trade-off curve is Gaussian.
    epsilon_gdp: [m] ε of these at δ.
    epsilon: [m] lower bounds of ε at δ, of any mechanism.
    claim: the ε that is claimed; None if none is.
    log_evidence: [m] log of the evidence against a Gaussian mechanism with the
      claimed ε; None without a claim.
  """

  threat_model: ThreatModel
  delta: float
  significance: float
  rounds: Int[np.ndarray, ' m']
  num_canaries: Int[np.ndarray, ' m']
  mu: Float[np.ndarray, ' m']
  epsilon_gdp: Float[np.ndarray, ' m']
  epsilon: Float[np.ndarray, ' m']
  claim: float | None
  log_evidence: Float[np.ndarray, ' m'] | None

  def __eq__(self, other: object) -> bool:
    """Whether all fields are equal, those of arrays in each value."""
    return isinstance(other, SequentialBounds) and all(
      np.array_equal(np.asarray(mine), np.asarray(its))
      for mine, its in zip(self, other)
    )

  def test_claim(self) -> ClaimTest | None:
    """How the claim stands after the last of the rounds; None without a claim."""
    if self.claim is None or self.log_evidence is None:
      return None
    rejected = self.log_evidence >= -math.log(self.significance)
    return ClaimTest(
      self.claim,
      self.significance,
      int(self.rounds[rejected.argmax()]) if rejected.any() else None,
      float(self.log_evidence.max()),
      float(self.epsilon_gdp[-1]),
      int(self.num_canaries[-1]),
    )


def bound_sequentially(
  record: Record,
  *,
  rounds: int | None = None,
  delta: float | None = None,
  claim: float | None = None,
  significance: float = 0.05,
) -> SequentialBounds | None:
  """Bounds after each round in which a canary ended, which hold all at once.

  A canary ends with its last round; those that end in one round share its noise, and
  leak independently but for that, if they have no other (of several, see
  `_stretch_shifts`). If noise is correlated a canary ends when no later round takes
  back noise of its rounds: some rounds later if C is banded, with the run if it is
  not. Only canaries that took part are read: the law of the others is known.

  Args:
    rounds: the rounds so far, in [1, T], if the others are still to come; None for
      all.
    claim: ε at δ of the Gaussian mechanism that the run claims to be for one who
      takes part as often as canaries, >= 0.

  Returns:
    The bounds; None if fewer than two canaries have ended, or no attacker's scores
    have a law that is known: nobody saw what rounds released, or of canaries with
    several rounds or correlated noise only what others did to them too; or unobserved
    canaries reject the law, or are missing where noise is correlated; or that of
    several rounds is correlated otherwise than claimed.
  """
  found = _weigh_evidence(record, rounds, delta, claim, significance)
  if found is None:
    return None
  bounds, tails = found
  epsilon = anytime.epsilon_sequence(
    tails,
    delta=bounds.delta,
    significance=significance,
    after=bounds.num_canaries,
  )
  return bounds._replace(epsilon=epsilon)


def judge_claim(
  record: Record,
  claim: float,
  *,
  rounds: int | None = None,
  delta: float | None = None,
  significance: float = 0.05,
) -> ClaimTest | None:
  """`bound_sequentially(...).test_claim()`, without the bounds of any mechanism.

  These take ten times as long. Arguments, the meaning of None, and what is raised
  are those of `bound_sequentially`.
  """
  found = _weigh_evidence(record, rounds, delta, claim, significance)
  return found and found[0].test_claim()


def _weigh_evidence(
  record: Record,
  rounds: int | None,
  delta: float | None,
  claim: float | None,
  significance: float,
) -> tuple[SequentialBounds, Float[np.ndarray, ' n']] | None:
  """Bounds with 0 for those of any mechanism, and what canaries tell of these.

  That is log V of the canaries that have ended, in the order in which they end.
  """
  delta = checks.check_delta(record.delta if delta is None else delta)
  checks.check_significance(significance)
  if claim is not None:
    checks.check_number('claim', claim, '[0, 1e100]')
  last, num_rounds = _find_last_rounds(record), record.num_rounds
  is_summed = bool(record.strategy is not None or record.participations > 1)
  if rounds is not None:
    has_ended = last <= rounds
    if np.count_nonzero(has_ended & record.observed) < 2:
      return None
    record = release.replace_views(record, has_ended)
    record = release.truncate_after(record, rounds)
    last = _find_last_rounds(record)
  found = _score(record)
  if found is None:
    return None
  threat_model, scores = found
  if not failed_checks.drop_rejected_null(scores)[0].has_known_null:
    return None
  last = last[record.observed]
  order = np.argsort(last, kind='stable')
  tails = special.log_ndtr(-scores.observed[order])
  ends, num_canaries = np.unique(last, return_counts=True)
  num_canaries = np.cumsum(num_canaries)
  kept, stretch, vectors = 1.0, 1.0, last[order]
  if is_summed:
    kept, vectors = 1 - _OF_NORMS, None
    stretch = _stretch_shifts(record.dim, num_rounds, _OF_NORMS * significance)
  mu = anytime.gdp_sequence(
    tails,
    significance=kept * significance,
    after=num_canaries,
    vectors=vectors,
    dim=record.dim,
  )
  mu = mu / stretch
  log_evidence = None
  if claim is not None:
    claimed = tradeoff.mu_of_epsilon(claim, delta)
    log_evidence = math.log(kept) + anytime.gdp_log_evidence(
      tails,
      stretch * claimed,
      after=num_canaries,
      vectors=vectors,
      dim=record.dim,
    )
  bounds = SequentialBounds(
    threat_model,
    delta,
    significance,
    ends,
    num_canaries,
    mu,
    np.asarray(tradeoff.epsilon_gdp(mu, delta)),
    np.zeros_like(mu),
    claim,
    log_evidence,
  )
  return bounds, tails


def _stretch_shifts(dim: int, rounds: int, significance: float) -> float:
  """By how much norms of noise may raise the shifts of canaries of several rounds.

  Some of their rounds are common and others are not, so that no order makes them
  independent given the earlier ones. Given all norms |r_t| they are: directions of
  noise do not depend on its norms, and canaries are random directions. A score is
  then N(0, 1) and a mean over rounds of √d S/|r_t|, with |r_t|²/σ² of χ² of d. All are
  at least its quantile q at `significance`/T, but with that chance; else shifts are
  below μ √(d/q), and evidence against that is a product of bets that pay at most 1
  given norms and earlier canaries. So it ever exceeds 1/α with a chance of at most
  α + `significance`.
  """
  quantile = 2 * special.gammaincinv(dim / 2, significance / rounds)
  return math.sqrt(dim / quantile)


def _find_last_rounds(record: Record) -> Int[np.ndarray, ' k']:
  """The last round, from 1, that tells something of each canary; 0 if none does."""
  moved = np.asarray(record.assigned, np.float64)
  if record.strategy is not None:
    moved = record.strategy @ moved
  tells = np.abs(moved) > _NEGLIGIBLE * np.abs(moved).max(initial=0.0)
  last = len(moved) - tells[::-1].argmax(axis=0)
  return np.where(tells.any(axis=0), last, 0)


def _score(record: Record) -> tuple[ThreatModel, Scores] | None:
  """Scores that are N(0, 1) if nothing leaks, and the attacker they are of."""
  if record.strategy is not None:
    attack = attackers.DECORRELATED.score(record)
    # Unobserved canaries tell whether noise is correlated as stated.
    if attack is None or not can_fit_null(record):
      return None
    return attack.threat_model, attack.scores
  residual, rounds = record.cosines.get('residual'), record.rounds
  if residual is not None and rounds is not None:
    noise = noise_scale.measure_noise(record)
    if noise is not None and noise.correlation and noise.is_summed:
      return None
    cosines = score_left(record)
    model = attackers.RESIDUAL
  elif record.trace is not None and record.view == 'aggregate':
    # The model of a second round holds the canary, and so may its updates.
    if np.count_nonzero(record.included, axis=0).max() > 1:
      return None
    cosines, model = np.asarray(record.trace, np.float64), attackers.OWN
  else:
    return None
  normal = _sum_normal_scores(cosines, record)
  return model, split_scores(record, normal, Gaussian())


def _sum_normal_scores(
  cosines: Float[np.ndarray, 'T k'], record: Record
) -> Float[np.ndarray, ' k']:
  """Sums over own rounds in units of their spread: N(0, 1) if nothing leaks."""
  law = cosine_null.CosineNull(record.dim)
  # Cosines are float32: one of 1 may be a little less.
  cosines = np.clip(cosines, -_LARGEST, _LARGEST)
  own = assign_held_out(record.assigned).astype(bool)
  normal = np.zeros(own.shape)
  normal[own] = -special.ndtri_exp(law.logsf(cosines[own]))
  return normal.sum(axis=0) / np.sqrt(np.count_nonzero(own, axis=0))
