"""What an attacker is, and the scores that it gives to canaries."""

from collections.abc import Callable, Hashable, Mapping, Sequence
import dataclasses
from typing import Any, NamedTuple

from epe_jax.accounting import Analytic
from epe_jax.audit.record import Record
from epe_jax.epsilon import noise_floor
from epe_jax.epsilon.registry import Estimator
from epe_jax.epsilon.types import Scores
from epe_jax.fact import Facts

COSINE, IN_NOISE = 'cosine', 'noise'
"""Units of scores: 1/√d of a cosine, and the standard deviation of the noise."""


@dataclasses.dataclass(frozen=True, eq=False)
class ThreatModel:
  """One kind of attacker: all that tables, figures and files need to know of it.

  Two with the same key are the same attacker; one of them may have been read from a
  file and cannot score.

  Attributes:
    key: identifies it in every file, table and figure.
    name: in legends and headings.
    statistic: the score of a canary.
    who: the attacker, as the beginning of a sentence: "An attacker who ...".
    score: record -> the scores of all canaries; None where the record has nothing to
      score.
    limit: (record, delta) -> the ε that the mechanism allows this attacker; None
      where it is not known.
    is_worst_case: the analytic ε of a run assumes this attacker, and the headline of
      a report is about it.
    is_shift: participation shifts its scores, so that runs are compared by its
      estimates; a maximum or a likelihood ratio has another law.
    is_in_overview: it is among the few that a summary of a run shows.
  """

  key: str
  name: str
  statistic: str
  who: str
  score: Callable[[Record], 'AttackScores | None']
  limit: Callable[[Record, float], Analytic | None] = lambda record, delta: None
  is_worst_case: bool = False
  is_shift: bool = True
  is_in_overview: bool = True

  def __eq__(self, other: object) -> bool:
    return isinstance(other, ThreatModel) and self.key == other.key

  def __hash__(self) -> int:
    return hash(self.key)

  def to_json(self) -> dict[str, Any]:
    """All but the functions."""
    return {
      name: value for name, value in vars(self).items() if not callable(value)
    }

  @classmethod
  def from_json(cls, values: Mapping[str, Any]) -> 'ThreatModel':
    """The attacker that `to_json` wrote, among other fields; it cannot score.

    Raises:
      KeyError: a field is missing.
    """
    fields = (x.name for x in dataclasses.fields(cls))
    known = {x: values[x] for x in fields if x not in ('score', 'limit')}
    return cls(**known, score=lambda record: None)


class AttackScores(NamedTuple):
  """The scores of all canaries for one attacker.

  Attributes:
    threat_model: the attacker.
    sees: the key of what is seen and known of the run at hand, as
      `epe_jax.report.attackers` has it; an attacker of another author gives words.
    scores: observed and unobserved.
    unit: the key of what scores times scale are measured in.
    points: point estimators that make sense here, the one to believe first.
    bounds: lower bounds, the headline one first.
    scale: makes scores easy to read.
    draw: makes audits with such scores in which nothing leaks; None if there is
      no way to.
    law: of these audits; attackers with equal laws share their floors.
    is_calibrated: the first point estimator estimates the ε of this attacker, and
      no test says otherwise.
    is_expected: shifts of the scores are those that norms tell to expect, and
      not just in proportion to them.
    failed_checks: what speaks against the estimates.
    notes: why the estimators or the null law are other than usual.
    contradictions: what was measured that contradicts the claim of the run, and not
      the estimates.
  """

  threat_model: ThreatModel
  sees: str
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
