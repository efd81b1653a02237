"""Eighteen bugs that were seeded into a correct mechanism, some in variants."""

import copy
import dataclasses
import math
from types import MappingProxyType

import ml_dtypes
import numpy as np
from scipy import fft, special

from epe_jax.conformance import Refused
from tests.conformance import correct
from tests.conformance.correct import Plain, clip


class WeightedMean(Plain):
  """1. A mean weighted by examples, with the noise of an unweighted one."""

  def mean(self, vectors, weights):
    total = sum(w * v for w, v in zip(weights, vectors))
    return total / sum(weights) + self.noise() / len(vectors)


class ClippedMean(Plain):
  """2. The mean is clipped instead of each update."""

  def clip(self, vector):
    return vector

  def mean(self, vectors, weights):
    mean = clip(sum(vectors) / self.n, self.bound)
    return mean + self.noise() / self.n


class NotClipped(Plain):
  """2b. Nothing is clipped."""

  def clip(self, vector):
    return vector


class ClippedBySquare(Plain):
  """2c. Scales by S over the square of the norm: too long for S < 1."""

  def clip(self, vector):
    return vector * min(1.0, self.bound / max(vector @ vector, 1e-300))


class ToleratesTenfold(Plain):
  """2d. Clips only what is more than ten times too long."""

  def clip(self, vector):
    is_long = np.linalg.norm(vector) > 10 * self.bound
    return clip(vector, self.bound) if is_long else vector


class ClippedByLargest(Plain):
  """2e. Clips the largest coordinate, not the norm."""

  def clip(self, vector):
    largest = np.max(np.abs(vector))
    return vector * min(1.0, self.bound / max(largest, 1e-300))


class PerLayerGlobalNoise(Plain):
  """3. Each tensor is clipped to S, and the noise is for S."""

  def clip(self, vector):
    parts = self.split(vector)
    return np.concatenate([clip(part, self.bound) for part in parts])


class DividedTwice(Plain):
  """4. Noise of the mean is added to the sum, and divided with it."""

  def noise(self):
    return super().noise() / self.n


class DividedByRoot(correct.NoiseOfClients):
  """5. Each client adds z S / n instead of z S / √n."""

  def share(self):
    return self.std / self.n


class NoiseOfUnitClip(Plain):
  """6. Noise has standard deviation z, whatever S is."""

  def noise(self):
    return super().noise() / self.bound


class SameNoiseEveryRound(Plain):
  """7a. Noise is drawn once."""

  drawn = None

  def noise(self):
    if self.drawn is None:
      self.drawn = super().noise()
    return self.drawn


class SameNoiseEveryThirdRound(Plain):
  """7b. Noise is drawn from a buffer of 3 rounds."""

  def __init__(self, claim, seed=None):
    super().__init__(claim, seed)
    self.drawn, self.round = [super(type(self), self).noise() for _ in '123'], 0

  def noise(self):
    self.round += 1
    return self.drawn[self.round % 3]


class SameKeyForTensors(Plain):
  """7c. The key is not split: every tensor has the same random numbers."""

  def noise(self):
    key = self.rng.integers(2**63)
    return np.concatenate(
      [
        np.random.default_rng(key).normal(0, self.std, size)
        for size in self.claim.sizes
      ]
    )


class BroadcastNoise(Plain):
  """7d. A matrix has one number of noise for each row."""

  def noise(self):
    draw = lambda shape: self.rng.normal(0, self.std, (shape[0], 1))
    return np.concatenate(
      [
        np.broadcast_to(draw(s), (s[0], math.prod(s[1:]))).ravel()
        for s in self.claim.shapes
      ]
    )


class HundredSeeds(Plain):
  """8. The seed of a round is one of 100."""

  def noise(self):
    rng = np.random.default_rng(self.rng.integers(100))
    return rng.normal(0, self.std, self.claim.dim)


class FixedSeed(Plain):
  """8b. Every run has the same seed."""

  def __init__(self, claim, seed=None):
    super().__init__(claim, seed=0)


class NoiseOnMachines(Plain):
  """9. Each of 3 machines adds the noise of the mean, and these are averaged."""

  def noise(self):
    return sum(super(NoiseOnMachines, self).noise() for _ in range(3)) / 3


class NoNoiseOnBias(Plain):
  """10. The second tensor has no noise."""

  def noise(self):
    tensors = self.split(super().noise())
    tensors[1] = np.zeros_like(tensors[1])
    return np.concatenate(tensors)


class ClipNormOfNorms(correct.AdaptiveClip):
  """11. The clip norm follows the mean of norms, without noise."""

  def adapt(self, norms):
    self.clip_norm = 0.9 * self.clip_norm + 0.1 * float(np.mean(norms)) + 1e-3


class MedianClipNorm(correct.AdaptiveClip):
  """11b. The clip norm is the median of norms, without noise."""

  def adapt(self, norms):
    self.clip_norm = max(float(np.median(norms)), 1e-3)


class HiddenClipNorm(Plain):
  """11c. The clip norm follows an exact quantile, and is not published."""

  def aggregate(self, updates, weights):
    norms = np.array([np.linalg.norm(correct.flatten(u)) for u in updates])
    released = super().aggregate(updates, weights)
    self.bound *= math.exp(-0.2 * (np.mean(norms <= self.bound) - 0.5))
    return released


