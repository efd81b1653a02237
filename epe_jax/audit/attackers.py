"""The attackers of a run: the view of each, its statistic, null law and analytic ε.

A new attacker is a function and a line in `OF_INDEPENDENT_NOISE`. Tables, figures and
comparisons follow this list, its order and the attributes of `ThreatModel`; a user's own
attackers follow it without a line.

References:
  Andrew et al. 2023, "One-shot Empirical Privacy Estimation for Federated Learning",
  Algorithms 2 and 3, section 3.1.
  Denisov et al. 2022, "Improved Differential Privacy for SGD via Optimal Private
  Linear Operators on Adaptive Streams".
"""

from collections.abc import Iterable, Sequence
import dataclasses
import functools

from jaxtyping import Float
import numpy as np

from epe_jax.audit import failed_checks, upper_bounds
from epe_jax.audit.attack_scores import (
  COSINE,
  AttackScores,
  ThreatModel,
  can_fit_null,
  describe_shifted,
  draw_null,
  name_law,
  note_crowding,
  score_cosines,
  split_scores,
)
from epe_jax.audit.noise_scale import (
  NoiseScale,
  count_independent,
  measure_noise,
)
from epe_jax.audit.record import Record
from epe_jax.audit.statistics import (
  assign_held_out,
  expect_residual,
  max_over_rounds,
  measure_overlap,
  score_combined,
  score_left,
  score_mixture,
  score_own_round,
  score_residual,
)
from epe_jax.epsilon import (
  known_shifts,
  maximum,
  noise_floor,
  paper_estimates,
  registry,
)
from epe_jax.epsilon.registry import Estimator
from epe_jax.epsilon.types import Estimate, Gaussian, Scores, Sphere, Unknown
from epe_jax.fact import Fact, Facts

# A canary with which nothing else is left has a cosine of 1, up to rounding.
_ALONE = 1e-3
# The largest chance that scores without a spread are dealt to a group.
_NEGLIGIBLE = 1e-12


def score_final(record: Record) -> AttackScores | None:
  """Cosines with the final model θ_T."""
  return score_cosines(FINAL, record, view='final_model', shift=record.weight)


def score_change(record: Record) -> AttackScores | None:
  """Cosines with θ_T - θ_0, for an attacker who also knows the initial model."""
  view = 'initial_and_final_model'
  return score_cosines(CHANGE, record, view=view, shift=record.weight)


def score_maximum(record: Record) -> AttackScores | None:
  """The largest cosine over rounds, of the attacker of the paper.

  Its null law is a power of that of one cosine.
  """
  largest = record.cosines.get(f'max_{record.view}')
  if largest is None and record.trace is not None:
    largest = max_over_rounds(record.trace)
  if largest is None or not can_fit_null(record):
    return None
  # In units of the std of one cosine, whose maximum has a law of its own.
  largest = np.sqrt(record.dim) * np.asarray(largest, np.float64)
  scores = split_scores(record, largest, Unknown())
  view, rounds = record.released, record.num_rounds
  if record.expected is None:
    return describe_maxima(view, scores, rounds=rounds)
  own_shifts = np.sqrt(record.dim) * record.expected[:, None] * record.assigned
  own_shifts = -np.sort(-own_shifts[:, record.observed], axis=0)
  in_round = record.assigned[:, record.observed].sum(axis=1)
  overlap = measure_overlap(record.expected, in_round, record.dim)
  return describe_maxima(
    view,
    dataclasses.replace(scores, overlap=overlap),
    own_shifts[: record.participations].T,
    rounds=rounds,
  )


def describe_maxima(
  view: str,
  scores: Scores,
  own_shifts: Float[np.ndarray, 'n1 n'] | None = None,
  *,
  rounds: int,
) -> AttackScores:
  """Maxima over rounds, with what suits them; audits and plans describe them so.

  Args:
    scores: maxima in units of 1/√d.
    own_shifts: expected shifts in the rounds of each observed canary, in the same
      units, largest first; None if they are unknown, and then no estimate is
      calibrated.
    rounds: T.
  """
  points: tuple[Estimator, ...] = (
    registry.FITTED
    if failed_checks.scores_differ(scores)
    else registry.COUNTED,
    paper_estimates.eps_lo,
  )
  failed, tau = failed_checks.check_not_swapped(scores), float(rounds)
  if own_shifts is not None:
    estimator = functools.partial(
      maximum.maximum_over_rounds, own=own_shifts, rounds=rounds
    )
    points = (estimator, *points)
    tau = maximum.fit_rounds(scores.unobserved, rounds)
    p = maximum.p_value(scores.unobserved)
    if p < known_shifts.REJECTED_BELOW:
      failed += (Fact('maximum_law_rejected', {'p_value': float(p)}),)
  sizes = scores.observed.size, scores.unobserved.size
  return AttackScores(
    threat_model=MAXIMUM,
    view=view,
    scores=scores,
    unit=COSINE,
    points=points,
    bounds=registry.choose_bounds(scores),
    draw=noise_floor.draw_from_null(*sizes, rounds=tau),
    law=('maximum', *sizes, tau),
    is_calibrated=own_shifts is not None and not failed,
    failed_checks=failed,
  )


