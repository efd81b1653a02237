"""The record of a run: everything that attackers saw of it."""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
from typing import Any, Literal

from jaxtyping import Bool, Float
import numpy as np

from epe_jax.accounting import Ring
from epe_jax.training.round_scalars import RoundScalars

FINAL_MODEL = ('final', 'change')
"""Names of the cosines with theta_T and with theta_T - theta_0."""

RELEASES = ('aggregate', 'server_update', 'models')
"""Names of the cosines with what each round released: its aggregate, the server
update, or the difference of two published models."""

NOISE = '0, or a number from 1e-30 to 1e38'
"""The valid noise multipliers, in words: float32 holds no others."""

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
  def participations(self) -> int:
    """The most rounds that a canary is assigned."""
    return int(np.count_nonzero(self.assigned, axis=0).max())

  @property
  def view(self) -> str | None:
    """The name in `RELEASES` of what was scored; None if no release was."""
    return next((name for name in RELEASES if self._saw(name)), None)

  @property
  def released(self) -> str:
    """The key of what an attacker who sees rounds sees of them."""
    return 'published_models' if self.view == 'models' else 'all_iterates'

  @property
  def trace(self) -> Float[np.ndarray, 'T k'] | None:
    """Cosines with what each round released; None if they were not kept."""
    return None if self.view is None else self.cosines.get(self.view)

  @property
  def expected(self) -> Float[np.ndarray, ' t'] | None:
    """Mean cosine of a canary with the aggregate of its own round, [T].

    None if server updates were scored: what the server optimizer makes of a
    canary depends on other rounds.
    """
    if self.rounds is None or self.view != 'aggregate':
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

  Arguments that are not explained here are attributes of `Record`.

  Args:
    cosines: what `score_observers` returns.
    rounds: the scalars in the state of the run.
    assigned: row t holds the canaries that were assigned round t; None if no coins
      were flipped, so that all of them were included.
    noise_multiplier: z of the mechanism; None if unknown, and then no attacker has an
      analytic ε.
    periods: number of periods if `sampling.once_per_period` assigned the rounds;
      None otherwise, and then an attacker who does not know the rounds gets the
      analytic ε of one who does.
    strategy: C, lower triangular with a positive diagonal, if noise is correlated
      over rounds; `accounting.whiten` makes it of any matrix mechanism.

  Raises:
    ValueError: the shapes do not agree, or strategy is no such matrix.
  """
  assigned = included if assigned is None else assigned
  rounds = RoundScalars(*map(np.asarray, rounds))
  if strategy is not None:
    strategy = np.asarray(strategy, np.float64)
  check_shapes(cosines, rounds, included, assigned, strategy)
  weight = None
  if momentum is not None:
    weight = weigh_canaries(momentum, rounds, assigned)
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


def check_shapes(
  cosines: Mapping[str, Float[Any, '... k']],
  rounds: RoundScalars,
  included: Bool[np.ndarray, '*shape'],
  assigned: Bool[np.ndarray, '*shape'],
  strategy: Float[np.ndarray, '*square'] | None,
) -> None:
  """Raises a ValueError unless these are of one run, as in `make_record`."""
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
  if strategy is not None and (
    fault := find_fault_of_strategy(strategy, len(included))
  ):
    raise ValueError(f'{fault}; give C of the noise C⁻¹ Z of all rounds.')


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


def is_noise_multiplier(z: Any) -> bool:
  """Whether z is a valid noise multiplier, see `NOISE`."""
  return bool(z == 0 or 1e-30 <= z <= 1e38)


def weigh_canaries(
  momentum: float, rounds: RoundScalars, assigned: Bool[np.ndarray, 'T k']
) -> Float[np.ndarray, ' k']:
  """What the final model keeps of each canary, up to the learning rate."""
  kept = respond_at_end(len(assigned), momentum=momentum) * rounds.canary_norm
  return (kept @ assigned).astype(np.float32)


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