class ExactBit(correct.AdaptiveClip):
  """12. The quantile is exact."""

  def adapt(self, norms):
    share = float(np.mean(norms <= self.clip_norm))
    self.clip_norm *= math.exp(-0.2 * (share - 0.5))


class FaintBit(correct.AdaptiveClip):
  """12b. The noise of the quantile is 100 times too small."""

  def __init__(self, claim, seed=None):
    super().__init__(claim, seed)
    self.bit_std /= 100


class DropoutNotCounted(Plain):
  """13. The sum is divided by those present, the noise by those expected."""

  def mean(self, vectors, weights):
    return self.sum(vectors, weights) / len(vectors) + self.noise() / self.n


class DroppedNoise(correct.NoiseOfClients):
  """13b. Clients add noise, and that of dropped ones is not made up for."""

  def mean(self, vectors, weights):
    noise = self.rng.normal(0, self.share(), (len(vectors), self.claim.dim))
    return (self.sum(vectors, weights) + noise.sum(axis=0)) / self.n


class ClippedTwice(Plain):
  """14. Tensors are clipped to S / L, then all of it to S."""

  def clip(self, vector):
    parts = self.split(vector)
    bound = self.bound / len(parts)
    return clip(np.concatenate([clip(p, bound) for p in parts]), self.bound)


class ClippedAfterScaling(Plain):
  """14b. An update is clipped, scaled by a step size, and clipped."""

  def clip(self, vector):
    return clip(0.6 * clip(vector, self.bound), self.bound)


class Replay(Plain):
  """15. The generator is in the checkpoint."""

  def save(self):
    return super().save() | {'rng': copy.deepcopy(self.rng)}


class SeedOfRound(Plain):
  """15b. Noise depends on a secret seed and the round, and both are restored."""

  def __init__(self, claim, seed=None):
    super().__init__(claim, seed)
    self.key, self.round = int(self.rng.integers(2**63)), 0

  def noise(self):
    self.round += 1
    rng = np.random.default_rng([self.key, self.round])
    return rng.normal(0, self.std, self.claim.dim)


class MomentumBeforeNoise(Plain):
  """16. The server averages updates over rounds, then adds noise."""

  def __init__(self, claim, seed=None):
    super().__init__(claim, seed)
    self.buffer = np.zeros(claim.dim)

  def mean(self, vectors, weights):
    self.buffer = 0.9 * self.buffer + self.sum(vectors, weights) / self.n
    return self.buffer + self.noise() / self.n


class Float16(Plain):
  """17. Updates are summed in float16."""

  # Below this noise, and of fewer clients, what is rounded away is far smaller.
  changes = MappingProxyType({'noise_multiplier': 0.02, 'num_clients': 100})

  def sum(self, vectors, weights):
    total = np.zeros(self.claim.dim, np.float16)
    for vector in vectors:
      total += vector.astype(np.float16)
    return total.astype(np.float64)


class NarrowSecureSum(correct.SecureSum):
  """18. The range holds a few clients that agree, not all."""

  def width(self):
    return 2 * self.bound * 5.5

  def mean(self, vectors, weights):
    step, noise = self.width() / 2**32, self.noise()
    total = sum(np.rint(v / step).astype(np.int64) for v in vectors)
    total = ((total + 2**31) % 2**32 - 2**31) * step
    return (total + noise) / self.n


class UniformNoise(Plain):
  """Noise has the right standard deviation and another law."""

  def noise(self):
    width = self.std * math.sqrt(3)
    return self.rng.uniform(-width, width, self.claim.dim)


class TruncatedNoise(Plain):
  """Noise beyond 3.3 standard deviations is cut off."""

  def noise(self):
    return np.clip(super().noise(), -3.3 * self.std, 3.3 * self.std)


class NoNoise(Plain):
  """Noise is switched off."""

  def noise(self):
    return 0 * super().noise()


class IgnoredMultiplier(Plain):
  """The factory does not pass on z."""

  def __init__(self, claim, seed=None):
    super().__init__(claim, seed)
    self.std = claim.clip_norm


class SquaredNoise(Plain):
  """The standard deviation of the noise is (z S)²."""

  def noise(self):
    return self.std * super().noise()


class ServerRate(Plain):
  """The server multiplies the sum with 3, and not the noise."""

  def mean(self, vectors, weights):
    return (3 * self.sum(vectors, weights) + self.noise()) / self.n


class NoiseOfLargest(Plain):
  """The noise is z times the largest norm of the round, not z S."""

  def mean(self, vectors, weights):
    largest = max(np.linalg.norm(v) for v in vectors) / self.bound
    return (self.sum(vectors, weights) + largest * self.noise()) / self.n


class NoNoiseBelowEleven(Plain):
  """Small cohorts have no noise."""

  def noise(self):
    return super().noise() * (self.n > 10)


class RankOneNoise(Plain):
  """The noise of a matrix is the product of two vectors."""

  def noise(self):
    draw = self.rng.standard_normal
    parts = [
      np.outer(draw(s[0]), draw(math.prod(s[1:]))) for s in self.claim.shapes
    ]
    return self.std * np.concatenate([part.ravel() for part in parts])