def score_likelihood(record: Record) -> AttackScores | None:
  """The likelihood ratio over rounds, of one who tests in which a canary took part."""
  trace, expected = record.trace, record.expected
  if trace is None or expected is None or not can_fit_null(record):
    return None
  ratio = score_mixture(trace, expected, dim=record.dim)
  scores = split_scores(record, ratio, Unknown())
  # Its law is not known, so that bounds are all there is to say.
  return AttackScores(
    threat_model=LIKELIHOOD,
    view=record.released,
    scores=scores,
    unit='log_likelihood_ratio',
    points=(registry.COUNTED, paper_estimates.eps_lo),
    bounds=registry.choose_bounds(scores),
    failed_checks=failed_checks.check_not_swapped(scores),
  )


def score_own(record: Record) -> AttackScores | None:
  """The cosine with the round of each canary; with several rounds, their sum."""
  trace = record.trace
  if trace is None:
    return None
  models, root = record.view == 'models', float(np.sqrt(record.dim))
  once = record.participations == 1
  # Norms do not tell how the aggregates of several rounds lie.
  exact = once and not models
  if not exact and not can_fit_null(record):
    return None
  assigned, shift = assign_held_out(record.assigned), None
  if models:
    # A row of weights for each difference of models, which are what to expect.
    weights = np.square(assigned, dtype=np.float64)
    shift = root * np.sqrt(np.sum(weights, axis=0))
  elif record.expected is not None:
    expected = np.broadcast_to(record.expected[:, None], assigned.shape)
    shift = root * score_own_round(expected, assigned)
  is_expected = exact and shift is not None
  scores = split_scores(
    record,
    score_own_round(trace, assigned),
    Sphere(record.dim) if exact else Unknown(),
    shift,
    assigned.argmax(axis=0),
    is_expected=is_expected,
  )
  notes = ()
  if exact and not scores.has_known_null:
    notes = (note_crowding(scores.design),)
  elif not exact and not models:
    notes = (SUM_OVER_ROUNDS,)
  return describe_shifted(
    OWN,
    record.released,
    scores,
    scale=root,
    is_expected=is_expected,
    notes=notes,
  )


def score_others_removed(record: Record) -> AttackScores | None:
  """Inner products with a canary's rounds, of one who knows all other updates.

  What is left is the Gaussian mechanism itself, whose ε is the analytic one.
  """
  residual = record.cosines.get('residual')
  if residual is None:
    return None
  assigned = assign_held_out(record.assigned)
  view = f'{record.released}_and_updates'
  if record.rounds is None:
    if not can_fit_null(record):
      return None
    values = score_own_round(residual, assigned)
    scores = split_scores(record, values, Unknown())
    root = float(np.sqrt(record.dim))
    return describe_shifted(RESIDUAL, view, scores, scale=root)
  noise = measure_noise(record)
  if noise is None or not noise.ratio:
    return _score_without_noise(record, view, noise)
  if not (noise.gives_null_law or can_fit_null(record)):
    return _score_direction(record, view, noise.contradictions)
  if record.strategy is not None:
    values, shift = score_combined(record, None)
  else:
    values = score_residual(residual, record.included, assigned, record.rounds)
    shift = expect_residual(assigned, record.rounds)
  return _describe_in_noise(RESIDUAL, view, record, values, shift, noise)


def _score_direction(
  record: Record, view: str, contradictions: Facts = ()
) -> AttackScores | None:
  """Cosines with what the other updates leave, whose size is not as claimed."""
  once = record.participations == 1
  if not (once or can_fit_null(record)):
    return None
  values = score_own_round(score_left(record), assign_held_out(record.assigned))
  null = Sphere(record.dim) if once else Unknown()
  return describe_shifted(
    RESIDUAL,
    view,
    split_scores(record, values, null),
    scale=float(np.sqrt(record.dim)),
    contradictions=contradictions,
  )


