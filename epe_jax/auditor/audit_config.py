"""The settings of an audit of any training loop: sizes, claims and design."""

import dataclasses
from typing import Literal

from jaxtyping import Bool, Float
import numpy as np

from epe_jax import accounting, streams
from epe_jax.accounting import ParticipationSchema, matrix_mechanism
from epe_jax.audit import record
from epe_jax.auditor.host_canaries.registry import FAMILIES
from epe_jax.epsilon import checks
from epe_jax.sampling import canary_schedules
from epe_jax.training.round_scalars import CLIP_NORMS


@dataclasses.dataclass(frozen=True, kw_only=True)
class AuditConfig:
  """The settings of an audit of a training loop: sizes, claims and design.

  Each of `num_observed` canaries takes part in `repetitions` rounds, one uniformly
  random round of each of as many equal periods; `num_unobserved` take part in none,
  and show what is scored by chance. With design='coin_flip' all are assigned rounds,
  and a fair coin of each decides whether it takes part.

  Attributes:
    dim: d >= 2, every floating-point number that a round releases: running
      statistics of batch normalization where they are released, integer counters
      never.
    rounds: T, the number of rounds (or steps) that will be made, >= 1.
    clip_norm: S, the norm to which an update is clipped, in `CLIP_NORMS`.
    delta: δ of the claim, in (0, 1).
    noise_multiplier: z >= 0 of the claim, the standard deviation of the noise in the
      sum of updates, in units of S; None if nothing is claimed, and then no attacker
      has an analytic ε.
    sampling_probability: q in (0, 1] of a participant in each round, if participants
      are drawn in secret and the accountant of the loop counts it; else None. Canaries
      are certain to be in their rounds, and the report has ε both ways.
    num_observed: canaries that take part, >= 1.
    num_unobserved: canaries that do not. The null law is theirs: give hundreds.
      With coins, about half of all canaries take part, whichever number they are in.
    repetitions: rounds in which a canary takes part, 1 <= n <= rounds.
    design: 'fixed'; or 'coin_flip', for bounds from one run.
    view: 'aggregate' if what is observed is the noisy mean or sum of updates;
      'server_update' if it is the change of the model by a server optimizer with a state.
    strategy: C, [T, T], lower triangular, if the noise of rounds is C⁻¹ Z and
      noise_multiplier that of Z; None if rounds have independent noise.
    min_separation: b >= 1. Canaries then take part in the worst rounds that a
      participant of up to `repetitions` rounds, at least b apart, may have; None for
      random rounds.
    server_momentum: in [0, 1), of a server that is SGD, 0 where it adds aggregates
      up: what the final model keeps of each round; None for another optimizer.
    family: of the canaries: 'hadamard', for any d, or 'sphere', for small ones.

  Raises:
    ValueError: a field is out of range.
  """

  dim: int
  rounds: int
  clip_norm: float
  delta: float
  noise_multiplier: float | None = None
  sampling_probability: float | None = None
  num_observed: int = 1000
  num_unobserved: int = 1000
  repetitions: int = 1
  design: Literal['fixed', 'coin_flip'] = 'fixed'
  view: Literal['aggregate', 'server_update'] = 'aggregate'
  # Arrays have no one truth that they are equal.
  strategy: Float[np.ndarray, 'T T'] | None = dataclasses.field(
    default=None, compare=False
  )
  min_separation: int | None = None
  server_momentum: float | None = None
  family: str = 'hadamard'

  def __post_init__(self):
    of = lambda name: (name, getattr(self, name))
    # Scalars of NumPy and others become Python's, which JSON has.
    keep = lambda name, x: object.__setattr__(self, name, x)
    for name, smallest, largest in (
      ('dim', 2, record.MAX_DIM),
      ('rounds', 1, checks.MAX_INTEGER),
      ('num_observed', 1, checks.MAX_INTEGER),
      ('num_unobserved', 0, checks.MAX_INTEGER),
      ('repetitions', 1, self.rounds),
      ('min_separation', 1, checks.MAX_INTEGER),
    ):
      if getattr(self, name) is not None:
        keep(name, checks.check_integer(*of(name), smallest, largest))
    for name, interval in (
      ('clip_norm', CLIP_NORMS),
      ('delta', '(0, 1)'),
      ('noise_multiplier', '[0, inf)'),
      ('server_momentum', '[0, 1)'),
      ('sampling_probability', '(0, 1]'),
    ):
      if getattr(self, name) is not None:
        keep(name, checks.check_number(*of(name), interval))
    checks.check_choice(*of('design'), ('fixed', 'coin_flip'))
    checks.check_choice(*of('view'), ('aggregate', 'server_update'))
    checks.check_choice(*of('family'), [*FAMILIES])
    z = self.noise_multiplier
    if z is not None and not record.is_noise_multiplier(z):
      raise ValueError(
        f'noise_multiplier={z!r}; give {record.NOISE}, or None if none is claimed.'
      )
    if self.sampling_probability is not None and self.strategy is not None:
      raise ValueError(
        f'sampling_probability={self.sampling_probability} with a strategy, but no ε of '
        'sampling with correlated noise is known here; leave it out.'
      )
    if self.strategy is not None:
      fault = record.find_fault_of_strategy(self.strategy, self.rounds)
      if fault:
        raise ValueError(f'{fault}; give C of the noise C⁻¹ Z of all rounds.')

  @property
  def num_canaries(self) -> int:
    """k, of all canaries."""
    return self.num_observed + self.num_unobserved


def draw_rounds(
  config: AuditConfig, seed: int
) -> tuple[Bool[np.ndarray, 'T k'], Bool[np.ndarray, 'T k']]:
  """Draws the assigned rounds of canaries, and those in which they take part.

  Args:
    config: the settings of the audit.
    seed: seed of the rounds, >= 0.
  """
  rng = streams.host_rng(seed, 'canaries')
  has_coins = config.design == 'coin_flip'
  num = config.num_canaries if has_coins else config.num_observed
  if config.min_separation is None:
    of_chosen = canary_schedules.once_per_period(
      rng, rounds=config.rounds, num=num, periods=config.repetitions
    )
  else:
    strategy = config.strategy
    if strategy is None:
      strategy = np.eye(config.rounds)
    schema = ParticipationSchema(config.min_separation, config.repetitions)
    worst = accounting.find_sensitivity(strategy, schema).pattern
    patterns = matrix_mechanism.list_moved(worst, schema)
    of_chosen = canary_schedules.worst_case(
      rng,
      patterns,
      matrix_mechanism.measure_patterns(strategy, patterns),
      rounds=config.rounds,
      num=num,
    )
  assigned = np.zeros((config.rounds, config.num_canaries), bool)
  # The observed canaries are drawn at random: truncated Hadamard rows are not exactly
  # orthogonal, and neighbors least.
  chosen = rng.permutation(config.num_canaries)[:num]
  assigned[:, np.sort(chosen)] = of_chosen
  if has_coins:
    return assigned, canary_schedules.flip_coins(rng, assigned)
  return assigned, assigned
