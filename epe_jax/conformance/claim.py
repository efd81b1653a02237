"""The privacy claim of an aggregation, and the interface that the suite calls."""

from collections.abc import Sequence
import dataclasses
import functools
import math
from typing import Any, Literal, Protocol, runtime_checkable

from jaxtyping import Float
import numpy as np
from scipy import optimize

from epe_jax import accounting
from epe_jax.epsilon import checks, epsilon_gdp, mu_of_epsilon


class Refused(Exception):
  """Raised by a mechanism for input that it does not accept, such as a dropout.

  Rules that need such input are then reported as not checked.
  """


_CHOICES = {
  'release': ('mean', 'sum'),
  'adjacency': ('zero_out', 'add_or_remove', 'replace'),
  'noise': ('gaussian', 'discrete_gaussian', 'skellam', 'laplace'),
}


@dataclasses.dataclass(frozen=True)
class Claim:
  """What a mechanism claims of one round: noise of z clip norms on a sum.

  Attributes:
    clip_norm: S > 0, bound of the norm of a client's update.
    noise_multiplier: z > 0. Noise has the standard deviation z S in units of the sum
      of updates, so that a round is a Gaussian mechanism with μ = 1/z. Laplace noise
      has the scale z S, and a round ε = 1/z; see `mu`.
    num_clients: n >= 1, expected number of clients in a round; for example-level
      training, of examples in a batch.
    shapes: of the tensors of an update.
    release: whether a round releases the sum over n ('mean') or the sum.
    step_size: factor of the release, such as a server learning rate; negative if
      it is subtracted.
    adjacency: of two neighbouring rounds one has the client's update, the other a
      zero update ('zero_out', the client is counted in both), no such client
      ('add_or_remove'), or any other update of it, up to 2 S apart ('replace', so
      that μ = 2/z). With 'replace', influences are half of what an update and its
      opposite differ by, so that they are compared with 1/z all the same.
    max_rounds: maximum number of rounds of a run; None if there is none.
    delta: δ of `epsilon`, in (0, 1); or 0 with Laplace noise, for pure ε.
    noise: law of the noise in each coordinate.
    norm: p of the Lp norm in which updates are clipped: 1, 2 or infinity.
    participations: k, the maximum number of rounds of a client. From 2 on, z is that
      of all of them together, as with noise that is correlated between rounds, and
      each ε that of the run.
    min_separation: a client of round t takes part again in round t + b at the
      earliest.
    calls_per_release: calls of `aggregate` of which the last one releases, such as of
      micro-batches whose sum is released. Each has the updates of some clients.
    granularity: step of the grid of discrete noise, in units of the sum, z S at
      most; 0 for other laws. It grows and falls with S, and falls with z, where the
      suite changes these.

  Raises:
    ValueError: a value is out of range.
  """

  clip_norm: float
  noise_multiplier: float
  num_clients: int
  shapes: tuple[tuple[int, ...], ...]
  release: Literal['mean', 'sum'] = 'mean'
  step_size: float = 1.0
  adjacency: Literal['zero_out', 'add_or_remove', 'replace'] = 'zero_out'
  max_rounds: int | None = None
  delta: float = 1e-5
  noise: Literal['gaussian', 'discrete_gaussian', 'skellam', 'laplace'] = (
    'gaussian'
  )
  norm: float = 2
  granularity: float = 0.0
  participations: int = 1
  min_separation: int = 1
  calls_per_release: int = 1

  @classmethod
  def from_zcdp(cls, rho: float, *, clip_norm: float, **rest: Any) -> 'Claim':
    """The claim that a round is ρ-zCDP: with noise of z = 1/√(2ρ) for ρ > 0.

    Reference: Bun and Steinke 2016, Concentrated Differential Privacy.
    """
    checks.check_number('rho', rho, '(0, inf)')
    claim = cls(clip_norm=clip_norm, noise_multiplier=1.0, **rest)
    if claim.noise == 'laplace' or claim.mu != 1:
      raise ValueError(
        f'noise={claim.noise!r} and norm={claim.norm}, but ρ is that of noise in the L2 '
        'norm of updates that are clipped in it; give noise_multiplier or epsilon.'
      )
    z = claim.distance / math.sqrt(2 * rho)
    return dataclasses.replace(claim, noise_multiplier=z)

  @classmethod
  def from_epsilon(
    cls, epsilon: float, delta: float = 1e-5, *, clip_norm: float, **rest: Any
  ) -> 'Claim':
    """The claim that a round has this ε at δ: with exactly the noise for it.

    A mechanism that chooses its noise by ε > 0 reads `claim.epsilon` and
    `claim.delta`. The suite also claims other noise multipliers, and these tell their
    exact ε. `rest` has the other fields of `Claim`.
    """
    checks.check_number('epsilon', epsilon, '(0, inf)')
    claim = cls(clip_norm=clip_norm, noise_multiplier=1.0, delta=delta, **rest)
    if claim.noise == 'laplace':
      mu = (epsilon - 2 * math.log1p(-delta)) / claim.distance
    elif claim.noise == 'gaussian':
      mu = float(mu_of_epsilon(epsilon, delta)) / claim.distance
    else:
      log_mu = optimize.root_scalar(
        lambda x: claim.compute_epsilon(math.exp(x), delta) - epsilon,
        bracket=(-20, 20),
      ).root
      mu = math.exp(log_mu)
    return dataclasses.replace(claim, noise_multiplier=claim.mu / mu)

  def __post_init__(self):
    for name in ('clip_norm', 'noise_multiplier'):
      checks.check_number(name, getattr(self, name), '(0, inf)')
    for name in (
      'num_clients',
      'participations',
      'min_separation',
      'calls_per_release',
    ):
      checks.check_integer(name, getattr(self, name))
    if self.max_rounds is not None:
      checks.check_integer('max_rounds', self.max_rounds)
    for name, choices in _CHOICES.items():
      checks.check_choice(name, getattr(self, name), choices)
    self.check_delta(self.delta)
    try:
      shapes = tuple(tuple(map(int, shape)) for shape in self.shapes)
    except TypeError:
      shapes = ()
    if shapes:
      object.__setattr__(self, 'shapes', shapes)
    if not shapes or any(x < 1 for shape in shapes for x in shape):
      raise ValueError(
        f'shapes={self.shapes}; give the shape of each tensor of an update, '
        'each with a number in it, such as ((20, 30), (30,)).'
      )
    if not 0 < abs(self.step_size) < math.inf:
      raise ValueError(
        f'step_size={self.step_size}; give a finite number other than 0.'
      )
    if self.norm not in (1, 2, math.inf):
      raise ValueError(f'norm={self.norm!r}; give 1, 2 or inf.')
    is_discrete = self.noise in ('discrete_gaussian', 'skellam')
    checks.check_number('granularity', self.granularity, '[0, inf)')
    if is_discrete != (self.granularity > 0):
      raise ValueError(
        f'granularity={self.granularity} of noise={self.noise!r}; give the step '
        'of the grid of discrete noise, such as S/(16 √d), and 0 for other noise.'
      )

  def check_delta(self, delta: float) -> None:
    """Raises a ValueError for a δ at which no ε of such noise is finite."""
    if delta != 0 or self.noise != 'laplace':
      checks.check_delta(delta)

  @functools.cached_property
  def sizes(self) -> tuple[int, ...]:
    """Number of coordinates of each tensor."""
    return tuple(math.prod(shape) for shape in self.shapes)

  @functools.cached_property
  def dim(self) -> int:
    """d, coordinates of an update."""
    return sum(self.sizes)

  @property
  def distance(self) -> int:
    """Largest distance of the updates of neighbouring rounds, in clip norms."""
    return 2 if self.adjacency == 'replace' else 1

  @functools.cached_property
  def epsilon(self) -> float:
    """ε of one round with the claimed noise, at `delta`."""
    return self.compute_epsilon(self.mu, self.delta)

  @property
  def step(self) -> float:
    """Step of the claimed grid over S, 0 if there is none."""
    return self.granularity / self.clip_norm

  @property
  def order(self) -> int:
    """Order of the norm in which influences count: 1 for Laplace noise, else 2."""
    return 1 if self.noise == 'laplace' else 2

  @property
  def mu(self) -> float:
    """Largest influence that is claimed, over the scale of the noise.

    That is 1/z if updates are clipped in the norm of the noise. In another one an
    update of norm S may be d^(1/q - 1/p) times as long in that of the noise.
    """
    power = max(0.0, 1 / self.order - 1 / self.norm)
    return self.dim**power / self.noise_multiplier

  def measure(self, update: Float[np.ndarray, '...']) -> float:
    """The norm in which updates are clipped."""
    return float(np.linalg.norm(update, self.norm))

  def compute_epsilon(self, influence: float, delta: float) -> float:
    """ε of a round in which an update has this influence.

    It is exact for Gaussian noise, and for Laplace noise if updates are clipped in
    the L1 norm and all influence may be in one coordinate; in another norm, and δ > 0,
    it is a bound. That of discrete noise is exact in one coordinate and else a bound,
    of updates within the clip norm and so much noise that their influence is this.

    Args:
      influence: over the standard deviation of the noise, or of Laplace noise the L1
        norm over its scale.
      delta: δ, as that of the claim.
    """
    if not math.isfinite(influence):
      return math.inf
    if self.noise == 'laplace':
      return max(0.0, self.distance * influence + 2 * math.log1p(-delta))
    if self.noise == 'gaussian' or not influence:
      return float(epsilon_gdp(self.distance * influence, delta))
    account = {
      'discrete_gaussian': accounting.epsilon_of_discrete_gaussian,
      'skellam': accounting.epsilon_of_skellam,
    }[self.noise]
    l2 = self.mu * self.noise_multiplier * self.clip_norm
    return account(
      l2 / influence,
      delta=delta,
      l2=self.distance * l2,
      l1=self.distance * self.clip_norm * self.dim ** (1 - 1 / self.norm),
      dim=self.dim,
      granularity=self.granularity,
    ).epsilon

  @property
  def unit(self) -> float:
    """Factor by which a client of weight 1 enters the release."""
    share = self.num_clients if self.release == 'mean' else 1
    return self.step_size / share


@runtime_checkable
class Mechanism(Protocol):
  """One run of an aggregation, with the state that it keeps between rounds.

  It may have `clip_norm`, a public one that adapts and is read before each round, and
  `save() -> state` and `restore(state)`, for the state that a checkpoint stores.
  Otherwise rules that need them are reported as not checked.
  """

  def aggregate(
    self,
    updates: Sequence[Sequence[Float[np.ndarray, '...']]],
    weights: Sequence[float],
  ) -> Sequence[Float[np.ndarray, '...']]:
    """Runs one round, or raises `Refused`.

    Args:
      updates: for each client present, a float32 tensor for each shape of the
        claim, not clipped. There may be fewer clients than expected.
      weights: the number of examples of each client.

    Returns:
      The release of the round, a tensor for each shape.
    """
    ...