def _score_without_noise(
  record: Record, view: str, noise: NoiseScale | None
) -> AttackScores | None:
  """Without noise only the canary itself is left: a cosine of 1."""
  own = score_left(record)[record.included]
  if not np.isfinite(own).all():
    return None
  if noise is None and not np.all(own > 1 - _ALONE):
    return _score_direction(record, view)
  values = record.observed.astype(np.float64)
  scores = split_scores(record, values, Sphere(record.dim))
  return AttackScores(
    threat_model=RESIDUAL,
    view=view,
    scores=scores,
    unit=COSINE,
    scale=float(np.sqrt(record.dim)),
    points=(without_noise,),
    bounds=registry.choose_bounds(scores),
    is_calibrated=True,
    contradictions=() if noise is None else noise.contradictions,
  )


def without_noise(scores: Scores, *, delta: float) -> Estimate:
  """An infinite ε: nothing hides a canary whose cosine is 1."""
  del scores
  return Estimate(np.inf, delta, 'without_noise', confidence=None)


def score_decorrelated(record: Record) -> AttackScores | None:
  """Rounds combined, of one who also undoes the correlation of their noise.

  What is left of other updates is x + C⁻¹ Z with independent Z. Multiplied with C, a
  canary of rounds a is in it as S C a, so that the score matched to it is
  N(|C a| S/σ, 1), or N(0, 1) if it took no part. No other test of the releases is
  better; that of `RESIDUAL`, who takes own rounds as they are, finds less.
  """
  if record.strategy is None or 'residual' not in record.cosines:
    return None
  noise = measure_noise(record)
  if noise is None or not noise.ratio:
    return None
  values, shift = score_combined(record, record.strategy)
  view = 'all_iterates_combined'
  return _describe_in_noise(DECORRELATED, view, record, values, shift, noise)


def _describe_in_noise(
  threat_model: ThreatModel,
  view: str,
  record: Record,
  values: Float[np.ndarray, ' k'],
  shift: Float[np.ndarray, ' k'],
  noise: NoiseScale,
) -> AttackScores | None:
  """Inner products in units of claimed noise, as scores in units of measured noise.

  Their null law is N(0, 1), or that of unobserved canaries where the noise of rounds is
  not of one scale, or correlated otherwise than claimed.
  """
  if not noise.gives_null_law and not can_fit_null(record):
    return None
  null = Gaussian() if noise.gives_null_law else Unknown()
  scores = split_scores(record, values / noise.ratio, null, shift)
  # The norm by which all scores are divided is known to 1/√(2 d) in each round.
  num = 2 * record.dim * count_independent(record)
  shared = float(np.sum(shift[record.observed] ** 2) / num)
  return describe_shifted(
    threat_model,
    view,
    dataclasses.replace(scores, overlap=shared),
    is_expected=True,
    notes=noise.notes,
    contradictions=noise.contradictions,
  )


def score_external(scores: Scores) -> AttackScores:
  """Scores of any other system, with what suits them.

  What is said of how taking part moves them is taken as it is given, and nothing is
  calibrated. Bounds that take scores for Gaussian are among the others and say so.
  When nothing leaks, labels are dealt at random: floors hold for any law of the scores.

  Raises:
    ValueError: a group has only one score.
  """
  if 1 in (scores.observed.size, scores.unobserved.size):
    raise ValueError(
      f'There are too few scores: {scores.observed.size:,} of canaries that took '
      f'part and {scores.unobserved.size:,} of others. Give at least 2 of each, '
      'better hundreds.'
    )
  scores, failed = failed_checks.drop_rejected_null(scores)
  has_spread = _can_fit_spread(scores) and not scores.is_ordinal
  if not has_spread and not scores.has_known_null:
    # A shift is fitted in units of the spread, and there is none.
    scores = dataclasses.replace(scores, shift=None)
  if scores.is_ordinal:
    of_law, is_rejected = (), False
  elif scores.shift is None:
    of_law, is_rejected = failed_checks.check_normality(scores), False
  else:
    of_law = failed_checks.check_mixture(scores)
    is_rejected = bool(of_law)
  bounds = registry.choose_bounds(scores, is_rejected=is_rejected)
  draw, law = draw_null(scores), name_law(scores)
  if scores.unobserved.size:
    draw, law = noise_floor.draw_permutations(scores), ('permuted', id(scores))
  return AttackScores(
    threat_model=EXTERNAL,
    view='scores',
    scores=scores,
    unit='score',
    points=registry.choose_points(
      scores,
      has_spread=has_spread,
      can_fit_null=has_spread or scores.has_known_null,
    ),
    bounds=(*bounds, registry.GAUSSIAN) if has_spread else bounds,
    draw=draw,
    law=law,
    failed_checks=(*failed, *(failed_checks.check_repeats(scores) or of_law)),
    notes=(Fact('order_only'),) if scores.is_ordinal else (),
  )


