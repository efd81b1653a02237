"""The attackers: what each sees and knows, and what it reads of a record.

Attackers form an order, from one who knows least to the one that the analytic
bound assumes. Which estimators a reading allows follows from what is known of its
scores: their null law, by how much taking part shifts each, and whether tests
contradict that.
"""

from collections.abc import Callable, Hashable, Sequence
import functools
import math
from typing import NamedTuple

from jaxtyping import Float, Int
import numpy as np

from epe_jax.audit import doubts, estimators, statistics
from epe_jax.audit.estimators import Estimator
from epe_jax.audit.record import Record
from epe_jax.epsilon import (
  cosine_alternative,
  diagnostics,
  maximum,
  mixture,
  noise_floor,
  parametric,
  shift_tests,
  threshold,
)
from epe_jax.epsilon.types import Scores

_COSINE, _IN_NOISE = 'cosine, in units of 1/√d', 'in units of the noise'
# Shifts that differ by less than this are taken to be alike.
_ALIKE = 0.05


class ThreatModel(NamedTuple):
  """One kind of attacker; whatever is shown of one hangs on its key.

  Attributes:
    key: in files, and for whoever compares.
    name: in legends and headings.
    statistic: what is read of a canary, in words.
    who: the attacker, in words; None where no sentence is made of it.
    read: record -> reading; None where the record has nothing to read.
  """

  key: str
  name: str
  statistic: str
  who: str | None
  read: Callable[[Record], 'Reading | None']


class Reading(NamedTuple):
  """The scores of all canaries for one attacker.

  Attributes:
    threat_model: the attacker.
    sees: what is seen and known of the run at hand, in words.
    scores: observed and unobserved.
    unit: what scores times scale are measured in.
    scale: makes scores easy to read.
    points: point estimators that make sense here, the one to believe first.
    bounds: lower bounds, the headline one first.
    draw: makes audits with such scores in which nothing leaks; None if there is
      no way to.
    law: of these audits; readings with equal laws share their floors.
    is_calibrated: the first point estimator estimates the ε of this attacker, and
      no test says otherwise.
    is_expected: shifts of the scores are those that norms tell to expect, and
      not just in proportion to them.
    doubts: in plain words, what tests found against the estimates.
  """

  threat_model: ThreatModel
  sees: str
  scores: Scores
  unit: str
  scale: float
  points: Sequence[Estimator]
  bounds: Sequence[Estimator]
  draw: noise_floor.Draw | None
  law: Hashable
  is_calibrated: bool
  is_expected: bool
  doubts: tuple[str, ...]


def read_all(record: Record) -> list[Reading]:
  """The readings of a run, from the attacker who knows least upwards.

  The null law is exact for cosines with the final model; with the aggregate of
  the own round, if each canary took part once; and of inner products with the
  noise that is left when all others are removed. Elsewhere, and where
  the unobserved canaries reject it, it is that of the unobserved canaries;
  without two the reading is left out. So is the likelihood over rounds where a
  canary's own cosine is not known beforehand, and the final model where it is not
  shown. A canary whose coin said no is read in the rounds it would have had, and
  where there were no coins, in the rounds of another.
  """
  readings = (threat_model.read(record) for threat_model in THREAT_MODELS)
  return [reading for reading in readings if reading is not None]


def read_external(scores: Scores) -> Reading:
  """Scores of any other system, as the one reading there is of them.

  Nothing is known of how taking part moves them, so nothing is calibrated. Bounds
  that take scores for Gaussian are among the others and say so. When nothing
  leaks, labels are dealt at random: floors hold for any law of the scores.
  """
  scores, against = doubts.drop_rejected_null(scores)
  spread = doubts.scores_differ(scores)
  draw, law = _null_law(scores), _law(scores)
  if scores.unobserved.size:
    draw, law = noise_floor.draw_permutations(scores), ('permuted', id(scores))
  reason = diagnostics.warn_if_not_gaussian(scores)
  return Reading(
    threat_model=EXTERNAL,
    sees='scores',
    scores=scores,
    unit='score',
    scale=1.0,
    points=estimators.point_estimators(estimators.NULL_STD, spread),
    bounds=(
      *estimators.counted_bounds(scores),
      *((parametric.gaussian_lower_bound,) if spread else ()),
    ),
    draw=draw,
    law=law,
    is_calibrated=False,
    is_expected=False,
    doubts=(*against, *([reason.removesuffix('.')] if reason else ())),
  )


