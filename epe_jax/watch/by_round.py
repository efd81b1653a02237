"""ε after each round: every attack on a run that is cut off after round t."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent import futures
import dataclasses
import itertools
from typing import NamedTuple

from jaxtyping import Int
import numpy as np

from epe_jax.audit import attackers, evaluation, release
from epe_jax.audit.attack_scores import (
  AttackScores,
  ThreatModel,
  describe_shifted,
  split_scores,
)
from epe_jax.audit.attackers import THREAT_MODELS
from epe_jax.audit.record import Record
from epe_jax.audit.results import SIGNIFICANCE, Audit
from epe_jax.epsilon import lower_bounds, registry
from epe_jax.epsilon.checks import check_delta, check_significance
from epe_jax.epsilon.types import (
  Estimate,
  NullLaw,
  Unknown,
)
from epe_jax.watch import published_models, sequential
from epe_jax.watch.sequential import SequentialBounds

# Fewer canaries than this scatter too much to start a curve with.
_MIN_OBSERVED = 30
# Rounds of an audit: each costs as much as all other estimates without floors.
_NUM_ROUNDS = 6


class RoundEstimate(NamedTuple):
  """What an attacker could tell after some rounds.

  Attributes:
    round: t, in [1, T].
    threat_model: the attacker.
    estimate: a point estimate with an interval, or a lower bound.
    num_observed: canaries that had taken part by then.
    num_unobserved: canaries that never did.
  """

  round: int
  threat_model: ThreatModel
  estimate: Estimate
  num_observed: int
  num_unobserved: int


class Rounds(NamedTuple):
  """ε of the attackers of a run after its rounds.

  Attributes:
    each_round: after each of some rounds.
    all_rounds: bounds that hold after all rounds at once; None if no attacker's
      scores have a known law.
  """

  each_round: tuple[RoundEstimate, ...]
  all_rounds: SequentialBounds | None


def evaluate_rounds(record: Record, audit: Audit) -> Rounds | None:
  """ε of the attackers of an audit after each of some rounds, and at all at once.

  Args:
    audit: of the record. An attacker of a user who was read from a file can no longer
      score, and is left out.

  Returns:
    None if the record has no trace.
  """
  if record.trace is None:
    return None
  estimates = evaluate_by_round(
    record,
    rounds=choose_rounds(record, num=_NUM_ROUNDS).tolist(),
    models=[attack.threat_model for attack in audit.attacks],
  )
  return Rounds(tuple(estimates), sequential.bound_sequentially(record))


def evaluate_by_round(
  record: Record,
  *,
  rounds: Sequence[int] | None = None,
  delta: float | None = None,
  models: Sequence[ThreatModel] = THREAT_MODELS,
  resamples: int = 200,
) -> list[RoundEstimate]:
  """ε of what each attacker had seen after t rounds, about one who took part.

  At round t the canaries that took part by then stand against the unobserved
  ones, by the maximum and the likelihood over the rounds so far, by their own
  rounds so far, and by what training has made of the initial model so far. The
  last is scored when training ends; before, it is derived from the trace, as
  `published_models.derive_models` does, where it can be.

  Where an attacker's estimate is calibrated it is given, with a 90 % interval for the
  scatter of canaries. Every attacker has a lower bound without a shape assumed;
  it holds at each round by itself and not at all of them together.

  Args:
    rounds: values of t, in [1, T]; None for `choose_rounds`.
    models: the attackers.
    resamples: of the bootstrap, where an interval takes one.

  Returns:
    For each round and attacker a point estimate, where that is calibrated, and a
    lower bound, without floors. At T point estimates are those of the run.

  Raises:
    ValueError: a round has fewer than two canaries.
  """
  delta = record.delta if delta is None else delta
  rounds_shown = choose_rounds(record) if rounds is None else rounds
  derivable = published_models.explain_not_derivable(record) is None
  nulls = _find_nulls(record, models)

  def evaluate_round(t: int) -> list[RoundEstimate]:
    return [
      RoundEstimate(
        t,
        attack_scores.threat_model,
        estimate,
        attack_scores.scores.observed.size,
        attack_scores.scores.unobserved.size,
      )
      for attack_scores in _score_round(record, t, nulls, derivable)
      for estimate in _estimate_round(attack_scores, delta, resamples)
    ]

  # Side by side, as most of it is work of NumPy, which lets other threads run.
  with futures.ThreadPoolExecutor(thread_name_prefix='rounds') as pool:
    each = pool.map(evaluate_round, map(int, rounds_shown))
    return list(itertools.chain.from_iterable(each))


def bound_simultaneously(
  record: Record,
  *,
  rounds: Iterable[int] | None = None,
  deltas: Sequence[float] | None = None,
  significance: float = SIGNIFICANCE,
) -> list[RoundEstimate]:
  """Lower bounds of all attackers, after all rounds and at all δ, at one level.

  One of them exceeds the true ε with the significance at most: each has an equal
  share of it (Bonferroni). As ε falls in δ, a bound at one δ is one at every
  smaller δ.

  Args:
    rounds: values of t, in [1, T]; None for T alone.
    deltas: each a `delta`; None for the run's own.

  Returns:
    A bound of each attacker that assumes no shape, for each round and each δ in
    increasing order. Its confidence is that of all bounds together.

  Raises:
    ValueError: a round has fewer than two canaries.
  """
  check_significance(significance)
  shown = [record.num_rounds] if rounds is None else list(rounds)
  levels = sorted({record.delta} if deltas is None else set(deltas))
  for delta in levels:
    check_delta(delta)
  nulls = _find_nulls(record, THREAT_MODELS)
  derivable = published_models.explain_not_derivable(record) is None
  scored = [
    (t, attack_scores)
    for t in map(int, shown)
    for attack_scores in _score_round(record, t, nulls, derivable)
  ]
  share = significance / (len(scored) * len(levels))
  bounds = []
  for t, attack_scores in scored:
    scores = attack_scores.scores
    bound = registry.choose_exact_bound(scores)
    several = [bound(scores, delta=d, significance=share) for d in levels]
    epsilons = np.array([float(e.epsilon) for e in several])
    largest = np.maximum.accumulate(epsilons[::-1])[::-1]
    bounds += [
      RoundEstimate(
        t,
        attack_scores.threat_model,
        dataclasses.replace(
          estimate,
          epsilon=float(epsilon),
          confidence=estimate.confidence and 1 - significance,
        ),
        scores.observed.size,
        scores.unobserved.size,
      )
      for estimate, epsilon in zip(several, largest)
    ]
  return bounds


def choose_rounds(record: Record, *, num: int = 10) -> Int[np.ndarray, ' n']:
  """At most `num` rounds, evenly from the first with 30 canaries to the last.

  If fewer took part in all, from the first with half of them; two at least.
  """
  by = np.logical_or.accumulate(record.included).sum(axis=1)
  min_observed = max(2, min(_MIN_OBSERVED, by[-1] // 2))
  first = 1 + int(np.argmax(by >= min_observed))
  return np.unique(np.linspace(first, len(by), num).round().astype(int))


def _find_nulls(
  record: Record, models: Sequence[ThreatModel]
) -> dict[ThreatModel, NullLaw]:
  """One kind of null for all rounds: after second rounds it is not exact."""
  all_scores = attackers.score_all(record, models)
  return {r.threat_model: r.scores.null for r in all_scores}


def _score_round(
  record: Record,
  t: int,
  nulls: Mapping[ThreatModel, NullLaw],
  derivable: bool,
) -> Iterator[AttackScores]:
  part = release.truncate_after(record, t)
  for attack_scores in attackers.score_all(part, list(nulls)):
    scores = dataclasses.replace(
      attack_scores.scores, null=nulls[attack_scores.threat_model]
    )
    yield attack_scores._replace(scores=scores)
  if t == record.num_rounds or not derivable:
    return
  only = np.arange(1, record.num_rounds + 1) == t
  model = published_models.derive_models(record, only)
  # Its norm is estimated, so its null law is that of unobserved canaries.
  if np.count_nonzero(~model.observed) < 2:
    return
  yield describe_shifted(
    attackers.CHANGE,
    'first model and the one after the round',
    split_scores(
      model, model.cosines['models'][0], Unknown(), model.assigned[0]
    ),
    scale=float(np.sqrt(record.dim)),
    is_expected=False,
  )


def _estimate_round(
  attack_scores: AttackScores,
  delta: float,
  resamples: int,
) -> Iterator[Estimate]:
  if attack_scores.is_calibrated:
    yield evaluation.estimate_with_interval(
      attack_scores, delta=delta, resamples=resamples
    )
  yield lower_bounds.lower_bound(attack_scores.scores, delta=delta)