def _can_fit_spread(scores: Scores) -> bool:
  """Whether each group that is fitted has a spread, here and where nothing leaks.

  It has none if its scores are all equal, as may be when labels are dealt at random
  and many scores are.
  """
  if not failed_checks.scores_differ(scores):
    return False
  if not scores.unobserved.size:
    return True
  fitted = [scores.observed]
  if not scores.has_known_null:
    fitted.append(scores.unobserved)
  pooled = np.concatenate([scores.observed, scores.unobserved])
  most = np.unique(pooled, return_counts=True)[1].max()
  return all(
    np.ptp(group) > 0
    and (most < group.size or (most / pooled.size) ** group.size < _NEGLIGIBLE)
    for group in fitted
  )


SUM_OVER_ROUNDS = Fact('sum_over_rounds')
"""The note on scores that are sums over several rounds: no null law is known."""

FINAL = ThreatModel('final', score_final, upper_bounds.expect_final_model)
CHANGE = ThreatModel(
  'change',
  score_change,
  upper_bounds.expect_final_model,
  is_in_overview=False,
)
MAXIMUM = ThreatModel(
  'maximum',
  score_maximum,
  upper_bounds.bound_unknown_rounds,
  is_shift=False,
  is_in_overview=False,
)
LIKELIHOOD = ThreatModel(
  'likelihood',
  score_likelihood,
  upper_bounds.bound_unknown_rounds,
  is_shift=False,
  is_in_overview=False,
)
OWN = ThreatModel('own_round', score_own, upper_bounds.bound_known_rounds)
RESIDUAL = ThreatModel(
  'residual',
  score_others_removed,
  upper_bounds.bound_known_rounds,
  is_worst_case=True,
  is_in_overview=False,
)
DECORRELATED = ThreatModel(
  'decorrelated',
  score_decorrelated,
  upper_bounds.bound_known_rounds,
  is_worst_case=True,
  is_in_overview=False,
)
EXTERNAL = ThreatModel('external', is_shift=False, is_in_overview=False)
"""An attacker of any other system, of whom nothing but scores is known."""

OF_INDEPENDENT_NOISE = (FINAL, CHANGE, MAXIMUM, LIKELIHOOD, OWN, RESIDUAL)
"""The attackers of a run whose rounds have independent noise, in the same order."""

THREAT_MODELS = (*OF_INDEPENDENT_NOISE, DECORRELATED)
"""The attackers of a run, from the one who knows least to the one who knows most."""


def score_all(
  record: Record, threat_models: Sequence[ThreatModel] = THREAT_MODELS
) -> list[AttackScores]:
  """Scores the canaries of a run for each attacker, in the given order.

  The null law is exact for cosines with the final model; with the aggregate of the
  own round, if each canary took part once; and for inner products with the residual,
  in units of its noise. Elsewhere, and where the unobserved canaries reject it, the
  unobserved canaries supply the law; an attacker who needs it and has fewer than two
  is left out. The likelihood over rounds is left out where the cosine to expect of a
  canary is not known, and the final model where it is not shown. An unobserved canary
  is scored in the rounds that its coin assigned to it; without coins, in the rounds
  of another canary.
  """
  all_scores = (threat_model.score(record) for threat_model in threat_models)
  return [
    attack_scores for attack_scores in all_scores if attack_scores is not None
  ]


def sort_by_strength(threat_models: Iterable[ThreatModel]) -> list[ThreatModel]:
  """Attackers from the weakest to the strongest, each once.

  Those of `THREAT_MODELS` are the stronger the more they know. The strength of others
  is not known: they come last if they are declared to be the worst case, and first
  otherwise, each in the order of their keys.
  """
  keys = [model.key for model in THREAT_MODELS]

  def rank(model: ThreatModel) -> tuple[int, str]:
    if model.key in keys:
      return keys.index(model.key), model.key
    return (len(keys) if model.is_worst_case else -1), model.key

  return sorted(dict.fromkeys(threat_models), key=rank)


def find(key: str) -> ThreatModel | None:
  """The attacker with a key; None if this package has none."""
  models = (*THREAT_MODELS, EXTERNAL)
  return next((model for model in models if model.key == key), None)
