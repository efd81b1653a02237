"""The scores of all canaries for one attacker, and which estimators suit them.

The estimators follow from what is known of the scores: their null law, by how much
taking part shifts each of them, and whether tests contradict that.
"""

from collections.abc import Hashable
import dataclasses

from jaxtyping import Bool, Float, Int
import numpy as np

from epe_jax.audit import failed_checks
from epe_jax.audit.record import Record
from epe_jax.audit.threat_models.noise_scale import (
  NoiseScale,
  contradict,
  count_independent,
)
from epe_jax.audit.threat_models.threat_model import (
  COSINE,
  IN_NOISE,
  AttackScores,
  ThreatModel,
)
from epe_jax.epsilon import noise_floor, registry
from epe_jax.epsilon import shift as shift_fit
from epe_jax.epsilon.types import Gaussian, NullLaw, Scores, Sphere, Unknown
from epe_jax.fact import Fact, Facts

# The null law of orthogonal canaries is narrower by half of this share.
_CROWDED = 0.01


def split_scores(
  record: Record,
  values: Float[np.ndarray, ' k'],
  null: NullLaw,
  shift: Float[np.ndarray, ' k'] | None = None,
  groups: Int[np.ndarray, ' k'] | None = None,
  *,
  is_expected: bool = False,
) -> Scores:
  """Values of all canaries as scores: of those that took part, and others.

  Args:
    record: of a run.
    values: of all canaries.
    null: as in `Scores`.
    shift: by how much taking part shifts each canary, if that is known.
    groups: canaries that are in one vector have one number. Where they make much
      of a vector, those that took no part have a law of their own: orthogonal ones
      find less of it than random directions do.
    is_expected: shifts are those that norms tell to expect, in units of 1/√d, and
      not just in proportion to them.
  """
  observed = record.observed
  overlap, shift = 0.0, None if shift is None else shift[observed]
  if groups is not None and isinstance(null, Sphere):
    if shift is not None:
      overlap = shift_fit.compute_overlap(shift, groups[observed], null)
    if is_expected and shift is not None:
      shares = np.bincount(groups[observed], shift**2) / null.dim
    else:
      shares = _measure_shares(values[observed], groups[observed], null.dim)
    null = choose_null(
      null.dim, float(shares.max()), can_fit=can_fit_null(record)
    )
  return Scores(
    values[observed], values[~observed], null, record.design, shift, overlap
  )


def assign_held_out(
  participation: Bool[np.ndarray, 'T k'] | Float[np.ndarray, 'T k'],
) -> Bool[np.ndarray, 'T k'] | Float[np.ndarray, 'T k']:
  """Assigns the rounds of observed canaries to the unobserved ones, in turn.

  The two groups then differ in nothing but having taken part.

  Raises:
    ValueError: no canary takes part in any round.
  """
  own = np.asarray(participation)
  observed = own.any(axis=0)
  if not observed.any():
    raise ValueError(
      'participation is all zeros; no canary has rounds to assign to others.'
    )
  whose = np.arange(own.shape[1])
  whose[~observed] = np.resize(
    np.flatnonzero(observed), np.count_nonzero(~observed)
  )
  return own[:, whose]


def can_fit_null(record: Record) -> bool:
  """Whether there are unobserved canaries enough for a law of their own."""
  return bool(np.count_nonzero(~record.observed) >= 2)


def choose_null(dim: int, share: float, *, can_fit: bool) -> NullLaw:
  """The null law of random directions, if canaries leave room for it.

  Audits and plans both decide by this.

  Args:
    dim: d.
    share: of the square of a vector that canaries make, the largest of all vectors.
    can_fit: as `can_fit_null`.

  Returns:
    `Sphere`; `Unknown` if unobserved canaries are to supply the law, since the others
    make more than a hundredth of a vector.
  """
  return Unknown() if share > _CROWDED and can_fit else Sphere(dim)


def _measure_shares(
  cosines: Float[np.ndarray, ' n'], groups: Int[np.ndarray, ' n'], dim: float
) -> Float[np.ndarray, ' vectors']:
  """How much of the square of each vector its canaries make, without chance."""
  squares = np.bincount(groups, np.asarray(cosines, np.float64) ** 2)
  return squares - np.bincount(groups) / dim


