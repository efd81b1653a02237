"""All that attackers saw of a run, in one value and one file."""

from collections.abc import Mapping, Sequence
import dataclasses
import os
from typing import Any, Literal

from jaxtyping import Bool, Float
import numpy as np

from epe_jax import io
from epe_jax.audit import server_response
from epe_jax.audit.round_scalars import RoundScalars

NOISE = '0, or from 1e-30 on'
"""The noise multipliers that there are, in words: float32 holds no smaller ones."""

SCHEMA = 7
"""Version of scores.npz."""

FINAL_MODEL = ('final', 'change')
"""Cosines with theta_T, and with theta_T - theta_0, what training made of it."""

RELEASES = ('aggregate', 'delta', 'models')
"""Cosines with what each round released: its aggregate; the change of the model by
the server's optimizer; or the differences of published models."""

_COSINES, _ROUNDS = 'cosines_', 'rounds_'
_MAY_BE_UNKNOWN = tuple(
  f'{_ROUNDS}{name}'
  for name in ('noise_std', 'num_clients', 'sum_norm', 'residual_norm')
)

# Beside rounding.
_MAX_COSINE = 1.01

Cosines = Mapping[str, Float[np.ndarray, '... k']]


@dataclasses.dataclass(frozen=True)
class Record:
  """All that attackers saw of a run: what an estimate needs, without the model.

  Attributes:
    cosines: what observers scored, by the names that they give it: [T, k] round by
      round, or [k] once. The observers of this package score, as they are asked to,
      'final' and 'change', as `FINAL_MODEL` has them; a name of `RELEASES`;
      'residual', what is left of each round's aggregate when all that was put in is
      removed, of clients and of canaries (for an attacker who asks about one canary,
      `statistics.score_residual` leaves that one in); and 'max_...', the largest over
      rounds. A thing that was not seen, or may not be shown, has no name here.
    rounds: one number of each round; None for differences of models, whose
      residual has what was put in of the canary itself.
    momentum: of the server's SGD; None for another server optimizer.
    weight: what training left of each canary in the change of the model, of
      those that took part or are assigned rounds, up to one factor, [k]; None
      where the server's optimizer does not tell.
    included: 0/1, row t holds the canaries of round t; canaries in no row
      are unobserved. For differences of models, the cosine to expect.
    assigned: the same for rounds that a canary would have taken part in, had its
      coin said so; where no coin is flipped, participation again.
    design: 'coin_flip' if each canary was included independently with probability 1/2,
      and an attacker may know all else; else 'fixed'.
    dim: d.
    delta: the run's, in (0, 1).
    noise_multiplier: z of what each round released, >= 0; None if not known.
    periods: equal periods of the run, in each of which a canary is assigned one
      uniformly random round; None where canaries are assigned rounds otherwise.
    is_whole: this is a whole run, and not what an attacker is shown of one.
  """

  cosines: Cosines
  rounds: RoundScalars | None
  momentum: float | None
  weight: Float[np.ndarray, ' k'] | None
  included: Bool[np.ndarray, 'T k'] | Float[np.ndarray, 'T k']
  assigned: Bool[np.ndarray, 'T k'] | Float[np.ndarray, 'T k']
  design: Literal['fixed', 'coin_flip']
  dim: int
  delta: float
  noise_multiplier: float | None = None
  periods: int | None = None
  is_whole: bool = True

  @property
  def num_rounds(self) -> int:
    """T."""
    return len(self.included)

  @property
  def observed(self) -> Bool[np.ndarray, ' k']:
    """Which canaries took part."""
    return np.asarray(self.included.any(axis=0))

  @property
  def sees(self) -> str | None:
    """The name in `RELEASES` of what rounds released; None if nobody looked."""
    return next((name for name in RELEASES if self._saw(name)), None)

  @property
  def trace(self) -> Float[np.ndarray, 'T k'] | None:
    """Cosines with what each round released; None where they were not kept."""
    return None if self.sees is None else self.cosines.get(self.sees)

  @property
  def expected(self) -> Float[np.ndarray, ' t'] | None:
    """Cosine of a canary with the aggregate of its own round on average, [T].

    None where it is not known: what the server optimizer leaves of a canary in
    its round depends on other rounds.
    """
    if self.rounds is None or self.sees != 'aggregate':
      return None
    norm = np.maximum(self.rounds.aggregate_norm, 1e-30)
    return np.asarray(self.rounds.canary_norm / norm)

  def _saw(self, release: str) -> bool:
    return release in self.cosines or f'max_{release}' in self.cosines


