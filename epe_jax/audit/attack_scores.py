"""The scores of all canaries for one attacker, with the estimators that suit them.

These follow from what is known of scores in advance: their null law, by how much taking
part shifts each of them, and whether tests contradict that.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
import dataclasses
from typing import Any, NamedTuple

from jaxtyping import Float, Int
import numpy as np

from epe_jax.accounting import Analytic
from epe_jax.audit import failed_checks
from epe_jax.audit.record import Record
from epe_jax.epsilon import known_shifts, noise_floor, registry
from epe_jax.epsilon.registry import Estimator
from epe_jax.epsilon.types import NullLaw, Scores, Sphere, Unknown
from epe_jax.fact import Fact, Facts

COSINE, IN_NOISE = 'cosine', 'noise'
"""Units of scores: 1/√d of a cosine, and the standard deviation of the noise."""

# The null law of orthogonal canaries is narrower by half of this share.
_CROWDED = 0.01


@dataclasses.dataclass(frozen=True, eq=False)
class ThreatModel:
  """One kind of attacker. Two with the same key are the same.

  Attributes:
    key: identifies it in every file, table and figure.
    score: record -> the scores of all canaries; None where the record has nothing to
      score, or where the attacker was read from a file.
    analytic_epsilon: (record, delta) -> the ε that the mechanism allows this
      attacker; None where it is not known.
    name: of an attacker of your own, in legends and headings; by default its key.
    is_worst_case: the analytic ε of a run assumes this attacker, and the headline of
      a report is about it.
    is_shift: participation shifts its scores, so that runs are compared by its
      estimates; a maximum or a likelihood ratio has another law.
    is_in_overview: it is among the few that a summary of a run shows.
  """

  key: str
  score: Callable[[Record], AttackScores | None] = lambda record: None
  analytic_epsilon: Callable[[Record, float], Analytic | None] = (
    lambda record, delta: None
  )
  name: str = ''
  is_worst_case: bool = False
  is_shift: bool = True
  is_in_overview: bool = True

  def __eq__(self, other: object) -> bool:
    return isinstance(other, ThreatModel) and self.key == other.key

  def __hash__(self) -> int:
    return hash(self.key)

  def to_json(self) -> dict[str, Any]:
    """All but the key and the functions."""
    return {
      name: value
      for name, value in vars(self).items()
      if name != 'key' and not callable(value)
    }

  @classmethod
  def from_json(cls, key: str, values: Mapping[str, Any]) -> ThreatModel:
    """The attacker that `to_json` wrote, among other fields; it cannot score."""
    known = cls(key).to_json()
    return cls(key, **{name: values.get(name, x) for name, x in known.items()})


class AttackScores(NamedTuple):
  """The scores of all canaries for one attacker.

  Attributes:
    threat_model: the attacker.
    view: the key of what is seen and known of the run at hand; an attacker of another
      author gives words.
    scores: observed and unobserved.
    unit: the key of what scores times scale are measured in.
    points: point estimators that make sense here, the most trusted first.
    bounds: lower bounds, the headline one first.
    scale: makes scores easy to read.
    draw: makes audits with such scores in which nothing leaks; None if there is
      no way to.
    law: of these audits; attackers with equal laws share their floors.
    is_calibrated: the first point estimator estimates the ε of this attacker, and
      no test says otherwise.
    is_expected: shifts of the scores are those that norms tell to expect, and
      not just in proportion to them.
    failed_checks: of the estimates.
    notes: why the estimators or the null law are other than usual.
    contradictions: measurements that contradict the claim of the run, and not the
      estimates.
  """

  threat_model: ThreatModel
  view: str
  scores: Scores
  unit: str
  points: Sequence[Estimator]
  bounds: Sequence[Estimator]
  scale: float = 1.0
  draw: noise_floor.Draw | None = None
  law: Hashable = None
  is_calibrated: bool = False
  is_expected: bool = False
  failed_checks: Facts = ()
  notes: Facts = ()
  contradictions: Facts = ()


def score_cosines(
  threat_model: ThreatModel,
  record: Record,
  *,
  view: str,
  shift: Float[np.ndarray, ' k'] | None = None,
) -> AttackScores | None:
  """Cosines with one vector that holds all canaries, as scores of an attacker.

  Args:
    threat_model: the attacker; its key is the name by which an observer scored the
      vector, [k].

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
    view,
    scores,
    scale=float(np.sqrt(record.dim)),
    notes=() if scores.has_known_null else (note_crowding(scores.design),),
  )