def scale_noise(
  record: Record,
  values: Float[np.ndarray, ' k'],
  shift: Float[np.ndarray, ' k'],
  noise: NoiseScale,
) -> Scores:
  """Inner products in units of claimed noise as scores in units of what there is.

  Args:
    record: of a run.
    values: of all canaries.
    shift: by how much taking part shifts each canary, if noise is as claimed.
    noise: of the run, > 0.

  Returns:
    Scores whose null law is N(0, 1), or that of unobserved canaries where the
    noise of rounds is not of one scale, or correlated otherwise than claimed.
  """
  scores = split_scores(
    record,
    values / noise.ratio,
    Gaussian() if noise.gives_null_law else Unknown(),
    shift,
  )
  # The norm by which all scores are divided is known to 1/√(2 d) in each round.
  num = 2 * record.dim * count_independent(record)
  shared = float(np.sum(shift[record.observed] ** 2) / num)
  return dataclasses.replace(scores, overlap=shared)


def describe_shifted(
  threat_model: ThreatModel,
  sees: str,
  scores: Scores,
  *,
  scale: float,
  is_expected: bool,
  is_crowded: bool = False,
  is_sum: bool = False,
  noise: NoiseScale | None = None,
) -> AttackScores:
  """Scores that taking part shifts by known multiples, with what suits them.

  Args:
    threat_model: the attacker.
    sees: as in `AttackScores`.
    scores: with their shift; without, nothing is known of it, and so nothing is
      calibrated and no bound takes the scores to be of some shape.
    scale: as in `AttackScores`.
    is_expected: likewise.
    is_crowded: canaries leave no room for a null law of random directions.
    is_sum: scores are sums over several rounds, which have no known null law.
    noise: the unit of the scores.
  """
  scores, failed = failed_checks.drop_rejected_null(scores)
  shift, has_spread = scores.shift, failed_checks.scores_differ(scores)
  if shift is not None:
    failed += failed_checks.check_mixture(scores)
  traits = registry.describe(
    scores, has_spread=has_spread, is_rejected=bool(failed)
  )
  return AttackScores(
    threat_model=threat_model,
    sees=sees,
    scores=scores,
    unit=COSINE if scale != 1 else IN_NOISE,
    scale=scale,
    points=registry.choose_points(traits),
    bounds=registry.choose_bounds(traits),
    draw=draw_null(scores),
    law=name_law(scores),
    is_calibrated=shift is not None and not failed,
    is_expected=is_expected,
    failed_checks=failed,
    notes=_explain_law(
      scores, is_crowded=is_crowded, is_sum=is_sum, noise=noise
    ),
    contradictions=contradict(noise),
  )


def _explain_law(
  scores: Scores, *, is_crowded: bool, is_sum: bool, noise: NoiseScale | None
) -> Facts:
  """Why the null law is that of unobserved canaries."""
  if is_crowded:
    return (note_crowding(scores.design),)
  if is_sum:
    return (Fact('sum_over_rounds'),)
  if noise is not None and not noise.gives_null_law:
    if noise.correlation and noise.is_summed:
      return (Fact('noise_correlates'),)
    return (Fact('noise_varies'),)
  return ()


def note_crowding(design: str) -> Fact:
  """What to know where `choose_null` gives `Unknown`.

  Args:
    design: of the canaries, as in `Scores`.
  """
  return Fact('crowded', {'share': _CROWDED, 'design': design})


def score_cosines(
  threat_model: ThreatModel,
  record: Record,
  *,
  sees: str,
  shift: Float[np.ndarray, ' k'] | None = None,
) -> AttackScores | None:
  """Cosines with one vector, in which all canaries are, as scores of an attacker.

  Args:
    threat_model: the attacker; its key is the name by which an observer scored the
      vector, [k].
    record: what attackers saw.
    sees: as in `AttackScores`.
    shift: by how much taking part shifts each canary, up to one factor; None if that
      is not known, and then no estimate is calibrated.

  Returns:
    None if no observer scored anything of that name.
  """
  cosines = record.cosines.get(threat_model.key)
  if cosines is None:
    return None
  groups = np.zeros(len(cosines), int)
  scores = split_scores(record, cosines, Sphere(record.dim), shift, groups)
  return describe_shifted(
    threat_model,
    sees,
    scores,
    scale=float(np.sqrt(record.dim)),
    is_expected=False,
    is_crowded=not scores.has_known_null,
  )


def draw_null(scores: Scores) -> noise_floor.Draw:
  """Makes audits of as many scores in which nothing leaks."""
  return noise_floor.draw_from_null(
    scores.observed.size,
    scores.unobserved.size,
    null=scores.null,
    shift=scores.shift,
  )


def name_law(scores: Scores) -> Hashable:
  """What the floors of shifted scores depend on."""
  return 'cosine', scores.observed.size, scores.unobserved.size, scores.null


def name_release(record: Record) -> str:
  """The key of what an attacker who sees rounds sees of them."""
  return 'published_models' if record.sees == 'models' else 'all_iterates'
