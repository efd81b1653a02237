"""All that attackers saw of a run, in one value and one file."""

import dataclasses
import math
import os
from typing import Any, Literal

from jaxtyping import Bool, Float
import numpy as np

from epe_jax import io
from epe_jax.audit.round_scalars import RoundScalars

SCHEMA = 6
"""Version of scores.npz."""

_ROUNDS = 'rounds_'


@dataclasses.dataclass(frozen=True)
class Record:
  """What attackers saw of a run: all an estimator needs, without the model.

  Attributes:
    final: cosines with the final model, [k]; empty where it is not shown.
    change: cosines with what training made of the initial model, theta_T -
      theta_0, [k]; empty where the final model is not shown.
    trace: cosines with what each round showed, [T, k].
    residual: cosines with what is left of each round's aggregate when all that
      was put in is removed, of clients and of canaries, [T, k]; for an attacker
      who asks about one canary, `statistics.score_residual` leaves that one in.
      None where it may not be shown.
    rounds: one number of each round; None for differences of models, whose
      residual has what was put in of the canary itself.
    momentum: of the server's SGD; None for another server optimizer.
    weight: what training left of each canary in the change of the model, of
      those that took part or are assigned rounds, up to one factor, [k];
      empty where the server's optimizer does not tell.
    included: 0/1, row t holds the canaries of round t; canaries in no row
      are unobserved. For differences of models, the cosine to expect.
    assigned: the same for rounds that a canary would have taken part in, had its
      coin said so; where no coin is flipped, participation again.
    sees: what the trace is of: 'aggregate' or 'delta' of each round, as
      `observers.VIEWS` names them, or 'models' for the differences of published
      models, as `published_models` makes them.
    design: 'coin_flip' if each canary took its rounds by a fair coin of its own,
      and an attacker may know all else; else 'fixed'.
    dim: d.
    delta: the run's, in (0, 1).
  """

  final: Float[np.ndarray, ' f']
  change: Float[np.ndarray, ' c']
  trace: Float[np.ndarray, 'T k']
  residual: Float[np.ndarray, 'T k'] | None
  rounds: RoundScalars | None
  momentum: float | None
  weight: Float[np.ndarray, ' w']
  included: Bool[np.ndarray, 'T k'] | Float[np.ndarray, 'T k']
  assigned: Bool[np.ndarray, 'T k'] | Float[np.ndarray, 'T k']
  sees: str
  design: Literal['fixed', 'coin_flip']
  dim: int
  delta: float

  @property
  def observed(self) -> Bool[np.ndarray, ' k']:
    """Which canaries took part."""
    return np.asarray(self.included.any(axis=0))

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


def write_record(path: str | os.PathLike, record: Record) -> None:
  """Writes scores.npz for its auditor; numbers of rounds as rounds_...

  Raises:
    ValueError: of a part of a run, which follows from the run's own file.
  """
  if record.rounds is None or record.residual is None:
    raise ValueError(
      f'this part of a run, sees={record.sees!r}, cannot be written; keep the '
      'run that it was made of.'
    )
  fields = vars(record) | {
    'momentum': np.nan if record.momentum is None else record.momentum,
    'schema': np.int64(SCHEMA),
  }
  del fields['rounds']
  rounds = {f'{_ROUNDS}{k}': x for k, x in record.rounds._asdict().items()}
  io.write_arrays(path, fields | rounds, private=True)


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
  names = {field.name for field in dataclasses.fields(Record)} | {'schema'}
  names |= {_ROUNDS + name for name in RoundScalars._fields}
  names -= {'rounds'}
  if not names <= arrays.keys():
    raise ValueError(
      f'{path} lacks {sorted(names - arrays.keys())}; give the scores.npz of a '
      'run, or a file that scripts/estimate.py --help describes.'
    )
  fields: dict[str, Any] = {
    name: arrays[name]
    for name in names - {'schema'}
    if not name.startswith(_ROUNDS)
  }
  fields['rounds'] = RoundScalars(
    *(arrays[_ROUNDS + name] for name in RoundScalars._fields)
  )
  momentum = float(arrays['momentum'])
  fields['momentum'] = None if math.isnan(momentum) else momentum
  for name in ('included', 'assigned'):
    fields[name] = arrays[name].astype(bool)
  for name in ('sees', 'design'):
    fields[name] = str(arrays[name])
  fields['dim'] = int(arrays['dim'])
  fields['delta'] = float(arrays['delta'])
  return Record(**fields)