def make_record(
  cosines: Mapping[str, Float[Any, '... k']],
  rounds: RoundScalars,
  *,
  included: Bool[np.ndarray, 'T k'],
  dim: int,
  delta: float,
  assigned: Bool[np.ndarray, 'T k'] | None = None,
  design: Literal['fixed', 'coin_flip'] = 'fixed',
  momentum: float | None = None,
  noise_multiplier: float | None = None,
  periods: int | None = None,
) -> Record:
  """The record of a whole run.

  Args:
    cosines: as `wrapper.score_observers` gives them.
    rounds: of the state of the run.
    included: row t holds the canaries of round t.
    dim: d.
    delta: in (0, 1).
    assigned: rounds that a canary would have taken part in; None where no coin was
      flipped, as they are those that it took part in.
    design: 'coin_flip' if each canary was included in its assigned rounds independently,
      with probability 1/2.
    momentum: of the server, if its optimizer is SGD, so that it is known what the
      final model keeps of each round; None otherwise.
    noise_multiplier: z of the mechanism. Attackers have an analytic ε only if it
      is given.
    periods: as `sampling.once_per_period` has it, if that assigned the rounds;
      None otherwise, and then an attacker who does not know the rounds is given
      the analytic ε of one who does.

  Raises:
    ValueError: shapes contradict one another.
  """
  assigned = included if assigned is None else assigned
  rounds = RoundScalars(*map(np.asarray, rounds))
  if len(rounds.clip_norm) != len(included):
    raise ValueError(
      f'rounds has {len(rounds.clip_norm)} rounds, but included '
      f'{len(included)}; give both of the same run.'
    )
  for name, x in {'assigned': assigned, **cosines}.items():
    if x.shape not in (included.shape, included.shape[1:]):
      raise ValueError(
        f'{name!r} has shape {x.shape}; give a number for each canary, or for '
        f'each round and canary: included has shape {included.shape}.'
      )
  weight = None
  if momentum is not None:
    weight = server_response.weigh_canaries(rounds, assigned, momentum=momentum)
    weight = weight.astype(np.float32)
  return Record(
    cosines={n: np.asarray(x, np.float32) for n, x in cosines.items()},
    rounds=rounds,
    momentum=momentum,
    weight=weight,
    included=included,
    assigned=assigned,
    design=design,
    dim=dim,
    delta=delta,
    noise_multiplier=noise_multiplier,
    periods=periods,
  )


def write_record(path: str | os.PathLike, record: Record) -> None:
  """Writes scores.npz for its auditor; one array of each name.

  Raises:
    ValueError: of a part of a run, which follows from the run's own file.
  """
  if record.rounds is None:
    raise ValueError(
      f'this part of a run, sees={record.sees!r}, cannot be written; keep the '
      'run that it was made of.'
    )
  fields = {
    name: value
    for name, value in vars(record).items()
    if name not in ('cosines', 'rounds') and value is not None
  }
  cosines = {_COSINES + name: x for name, x in record.cosines.items()}
  rounds = {_ROUNDS + name: x for name, x in record.rounds._asdict().items()}
  fields |= {'schema': np.int64(SCHEMA)}
  io.write_arrays(path, fields | cosines | rounds, private=True)