def split_scores(
  record: Record,
  values: Float[np.ndarray, ' k'],
  dim: float | None,
  shift: Float[np.ndarray, ' k'] | None = None,
  groups: Int[np.ndarray, ' k'] | None = None,
) -> Scores:
  """Values of all canaries as scores: of those that took part, and others.

  Args:
    record: of a run.
    values: of all canaries.
    dim: as in `Scores`.
    shift: by how much taking part shifts each canary, if that is known.
    groups: canaries that are in one vector have one number.
  """
  observed = record.observed
  overlap, shift = 0.0, None if shift is None else shift[observed]
  if shift is not None and groups is not None and dim is not None:
    of_group = np.bincount(groups[observed], shift**2)
    others = np.sum(of_group**2) - np.sum(shift**4)
    overlap = float(others / (dim * np.sum(shift**2)))
  return Scores(
    values[observed], values[~observed], dim, record.design, shift, overlap
  )


def read_shifted(
  threat_model: ThreatModel,
  sees: str,
  scores: Scores,
  *,
  scale: float,
  is_expected: bool,
) -> Reading:
  """A reading of scores that taking part shifts by known multiples.

  Args:
    threat_model: the attacker.
    sees: as in `Reading`.
    scores: with their shift; without, nothing is known of it, and so nothing is
      calibrated and no bound takes the scores to be of some shape.
    scale: as in `Reading`.
    is_expected: likewise.
  """
  scores, against = doubts.drop_rejected_null(scores)
  shift, spread = scores.shift, doubts.scores_differ(scores)
  points = estimators.point_estimators(estimators.NULL_STD, spread)
  bounds = estimators.counted_bounds(scores)
  if shift is not None:
    against += doubts.doubt_mixture(scores)
    alike = np.ptp(shift) <= _ALIKE * np.max(shift)
    points = (
      estimators.MIXTURE,
      *(() if alike else (estimators.MOST_EXPOSED,)),
      *points[1:],
    )
    if not against:
      bounds += (mixture.location_mixture_bound,)
  return Reading(
    threat_model=threat_model,
    sees=sees,
    scores=scores,
    unit=_COSINE if scale != 1 else _IN_NOISE,
    scale=scale,
    points=points,
    bounds=bounds,
    draw=_null_law(scores),
    law=_law(scores),
    is_calibrated=shift is not None and not against,
    is_expected=is_expected,
    doubts=against,
  )


def find(key: str) -> ThreatModel:
  """The attacker of a key.

  Raises:
    ValueError: there is none.
  """
  for threat_model in (*THREAT_MODELS, EXTERNAL):
    if threat_model.key == key:
      return threat_model
  raise ValueError(
    f'key={key!r} is no threat model; give one of '
    f'{", ".join(repr(one.key) for one in THREAT_MODELS)}.'
  )


def _read_final(record: Record) -> Reading | None:
  return _read_model(FINAL, 'final model', record, record.final)


def _read_change(record: Record) -> Reading | None:
  sees = 'final model, initial model known'
  return _read_model(CHANGE, sees, record, record.change)


