"""The record of a run: everything that attackers saw of it, and its file."""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import os
from typing import Any, Literal

from jaxtyping import Bool, Float
import numpy as np

from epe_jax import io
from epe_jax.accounting import Ring
from epe_jax.training.round_scalars import (
  CLIP_NORMS,
  MAX_CLIP_NORM,
  MIN_CLIP_NORM,
  RoundScalars,
)

NOISE = '0, or a number from 1e-30 to 1e38'
"""The valid noise multipliers, in words: float32 holds no others."""

SCHEMA = 7
"""Version of scores.npz."""

FINAL_MODEL = ('final', 'change')
"""Names of the cosines with theta_T and with theta_T - theta_0."""

RELEASES = ('aggregate', 'delta', 'models')
"""Names of the cosines with what each round released: its aggregate, the server
update, or the difference of two published models."""

_COSINES, _ROUNDS = 'cosines_', 'rounds_'
_MAY_BE_UNKNOWN = tuple(
  f'{_ROUNDS}{name}'
  for name in ('noise_std', 'num_clients', 'sum_norm', 'residual_norm')
)

_ROUNDING = 1e-3
_MAX_COSINE = 1.01  # 1, and a margin for rounding.

MAX_DIM = 10**15
"""Larger dimensions are of no model."""

Cosines = Mapping[str, Float[np.ndarray, '... k']]


@dataclasses.dataclass(frozen=True)
class Record:
  """Everything that attackers saw of a run; estimates need nothing else.

  Attributes:
    cosines: the cosines of all canaries by the names of their observers, [T, k] for
      every round or [k] for the run. Those of this package are 'final' and 'change'
      (`FINAL_MODEL`); one of `RELEASES`; 'residual', with the aggregate of each
      round less everything that clients and canaries sent; and 'max_...', maxima
      over rounds. What nobody saw, or may be shown, is missing.
    rounds: one number for each round; None for differences of published models.
    momentum: momentum of server SGD; None for any other server optimizer.
    weight: what the final model keeps of each observed or assigned canary, up to a
      common factor, [k]; None if the server optimizer is not SGD.
    included: 0/1, row t holds the canaries of round t; those in no row are
      unobserved. For differences of models, the expected cosine.
    assigned: 0/1, row t holds the canaries that were assigned round t and took part
      if their coin was heads; equal to included if no coins are flipped.
    design: 'coin_flip' if each canary was included by an independent Bernoulli(1/2),
      given everything else; otherwise 'fixed'.
    dim: d.
    delta: δ of the run, in (0, 1).
    noise_multiplier: z of each release, >= 0; None if unknown.
    periods: number of equal periods of the run; in each period a canary is
      assigned one uniformly random round; None if rounds are assigned otherwise.
    strategy: C, [T, T], if the noise of rounds is C⁻¹ Z with independent Z, of the
      standard deviations `rounds.noise_std`; None if rounds have independent noise.
    is_whole: whether this is the whole run, not the part shown to an attacker.
    planned: participations of canaries that were planned in these rounds, where some
      may have been missed; None if all took place.
    ring: what hides a client, where rounds were sums of integers by secure aggregation;
      None if they were not.
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
  strategy: Float[np.ndarray, 'T T'] | None = None
  is_whole: bool = True
  planned: int | None = None
  ring: Ring | None = None

  @property
  def num_rounds(self) -> int:
    """T."""
    return len(self.included)

  @property
  def observed(self) -> Bool[np.ndarray, ' k']:
    """The canaries that took part in some round, as a mask."""
    return np.asarray(self.included.any(axis=0))

  @property
  def sees(self) -> str | None:
    """The name in `RELEASES` of what was scored; None if no release was."""
    return next((name for name in RELEASES if self._saw(name)), None)

  @property
  def trace(self) -> Float[np.ndarray, 'T k'] | None:
    """Cosines with what each round released; None if they were not kept."""
    return None if self.sees is None else self.cosines.get(self.sees)

  @property
  def expected(self) -> Float[np.ndarray, ' t'] | None:
    """Mean cosine of a canary with the aggregate of its own round, [T].

    None if server updates were scored: what the server optimizer makes of a
    canary depends on other rounds.
    """
    if self.rounds is None or self.sees != 'aggregate':
      return None
    norm = np.maximum(self.rounds.aggregate_norm, 1e-30)
    return np.asarray(self.rounds.canary_norm / norm)

  @functools.cached_property
  def noising(self) -> Float[np.ndarray, 'T T'] | None:
    """C⁻¹; None if rounds have independent noise."""
    return None if self.strategy is None else np.linalg.inv(self.strategy)

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
  strategy: Float[np.ndarray, 'rows columns'] | None = None,
  planned: int | None = None,
  ring: Ring | None = None,
) -> Record:
  """Makes the record of a whole run.

  Args:
    cosines: what `score_observers` returns.
    rounds: the scalars in the state of the run.
    included: row t holds the canaries of round t.
    dim: d.
    delta: δ, in (0, 1).
    assigned: row t holds the canaries that were assigned round t; None if no coins
      were flipped, so that all of them were included.
    design: 'coin_flip' if an independent Bernoulli(1/2) decided whether each canary
      takes part in its assigned rounds.
    momentum: momentum of server SGD; None for any other server optimizer.
    noise_multiplier: z of the mechanism; None if unknown, and then no attacker has an
      analytic ε.
    periods: number of periods if `sampling.once_per_period` assigned the rounds;
      None otherwise, and then an attacker who does not know the rounds gets the
      analytic ε of one who does.
    strategy: C, lower triangular with a positive diagonal, if noise is correlated
      over rounds; `accounting.whiten` makes it of any matrix mechanism.
    planned: as in `Record`.
    ring: likewise.

  Raises:
    ValueError: the shapes do not agree, or strategy is no such matrix.
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
  if strategy is not None:
    strategy = np.asarray(strategy, np.float64)
    if fault := find_fault_of_strategy(strategy, len(included)):
      raise ValueError(f'{fault}; give C of the noise C⁻¹ Z of all rounds.')
  weight = None
  if momentum is not None:
    weight = _weigh_canaries(momentum, rounds, assigned)
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
    strategy=strategy,
    planned=planned,
    ring=ring,
  )


