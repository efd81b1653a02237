"""Samples of the noise of a mechanism, and the μ of an influence against them."""

from collections.abc import Sequence
import dataclasses
import functools
import itertools
import math

from jaxtyping import Float, Int
import numpy as np
from scipy import stats

from epe_jax.conformance import laws

# Below this fraction of the largest noise of a tensor, noise is rounding error.
_NONE = 1e-3
# Number of coordinates in which noise is kept; more would not improve any test.
_KEPT, _KEPT_OF_TENSOR = 20_000, 256


def norm(vector: Float[np.ndarray, '...'], order: float | None = None) -> float:
  """Euclidean norm, or one of another order; inf if an entry is not finite."""
  value = float(np.linalg.norm(vector, order))
  return value if math.isfinite(value) else math.inf


def split(
  vectors: Float[np.ndarray, '*r d'], sizes: tuple[int, ...]
) -> list[Float[np.ndarray, '*r _']]:
  """The tensors of such sizes that make up vectors; numpy.split takes much longer."""
  return [vectors[..., part] for part in _slice(sizes)]


@functools.lru_cache
def _slice(sizes: tuple[int, ...]) -> list[slice]:
  ends = itertools.accumulate(sizes)
  return [slice(end - size, end) for size, end in zip(sizes, ends)]


