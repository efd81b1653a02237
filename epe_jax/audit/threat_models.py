"""The attackers: what each sees and knows, and what it reads of a record.

Attackers form an order, from one who knows least to the one that the analytic
bound assumes. `attack_scores` has which estimators suit their
scores.
"""

from collections.abc import Sequence
import dataclasses
import functools

import numpy as np

from epe_jax.audit import (
  attack_statistics,
  estimators,
  external_scores,
  failed_checks,
  upper_bounds,
)
from epe_jax.audit.attack_scores import (
  COSINE,
  AttackScores,
  ThreatModel,
  can_fit_null,
  contradict,
  describe_shifted,
  scale_noise,
  score_cosines,
  split_scores,
)
from epe_jax.audit.estimators import Estimator
from epe_jax.audit.noise_scale import NoiseScale, measure_noise
from epe_jax.audit.record import Record
from epe_jax.epsilon import (
  cosine_alternative,
  diagnostics,
  maximum,
  noise_floor,
  shift_tests,
  threshold,
)


def score_all(
  record: Record, threat_models: Sequence[ThreatModel] | None = None
) -> list[AttackScores]:
  """The scores of a run, from the attacker who knows least upwards.

  The null law is exact for cosines with the final model; with the aggregate of
  the own round, if each canary took part once; and of inner products with the
  noise that is left when all others are removed, in units of what is left. Elsewhere, and where
  the unobserved canaries reject it, it is that of the unobserved canaries;
  without two the attacker is left out. So is the likelihood over rounds where a
  canary's own cosine is not known beforehand, and the final model where it is not
  shown. A canary whose coin said no is read in the rounds it would have had, and
  where there were no coins, in the rounds of another.

  Args:
    record: what attackers saw.
    threat_models: the attackers; None for `THREAT_MODELS`.
  """
  models = THREAT_MODELS if threat_models is None else threat_models
  all_scores = (threat_model.score(record) for threat_model in models)
  return [
    attack_scores for attack_scores in all_scores if attack_scores is not None
  ]


def find(key: str) -> ThreatModel | None:
  """The attacker of a key among those of this package; None if it has none."""
  models = (*THREAT_MODELS, external_scores.EXTERNAL)
  return next((model for model in models if model.key == key), None)


def _score_final(record: Record) -> AttackScores | None:
  return score_cosines(FINAL, record, sees='final model', shift=record.weight)


def _score_change(record: Record) -> AttackScores | None:
  sees = 'final model, initial model known'
  return score_cosines(CHANGE, record, sees=sees, shift=record.weight)


def _score_maximum(record: Record) -> AttackScores | None:
  """The paper's statistic, whose null law is a power of that of one cosine."""
  largest = record.cosines.get(f'max_{record.sees}')
  if largest is None and record.trace is not None:
    largest = attack_statistics.max_over_rounds(record.trace)
  if largest is None or not can_fit_null(record):
    return None
  # In units of the std of one cosine, whose maximum has a law of its own.
  largest = np.sqrt(record.dim) * np.asarray(largest, np.float64)
  scores = split_scores(record, largest, None)
  differ = failed_checks.scores_differ(scores)
  points: tuple[Estimator, ...] = (
    estimators.FITTED if differ else estimators.COUNTED,
    threshold.eps_lo,
  )
  reasons, tau = (
    failed_checks.doubt_if_swapped(scores),
    float(record.num_rounds),
  )
  if record.expected is not None:
    own_shifts = (
      np.sqrt(record.dim) * record.expected[:, None] * record.assigned
    )
    own_shifts = -np.sort(-own_shifts[:, record.observed], axis=0)
    scores = dataclasses.replace(scores, overlap=_measure_overlap(record))
    max_rounds = np.count_nonzero(record.assigned, axis=0).max()
    estimator = functools.partial(
      maximum.maximum_over_rounds,
      own=own_shifts[:max_rounds].T,
      rounds=len(own_shifts),
    )
    points = (estimator, *points)
    tau = maximum.fit_rounds(scores.unobserved, len(own_shifts))
    p = maximum.p_value(scores.unobserved)
    if p < shift_tests.REJECTED_BELOW:
      reasons += (
        'maxima of canaries that took no part do not follow the law of the '
        f'largest of independent cosines ({diagnostics.format_p_value(p)}), so that no estimate from '
        'them is calibrated',
      )
  return AttackScores(
    threat_model=MAXIMUM,
    sees=_describe_release(record),
    scores=scores,
    unit=COSINE,
    scale=1.0,
    points=points,
    bounds=estimators.choose_bounds(scores),
    draw=noise_floor.draw_from_null(
      scores.observed.size, scores.unobserved.size, rounds=tau
    ),
    law=('maximum', scores.observed.size, scores.unobserved.size, tau),
    is_calibrated=record.expected is not None and not reasons,
    is_expected=False,
    doubts=reasons,
  )


def _measure_overlap(record: Record) -> float:
  """As `Scores.overlap` of canaries that are in the same rounds."""
  assert record.expected is not None
  squares = record.dim * np.square(record.expected, dtype=np.float64)
  num = record.assigned[:, record.observed].sum(axis=1)
  others = np.sum(num * (num - 1) * squares**2)
  return float(others / (record.dim * np.sum(num * squares)))