def _weigh_canaries(
  momentum: float, rounds: RoundScalars, assigned: Bool[np.ndarray, 'T k']
) -> Float[np.ndarray, ' k']:
  """What the final model keeps of each canary, up to the learning rate."""
  kept = respond_at_end(len(assigned), momentum=momentum) * rounds.canary_norm
  return (kept @ assigned).astype(np.float32)


def write_record(path: str | os.PathLike, record: Record) -> None:
  """Writes scores.npz, readable by its owner alone.

  Raises:
    ValueError: the record holds differences of models, which `release` derives from
      the file of the whole run.
  """
  if record.rounds is None:
    raise ValueError(
      f'this part of a run, sees={record.sees!r}, cannot be written; keep the '
      'run that it was made of.'
    )
  fields = {
    field.name: value
    for field in dataclasses.fields(record)
    if field.name not in ('cosines', 'rounds')
    and (value := getattr(record, field.name)) is not None
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
  optional = {'momentum', 'weight', 'noise_multiplier', 'periods', 'strategy'}
  optional |= {'planned', 'ring'}
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
  types |= {'momentum': float, 'noise_multiplier': float}
  types |= {'periods': int, 'planned': int, 'ring': Ring.from_array}
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
  """Says what is impossible in the fields of a record; None if nothing is."""
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
  strategy = fields['strategy']
  if strategy is not None and (
    fault := find_fault_of_strategy(strategy, rounds)
  ):
    return fault
  needed = {
    'residual_norm': 'residual' in fields['cosines'],
    'noise_std': fields['noise_multiplier'] is not None,
  }
  for name, is_needed in needed.items():
    if is_needed and np.isnan(getattr(fields['rounds'], name)).any():
      return f'{_ROUNDS}{name} has numbers that are not finite'
  ranges = {
    'dim': lambda x: 2 <= x <= MAX_DIM,
    'delta': lambda x: 0 < x < 1,
    'design': lambda x: x in ('fixed', 'coin_flip'),
    'momentum': lambda x: x is None or 0 <= x < 1,
    'noise_multiplier': lambda x: x is None or is_noise_multiplier(x),
    'periods': lambda x: x is None or 1 <= x <= rounds,
    'planned': lambda x: x is None or 0 <= x <= rounds * num,
    'ring': lambda x: x is None or (min(x[:3]) > 0 and min(x[3:]) >= 0),
  }
  for name, is_valid in ranges.items():
    if not is_valid(fields[name]):
      return f'{name}={fields[name]!r} is out of range'
  is_whole, momentum = fields['is_whole'], fields['momentum']
  if fault := find_fault_of_rounds(
    fields['rounds'], fields['noise_multiplier'], fields['dim']
  ):
    return fault
  if is_whole and momentum is not None:
    weight = _weigh_canaries(momentum, fields['rounds'], fields['assigned'])
    if fields['weight'] is None or not np.allclose(
      fields['weight'], weight, rtol=_ROUNDING, atol=0
    ):
      return 'weight is not what momentum keeps of rounds_canary_norm'
  return None


def find_fault_of_rounds(
  rounds: RoundScalars, noise_multiplier: float | None, dim: int
) -> str | None:
  """Says what in the numbers of rounds contradicts the rest; None if nothing does.

  Args:
    rounds: numbers that `find_fault_of_array` finds possible, of rounds that were made.
    noise_multiplier: z of the run, or None.
    dim: d.
  """
  if not are_clip_norms(rounds.clip_norm):
    return f'{_ROUNDS}clip_norm has numbers that are not in {CLIP_NORMS}'
  canary_norm = np.asarray(rounds.canary_norm, np.float64)
  if not np.all(canary_norm > 0):
    return f'{_ROUNDS}canary_norm has numbers that are not > 0'
  dimensions = np.asarray(rounds.effective_dimension)
  if np.any(dimensions > 1.01 * dim):
    return f'{_ROUNDS}effective_dimension has numbers > dim={dim}'
  if noise_multiplier is None or not canary_norm.size:
    return None
  z = np.asarray(rounds.noise_std, np.float64) / canary_norm
  # Where the clip norm adapts its noise takes a share, and that of updates is larger.
  adapts = canary_norm.size == 1 or np.ptp(rounds.clip_norm) > 0
  claimed = max(z.max(), noise_multiplier) if adapts else noise_multiplier
  if not np.allclose(z, claimed, rtol=_ROUNDING, atol=0):
    return (
      f'{_ROUNDS}noise_std is not noise_multiplier={noise_multiplier:.6g} times '
      f'{_ROUNDS}canary_norm'
    )
  return None


def are_clip_norms(values: Float[np.ndarray, ' n']) -> bool:
  """Whether all numbers are valid clip norms, up to rounding to float32."""
  low, high = (1 - _ROUNDING) * MIN_CLIP_NORM, (1 + _ROUNDING) * MAX_CLIP_NORM
  return bool(np.all((values >= low) & (values <= high)))


def find_fault_of_strategy(strategy: np.ndarray, rounds: int) -> str | None:
  """Says what is impossible in the strategy of so many rounds; None if nothing is."""
  if strategy.shape != (rounds, rounds) or not np.isfinite(strategy).all():
    return (
      f'strategy has shape {strategy.shape}, and not finite numbers of shape '
      f'{(rounds, rounds)}'
    )
  if np.any(np.triu(strategy, 1)) or not np.all(np.diagonal(strategy) > 0):
    return 'strategy is not lower triangular with a positive diagonal'
  return None


def find_fault_of_array(
  name: str,
  array: np.ndarray,
  shapes: Sequence[tuple[int, ...]],
  *,
  unknown: bool = False,
) -> str | None:
  """Says what is impossible in an array of a file; None if nothing is.

  Args:
    name: name of the array in the file: cosines_..., rounds_..., or another.
    array: the array.
    shapes: the shapes that are valid.
    unknown: whether every number of a round may be NaN, if it was never made.
  """
  if array.shape not in shapes:
    return (
      f'{name} has shape {array.shape}, and not {" or ".join(map(str, shapes))}'
    )
  if array.dtype.kind not in 'biuf':
    return f'{name} has no numbers, but {array.dtype}'
  of_rounds = name.startswith(_ROUNDS)
  # Norms of models that have not diverged, and cosines with them. What a loop does
  # not know it knows of no round.
  is_nan = np.isnan(array)
  if of_rounds and (unknown or (name in _MAY_BE_UNKNOWN and is_nan.all())):
    array = array[~is_nan]
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
  """Whether z is a valid noise multiplier, see `NOISE`."""
  return bool(z == 0 or 1e-30 <= z <= 1e38)


def respond_to_rounds(
  rounds: int, *, momentum: float, stops: Sequence[int] | None = None
) -> Float[np.ndarray, 'stops rounds']:
  """Returns the weight of each aggregate in the model after some rounds of SGD.

  Momentum β adds an aggregate again in every later round, β^i times in the i-th,
  so n rounds later it has been added (1 - βⁿ)/(1 - β) times. The learning rate
  scales all weights alike and is left out.

  Args:
    rounds: T >= 1.
    momentum: β, in [0, 1).
    stops: numbers of rounds, each in [0, T]; None for all of them, 0 to T.

  Returns:
    A row for each stop: the weights in the model after so many rounds.

  Raises:
    ValueError: momentum is out of range.

  >>> respond_to_rounds(3, momentum=0.5)
  array([[0.  , 0.  , 0.  ],
         [1.  , 0.  , 0.  ],
         [1.5 , 1.  , 0.  ],
         [1.75, 1.5 , 1.  ]])
  >>> respond_to_rounds(3, momentum=0.5, stops=[2])
  array([[1.5, 1. , 0. ]])
  """
  if not 0 <= momentum < 1:
    raise ValueError(f'momentum={momentum}; give a momentum in [0, 1).')
  after = np.arange(rounds + 1) if stops is None else np.asarray(stops)
  since = np.maximum(after[:, None] - np.arange(rounds), 0)
  return (1 - momentum**since) / (1 - momentum)


def respond_at_end(
  rounds: int, *, momentum: float
) -> Float[np.ndarray, ' rounds']:
  """Returns the weight of each aggregate in the final model of SGD.

  It is the last row of `respond_to_rounds`.

  >>> respond_at_end(3, momentum=0.5)
  array([1.75, 1.5 , 1.  ])
  """
  return respond_to_rounds(rounds, momentum=momentum, stops=[rounds])[0]