def _read_model(
  threat_model: ThreatModel,
  sees: str,
  record: Record,
  cosines: Float[np.ndarray, ' k'],
) -> Reading | None:
  """Cosines with one vector, in which all canaries are."""
  if not len(cosines):
    return None
  weight = record.weight if record.weight.size else None
  one = np.zeros(len(cosines), int)
  return read_shifted(
    threat_model,
    sees,
    split_scores(record, cosines, record.dim, weight, one),
    scale=float(np.sqrt(record.dim)),
    is_expected=False,
  )


def _read_maximum(record: Record) -> Reading | None:
  """The paper's statistic, whose null law is a power of that of one cosine."""
  if not _can_fit_null(record):
    return None
  # In units of the std of one cosine, whose maximum has a law of its own.
  largest = np.sqrt(record.dim) * statistics.max_over_rounds(record.trace)
  scores = split_scores(record, largest, None)
  differ = doubts.scores_differ(scores)
  points: tuple[Estimator, ...] = (
    estimators.FITTED if differ else estimators.COUNTED,
    threshold.eps_lo,
  )
  against, tau = doubts.doubt_if_swapped(scores), float(len(record.trace))
  if record.expected is not None:
    own = np.sqrt(record.dim) * record.expected[:, None] * record.assigned
    own = -np.sort(-own[:, record.observed], axis=0)
    most = np.count_nonzero(record.assigned, axis=0).max()
    estimator = functools.partial(
      maximum.maximum_over_rounds, own=own[:most].T, rounds=len(own)
    )
    points = (estimator, *points)
    tau = float(maximum.independent_rounds(scores.unobserved))
    tau = min(max(tau, 1.0), float(len(own)))
    p = maximum.p_value(scores.unobserved)
    if p < shift_tests.REJECTED_BELOW:
      against += (
        'maxima of canaries that took no part do not follow the law of the '
        f'largest of independent cosines (p = {p:.2g}), so that no estimate from '
        'them is calibrated',
      )
  return Reading(
    threat_model=MAXIMUM,
    sees=_shown(record),
    scores=scores,
    unit=_COSINE,
    scale=1.0,
    points=points,
    bounds=estimators.counted_bounds(scores),
    draw=noise_floor.draw_from_null(
      scores.observed.size, scores.unobserved.size, rounds=tau
    ),
    law=('maximum', scores.observed.size, scores.unobserved.size, tau),
    is_calibrated=record.expected is not None and not against,
    is_expected=False,
    doubts=against,
  )


def _read_likelihood(record: Record) -> Reading | None:
  if record.expected is None or not _can_fit_null(record):
    return None
  ratio = statistics.score_mixture(
    record.trace, record.expected, dim=record.dim
  )
  scores = split_scores(record, ratio, None)
  return Reading(
    threat_model=LIKELIHOOD,
    sees=_shown(record),
    scores=scores,
    unit='log likelihood ratio',
    scale=1.0,
    points=(estimators.COUNTED, threshold.eps_lo),
    bounds=estimators.counted_bounds(scores),
    draw=None,
    law=None,
    is_calibrated=False,
    is_expected=False,
    doubts=doubts.doubt_if_swapped(scores),
  )


def _read_own(record: Record) -> Reading | None:
  """The round of each canary; of several rounds, the sum of their cosines."""
  models, root = record.sees == 'models', float(np.sqrt(record.dim))
  once = bool(np.count_nonzero(record.assigned, axis=0).max() == 1)
  # Of several rounds norms do not tell how their aggregates lie.
  exact = once and not models
  if not exact and not _can_fit_null(record):
    return None
  assigned, shift = statistics.assign_held_out(record.assigned), None
  if models:
    # A row of weights for each difference of models, which are what to expect.
    weights = np.square(assigned, dtype=np.float64)
    shift = root * np.sqrt(np.sum(weights, axis=0))
  elif record.expected is not None:
    expected = np.broadcast_to(record.expected[:, None], assigned.shape)
    shift = root * statistics.score_own_round(expected, assigned)
  values = statistics.score_own_round(record.trace, assigned)
  dim = record.dim if exact else None
  scores = split_scores(record, values, dim, shift, assigned.argmax(axis=0))
  return read_shifted(
    OWN,
    _shown(record),
    scores,
    scale=root,
    is_expected=exact and shift is not None,
  )