def _score_likelihood(record: Record) -> AttackScores | None:
  trace, expected = record.trace, record.expected
  if trace is None or expected is None or not can_fit_null(record):
    return None
  ratio = attack_statistics.score_mixture(trace, expected, dim=record.dim)
  scores = split_scores(record, ratio, None)
  return AttackScores(
    threat_model=LIKELIHOOD,
    sees=_describe_release(record),
    scores=scores,
    unit='log likelihood ratio',
    scale=1.0,
    points=(estimators.COUNTED, threshold.eps_lo),
    bounds=estimators.choose_bounds(scores),
    draw=None,
    law=None,
    is_calibrated=False,
    is_expected=False,
    doubts=failed_checks.doubt_if_swapped(scores),
  )


def _score_own(record: Record) -> AttackScores | None:
  """The round of each canary; of several rounds, the sum of their cosines."""
  trace = record.trace
  if trace is None:
    return None
  models, root = record.sees == 'models', float(np.sqrt(record.dim))
  once = bool(np.count_nonzero(record.assigned, axis=0).max() == 1)
  # Of several rounds norms do not tell how their aggregates lie.
  exact = once and not models
  if not exact and not can_fit_null(record):
    return None
  assigned, shift = attack_statistics.assign_held_out(record.assigned), None
  if models:
    # A row of weights for each difference of models, which are what to expect.
    weights = np.square(assigned, dtype=np.float64)
    shift = root * np.sqrt(np.sum(weights, axis=0))
  elif record.expected is not None:
    expected = np.broadcast_to(record.expected[:, None], assigned.shape)
    shift = root * attack_statistics.score_own_round(expected, assigned)
  values = attack_statistics.score_own_round(trace, assigned)
  dim = record.dim if exact else None
  is_expected = exact and shift is not None
  scores = split_scores(
    record,
    values,
    dim,
    shift,
    assigned.argmax(axis=0),
    is_expected=is_expected,
  )
  return describe_shifted(
    OWN,
    _describe_release(record),
    scores,
    scale=root,
    is_expected=is_expected,
    is_crowded=exact and scores.dim is None,
    is_sum=not exact and not models,
  )


def _score_residual(record: Record) -> AttackScores | None:
  """The Gaussian mechanism itself: inner products in units of known noise."""
  residual = record.cosines.get('residual')
  if residual is None:
    return None
  sees = f'{_describe_release(record)}, other updates known'
  assigned = attack_statistics.assign_held_out(record.assigned)
  if record.rounds is None:
    if not can_fit_null(record):
      return None
    root = float(np.sqrt(record.dim))
    values = attack_statistics.score_own_round(residual, assigned)
    scores = split_scores(record, values, None)
    return describe_shifted(
      RESIDUAL, sees, scores, scale=root, is_expected=False
    )
  noise = measure_noise(record)
  if noise is None or not noise.ratio:
    return _score_without_noise(record, sees, noise)
  if not noise.is_steady and not can_fit_null(record):
    return None
  values = attack_statistics.score_residual(
    residual, record.included, assigned, record.rounds
  )
  shift = attack_statistics.expect_residual(assigned, record.rounds)
  return describe_shifted(
    RESIDUAL,
    sees,
    scale_noise(record, values, shift, noise),
    scale=1.0,
    is_expected=True,
    noise=noise,
  )


def _score_without_noise(
  record: Record, sees: str, noise: NoiseScale | None
) -> AttackScores:
  """Whoever removes all others is left with the canary itself: a cosine of 1."""
  values = record.observed.astype(np.float64)
  scores = split_scores(record, values, record.dim)
  return AttackScores(
    threat_model=RESIDUAL,
    sees=sees,
    scores=scores,
    unit=COSINE,
    scale=float(np.sqrt(record.dim)),
    points=(cosine_alternative.shifted_cosine,),
    bounds=estimators.choose_bounds(scores),
    draw=None,
    law=None,
    is_calibrated=True,
    is_expected=False,
    doubts=(),
    contradictions=contradict(noise),
  )


def _describe_release(record: Record) -> str:
  return 'published models' if record.sees == 'models' else 'all iterates'


FINAL = ThreatModel(
  'final',
  'final model',
  'cosine with the final model',
  'An attacker who sees only the final model',
  _score_final,
  upper_bounds.expect_final_model,
)
CHANGE = ThreatModel(
  'change',
  'change of the model',
  'cosine with the change of the model',
  'An attacker who sees the initial and the final model',
  _score_change,
  upper_bounds.expect_final_model,
)
MAXIMUM = ThreatModel(
  'maximum',
  'maximum over rounds',
  'maximum over rounds',
  'An attacker who sees what every round releases and takes the largest cosine',
  _score_maximum,
  upper_bounds.bound_unknown_rounds,
)
LIKELIHOOD = ThreatModel(
  'likelihood',
  'likelihood over rounds',
  'likelihood over rounds',
  'An attacker who sees what every round releases and tests by likelihood',
  _score_likelihood,
  upper_bounds.bound_unknown_rounds,
)
OWN = ThreatModel(
  'own_round',
  'own round',
  'own round',
  'An attacker who sees what every round releases and knows when a canary '
  'took part',
  _score_own,
  upper_bounds.bound_known_rounds,
)
RESIDUAL = ThreatModel(
  'residual',
  'own round, others removed',
  'own round, others removed',
  'An attacker who also knows the updates of all others and removes them',
  _score_residual,
  upper_bounds.bound_known_rounds,
  is_worst_case=True,
)

THREAT_MODELS = (FINAL, CHANGE, MAXIMUM, LIKELIHOOD, OWN, RESIDUAL)
"""The attackers of a run, from who knows least to who knows most."""

SHIFTED = (FINAL, CHANGE, OWN, RESIDUAL)
"""Those whose scores taking part shifts by known multiples."""