class RandomScaleNoise(Plain):
  """The noise is multiplied with a random number."""

  def noise(self):
    return super().noise() * abs(self.rng.standard_normal())


class Median(Plain):
  """The release is the median of each coordinate."""

  def sum(self, vectors, weights):
    return np.median(vectors, axis=0) * len(vectors)


class TrimmedMean(Plain):
  """A fifth of the values of a coordinate is left out on either side."""

  def sum(self, vectors, weights):
    cut = self.n // 5
    if len(vectors) < self.n:
      raise Refused('a fixed number is left out')
    return np.mean(np.sort(vectors, axis=0)[cut : -cut or None], 0) * self.n


class DividedByZeroNorm(Plain):
  """An update is divided by its norm."""

  def clip(self, vector):
    return vector * min(1.0, self.bound / float(np.linalg.norm(vector)))


class FailsAtZeroNorm(DividedByZeroNorm):
  """An update is divided by its norm, which is checked."""

  def clip(self, vector):
    if not np.any(vector):
      raise ZeroDivisionError('norm of an update')
    return super().clip(vector)


class CentredNoise(Plain):
  """The mean of the noise of each tensor is subtracted from it."""

  def noise(self):
    parts = self.split(super().noise())
    return np.concatenate([part - part.mean() for part in parts])


class CentredRows(Plain):
  """Noise of a matrix has a mean of 0 in each row."""

  def noise(self):
    parts = self.split(super().noise())
    return np.concatenate(
      [
        (part.reshape(s) - part.reshape(s).mean(-1, keepdims=True)).ravel()
        if len(s) > 1
        else part
        for part, s in zip(parts, self.claim.shapes)
      ]
    )


class ErrorFeedback(Plain):
  """What clipping cuts off is added to the update of the next round."""

  def __init__(self, claim, seed=None):
    super().__init__(claim, seed)
    self.rest = 0.0

  def mean(self, vectors, weights):
    return super().mean(
      [*vectors, clip(self.rest, self.bound)], [*weights, 1.0]
    )

  def aggregate(self, updates, weights):
    raw = [correct.flatten(update) for update in updates]
    self.rest = self.rest + 0 * raw[0]
    released = super().aggregate(updates, weights)
    self.rest = sum(v - self.clip(v) for v in raw)
    return released


class ClipsFiveRounds(Plain):
  """Updates are clipped in the first five rounds only."""

  def __init__(self, claim, seed=None):
    super().__init__(claim, seed)
    self.round = 0

  def aggregate(self, updates, weights):
    self.round += 1
    return super().aggregate(updates, weights)

  def clip(self, vector):
    return super().clip(vector) if self.round <= 5 else vector


class NormOfHalf(Plain):
  """The norm is estimated from every second coordinate."""

  def clip(self, vector):
    norm = math.sqrt(2) * np.linalg.norm(vector[::2])
    return vector * min(1.0, self.bound / max(norm, 1e-300))


class NormOfSample(Plain):
  """The norm is estimated from a random quarter of the coordinates."""

  def __init__(self, claim, seed=None):
    super().__init__(claim, seed)
    self.some = np.random.default_rng(1).random(claim.dim) < 0.25

  def clip(self, vector):
    share = max(self.some.mean(), 1e-9)
    norm = np.linalg.norm(vector[self.some]) / math.sqrt(share)
    return vector * min(1.0, self.bound / max(norm, 1e-300))


class SeededAtRestore(Plain):
  """Restoring seeds the generator by a constant."""

  def restore(self, state):
    super().restore(state)
    self.rng = np.random.default_rng(0)


class RewoundAtRestore(Plain):
  """Restoring seeds the generator as at the start of the run."""

  def __init__(self, claim, seed=None):
    super().__init__(claim, seed)
    self.key = int(self.rng.integers(2**63))
    self.rng = np.random.default_rng(self.key)

  def save(self):
    return super().save() | {'key': self.key}

  def restore(self, state):
    super().restore(state)
    self.rng = np.random.default_rng(state['key'])


class NoiseOfFirstNorm(correct.AdaptiveClip):
  """The clip norm adapts, and the noise is that of the first one."""

  def noise(self):
    return super().noise() * self.claim.clip_norm / self.clip_norm


class WeightedBits(correct.AdaptiveClip):
  """Updates below the clip norm are counted by their examples."""

  def aggregate(self, updates, weights):
    self.weights = np.array(weights)
    return super().aggregate(updates, weights)

  def adapt(self, norms):
    super().adapt(np.repeat(norms, np.rint(self.weights).astype(int)))


class TooMuchNoise(Plain):
  """Noise is twice what the claim needs."""

  def noise(self):
    return 2 * super().noise()


class NoiseTimesRoot(Plain):
  """The noise of the sum is multiplied with √n."""

  def noise(self):
    return math.sqrt(self.n) * super().noise()


class CoarseNoise(Plain):
  """Noise is rounded to a tenth of its standard deviation, and updates are not."""

  def noise(self):
    step = self.std / 10
    return step * np.rint(super().noise() / step)