def _read_residual(record: Record) -> Reading | None:
  """The Gaussian mechanism itself: inner products in units of known noise."""
  if record.residual is None:
    return None
  sees = f'{_shown(record)}, other updates known'
  assigned = statistics.assign_held_out(record.assigned)
  if record.rounds is None:
    if not _can_fit_null(record):
      return None
    root = float(np.sqrt(record.dim))
    values = statistics.score_own_round(record.residual, assigned)
    scores = split_scores(record, values, None)
    return read_shifted(RESIDUAL, sees, scores, scale=root, is_expected=False)
  if not np.any(record.rounds.noise_std):
    return _read_without_noise(record, sees)
  values = statistics.score_residual(
    record.residual, record.included, assigned, record.rounds
  )
  shift = statistics.expected_residual(assigned, record.rounds)
  scores = split_scores(record, values, math.inf, shift)
  return read_shifted(RESIDUAL, sees, scores, scale=1.0, is_expected=True)


def _read_without_noise(record: Record, sees: str) -> Reading:
  """Whoever removes all others is left with the canary itself: a cosine of 1."""
  values = record.observed.astype(np.float64)
  scores = split_scores(record, values, record.dim)
  return Reading(
    threat_model=RESIDUAL,
    sees=sees,
    scores=scores,
    unit=_COSINE,
    scale=float(np.sqrt(record.dim)),
    points=(cosine_alternative.shifted_cosine,),
    bounds=estimators.counted_bounds(scores),
    draw=None,
    law=None,
    is_calibrated=True,
    is_expected=False,
    doubts=(),
  )


def _shown(record: Record) -> str:
  return 'published models' if record.sees == 'models' else 'all iterates'


def _can_fit_null(record: Record) -> bool:
  """Whether there are unobserved canaries enough for a law of their own."""
  return bool(np.count_nonzero(~record.observed) >= 2)


def _null_law(scores: Scores) -> noise_floor.Draw:
  return noise_floor.draw_from_null(
    scores.observed.size,
    scores.unobserved.size,
    dim=scores.dim,
    shift=scores.shift,
  )


def _law(scores: Scores) -> Hashable:
  return 'cosine', scores.observed.size, scores.unobserved.size, scores.dim


FINAL = ThreatModel(
  'final',
  'final model',
  'cosine with the final model',
  'An attacker who sees only the final model',
  _read_final,
)
CHANGE = ThreatModel(
  'change',
  'change of the model',
  'cosine with the change of the model',
  'An attacker who sees the initial and the final model',
  _read_change,
)
MAXIMUM = ThreatModel(
  'maximum',
  'maximum over rounds',
  'maximum over rounds',
  None,
  _read_maximum,
)
LIKELIHOOD = ThreatModel(
  'likelihood',
  'likelihood over rounds',
  'likelihood over rounds',
  None,
  _read_likelihood,
)
OWN = ThreatModel(
  'own_round',
  'own round',
  'own round',
  'An attacker who sees what every round releases and knows when a person '
  'took part',
  _read_own,
)
RESIDUAL = ThreatModel(
  'residual',
  'own round, others removed',
  'own round, others removed',
  'An attacker who also knows the updates of all others and removes them',
  _read_residual,
)
EXTERNAL = ThreatModel(
  'external', 'scores as given', 'as given', None, lambda record: None
)

THREAT_MODELS = (FINAL, CHANGE, MAXIMUM, LIKELIHOOD, OWN, RESIDUAL)
"""The attackers of a run, from who knows least to who knows most."""

SHIFTED = (FINAL, CHANGE, OWN, RESIDUAL)
"""Those whose scores taking part shifts by known multiples."""
