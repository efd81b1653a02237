"""The result of a finished run: one value, and its file result.json."""

from collections.abc import Mapping, Sequence
import dataclasses
import os
from typing import Any

from epe_jax import io, typed_json
from epe_jax.accounting import Mixture
from epe_jax.audit import audit_json
from epe_jax.audit.effective_dimensions import EffectiveDimensions
from epe_jax.audit.results import Audit
from epe_jax.experiment.client_rounds import Shifts
from epe_jax.fact import Fact, Facts
from epe_jax.watch import rounds_json
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
  """The result of a run; each attribute is a field of result.json.

  Attributes:
    task: its name.
    data: where the data come from, as their source names itself.
    config: every field of the config, nested.
    versions: of the libraries, by name, and the device.
    rounds: T.
    dim: d, the number of parameters.
    delta: δ of every ε, in (0, 1).
    num_observed: canaries that took part.
    num_unobserved: canaries that did not.
    participations: rounds in which a canary took part, at most.
    noise_multiplier: z, the noise in units of the clip norm.
    noise: 'fresh', or 'reproducible_simulation' if it follows from the seed.
    analytic_epsilon: of the canary that took part most often; inf without noise,
      None without canaries.
    analytic_assumes: what it assumes, as `Analytic.assumes`; None without canaries.
    clients_participations: rounds in which a real client takes part, at most.
    clients_analytic_epsilon: as `analytic_epsilon`, of a real client.
    clients_analytic_assumes: what that one assumes.
    amplification: what is known of amplification by sampling; None if no clients
      are sampled.
    clients_shifts: what a linear server is expected to leave of clients in the model,
      as `client_rounds.find_shifts` gives it; None of any other server, and without noise
      or canaries.
    audit: the estimates of all attackers; without any if there were no canaries.
    leaks_by_round: ε of attackers after rounds; None without a trace.
    effective_dimension: of the vectors that were scored; None likewise.
    claim: how `audit.claim` stands; None if nothing is claimed, or no attacker's
      scores can test it.
    accuracy: of the final model on the test data, in [0, 1].
    loss: of the final model on the test data.
    baseline_accuracy: of the majority class, in [0, 1].
    date: the day on which the run ended, in UTC, such as '2026-11-24'.
    arithmetic: what the run compared with float64 before its first round; None if
      it did not.
    model_sha256: of the file model.npz.
    record_sha256: as `release.hash_record` gives it; None without canaries.
    argv: the words after `epe-jax run` that made it, without paths; None of a run
      that Python or a sweep made.
    chunk: clients that were trained side by side. This and the times tell how
      many clients took part, so simulations alone have them; else None.
    seconds_per_round: in the median.
    seconds: of all rounds together.
    waited_share: share of the time that the device waited for data, in [0, 1].
  """

  task: str
  data: str
  config: Mapping[str, Any]
  versions: Mapping[str, str]
  rounds: int
  dim: int
  delta: float
  num_observed: int
  num_unobserved: int
  participations: int
  noise_multiplier: float
  noise: str
  analytic_epsilon: float | None
  analytic_assumes: Facts | None
  clients_participations: int
  clients_analytic_epsilon: float
  clients_analytic_assumes: Facts
  amplification: Fact | None
  audit: Audit
  effective_dimension: EffectiveDimensions | None
  claim: ClaimTest | None
  accuracy: float
  loss: float
  baseline_accuracy: float
  clients_shifts: Shifts | None
  date: str
  arithmetic: Sequence[str] | None
  model_sha256: str
  record_sha256: str | None
  leaks_by_round: Rounds | None = None
  argv: Sequence[str] | None = None
  chunk: int | None = None
  seconds_per_round: float | None = None
  seconds: float | None = None
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
  """Writes result.json.

  Args:
    path: the file.
    result: of a finished run.
  """
  fields = typed_json.to_plain(
    vars(result),
    {
      Audit: audit_json.to_json,
      Rounds: rounds_json.rounds_to_json,
      Mixture: lambda law: [list(law.shifts), list(law.weights)],
    },
  )
  if not result.is_simulation:
    fields = {name: x for name, x in fields.items() if name not in _OPTIONAL}
  io.write_sealed(path, {'schema': SCHEMA, **fields})


def load_result(path: str | os.PathLike) -> RunResult:
  """Reads the result.json of a finished run.

  Args:
    path: the file.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: it is damaged, or of another version of this library.
  """
  values = io.read_sealed(path)
  try:
    io.check_schema(path, values.pop('schema'), reads=SCHEMA)
  except KeyError as error:
    raise _refuse(path, error) from error
  try:
    return _from_json(values)
  except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as e:
    raise _refuse(path, e) from e


def _refuse(path: str | os.PathLike, error: Exception) -> ValueError:
  """The error for a person of what reading a damaged result has raised."""
  match error:
    case KeyError():
      fault = f'it has no {error}'
    case AttributeError() | TypeError():
      fault = 'a field has a value of another kind'
    case _:
      fault = str(error)
  return ValueError(
    f'{path} is damaged: {fault}; restore it, or make the run again.'
  )


def _from_json(given: Mapping[str, Any]) -> RunResult:
  optional = _OPTIONAL if given.get('seconds') is None else ('chunk',)
  values: dict[str, Any] = dict.fromkeys(('leaks_by_round', 'argv', *optional))
  values |= given
  audit = audit_json.from_json(values['audit'])
  return typed_json.from_plain(
    RunResult,
    values,
    {
      Audit: lambda values: audit,
      Mixture: lambda law: Mixture(*map(tuple, law)),
      Rounds: lambda values: rounds_json.rounds_from_json(values, audit),
    },
  )


_TIMES = ('seconds_per_round', 'seconds', 'waited_share')
_OPTIONAL = ('chunk', *_TIMES)
