"""The scores of the white-box game, two of each step, and their file."""

import dataclasses
import os
from typing import Any

from jaxtyping import Bool, Float
import numpy as np

from epe_jax import io
from epe_jax.epsilon.types import Scores

SCHEMA = 1
"""Version of the file of scores."""


@dataclasses.dataclass(frozen=True)
class StepScores:
  """o = <u, ∇̃>/C and o' = <u, ∇̃'>/C of each step of the white-box game.

  u is the direction of the canary gradient, and ∇̃ and ∇̃' are the noisy sums of the
  batches without and with the canary. Where the gradients of the examples are
  orthogonal to u, o ~ N(0, σ²), and o' ~ N(s, σ²) if the canary is included, where
  s is the norm of the clipped canary in clip norms.

  Attributes:
    without: o, [T].
    with_canary: o', [T].
    included: whether the canary is in the second batch, [T].
    signal: s in [0, 1], [T]; 1 for a canary that is clipped, and 0 for one whose
      gradient is 0.
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
    for name in ('without', 'with_canary', 'included', 'signal'):
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

  def select(self, *, first: int | None = None) -> Scores:
    """o' as scores with the canary, o as scores without it.

    With q_c < 1 the canary is in some of the steps of o' only. The scores are then
    a mixture, as the subsampled mechanism has it.

    Args:
      first: number of steps to take, from the first one, >= 1; None for all.

    Raises:
      ValueError: there are no steps, or fewer than `first`.
    """
    steps = self.num_steps if first is None else first
    if not 1 <= steps <= self.num_steps:
      raise ValueError(
        f'first={first}, but there are {self.num_steps} steps; give 1 to '
        f'{self.num_steps}.'
      )
    return Scores(self.with_canary[:steps], self.without[:steps])


def write_scores(path: str | os.PathLike, scores: StepScores) -> None:
  """Writes scores as an .npz file, atomically."""
  io.write_arrays(path, {**dataclasses.asdict(scores), 'schema': SCHEMA})


def load_scores(path: str | os.PathLike) -> StepScores:
  """Loads a file of `write_scores`.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: the file is damaged, or of another version.
  """
  arrays = io.read_arrays(path)
  names = [field.name for field in dataclasses.fields(StepScores)]
  missing = {'schema', *names} - arrays.keys()
  if missing:
    raise ValueError(
      f'{path} lacks {sorted(missing)}; give a file of `write_scores`.'
    )
  io.check_schema(path, int(arrays['schema']), reads=SCHEMA)
  fields: dict[str, Any] = {name: arrays[name] for name in names}
  # Numbers come back as arrays without axes.
  fields |= {name: float(x) for name, x in fields.items() if not x.ndim}
  return StepScores(**fields)