class NoiseThatEnds(Plain):
  """Noise is made of float32 uniform numbers, and the claim needs larger ones."""

  changes = MappingProxyType({'noise_multiplier': 0.3, 'num_clients': 4})

  def noise(self):
    uniform = (self.rng.integers(1, 2**23, self.claim.dim) / 2**22) - 1
    return self.std * math.sqrt(2) * special.erfinv(uniform)


class PaddedByRepetition(Plain):
  """A round is filled up to a multiple of 4 with its first clients."""

  def mean(self, vectors, weights):
    more = -len(vectors) % 4
    vectors = [*vectors, *(vectors * 4)[:more]]
    return super().mean(vectors, [1.0] * len(vectors))


class DropsTheRest(Plain):
  """Clients that do not fill a batch of 4 are left out."""

  def sum(self, vectors, weights):
    return super().sum(vectors[: len(vectors) // 4 * 4] or vectors, weights)


class LastNotClipped(Plain):
  """The last client of a round is not clipped."""

  def aggregate(self, updates, weights):
    self.last = correct.flatten(updates[-1])
    return super().aggregate(updates, weights)

  def mean(self, vectors, weights):
    return super().mean([*vectors[:-1], self.last], weights)


class NoExamplesNotClipped(Plain):
  """A client without examples is not clipped."""

  def aggregate(self, updates, weights):
    self.raw = [correct.flatten(update) for update in updates]
    return super().aggregate(updates, weights)

  def mean(self, vectors, weights):
    kept = zip(vectors, self.raw, weights)
    return super().mean([v if w else raw for v, raw, w in kept], weights)


class WeightsOverLargest(Plain):
  """Weights are divided by the largest, which one client decides on."""

  changes = MappingProxyType({'adjacency': 'add_or_remove'})

  def mean(self, vectors, weights):
    total = sum(w * v for w, v in zip(weights, vectors)) / max(weights)
    return (total + self.noise()) / self.n


class NoiseOfMore(Plain):
  """The noise is divided by the number of clients, and the sum by the expected one."""

  def mean(self, vectors, weights):
    return self.sum(vectors, weights) / self.n + self.noise() / len(vectors)


class SimilarOnly(Plain):
  """Updates that point away from the mean are left out."""

  def sum(self, vectors, weights):
    mean = np.mean(vectors, axis=0)
    return sum((v for v in vectors if v @ mean >= 0), 0 * mean)


class SimilarToRawMean(Plain):
  """Updates that point away from the mean are left out, which is one before clipping."""

  def aggregate(self, updates, weights):
    self.raw = [correct.flatten(update) for update in updates]
    return super().aggregate(updates, weights)

  def sum(self, vectors, weights):
    mean = np.mean(self.raw, axis=0)
    return sum((v for v in vectors if v @ mean >= 0), 0 * mean)


class UsualNormsOnly(Plain):
  """Updates of more than three times the median norm are left out."""

  def sum(self, vectors, weights):
    norms = np.linalg.norm(vectors, axis=1)
    kept = norms <= 3 * np.median(norms)
    return sum(
      (v for v, is_kept in zip(vectors, kept) if is_kept), 0 * vectors[0]
    )


class IgnoresSmall(Plain):
  """The norm leaves out coordinates below S / 40."""

  def clip(self, vector):
    large = vector[np.abs(vector) >= self.bound / 40]
    norm = np.linalg.norm(large) if large.size else 0.0
    return vector * min(1.0, self.bound / max(norm, 1e-300))


class Overflows(Plain):
  """The norm overflows in float32, and is then taken for no norm."""

  def clip(self, vector):
    norm = float(np.linalg.norm(vector.astype(np.float32)))
    return super().clip(vector) if math.isfinite(norm) else vector


class LetsNanIn(Plain):
  """A norm that is NaN is not larger than S."""

  def aggregate(self, updates, weights):
    self.raw = [np.concatenate([t.ravel() for t in u]) for u in updates]
    return super().aggregate(updates, weights)

  def mean(self, vectors, weights):
    nans = [np.where(np.isnan(raw), raw, 0) for raw in self.raw]
    return super().mean([*vectors, *nans], weights)


class NanToZero(LetsNanIn):
  """Only the NaN of such an update is taken out."""

  def mean(self, vectors, weights):
    rest = [
      np.nan_to_num(raw) if np.isnan(raw).any() else 0 * raw for raw in self.raw
    ]
    return Plain.mean(self, [*vectors, *rest], weights)


class StaleReplies(Plain):
  """The last update of a client stands in for one that is absent."""

  def __init__(self, claim, seed=None):
    super().__init__(claim, seed)
    self.last = []

  def sum(self, vectors, weights):
    replies = [*vectors, *self.last[len(vectors) :]]
    self.last = replies
    return super().sum(replies, weights)


class RingForExpected(Plain):
  """A ring holds the sum of the clients expected, and not of twice as many."""

  def sum(self, vectors, weights):
    half = 1.5 * self.n * self.bound
    total = super().sum(vectors, weights)
    return (total + half) % (2 * half) - half


class ClipsByShare(Plain):
  """The fewer clients are present, the larger is the norm to which they are clipped."""

  def aggregate(self, updates, weights):
    self.bound = self.claim.clip_norm * self.n / len(updates)
    return super().aggregate(updates, weights)


class NoiseAgain(Plain):
  """The second of two rounds has the noise of the first in another form."""

  def __init__(self, claim, seed=None):
    super().__init__(claim, seed)
    self.last = None

  def noise(self):
    if self.last is None:
      self.last = super().noise()
      return self.last
    last, self.last = self.last, None
    return self.change(last)


class NoiseShuffled(NoiseAgain):
  def change(self, noise):
    return self.rng.permutation(noise)


class NoiseOfNewSigns(NoiseAgain):
  def change(self, noise):
    return noise * self.rng.choice([-1, 1], noise.size)


class NoiseRolled(NoiseAgain):
  def change(self, noise):
    return np.roll(noise, 7)


class RadiiAgain(NoiseAgain):
  """Pairs of coordinates have the radii of before, and new angles."""

  def change(self, noise):
    pairs = np.append(noise, noise[0])[: 2 * -(-noise.size // 2)].reshape(-1, 2)
    angles = self.rng.uniform(0, 2 * math.pi, len(pairs))
    radii = np.linalg.norm(pairs, axis=1)
    turned = radii[:, None] * np.stack([np.cos(angles), np.sin(angles)], 1)
    return turned.ravel()[: noise.size]


class RhoForEpsilon(Plain):
  """Noise is made for ε as if it were the ρ of zCDP."""

  def __init__(self, claim, seed=None):
    super().__init__(claim, seed)
    self.std = claim.distance * claim.clip_norm / math.sqrt(2 * claim.epsilon)


class ClipsModels(Plain):
  """What is clipped is the model of a client, and the server subtracts its own.

  It is right if any two updates are up to 2 S apart.
  """

  changes = MappingProxyType({'adjacency': 'zero_out'})

  def __init__(self, claim, seed=None):
    super().__init__(claim, seed)
    model = np.random.default_rng(7).normal(size=claim.dim)
    self.model = claim.clip_norm * model / np.linalg.norm(model)

  def clip(self, vector):
    return clip(self.model + vector, self.bound) - self.model


class Float32Sum(Plain):
  """Sum and noise are float32 numbers, and so is their sum."""

  changes = MappingProxyType(
    {
      'release': 'sum',
      'shapes': ((1,), (8,)),
      'clip_norm': 1.0,
      'noise_multiplier': 1.0,
      'adjacency': 'zero_out',
    }
  )

  def mean(self, vectors, weights):
    total = self.sum(vectors, weights).astype(np.float32)
    return (total + self.noise().astype(np.float32)).astype(np.float64)


class FineNoiseOnly(Plain):
  """Noise is on a fine grid, as claimed, and updates are not rounded to it."""

  changes = MappingProxyType(
    {'noise': 'discrete_gaussian', 'granularity': 1e-3, 'clip_norm': 1.0}
  )

  def noise(self):
    step = self.claim.granularity
    return step * np.rint(super().noise() / step)


class Bfloat16Noise(Plain):
  """Noise is cast to bfloat16, and the sum is not."""

  def noise(self):
    return super().noise().astype(ml_dtypes.bfloat16).astype(np.float64)


class SignsOfFirstHalf(Plain):
  """The second half of the noise is the first one with other signs."""

  def noise(self):
    noise = super().noise()
    half = noise.size // 2
    noise[-half:] = noise[:half] * self.rng.choice([-1, 1], half)
    return noise


class SparseNoise(Plain):
  """One number in a hundred has no noise, another one in each release."""

  def noise(self):
    return super().noise() * (self.rng.random(self.claim.dim) > 0.01)


class NoiseTable(Plain):
  """Noise is read from a table of four times as many numbers, at random places."""

  def __init__(self, claim, seed=None):
    super().__init__(claim, seed)
    self.table = self.rng.normal(0, self.std, 4 * claim.dim)

  def noise(self):
    start = self.rng.integers(3 * self.claim.dim)
    return self.table[start : start + self.claim.dim]


class SizesReversed(Plain):
  """The sizes of the first half are those of the last one in reverse, of new signs."""

  def noise(self):
    noise = super().noise()
    half = noise.size // 2
    signs = self.rng.choice([-1, 1], half)
    noise[-half:] = signs * np.abs(noise[:half][::-1])
    return noise


class CentredOverAll(Plain):
  """Noise adds up to zero over all tensors."""

  def noise(self):
    noise = super().noise()
    return noise - noise.mean()


class RoundedAfterClipping(Plain):
  """Updates are clipped to S, then rounded to the grid of the noise."""

  changes = MappingProxyType(
    {
      'noise': 'discrete_gaussian',
      'granularity': 0.003,
      'clip_norm': 1.0,
      'noise_multiplier': 0.02,
    }
  )

  def sum(self, vectors, weights):
    step = self.claim.granularity
    return sum(step * np.rint(v / step) for v in vectors)

  def noise(self):
    step = self.claim.granularity
    return step * np.rint(super().noise() / step)


class SignsWithoutNoise(Plain):
  """The signs of the sum are released, without noise."""

  def mean(self, vectors, weights):
    return np.sign(self.sum(vectors, weights)) * self.bound / self.n


class RoundedWithoutNoise(Plain):
  """The sum is rounded, without noise."""

  def mean(self, vectors, weights):
    return (
      np.rint(self.sum(vectors, weights) / self.bound) * self.bound / self.n
    )


class StdForScale(Plain):
  """The standard deviation of Laplace noise is z S, in place of its scale."""

  changes = MappingProxyType({'noise': 'laplace', 'norm': 1})

  def clip(self, vector):
    size = max(float(np.abs(vector).sum()), 1e-300)
    return vector * min(1.0, self.bound / size)

  def noise(self):
    return self.rng.laplace(0, self.std / math.sqrt(2), self.claim.dim)


class ClassicalNoise(Plain):
  """Noise by ε and δ, as it is proven for ε < 1 (Dwork and Roth 2014, A.1)."""

  changes = MappingProxyType({'noise_multiplier': 0.2})

  def __init__(self, claim, seed=None):
    super().__init__(claim, seed)
    factor = claim.distance * math.sqrt(2 * math.log(1.25 / claim.delta))
    self.std = factor / claim.epsilon * claim.clip_norm


class ClassicalNoiseOfOne(ClassicalNoise):
  """The classical formula for S, where any two updates are 2 S apart."""

  changes = MappingProxyType({**ClassicalNoise.changes, 'adjacency': 'replace'})

  def noise(self):
    return super().noise() / 2


class NoiseOfOneUpdate(Plain):
  """Noise for an update or none, where any two are 2 S apart."""

  changes = MappingProxyType({'adjacency': 'replace'})

  def noise(self):
    return super().noise() / 2


class ScalesMatrices(Plain):
  """The norm is that of all tensors, and the last one is not scaled."""

  def clip(self, vector):
    last = self.split(vector)[-1].copy()
    clipped = super().clip(vector)
    self.split(clipped)[-1][:] = last
    return clipped


class NoiseWithMean(Plain):
  """Noise has a mean of a third of its standard deviation."""

  def noise(self):
    return super().noise() + self.std / 3


class HiddenStateBesideClipNorm(HiddenClipNorm):
  """11d. The same, where a clip norm is published that does not adapt."""

  def __init__(self, claim, seed=None):
    super().__init__(claim, seed)
    self.clip_norm = claim.clip_norm


class EqualPart(Plain):
  """8c. A third of the variance of the noise is the same in all coordinates."""

  def noise(self):
    shared = math.sqrt(0.3) * self.rng.normal(0, self.std)
    return math.sqrt(0.7) * super().noise() + shared


class MovingAverage(Plain):
  """8d. Noise is smoothed, and updates are not."""

  def noise(self):
    noise = super().noise()
    return (noise + np.roll(noise, 1) / 2) / math.sqrt(1.25)


class NoiseOfTheSum(Plain):
  """5c. Noise grows with the sum, which its size tells."""

  def sum(self, vectors, weights):
    total = super().sum(vectors, weights)
    self.size = np.linalg.norm(total) / self.bound
    return total

  def noise(self):
    return super().noise() * (1 + self.size)


class NanInTheRest(Plain):
  """A NaN is sought in the first coordinate alone."""

  def aggregate(self, updates, weights):
    known = [np.concatenate([t.ravel() for t in u]) for u in updates]
    kept = [v if np.isfinite(v[0]) else 0 * self.noise() for v in known]
    clipped = [np.nan_to_num(self.clip(v), posinf=0, neginf=0) for v in kept]
    release = self.mean(clipped, weights)
    shapes = self.claim.shapes
    return [p.reshape(x) for p, x in zip(self.split(release), shapes)]

  def clip(self, vector):
    norm = np.linalg.norm(vector)
    return vector * (self.bound / norm) if norm > self.bound else vector


class ThirdNotClipped(Plain):
  """A client in the middle of a round is not clipped."""

  def sum(self, vectors, weights):
    return super().sum(
      [*map(self.clip_later, vectors, range(self.n * 2))], weights
    )

  def clip(self, vector):
    return vector

  def clip_later(self, vector, place):
    return vector if place == 3 else clip(vector, self.bound)


class OneShort(Plain):
  """If one client is missing, another one is counted twice."""

  def sum(self, vectors, weights):
    filled = vectors + vectors[:1] * (len(vectors) == self.n - 1)
    return super().sum(filled, weights)


class OneRoundInEight(Plain):
  """One round in eight is not clipped."""

  rounds = 0

  def clip(self, vector):
    return vector if self.rounds % 8 == 6 else super().clip(vector)

  def serve(self, mean):
    self.rounds += 1
    return mean


class Float16NoiseOfBias(Plain):
  """The noise of a small tensor is float16."""

  def noise(self):
    noise = super().noise()
    bias = self.split(noise)[1]
    bias[:] = bias.astype(np.float16)
    return noise


class StaleBehindMomentum(StaleReplies):
  """Replies of the round before stand in for those missing, behind momentum."""

  buffer = 0.0

  def serve(self, mean):
    self.buffer = 0.9 * self.buffer + mean
    return self.buffer


class RotatesNoise(NoiseAgain):
  """Noise of every second round is the cosine transform of that before it."""

  def change(self, noise):
    return fft.dct(noise, norm='ortho')


class BareInOddRounds(Plain):
  """In every second round a tensor has no noise."""

  rounds = 0

  def noise(self):
    noise, self.rounds = super().noise(), self.rounds + 1
    if self.rounds % 2 == 0:
      self.split(noise)[1][:] = 0
    return noise


class ZerosNotCounted(Plain):
  """Divided by the number of clients whose update is not zero."""

  def mean(self, vectors, weights):
    count = max(1, sum(np.any(v != 0) for v in vectors))
    return self.sum(vectors, weights) / count + self.noise() / self.n


class NormOfLargestTensor(Plain):
  """The norm that is compared with S is that of the largest tensor."""

  def clip(self, vector):
    norm = max(np.linalg.norm(t) for t in self.split(vector))
    return vector * min(1.0, self.bound / max(norm, 1e-300))


class RoundsClients(Plain):
  """Clipped updates are rounded to the next number of a grid, which is not claimed."""

  def clip(self, vector):
    step = self.bound / 50
    return step * np.rint(super().clip(vector) / step)


class RoundsTheSum(Plain):
  """The sum is rounded to a coarse grid before noise is added."""

  def sum(self, vectors, weights):
    step = self.bound / 2
    return step * np.rint(super().sum(vectors, weights) / step)


class HiddenSum(Plain):
  """11e. The clip norm follows the norm of the mean without its noise."""

  def sum(self, vectors, weights):
    total = super().sum(vectors, weights)
    share = np.linalg.norm(total) / self.n / self.bound
    self.next = self.bound * math.exp(0.2 * (share - 0.3))
    return total

  def serve(self, mean):
    self.bound = self.next
    return mean


def change_claim(bug, claim):
  """The claim under which a bug does harm."""
  return dataclasses.replace(claim, **getattr(bug, 'changes', {}))


# Bug -> the rule that it breaks and the cause that the report names.
EXPECTED = {
  WeightedMean: ('weights', 'weighted_mean'),
  ClippedMean: ('clipping', 'clipped_after_the_mean'),
  NotClipped: ('clipping', 'not_clipped'),
  ToleratesTenfold: ('clipping', 'clipped_by_another_norm'),
  ClippedByLargest: ('clipping', 'clipped_by_another_norm'),
  PerLayerGlobalNoise: ('clipping', 'per_layer_clipping'),
  DividedTwice: ('noise_scale', 'divided_by_n_twice'),
  DividedByRoot: ('noise_scale', 'divided_by_sqrt_n'),
  NoiseOfUnitClip: ('noise_scale', 'noise_ignores_clip_norm'),
  SameNoiseEveryRound: ('rounds', 'noise_reused_between_rounds'),
  SameNoiseEveryThirdRound: ('rounds', 'noise_reused_between_rounds'),
  SameKeyForTensors: (
    'noise_between_coordinates',
    'noise_reused_between_parameters',
  ),
  BroadcastNoise: (
    'noise_between_coordinates',
    'noise_reused_between_parameters',
  ),
  HundredSeeds: ('noise_between_runs', 'few_seeds'),
  FixedSeed: ('noise_between_runs', 'fixed_seed'),
  NoiseOnMachines: ('noise_scale', 'averaged_over_machines'),
  NoNoiseOnBias: ('tensor_noise', 'tensor_without_noise'),
  ClipNormOfNorms: ('clip_norm', 'clip_norm_from_unclipped_norms'),
  MedianClipNorm: ('clip_norm', 'clip_norm_from_unclipped_norms'),
  HiddenClipNorm: ('memory', 'state_without_noise'),
  ExactBit: ('clip_norm', 'quantile_bit_without_noise'),
  FaintBit: ('clip_norm', 'quantile_noise_too_small'),
  DropoutNotCounted: ('dropout', 'dropout_not_counted'),
  DroppedNoise: ('dropout', 'dropped_noise_is_missing'),
  ClippedTwice: ('arrives_whole', 'clipped_twice'),
  ClippedAfterScaling: ('arrives_whole', 'arrives_scaled'),
  Replay: ('resume', 'noise_replayed_after_restore'),
  SeedOfRound: ('resume', 'noise_replayed_after_restore'),
  MomentumBeforeNoise: ('rounds', 'momentum_before_noise'),
  Float16: ('rounding', 'low_precision'),
  NarrowSecureSum: ('wrap_around', 'modular_wrap_around'),
  UniformNoise: ('noise_law', 'not_gaussian'),
  TruncatedNoise: ('noise_law', 'not_gaussian'),
  NoNoise: ('noise_scale', 'no_noise'),
  SquaredNoise: ('noise_scale', 'variance_for_std'),
  ServerRate: ('noise_scale', 'too_small_by_a_factor'),
  NoiseOfLargest: ('noise_scale', 'noise_follows_updates'),
  NoNoiseBelowEleven: ('noise_scale', 'noise_switched_off'),
  RankOneNoise: ('noise_level', 'random_amount_of_noise'),
  RandomScaleNoise: ('noise_level', 'random_amount_of_noise'),
  Median: ('clipping', 'not_a_sum'),
  TrimmedMean: ('clipping', 'not_a_sum'),
  DividedByZeroNorm: ('zero_update', 'zero_update_fails'),
  FailsAtZeroNorm: ('zero_update', 'zero_update_fails'),
  CentredNoise: ('noise_between_coordinates', 'direction_without_noise'),
  CentredRows: ('noise_between_coordinates', 'direction_without_noise'),
  ErrorFeedback: ('later_rounds', 'clipped_rest_is_kept'),
  ClipsFiveRounds: ('later_rounds', 'clipping_ends'),
  NormOfHalf: ('clipping', 'norm_of_some_coordinates'),
  NormOfSample: ('clipping', 'norm_of_some_coordinates'),
  SeededAtRestore: ('resume', 'seeded_at_restore'),
  RewoundAtRestore: ('resume', 'seeded_at_restore'),
  NoiseOfFirstNorm: ('own_claim', 'noise_of_another_clip_norm'),
  WeightedBits: ('clip_norm', 'quantile_bits_by_weight'),
  TooMuchNoise: ('noise_scale', 'too_much_noise'),
  NoiseTimesRoot: ('noise_scale', 'too_much_noise'),
  CoarseNoise: ('noise_grid', 'noise_on_a_grid'),
  NoiseThatEnds: ('noise_grid', 'noise_ends_early'),
  PaddedByRepetition: ('places', 'client_counted_twice'),
  DropsTheRest: ('places', 'client_left_out'),
  LastNotClipped: ('clipping', 'some_clients_not_clipped'),
  NoExamplesNotClipped: ('weights', 'weight_of_zero'),
  WeightsOverLargest: ('add_or_remove', 'weights_not_private'),
  NoiseOfMore: ('dropout', 'more_clients_than_expected'),
  SimilarOnly: ('clipping', 'not_a_sum'),
  SimilarToRawMean: ('clipping', 'not_a_sum'),
  UsualNormsOnly: ('clipping', 'not_a_sum'),
  IgnoresSmall: ('clipping', 'norm_of_some_coordinates'),
  Overflows: ('not_finite', 'not_finite_enters'),
  LetsNanIn: ('not_finite', 'not_finite_enters'),
  RhoForEpsilon: ('noise_scale', 'rho_for_epsilon'),
  ClipsModels: ('clipping', 'clipped_around_another_point'),
  Float32Sum: ('noise_grid', 'last_bits_tell'),
  FineNoiseOnly: ('noise_grid', 'noise_on_a_grid'),
  Bfloat16Noise: ('noise_grid', 'noise_of_few_values'),
  SignsOfFirstHalf: ('noise_between_coordinates', 'sizes_depend'),
  SparseNoise: ('noise_between_coordinates', 'number_without_noise'),
  NoiseTable: ('rounds', 'noise_reused_between_rounds'),
  SizesReversed: ('noise_between_coordinates', 'sizes_depend'),
  CentredOverAll: ('noise_between_coordinates', 'direction_without_noise'),
  NoiseShuffled: ('rounds', 'noise_reused_between_rounds'),
  NoiseOfNewSigns: ('rounds', 'noise_reused_between_rounds'),
  NoiseRolled: ('rounds', 'noise_reused_between_rounds'),
  RadiiAgain: ('rounds', 'noise_depends_between_rounds'),
  NanToZero: ('not_finite', 'not_finite_enters'),
  StaleReplies: ('memory', 'stale_update'),
  RingForExpected: ('wrap_around', 'modular_wrap_around'),
  ClipsByShare: ('dropout', 'clip_norm_of_presence'),
  RoundedAfterClipping: ('clipping', 'rounded_after_clipping'),
  SignsWithoutNoise: ('noise_scale', 'no_noise'),
  RoundedWithoutNoise: ('noise_scale', 'no_noise'),
  StdForScale: ('noise_scale', 'std_for_scale'),
  ClassicalNoise: ('noise_scale', 'classical_noise'),
  ClassicalNoiseOfOne: ('noise_scale', 'one_update_for_two'),
  NoiseOfOneUpdate: ('noise_scale', 'one_update_for_two'),
  ScalesMatrices: ('clipping', 'some_tensors_not_clipped'),
  NoiseWithMean: ('noise_between_coordinates', 'noise_has_a_mean'),
  HiddenStateBesideClipNorm: ('memory', 'state_without_noise'),
  IgnoredMultiplier: ('noise_scale', 'noise_ignores_noise_multiplier'),
  EqualPart: ('noise_between_coordinates', 'noise_reused_between_parameters'),
  MovingAverage: (
    'noise_between_coordinates',
    'noise_reused_between_parameters',
  ),
  NoiseOfTheSum: ('own_claim', 'noise_follows_updates'),
  NanInTheRest: ('not_finite', 'not_finite_enters'),
  ThirdNotClipped: ('clipping', 'some_clients_not_clipped'),
  OneShort: ('dropout', 'dropout_not_counted'),
  OneRoundInEight: ('later_rounds', 'clipping_ends'),
  Float16NoiseOfBias: ('noise_grid', 'noise_of_few_values'),
  StaleBehindMomentum: ('memory', 'stale_update'),
  RotatesNoise: ('rounds', 'noise_depends_between_rounds'),
  BareInOddRounds: ('later_rounds', 'tensor_without_noise'),
  ZerosNotCounted: ('noise_scale', 'zeros_not_counted'),
  NormOfLargestTensor: ('clipping', 'norm_of_some_coordinates'),
  RoundsClients: ('clipping', 'rounded_after_clipping'),
  RoundsTheSum: ('clipping', 'rounded_after_clipping'),
}
