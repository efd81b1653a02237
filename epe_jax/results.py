"""Files of a run: written whole or not at all, and read without pickle."""

from collections.abc import Callable, Mapping
import dataclasses
import json
import math
import os
import pathlib
import secrets
from typing import Any, BinaryIO, Literal
from zipfile import BadZipFile

from jaxtyping import Bool, Float, Shaped
import numpy as np

from epe_jax.data import drafts, npz
from epe_jax.round_scalars import RoundScalars

SCHEMA = 2
"""Version of result.json."""

SCORES_SCHEMA = 4
"""Version of scores.npz."""

_ROUNDS = 'rounds_'


@dataclasses.dataclass(frozen=True)
class Recorded:
  """What attackers saw of a run: all an estimator needs, without the model.

  Attributes:
    final: cosines with the final model, [k]; empty where it is not shown.
    change: cosines with what training made of the initial model, theta_T -
      theta_0, [k]; empty where the final model is not shown.
    trace: cosines with what each round showed, [T, k].
    residual: cosines with what is left of each round's aggregate when all that
      was put in is removed, of clients and of canaries, [T, k]; for an attacker
      who asks about one canary, `readings.others_removed` leaves that one in.
      None where it may not be shown.
    rounds: one number of each round; None for differences of models, whose
      residual has what was put in of the canary itself.
    momentum: of the server's SGD; None for another server optimizer.
    weight: what training left of each canary in the change of the model, of
      those that took part or would have by their seats, up to one factor, [k];
      empty where the server's optimizer does not tell.
    participation: 0/1, row t holds the canaries of round t; canaries in no row
      are unobserved. For differences of models, the cosine to expect.
    seats: the same for rounds that a canary would have taken part in, had its
      coin said so; where no coin is flipped, participation again.
    sees: what the trace is of: 'aggregate' or 'delta' of each round, as
      `audit.VIEWS` names them, or 'models' for the differences of published
      models, as `model_releases` makes them.
    design: 'coin_flip' if each canary took its seats by a fair coin of its own,
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
  participation: Bool[np.ndarray, 'T k'] | Float[np.ndarray, 'T k']
  seats: Bool[np.ndarray, 'T k'] | Float[np.ndarray, 'T k']
  sees: str
  design: Literal['fixed', 'coin_flip']
  dim: int
  delta: float

  @property
  def observed(self) -> Bool[np.ndarray, ' k']:
    """Which canaries took part."""
    return np.asarray(self.participation.any(axis=0))

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


def write_atomically(
  path: str | os.PathLike,
  fill: Callable[[BinaryIO], Any],
  *,
  private: bool = False,
) -> None:
  """Has `fill` write the open file, then puts it in place of `path`.

  Args:
    path: of the file, which is then on the disk, whatever happens to the power.
    fill: writes the file.
    private: for its owner alone to read, from the first byte on.
  """
  path = pathlib.Path(path)
  draft = path.with_name(f'.{path.name}.{secrets.token_hex(4)}')
  try:
    with open(draft, 'xb', opener=owners_alone if private else None) as f:
      fill(f)
      f.flush()
      os.fsync(f.fileno())
    os.replace(draft, path)
    drafts.sync_folder(path.parent)
  finally:
    draft.unlink(missing_ok=True)


def owners_alone(path: str, flags: int) -> int:
  """An opener of files that are made for none but their owner to read."""
  return os.open(path, flags, 0o600)


def write_json(
  path: str | os.PathLike, value: Any, *, private: bool = False
) -> None:
  """Writes JSON; numbers that are not finite become 'Infinity' or 'NaN'.

  JSON has no such numbers, and `float` reads those strings back.
  """
  text = json.dumps(finite(value), indent=2, allow_nan=False) + '\n'
  write_atomically(path, lambda f: f.write(text.encode()), private=private)


def flattened(nested: Mapping[str, Any], prefix: str = '') -> dict[str, Any]:
  """Dotted name -> value.

  >>> flattened({'rounds': 3, 'client': {'epochs': 1}})
  {'rounds': 3, 'client.epochs': 1}
  """
  flat = {}
  for name, value in nested.items():
    if isinstance(value, Mapping):
      flat |= flattened(value, f'{prefix}{name}.')
    else:
      flat[prefix + name] = value
  return flat


def read_json(path: str | os.PathLike) -> Any:
  """Reads a JSON file.

  Raises:
    ValueError: the file is not JSON.
  """
  try:
    return json.loads(pathlib.Path(path).read_text(encoding='utf-8'))
  except (json.JSONDecodeError, UnicodeDecodeError) as error:
    raise ValueError(
      f'{path} is not JSON ({error}); restore it or use another workdir.'
    ) from error


def write_arrays(
  path: str | os.PathLike, arrays: Mapping[str, Any], *, private: bool = False
) -> None:
  """Writes arrays and numbers as a compressed .npz."""
  write_atomically(
    path, lambda f: np.savez_compressed(f, **arrays), private=private
  )


def read_arrays(
  path: str | os.PathLike,
) -> dict[str, Shaped[np.ndarray, '...']]:
  """Reads an .npz.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: the file is damaged or would need pickle.
  """
  # Opened here, because np.load leaves a damaged file open.
  with open(path, 'rb') as f:
    try:
      return npz.read(f)
    except (ValueError, EOFError, OSError, AttributeError, BadZipFile) as error:
      raise ValueError(
        f'{path} is not a readable .npz file ({error}); restore it, or train '
        'again in a new workdir.'
      ) from error


def write_scores(path: str | os.PathLike, recorded: Recorded) -> None:
  """Writes scores.npz for its auditor; numbers of rounds as rounds_...

  Raises:
    ValueError: of a part of a run, which follows from the run's own file.
  """
  if recorded.rounds is None or recorded.residual is None:
    raise ValueError(
      f'this part of a run, sees={recorded.sees!r}, cannot be written; keep the '
      'run that it was made of.'
    )
  fields = vars(recorded) | {
    'momentum': np.nan if recorded.momentum is None else recorded.momentum,
    'schema': np.int64(SCORES_SCHEMA),
  }
  del fields['rounds']
  rounds = {f'{_ROUNDS}{k}': x for k, x in recorded.rounds._asdict().items()}
  write_arrays(path, fields | rounds, private=True)


def read_scores(path: str | os.PathLike) -> Recorded:
  """Reads scores.npz.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: the file is damaged, lacks arrays or is of another version.
  """
  arrays = read_arrays(path)
  # First, because another version has other arrays.
  if 'schema' in arrays:
    check_schema(path, int(arrays['schema']), reads=SCORES_SCHEMA)
  names = {field.name for field in dataclasses.fields(Recorded)} | {'schema'}
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
  for name in ('participation', 'seats'):
    fields[name] = arrays[name].astype(bool)
  for name in ('sees', 'design'):
    fields[name] = str(arrays[name])
  fields['dim'] = int(arrays['dim'])
  fields['delta'] = float(arrays['delta'])
  return Recorded(**fields)


def read_result(path: str | os.PathLike) -> dict[str, Any]:
  """Reads the result.json of a finished run.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: it is damaged, or of another version of this library.
  """
  result = read_json(path)
  if not isinstance(result, dict) or 'schema' not in result:
    raise ValueError(
      f'{path} is not the result of a run; restore it or use another workdir.'
    )
  check_schema(path, result['schema'])
  return result


def check_schema(
  path: str | os.PathLike, schema: int, *, reads: int = SCHEMA
) -> None:
  """Raises a ValueError unless a file is of this version of the library."""
  if schema != reads:
    raise ValueError(
      f'{path} has schema={schema}, but this version of epe_jax reads {reads}. '
      'Read it with the version that wrote it.'
    )


def finite(value: Any) -> Any:
  """JSON-like values with numbers that are not finite as strings."""
  if isinstance(value, Mapping):
    return {k: finite(v) for k, v in value.items()}
  if isinstance(value, list | tuple):
    return [finite(v) for v in value]
  if isinstance(value, float) and not math.isfinite(value):
    return {math.inf: 'Infinity', -math.inf: '-Infinity'}.get(value, 'NaN')
  return value