def load_record(path: str | os.PathLike) -> Record:
  """Reads scores.npz.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: the file is damaged, lacks arrays or is of another version.
  """
  arrays = io.read_arrays(path)
  # First, because another version has other arrays.
  if 'schema' in arrays:
    io.check_schema(path, int(arrays['schema']), reads=SCHEMA)
  optional = {'momentum', 'weight', 'noise_multiplier', 'periods'}
  names = {field.name for field in dataclasses.fields(Record)}
  names -= {'cosines', 'rounds'}
  scalars = {_ROUNDS + name for name in RoundScalars._fields}
  required = {'schema'} | (names - optional) | scalars
  if lacks := required - arrays.keys():
    raise ValueError(
      f'{path} lacks {sorted(lacks)}; give the scores.npz of a '
      'run, or a file that `epe-jax estimate --help` describes.'
    )
  fields: dict[str, Any] = {name: arrays.get(name) for name in names | optional}
  fields['cosines'] = _with_prefix(arrays, _COSINES)
  fields['rounds'] = RoundScalars(**_with_prefix(arrays, _ROUNDS))
  for name in ('included', 'assigned'):
    fields[name] = fields[name].astype(bool)
  types = {'design': str, 'dim': int, 'delta': float, 'is_whole': bool}
  types |= {'momentum': float, 'noise_multiplier': float, 'periods': int}
  try:
    for name, type_ in types.items():
      if name not in optional or fields[name] is not None:
        fields[name] = type_(fields[name])
    fault = _find_fault(fields)
  except (TypeError, ValueError) as error:
    fault = str(error)
  if fault is not None:
    raise ValueError(
      f'{path} is damaged: {fault}. Restore the file, or make the run again in a '
      'new workdir.'
    )
  return Record(**fields)


def _find_fault(fields: Mapping[str, Any]) -> str | None:
  """What of the fields of a record cannot be so, in words."""
  if fields['included'].ndim != 2:
    return f'included has shape {fields["included"].shape}'
  rounds, num = fields['included'].shape
  shaped = {
    f'rounds_{name}': (x, [(rounds,)])
    for name, x in fields['rounds']._asdict().items()
  }
  shaped |= {
    f'cosines_{name}': (x, [(num,), (rounds, num)])
    for name, x in fields['cosines'].items()
  }
  shaped['assigned'] = fields['assigned'], [(rounds, num)]
  if fields['weight'] is not None:
    shaped['weight'] = fields['weight'], [(num,)]
  for name, (array, shapes) in shaped.items():
    if fault := find_fault_of_array(name, array, shapes):
      return fault
  ranges = {
    'dim': lambda x: x >= 2,
    'delta': lambda x: 0 < x < 1,
    'design': lambda x: x in ('fixed', 'coin_flip'),
    'momentum': lambda x: x is None or 0 <= x < 1,
    'noise_multiplier': lambda x: x is None or is_noise_multiplier(x),
    'periods': lambda x: x is None or 1 <= x <= rounds,
  }
  for name, is_valid in ranges.items():
    if not is_valid(fields[name]):
      return f'{name}={fields[name]!r} is out of range'
  return None


def find_fault_of_array(
  name: str,
  array: np.ndarray,
  shapes: Sequence[tuple[int, ...]],
  *,
  unknown: bool = False,
) -> str | None:
  """What of an array of a file cannot be so, in words; None if nothing is wrong.

  Args:
    name: of the array in the file: cosines_..., rounds_..., or another.
    array: of numbers.
    shapes: that it may have.
    unknown: whether any number of a round may be NaN, as of one that was not made.
  """
  if array.shape not in shapes:
    return (
      f'{name} has shape {array.shape}, and not {" or ".join(map(str, shapes))}'
    )
  if array.dtype.kind not in 'biuf':
    return f'{name} has no numbers, but {array.dtype}'
  of_rounds = name.startswith(_ROUNDS)
  # Norms of models that have not diverged, and cosines with them.
  if name in _MAY_BE_UNKNOWN or (of_rounds and unknown):
    array = array[~np.isnan(array)]
  if not np.all(np.isfinite(array)):
    return f'{name} has numbers that are not finite'
  if of_rounds and np.any(array < 0):
    return f'{name} has numbers < 0'
  if name.startswith(_COSINES) and np.any(np.abs(array) > _MAX_COSINE):
    return f'{name} has numbers that are no cosines'
  return None


def _with_prefix(
  arrays: Mapping[str, np.ndarray], prefix: str
) -> dict[str, np.ndarray]:
  return {
    name.removeprefix(prefix): x
    for name, x in arrays.items()
    if name.startswith(prefix)
  }


def is_noise_multiplier(z: Any) -> bool:
  """Whether z is a noise multiplier, `NOISE`, and finite."""
  return bool(z == 0 or 1e-30 <= z < np.inf)