@dataclasses.dataclass(frozen=True)
class Layout:
  """The coordinates of a release in which noise is measured.

  Attributes:
    sizes: coordinates of each tensor.
    order: of the norm in which influences count, 1 for Laplace noise.
    is_discrete: whether noise is claimed on a grid, to which updates are rounded
      before they meet it.
  """

  sizes: tuple[int, ...]
  order: int = 2
  is_discrete: bool = False

  @functools.cached_property
  def kept_sizes(self) -> tuple[int, ...]:
    """Number of coordinates of each tensor that are kept."""
    dim = sum(self.sizes)
    share = [math.ceil(size * _KEPT / dim) for size in self.sizes]
    return tuple(
      min(size, max(some, _KEPT_OF_TENSOR))
      for size, some in zip(self.sizes, share)
    )

  def keep(self, vector: Float[np.ndarray, 'd']) -> Float[np.ndarray, 'k']:
    """The kept coordinates of a vector."""
    if self.kept_sizes == self.sizes:
      return vector
    return vector[self._kept]

  @functools.cached_property
  def _kept(self) -> Int[np.ndarray, 'k']:
    """Of each tensor the first half of them together, the others anywhere behind."""
    rng, start, places = np.random.default_rng(0), 0, []
    for size, num in zip(self.sizes, self.kept_sizes):
      first = -(-num // 2) if num < size else num
      rest = rng.choice(size - first, num - first, replace=False)
      places += [start + np.arange(first), start + first + np.sort(rest)]
      start += size
    return np.concatenate(places)

  def split(
    self, vector: Float[np.ndarray, 'd']
  ) -> list[Float[np.ndarray, '_']]:
    """The tensors of a vector, each flat."""
    return split(vector, self.sizes)

  def norms(self, vector: Float[np.ndarray, 'd']) -> Float[np.ndarray, 'L']:
    """Norm of each tensor that is μ if divided by a standard deviation."""
    norms = [np.linalg.norm(t, self.order) for t in self.split(vector)]
    return self.factor * np.array(norms)

  @property
  def factor(self) -> float:
    """Standard deviation of the noise over its scale."""
    return math.sqrt(2) if self.order == 1 else 1.0

  def length(self, vector: Float[np.ndarray, 'd']) -> float:
    """The same of the whole vector; inf if an entry is not finite."""
    return norm(self.norms(vector), self.order)


@dataclasses.dataclass(frozen=True)
class Noise:
  """Independent samples of the noise of one round.

  Attributes:
    layout: of the coordinates.
    samples: [R, k] noise of R runs in the kept coordinates.
    repaired: tensors whose noise another rule reports. They count as having that of
      the others, so that each cause is reported once.
    effective_share: independent values per coordinate, <= 1.
    is_layered: whether a larger sample shows that tensors have noise of their own.
  """

  layout: Layout
  samples: Float[np.ndarray, 'R k']
  repaired: frozenset[int] = frozenset()
  effective_share: float = 1.0
  is_layered: bool = False

  @functools.cached_property
  def tensors(self) -> list[Float[np.ndarray, 'R _']]:
    """Samples of each tensor."""
    return split(self.samples, self.layout.kept_sizes)

  @functools.cached_property
  def stds(self) -> Float[np.ndarray, 'L']:
    """Measured standard deviation of each tensor."""
    return np.array([math.sqrt(np.mean(t**2)) for t in self.tensors])

  @functools.cached_property
  def is_isotropic(self) -> bool:
    """Whether no tensor's variance differs from that of the others."""
    if self.is_layered:
      return False
    sums = np.array([np.sum(t**2) for t in self._intact])
    nums = np.array([t.size for t in self._intact])
    if sums.size < 2:
      return True
    if not np.all(sums > 0):
      return False
    ratio = (sums / nums) / ((sums.sum() - sums) / (nums.sum() - nums))
    nums = np.maximum(1, nums * self._share)
    law = stats.f(nums, nums.sum() - nums)
    p = 2 * np.minimum(law.cdf(ratio), law.sf(ratio))
    return bool(np.all(p > 1e-3 / sums.size))

  @functools.cached_property
  def common_std(self) -> float:
    """Standard deviation of all tensors; of the noisiest large one if they differ."""
    if self.is_isotropic:
      intact = np.concatenate([t.ravel() for t in self._intact])
      return math.sqrt(np.mean(intact**2))
    enough = min(2000, 0.05 * self.samples.size)
    large = [t for t in self._intact if t.size >= enough]
    return max(math.sqrt(np.mean(t**2)) for t in large or self._intact)

  @property
  def num(self) -> int:
    """Number of independent values behind `common_std`."""
    return self.count(sum(t.size for t in self._intact))

  def mu(self, influence: Float[np.ndarray, 'd']) -> float:
    """Norm of an influence, each coordinate in standard deviations of its noise."""
    norms = self.layout.norms(self.shrink(influence))
    if not np.all(np.isfinite(norms)):
      return math.inf
    stds = self._effective_stds
    if np.any((stds <= _NONE * stds.max()) & (norms > 1e-6)):
      return math.inf
    used = stds > _NONE * stds.max()
    return float(np.linalg.norm(norms[used] / stds[used], self.layout.order))

  @functools.cached_property
  def step(self) -> float:
    """Step of the grid on which the samples lie; 0 if there is none."""
    std = math.sqrt(np.mean(self.samples**2))
    return std * laws.find_step((self.samples / std).ravel()) if std else 0.0

  def shrink(self, influence: Float[np.ndarray, 'd']) -> Float[np.ndarray, 'd']:
    """The least influence before releases were rounded to the grid of the noise.

    An influence that is not on that grid was not rounded.
    """
    if (
      self.layout.is_discrete
      or not self.step
      or not np.all(np.isfinite(influence))
    ):
      return influence
    multiples = influence / self.step
    if np.any(np.abs(multiples - np.rint(multiples)) > 0.02):
      return influence
    return np.sign(influence) * np.maximum(np.abs(influence) - self.step, 0)

  def p_value(self, influence: Float[np.ndarray, 'd'], allowed: float) -> float:
    """Probability of this μ or more if the true one is at most `allowed`.

    If noise differs between tensors this is an upper bound: the sum over tensors
    of the probability that its variance is underestimated this much.
    """
    mu = self.mu(influence)
    if self.is_isotropic:
      return laws.p_of_mu(mu, allowed, num=self.num)
    nums = [self.count(t.size) for t in self.tensors]
    return min(1.0, sum(laws.p_of_mu(mu, allowed, num=n) for n in nums))

  def standardized(self) -> Float[np.ndarray, 'R k']:
    """Samples with unit variance in each tensor; tensors without noise are left out.

    They are Gaussian if the noise has the claimed law.
    """
    parts = [
      self.make_gaussian(tensor / std)
      for tensor, std in zip(self.tensors, self.stds)
      if std > _NONE * self.stds.max()
    ]
    return np.concatenate(parts, axis=1)

  def count(self, num: int) -> int:
    """Number of independent values among `num`."""
    return max(1, int(num * self._share))

  def make_gaussian(
    self, values: Float[np.ndarray, '...']
  ) -> Float[np.ndarray, '...']:
    """Values of unit variance; of Laplace noise those with the same quantiles."""
    if self.layout.order == 2:
      return values
    tail = stats.laplace.sf(math.sqrt(2) * np.abs(values))
    return np.sign(values) * stats.norm.isf(tail)

  @property
  def _share(self) -> float:
    # Squares of Laplace noise vary by 5, those of Gaussian noise by 2.
    return self.effective_share * (0.4 if self.layout.order == 1 else 1.0)

  @property
  def _intact(self) -> Sequence[np.ndarray]:
    rest = [t for k, t in enumerate(self.tensors) if k not in self.repaired]
    return rest or self.tensors

  @functools.cached_property
  def _effective_stds(self) -> Float[np.ndarray, 'L']:
    if self.is_isotropic:
      return np.full(self.stds.size, self.common_std)
    stds = self.stds.copy()
    stds[list(self.repaired)] = self.common_std
    return stds
