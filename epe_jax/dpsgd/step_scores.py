"""What the white-box game observed: two numbers of each step, and one file."""

import dataclasses
import os
from typing import Any

from jaxtyping import Bool, Float
import numpy as np

from epe_jax import io
from epe_jax.epsilon.types import Scores

SCHEMA = 1
"""Version of the file of observations."""

_ARRAYS = ('without', 'with_canary', 'included', 'signal')
_NUMBERS = (
  'clip_norm',
  'noise_multiplier',
  'sampling_rate',
  'canary_rate',
)


@dataclasses.dataclass(frozen=True)
class Observations:
  """o = <u, ∇̃>/C and o' = <u, ∇̃'>/C of each step of the white-box game.

  u is the direction of the canary gradient, and ∇̃ and ∇̃' the noisy sums of the
  batches without and with the canary. Where the gradients of the examples are
  orthogonal to u, o ~ N(0, σ²), and o' ~ N(s, σ²) if the canary joined, where s
  is the norm of the clipped canary in clip norms.

  Attributes:
    without: o, [T].
    with_canary: o', [T].
    included: whether the canary joined the second batch, [T].
    signal: s in [0, 1], [T]; 1 for a canary that was clipped, and 0 for one
      whose gradient is 0 and that nobody can see.
    clip_norm: C > 0.
    noise_multiplier: σ >= 0, as the training claims it.
    sampling_rate: q in (0, 1], of the examples.
    canary_rate: q_c in (0, 1], of the canary.

  Raises:
    ValueError: shapes differ, or a number is out of range or not finite.

  References:
    Tight Auditing of Differentially Private Machine Learning, Algorithm 2 and
    section 5.2.
  """

  without: Float[np.ndarray, ' T']
  with_canary: Float[np.ndarray, ' T']
  included: Bool[np.ndarray, ' T']
  signal: Float[np.ndarray, ' T']
  clip_norm: float
  noise_multiplier: float
  sampling_rate: float
  canary_rate: float

  def __post_init__(self):
    for name in _ARRAYS:
      values = getattr(self, name)
      if values.ndim != 1 or values.shape != self.without.shape:
        raise ValueError(
          f'{name} has shape {values.shape}, and without '
          f'{self.without.shape}; give a number for each step.'
        )
      if not np.all(np.isfinite(values)):
        raise ValueError(
          f'{name} has numbers that are not finite. A diverged run cannot be '
          'audited; audit its first steps.'
        )
    ranges = {
      'clip_norm': self.clip_norm > 0,
      'noise_multiplier': self.noise_multiplier >= 0,
      'sampling_rate': 0 < self.sampling_rate <= 1,
      'canary_rate': 0 < self.canary_rate <= 1,
    }
    for name, is_valid in ranges.items():
      if not is_valid:
        raise ValueError(f'{name}={getattr(self, name)} is out of range.')

  @property
  def num_steps(self) -> int:
    """T."""
    return self.without.size


def score_observations(
  observations: Observations, *, first: int | None = None
) -> Scores:
  """o' as scores of canaries that took part, o as scores of those that did not.

  With q_c < 1 the canary was in some of the steps of o' only: then o' is what
  the subsampled mechanism shows of it, and its scores are a mixture.

  Args:
    observations: of the game.
    first: steps to read, from the beginning on, >= 1; None for all.

  Raises:
    ValueError: there are no steps, or not as many as `first`.
  """
  available = observations.num_steps
  steps = available if first is None else first
  if not 1 <= steps <= available:
    raise ValueError(
      f'first={first}, but there are {available} steps; give 1 to {available}.'
    )
  return Scores(
    observed=observations.with_canary[:steps],
    unobserved=observations.without[:steps],
  )


def write_observations(
  path: str | os.PathLike, observations: Observations
) -> None:
  """Writes observations as an .npz file, whole or not at all."""
  io.write_arrays(path, pack_observations(observations) | {'schema': SCHEMA})


def load_observations(path: str | os.PathLike) -> Observations:
  """Reads what `write_observations` wrote.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: the file is damaged, or of another version.
  """
  arrays = io.read_arrays(path)
  missing = {'schema', *_ARRAYS, *_NUMBERS} - arrays.keys()
  if missing:
    raise ValueError(
      f'{path} lacks {sorted(missing)}; give a file of `write_observations`.'
    )
  io.check_schema(path, int(arrays['schema']), reads=SCHEMA)
  return unpack_observations(arrays)


def pack_observations(observations: Observations) -> dict[str, Any]:
  """All fields by name, as `unpack_observations` takes them."""
  return {name: getattr(observations, name) for name in _ARRAYS + _NUMBERS}


def unpack_observations(fields: dict[str, Any]) -> Observations:
  """The observations that these fields describe."""
  dtypes = {'included': np.bool_}
  arrays = {
    name: np.asarray(fields[name], dtypes.get(name, np.float64))
    for name in _ARRAYS
  }
  numbers: dict[str, Any] = {name: float(fields[name]) for name in _NUMBERS}
  return Observations(**arrays, **numbers)
