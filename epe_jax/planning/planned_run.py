"""A training run that is to be audited, as far as its audit depends on it."""

import dataclasses
from typing import Literal

from epe_jax.audit import record
from epe_jax.canaries import registry
from epe_jax.epsilon import checks
from epe_jax.epsilon.checks import check_delta
from epe_jax.training import round_scalars

MAX_AGREEMENT = 0.25
"""The largest `PlannedRun.client_agreement` that is to be expected.

What explains the change of the model is 0 to 0.03 in runs on EMNIST, StackOverflow and
narrow models of digits, and about 0.2 in the two jobs on digits, whose clients go one way.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedRun:
  """The sizes of a run, its noise and its canaries.

  Attributes:
    dim: d, the number of trained parameters, >= 2.
    rounds: T, the number of rounds, >= 1.
    clients_per_round: n, the mean number of real clients in a round, > 0.
    noise_multiplier: z >= 0, the standard deviation of the noise in the sum of
      updates, in units of the clip norm.
    delta: δ, in (0, 1).
    clip_norm: S, in `CLIP_NORMS`. Cosines have no scale, so it matters only together with
      `initial_norm`.
    num_observed: number of observed canaries, >= 2; with coin flips, half of all
      canaries are observed.
    num_unobserved: number of unobserved canaries, 0 or >= 2.
    repetitions: participations of a canary, in [1, rounds]: one random round in
      each of as many equal periods.
    client_participations: maximum number of rounds in which a client takes part,
      in [1, rounds]; None if unknown. The plan is about canaries; a warning says
      what follows for a client.
    family: the family of the canaries, as in `canaries.family`.
    design: 'fixed', or 'coin_flip' if each is included independently with probability 1/2.
    server_momentum: momentum of an SGD server, in [0, 1).
    server_learning_rate: learning rate of an SGD server, > 0; it matters only
      together with `initial_norm`.
    client_agreement: cosine of the updates of any two clients, of one round or of
      two, in [0, 1]: 0 if they are orthogonal, 1 if all are the same. None if it is
      not known: medians are those of 0, and ranges those of 0 to `MAX_AGREEMENT`.
    initial_norm: norm of the initial model, >= 0. None: the attacker of the final
      model knows the initial one and subtracts it.

  Raises:
    ValueError: a field is out of range.
  """

  dim: int
  rounds: int
  clients_per_round: float
  noise_multiplier: float
  delta: float
  clip_norm: float = 1.0
  num_observed: int = 1000
  num_unobserved: int = 1000
  repetitions: int = 1
  client_participations: int | None = None
  family: str = 'sphere'
  design: Literal['fixed', 'coin_flip'] = 'fixed'
  server_momentum: float = 0.0
  server_learning_rate: float = 1.0
  client_agreement: float | None = None
  initial_norm: float | None = None

  def __post_init__(self):
    check_delta(self.delta)
    for name, smallest, largest in (
      ('dim', 2, checks.MAX_INTEGER),
      ('rounds', 1, checks.MAX_INTEGER),
      ('num_observed', 2, checks.MAX_INTEGER),
      ('num_unobserved', 0, checks.MAX_INTEGER),
      ('repetitions', 1, self.rounds),
      ('client_participations', 1, self.rounds),
    ):
      value = getattr(self, name)
      if value is not None:
        checks.check_integer(name, value, smallest, largest)
    for name, interval in (
      ('clients_per_round', '(0, inf)'),
      ('clip_norm', round_scalars.CLIP_NORMS),
      ('server_momentum', '[0, 1)'),
      ('server_learning_rate', '(0, inf)'),
      ('client_agreement', '[0, 1]'),
      ('initial_norm', '[0, inf)'),
    ):
      value = getattr(self, name)
      if value is not None:
        checks.check_number(name, value, interval)
    checks.check_choice('family', self.family, (*registry.FAMILIES,))
    checks.check_choice('design', self.design, ('fixed', 'coin_flip'))
    if not record.is_noise_multiplier(self.noise_multiplier):
      raise ValueError(
        f'noise_multiplier={self.noise_multiplier!r}; give {record.NOISE}.'
      )
    if self.num_unobserved == 1:
      raise ValueError('num_unobserved=1; give 0, or at least 2.')
    if self.num_canaries > self.dim:
      raise ValueError(
        f'num_observed={self.num_observed} and num_unobserved='
        f'{self.num_unobserved}, but dim={self.dim}; random directions are nearly '
        'orthogonal only if there are far fewer of them than dim. Give fewer '
        'canaries.'
      )

  @property
  def num_canaries(self) -> int:
    """k, observed and unobserved."""
    return self.num_observed + self.num_unobserved

  @property
  def num_inside(self) -> int:
    """Canaries that take part: with coin flips half of them, on average."""
    is_coin_flip = self.design == 'coin_flip'
    return self.num_canaries // 2 if is_coin_flip else self.num_observed

  @property
  def num_outside(self) -> int:
    """Canaries that do not take part."""
    return self.num_canaries - self.num_inside

  @property
  def is_orthogonal(self) -> bool:
    """Whether canaries are orthogonal to each other, not drawn independently."""
    return not registry.find_family(self.family).one_by_one
