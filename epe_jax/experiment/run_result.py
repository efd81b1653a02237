"""The result of a finished run: one value, and its file result.json."""

from collections.abc import Mapping, Sequence
import dataclasses
import os
from typing import Any

from epe_jax import io, typed_json
from epe_jax.accounting import Mixture
from epe_jax.audit import attackers, audit_json
from epe_jax.audit.attack_scores import ThreatModel
from epe_jax.audit.effective_dimensions import EffectiveDimensions
from epe_jax.audit.results import Audit
from epe_jax.experiment.client_rounds import Shifts
from epe_jax.fact import Fact, Facts
from epe_jax.watch.by_round import Rounds
from epe_jax.watch.sequential import ClaimTest

DELTA_EXPONENT = -1.1
"""The number of clients to this power is δ, where a config has none."""

SAMPLED = ('fixed_size', 'poisson', 'cyclic', 'limited')
"""Kinds of participation that draw who takes part in each round."""

SCHEMA = 7
"""The version of result.json."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunResult:
  """The result of a run; each attribute is a field of result.json."""

  task: str  # Its name.
  data: str  # Where the data come from, as their source names itself.
  config: Mapping[str, Any]  # Every field of the config, nested.
  versions: Mapping[str, str]  # Of the libraries, by name, and the device.
  rounds: int  # T
  dim: int  # d, the number of parameters.
  delta: float  # δ of every ε, in (0, 1).
  num_observed: int  # Canaries that took part.
  num_unobserved: int  # Canaries that did not.
  participations: int  # Rounds in which a canary took part, at most.
  noise_multiplier: float  # z, the noise in units of the clip norm.
  # 'fresh', or 'reproducible_simulation' if it follows from the seed.
  noise: str
  # Of the canary that took part most often; inf without noise, None without
  # canaries.
  analytic_epsilon: float | None
  # What it assumes, as `Analytic.assumes`; None without canaries.
  analytic_assumes: Facts | None
  # Rounds in which a real client takes part, at most.
  clients_participations: int
  clients_analytic_epsilon: float  # As `analytic_epsilon`, of a real client.
  clients_analytic_assumes: Facts  # What that one assumes.
  # What is known of amplification by sampling; None if no clients are
  # sampled.
  amplification: Fact | None
  # The estimates of all attackers; without any if there were no canaries.
  audit: Audit
  # Of the vectors that were scored; None without canaries.
  effective_dimension: EffectiveDimensions | None
  # How `audit.claim` stands; None if nothing is claimed, or no attacker's
  # scores can test it.
  claim: ClaimTest | None
  accuracy: float  # Of the final model on the test data, in [0, 1].
  loss: float  # Of the final model on the test data.
  baseline_accuracy: float  # Of the majority class, in [0, 1].
  # What a linear server is expected to leave of clients in the model, as
  # `client_rounds.find_shifts` gives it; None of any other server, and
  # without noise or canaries.
  clients_shifts: Shifts | None
  date: str  # The day on which the run ended, in UTC, such as '2026-11-24'.
  # What the run compared with float64 before its first round; None if it did
  # not.
  arithmetic: Sequence[str] | None
  model_sha256: str  # Of the file model.npz.
  # As `release.hash_record` gives it; None without canaries.
  record_sha256: str | None
  # ε of attackers after rounds; None without a trace.
  leaks_by_round: Rounds | None = None
  # The words after `epe-jax run` that made it, without paths; None of a run
  # that Python or a sweep made.
  argv: Sequence[str] | None = None
  # Clients that were trained side by side. This and the times tell how many
  # clients took part, so simulations alone have them; else None.
  chunk: int | None = None
  seconds_per_round: float | None = None  # In the median.
  seconds: float | None = None  # Of all rounds together.
  # Share of the time that the device waited for data, in [0, 1].
  waited_share: float | None = None

  def __repr__(self) -> str:
    """Task, sizes and headline in a line; `vars` has every attribute."""
    headline = self.audit.headline
    if headline is not None:
      bound = headline.bound
      found = f'ε ≥ {bound.epsilon:.3g}, δ = {bound.delta:g}'
    else:
      found = 'no lower bound' if self.is_audited else 'not audited'
    return (
      f'<RunResult of {self.task}: {self.rounds:,} rounds, d = {self.dim:,}, '
      f'accuracy {100 * self.accuracy:.1f} %; {found}>'
    )

  @property
  def is_audited(self) -> bool:
    """Whether there were canaries to audit the run with."""
    return self.num_observed > 0

  @property
  def is_sampled(self) -> bool:
    """Whether the rounds of clients are drawn in secret, each by itself."""
    participation = self.config.get('participation') or {}
    return participation.get('kind') in SAMPLED

  @property
  def is_simulation(self) -> bool:
    """Whether noise and sampling follow from the seed, so that nothing is secret."""
    return self.noise != 'fresh'


def write_result(path: str | os.PathLike, result: RunResult) -> None:
  """Writes result.json."""
  fields = typed_json.to_plain(
    vars(result),
    {
      Audit: audit_json.to_json,
      Rounds: audit_json.to_plain,
      Mixture: lambda law: [list(law.shifts), list(law.weights)],
    },
  )
  if not result.is_simulation:
    fields = {name: x for name, x in fields.items() if name not in _OPTIONAL}
  io.write_sealed(path, {'schema': SCHEMA, **fields})


def load_result(path: str | os.PathLike) -> RunResult:
  """Reads the result.json of a finished run.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: it is damaged, or of another version of this library.
  """
  values = io.read_sealed(path)
  io.check_schema(path, values.pop('schema', 0), reads=SCHEMA)
  # What those that may be published do not have.
  values = {**dict.fromkeys(('leaks_by_round', 'argv', *_OPTIONAL)), **values}
  audit = audit_json.from_json(values['audit'])
  models = {a.threat_model.key: a.threat_model for a in audit.attacks}

  def find(key: str) -> ThreatModel:
    model = models.get(key) or attackers.find(key)
    if model is None:
      raise ValueError(f'no attacker has the key {key!r}')
    return model

  return typed_json.from_plain(
    RunResult,
    values,
    {
      Audit: lambda values: audit,
      Mixture: lambda law: Mixture(*map(tuple, law)),
      ThreatModel: find,
    },
  )


_OPTIONAL = ('chunk', 'seconds_per_round', 'seconds', 'waited_share')