def describe_shifted(
  threat_model: ThreatModel,
  view: str,
  scores: Scores,
  *,
  scale: float = 1.0,
  is_expected: bool = False,
  notes: Facts = (),
  contradictions: Facts = (),
) -> AttackScores:
  """Scores that taking part shifts by known multiples, with what suits them.

  Args:
    scores: with their shift; without, nothing is known of it, and so nothing is
      calibrated and no bound takes the scores to be of some shape.
    scale: as in `AttackScores`; 1 in units of the noise.
  """
  scores, failed = failed_checks.drop_rejected_null(scores)
  if scores.shift is not None:
    failed += failed_checks.check_mixture(scores)
  has_spread = failed_checks.scores_differ(scores)
  return AttackScores(
    threat_model=threat_model,
    view=view,
    scores=scores,
    unit=COSINE if scale != 1 else IN_NOISE,
    scale=scale,
    points=registry.choose_points(scores, has_spread=has_spread),
    bounds=registry.choose_bounds(scores, is_rejected=bool(failed)),
    draw=draw_null(scores),
    law=name_law(scores),
    is_calibrated=scores.shift is not None and not failed,
    is_expected=is_expected,
    failed_checks=failed,
    notes=notes,
    contradictions=contradictions,
  )


def split_scores(
  record: Record,
  values: Float[np.ndarray, ' k'],
  null: NullLaw,
  shift: Float[np.ndarray, ' k'] | None = None,
  groups: Int[np.ndarray, ' k'] | None = None,
  *,
  is_expected: bool = False,
) -> Scores:
  """Values of all canaries as scores of observed and unobserved ones.

  Args:
    groups: canaries that are in one vector have one number. Where they make much of
      a vector, unobserved ones have a law of their own: orthogonal canaries find less
      of it than random directions do.
    is_expected: as in `AttackScores`; shifts are in units of 1/√d.
  """
  observed = record.observed
  overlap, shift = 0.0, None if shift is None else shift[observed]
  if groups is not None and isinstance(null, Sphere):
    groups, squares = groups[observed], values[observed].astype(np.float64) ** 2
    # How much of the square of each vector its canaries make, without chance.
    shares = np.bincount(groups, squares) - np.bincount(groups) / null.dim
    if shift is not None:
      overlap = known_shifts.compute_overlap(shift, groups, null)
      if is_expected:
        shares = np.bincount(groups, shift**2) / null.dim
    null = choose_null(
      null.dim, float(shares.max()), can_fit=can_fit_null(record)
    )
  return Scores(
    values[observed], values[~observed], null, record.design, shift, overlap
  )


def can_fit_null(record: Record) -> bool:
  """Whether there are unobserved canaries enough for a law of their own."""
  return bool(np.count_nonzero(~record.observed) >= 2)


def choose_null(dim: int, share: float, *, can_fit: bool) -> NullLaw:
  """The null law of random directions, if canaries leave room for it.

  Audits and plans both decide by this.

  Args:
    share: of the square of a vector that canaries make, the largest of all vectors.

  Returns:
    `Sphere`; `Unknown` if unobserved canaries are to supply the law, since the others
    make more than a hundredth of a vector.
  """
  return Unknown() if share > _CROWDED and can_fit else Sphere(dim)


def note_crowding(design: str) -> Fact:
  """What to know where `choose_null` gives `Unknown`."""
  return Fact('crowded', {'share': _CROWDED, 'design': design})


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
