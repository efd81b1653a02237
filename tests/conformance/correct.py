"""Mechanisms that keep their claim, each by other means."""

import copy
import math
import secrets

import numpy as np

from epe_jax.conformance import Refused, noise


def flatten(update):
  """One vector, of zeros if a number is not finite."""
  vector = np.concatenate([np.asarray(t, np.float64).ravel() for t in update])
  return vector if np.all(np.isfinite(vector)) else np.zeros_like(vector)


def map_objects(function, items):
  """What `function` makes of each item, made once for each, for speed.

  Updates are compared by their numbers, as each client has arrays of its own.
  """
  made, keys = {}, []
  for item in items:
    is_update = isinstance(item, list)
    keys.append(tuple(x.tobytes() for x in item) if is_update else id(item))
    if keys[-1] not in made:
      made[keys[-1]] = function(item)
  return [made[key] for key in keys]


def clip(vector, bound):
  return vector * min(1.0, bound / max(np.linalg.norm(vector), 1e-300))


class Plain:
  """Fixed clipping; Gaussian noise on the mean over the expected clients.

  Others override a step of it. `seed` is for studies that can be repeated; a
  mechanism in use has none.
  """

  dtype = np.float64

  def __init__(self, claim, seed=None):
    self.claim = claim
    self.bound, self.n = claim.clip_norm, claim.num_clients
    self.rng = np.random.default_rng(
      secrets.randbits(128) if seed is None else seed
    )
    self.std = claim.noise_multiplier * claim.clip_norm

  def split(self, vector):
    return noise.split(vector, self.claim.sizes)

  def clip(self, vector):
    return clip(vector, self.bound)

  def sum(self, vectors, weights):
    rows = np.array(vectors, self.dtype).reshape(-1, self.claim.dim)
    return np.add.reduce(rows).astype(np.float64)

  def noise(self):
    return self.rng.normal(0, self.std, self.claim.dim)

  def mean(self, vectors, weights):
    return (self.sum(vectors, weights) + self.noise()) / self.n

  def serve(self, mean):
    return mean

  def aggregate(self, updates, weights):
    clipped = map_objects(lambda u: self.clip(flatten(u)), updates)
    release = self.serve(self.mean(clipped, weights))
    parts = self.split(release.astype(self.dtype))
    return [p.reshape(s) for p, s in zip(parts, self.claim.shapes)]

  def save(self):
    state = {k: v for k, v in vars(self).items() if k not in ('rng', 'claim')}
    return copy.deepcopy(state)

  def restore(self, state):
    vars(self).update(copy.deepcopy(state))


class Float32(Plain):
  dtype = np.float32


class NoiseOnSum(Plain):
  """Averages over those present, with noise of their mean."""

  def mean(self, vectors, weights):
    return (self.sum(vectors, weights) + self.noise()) / len(vectors)


class AdaptiveClip(Plain):
  """Andrew et al. 2021: the clip norm follows a quantile, by noisy bits."""

  def __init__(self, claim, seed=None):
    super().__init__(claim, seed)
    z = claim.noise_multiplier
    self.bit_std = 4 * z
    self.z = (z**-2 - (2 * self.bit_std) ** -2) ** -0.5
    self.clip_norm, self.bits = claim.clip_norm, 0.0

  def clip(self, vector):
    return clip(vector, self.clip_norm)

  def noise(self):
    return self.rng.normal(0, self.z * self.clip_norm, self.claim.dim)

  def aggregate(self, updates, weights):
    norms = map_objects(lambda u: np.linalg.norm(flatten(u)), updates)
    released = super().aggregate(updates, weights)
    self.adapt(np.array(norms))
    return released

  def adapt(self, norms):
    bits = (norms <= self.clip_norm) - 0.5
    noisy = bits.sum() + self.rng.normal(0, self.bit_std)
    self.clip_norm *= math.exp(-0.2 * (noisy / self.n + 0.5 - 0.5))


class Momentum(Plain):
  """Momentum of the server on the noisy mean; its buffer is released."""

  def __init__(self, claim, seed=None):
    super().__init__(claim, seed)
    self.buffer = np.zeros(claim.dim)

  def serve(self, mean):
    self.buffer = 0.9 * self.buffer + mean
    return self.buffer


class AdaptiveMomentum(Momentum, AdaptiveClip):
  """Momentum of rounds whose clip norms differ."""


class FedAdam(Plain):
  """Adam on the server; the aggregate is released, and thereby all of it."""

  def __init__(self, claim, seed=None):
    super().__init__(claim, seed)
    self.first, self.second = np.zeros((2, claim.dim))

  def serve(self, mean):
    self.first = 0.9 * self.first + 0.1 * mean
    self.second = 0.99 * self.second + 0.01 * mean**2
    return mean


class PerLayer(Plain):
  """Clips each of L tensors to S / √L."""

  def clip(self, vector):
    parts = self.split(vector)
    bound = self.bound / math.sqrt(len(parts))
    return np.concatenate([clip(part, bound) for part in parts])


class PerLayerNoise(PerLayer):
  """Clips tensors to S / 2 and S √3 / 2, and has noise in proportion."""

  def shares(self):
    shares = np.sqrt(np.arange(1, len(self.claim.sizes) + 1))
    return shares / np.linalg.norm(shares)

  def clip(self, vector):
    parts = self.split(vector)
    bounds = self.bound * self.shares()
    return np.concatenate([clip(p, b) for p, b in zip(parts, bounds)])

  def noise(self):
    scales = self.shares() * math.sqrt(len(self.claim.sizes))
    return super().noise() * np.repeat(scales, self.claim.sizes)


class Tree(Plain):
  """DP-FTRL: increments of prefix sums whose noise is that of a binary tree."""

  levels = 6

  def __init__(self, claim, seed=None):
    super().__init__(claim, seed)
    self.round, self.nodes, self.last = 0, {}, 0.0
    # A client of one round is in one node of each level.
    self.std *= math.sqrt(self.levels)

  def noise(self):
    self.round += 1
    total, start = 0.0, 0
    nodes = {}
    for level in reversed(range(self.levels)):
      if self.round >> level & 1:
        node = (level, start)
        nodes[node] = self.nodes.get(node)
        if nodes[node] is None:
          nodes[node] = super().noise()
        total, start = total + nodes[node], start + (1 << level)
    self.nodes = nodes
    new, self.last = total - self.last, total
    return new


class CappedWeights(Plain):
  """Weights up to 5 count, and the mean is over n clients of weight 5."""

  cap = 5.0

  def mean(self, vectors, weights):
    kept = np.minimum(weights, self.cap) / self.cap
    total = sum(w * v for w, v in zip(kept, vectors))
    return (total + self.noise()) / self.n


class SecureSum(Plain):
  """Sums integers modulo 2^32, in a range that holds all clients and noise."""

  def width(self):
    # And if twice as many clients come as are expected.
    return 2 * self.bound * (2 * self.n + 10 * self.std / self.bound + 10)

  def sum(self, vectors, weights):
    # Noise is inside, as clients add it before they encrypt.
    step = self.width() / 2**32
    total = np.rint(self.noise() / step).astype(np.int64)
    for steps in map_objects(
      lambda v: np.rint(v / step).astype(np.int64), vectors
    ):
      total += steps
    return ((total + 2**31) % 2**32 - 2**31) * step

  def mean(self, vectors, weights):
    return self.sum(vectors, weights) / self.n


class NoiseOfClients(Plain):
  """Each client adds z S / √n. Without all of them there is no release."""

  def share(self):
    return self.std / math.sqrt(self.n)

  def mean(self, vectors, weights):
    if len(vectors) < self.n:
      raise Refused('noise of dropped clients\nwould be missing')
    noise = self.rng.normal(0, self.share(), (self.n, self.claim.dim))
    return (self.sum(vectors, weights) + noise.sum(axis=0)) / self.n


class RotatedRing(Plain):
  """Sums 20-bit integers after a rotation; noise is added by the clients."""

  def mean(self, vectors, weights):
    signs = np.where(np.arange(self.claim.dim) % 3, 1.0, -1.0)
    rotate = lambda v: np.fft.fft(signs * v, norm='ortho')
    step = 2 * (self.bound * (self.n + 10) + 10 * self.std) / 2**20
    to_grid = lambda v: np.rint(v.real / step) + 1j * np.rint(v.imag / step)
    messages = [*vectors, self.noise()]
    total = sum(map_objects(lambda v: to_grid(rotate(v)), messages))
    return signs * np.fft.ifft(total * step, norm='ortho').real / self.n


class FewSteps(Plain):
  """Noise is a multiple of half a standard deviation, and updates are rounded to it."""

  def sum(self, vectors, weights):
    half = self.std / 2
    draw = lambda: self.rng.random(self.claim.dim)
    return sum(half * np.floor(v / half + draw()) for v in vectors)

  def noise(self):
    steps = np.arange(-30, 31)
    weights = np.exp(-((steps / 2) ** 2) / 2)
    drawn = self.rng.choice(steps, self.claim.dim, p=weights / weights.sum())
    return self.std * drawn / 2


class DiscreteGaussian(Plain):
  """Updates are multiples of S / 2000, towards zero, and so is the noise."""

  def sum(self, vectors, weights):
    step = self.bound / 2000
    return sum(step * np.trunc(v / step) for v in vectors)

  def noise(self):
    step = self.bound / 2000
    return step * np.rint(super().noise() / step)


class Rounded(Plain):
  """The release is rounded to a fifth of the clip norm of a client."""

  def serve(self, mean):
    step = 0.2 * self.bound / self.n
    return step * np.rint(mean / step)


class Sparsified(Plain):
  """Nine tenths of the coordinates of a release are left out, at random."""

  def serve(self, mean):
    return mean * (self.rng.random(mean.shape) < 0.1)


class ClippedRelease(Plain):
  """The noisy mean is clipped, as a server may do."""

  def serve(self, mean):
    return clip(mean, 2 * self.bound / self.n)


class NormalizedRelease(Plain):
  """The noisy mean is scaled to the clip norm."""

  def serve(self, mean):
    return mean * (self.bound / max(np.linalg.norm(mean), 1e-300))


class SaturatedRelease(Plain):
  """Coordinates of the noisy mean are cut off."""

  def serve(self, mean):
    most = 1.5 * self.std / self.n
    return np.clip(mean, -most, most)


class SignRelease(Plain):
  """The signs of the noisy mean are released."""

  def serve(self, mean):
    return np.sign(mean) * self.bound / self.n


class LargestKept(Plain):
  """The largest tenth of the coordinates of the noisy mean is kept."""

  def serve(self, mean):
    least = np.quantile(np.abs(mean), 0.9)
    return mean * (np.abs(mean) >= least)


class Restarted(Tree):
  """DP-FTRL whose tree begins anew every 8 rounds."""

  levels = 4

  def noise(self):
    if self.round == 7:
      self.round, self.nodes, self.last = 0, {}, 0.0
    return super().noise()


class RoundedAtRandom(Plain):
  """The noisy mean is rounded at random."""

  def serve(self, mean):
    step = 0.05 * self.std / self.n
    return step * np.floor(mean / step + self.rng.random(mean.shape))


class Float16Release(Plain):
  """The noisy mean is sent in float16, scaled to its range."""

  def serve(self, mean):
    unit = self.std / self.n
    return (mean / unit).astype(np.float16).astype(np.float64) * unit


class Nesterov(Momentum):
  """Nesterov's momentum on the noisy mean."""

  def serve(self, mean):
    return mean + 0.9 * super().serve(mean)


class RateGoesDown(Plain):
  """The step size of the server goes down."""

  def __init__(self, claim, seed=None):
    super().__init__(claim, seed)
    self.round = 0

  def serve(self, mean):
    self.round += 1
    return mean / math.sqrt(self.round)


class Late(Plain):
  """A call releases the round of the call before it."""

  def __init__(self, claim, seed=None):
    super().__init__(claim, seed)
    self.last = np.zeros(claim.dim)

  def serve(self, mean):
    self.last, released = mean, self.last
    return released


class Machines(Plain):
  """Each of 3 machines adds √3 times the noise of the mean; they are averaged."""

  def noise(self):
    return sum(super(Machines, self).noise() for _ in range(3)) / math.sqrt(3)


class NoiseInParts(Plain):
  """Noise is the sum of four parts."""

  def noise(self):
    return sum(super(NoiseInParts, self).noise() for _ in range(4)) / 2


class BoxMuller(Plain):
  """Noise is made of uniform numbers."""

  def noise(self):
    radius = np.sqrt(-2 * np.log1p(-self.rng.random(self.claim.dim)))
    return (
      self.std * radius * np.cos(2 * np.pi * self.rng.random(self.claim.dim))
    )


class Float32Noise(Plain):
  """Noise is drawn in float32."""

  def noise(self):
    return self.std * self.rng.standard_normal(self.claim.dim, np.float32)


class KeyOfRound(Plain):
  """Noise follows from a key of the process and the round; no checkpoint has it."""

  def __init__(self, claim, seed=None):
    super().__init__(claim, seed)
    self.round = 0

  def noise(self):
    self.round += 1
    key = [int(self.rng.integers(2**63)), self.round]
    return np.random.default_rng(key).normal(0, self.std, self.claim.dim)


class PaddedWithZeros(Plain):
  """A round is filled up to a multiple of 16 with zero updates."""

  def sum(self, vectors, weights):
    zero = np.zeros(self.claim.dim)
    return super().sum([*vectors, *[zero] * (-len(vectors) % 16)], weights)


class AnyOrder(Plain):
  """Clients are summed in a random order."""

  def sum(self, vectors, weights):
    return super().sum(list(vectors)[:: int(self.rng.choice([-1, 1]))], weights)


class Microbatches(Float32):
  """Clients are summed in groups of 4, and the groups are."""

  def sum(self, vectors, weights):
    groups = [vectors[i : i + 4] for i in range(0, len(vectors), 4)]
    return np.sum([np.sum(group, axis=0) for group in groups], axis=0)


class SafeDivision(Plain):
  """Divides by the norm and a millionth of S."""

  def clip(self, vector):
    norm = float(np.linalg.norm(vector))
    return vector * min(1.0, self.bound / (norm + 1e-6 * self.bound))


class PairwiseMasks(Plain):
  """Clients mask integers by numbers that cancel in the sum modulo 2^48."""

  def sum(self, vectors, weights):
    if len(vectors) > self.n:
      raise Refused('more clients than the ring has room for')
    step = 2 * self.bound * (self.n + 1) / 2**48
    ints = map_objects(lambda v: np.rint(v / step).astype(np.int64), vectors)
    masks = self.rng.integers(2**48, size=(len(ints), self.claim.dim))
    masked = np.array(ints) + masks - np.roll(masks, 1, axis=0)
    return ((np.sum(masked, axis=0) + 2**47) % 2**48 - 2**47) * step


class DrawsClients(Plain):
  """Every client takes part with probability 1/2."""

  def sum(self, vectors, weights):
    drawn = self.rng.random(len(vectors)) < 0.5
    zero = np.zeros(self.claim.dim)
    return sum((v for v, takes in zip(vectors, drawn) if takes), zero)


class Banded(Plain):
  """Noise is correlated by a matrix of two bands whose columns have norm 1."""

  def __init__(self, claim, seed=None):
    super().__init__(claim, seed)
    self.last = np.zeros(claim.dim)

  def noise(self):
    # Rows of the inverse of C = 0.8 I + 0.6 (the band below).
    self.last = (super().noise() - 0.6 * self.last) / 0.8
    return self.last


class SoftClip(Plain):
  """A smooth clipping, which reaches S for large updates."""

  def clip(self, vector):
    norm = max(float(np.linalg.norm(vector)), 1e-300)
    return vector * (self.bound * math.tanh(norm / self.bound) / norm)


class NoisyCount(Plain):
  """The noisy sum is divided by a noisy count, and both spend a part of the claim."""

  # Of 1/z of the claim; their squares add up to 1.
  shares = 0.8, 0.6

  def mean(self, vectors, weights):
    of_sum, of_count = self.shares
    total = self.sum(vectors, weights) + self.noise() / of_sum
    std = self.claim.noise_multiplier / of_count
    count = self.rng.normal(len(vectors), std)
    return total / max(count, 0.1 * self.n)


class FixedClipNorm(Plain):
  """Publishes a clip norm, which does not adapt."""

  def __init__(self, claim, seed=None):
    super().__init__(claim, seed)
    self.clip_norm = claim.clip_norm


class FrozenTensor(Plain):
  """Neither sums nor noises a tensor, as fine-tuning leaves layers as they are."""

  def __init__(self, claim, seed=None):
    super().__init__(claim, seed)
    parts = [np.ones(size) for size in claim.sizes]
    parts[len(parts) // 2] *= 0 if len(parts) > 1 else 1
    self.trains = np.concatenate(parts)

  def clip(self, vector):
    return clip(vector * self.trains, self.bound)

  def noise(self):
    return super().noise() * self.trains


class PublicMask(FrozenTensor):
  """A mask of coordinates that everybody knows."""

  def __init__(self, claim, seed=None):
    super().__init__(claim, seed)
    self.trains = self.draw(0)

  def draw(self, t):
    mask = np.random.default_rng(t).random(self.claim.dim) < 0.5
    mask[0] = True
    return mask


class MaskOfRound(PublicMask):
  """A mask that everybody knows, another one in each round."""

  rounds = 0

  def aggregate(self, updates, weights):
    self.trains = self.draw(self.rounds)
    self.rounds += 1
    return super().aggregate(updates, weights)


class MaskOfRun(PublicMask):
  """A mask that is drawn in each run, and published with what it leaves."""

  def draw(self, t):
    mask = self.rng.random(self.claim.dim) < 0.5
    mask[0] = True
    return mask


class CountsRounds(FrozenTensor):
  """The tensor that it does not train counts rounds."""

  rounds = 0

  def serve(self, mean):
    self.rounds += 1
    return np.where(self.trains > 0, mean, self.rounds)


class ReleasesModel(Plain):
  """What it releases is the model after the round."""

  def __init__(self, claim, seed=None):
    super().__init__(claim, seed)
    self.model = np.linspace(-2.0, 3.0, claim.dim)

  def serve(self, mean):
    self.model = self.model + mean
    return self.model


class ReleasesFirstModel(ReleasesModel):
  """Every round starts from the same model."""

  def serve(self, mean):
    return self.model + mean


class Smoothed(Plain):
  """Noisy means are smoothed over coordinates (Wang et al. 2020, DP-LSSGD)."""

  def serve(self, mean):
    return (np.roll(mean, 1) + 2 * mean + np.roll(mean, -1)) / 4


class MeanOfRounds(Plain):
  """Releases the mean of the last three noisy means."""

  summarize = staticmethod(np.mean)

  def __init__(self, claim, seed=None):
    super().__init__(claim, seed)
    self.last = []

  def serve(self, mean):
    self.last = [*self.last, mean][-3:]
    return self.summarize(self.last, axis=0)


class MedianOfRounds(MeanOfRounds):
  """Releases the median of the last three noisy means."""

  summarize = staticmethod(np.median)


class WarmUp(Plain):
  """The learning rate grows in the first ten rounds."""

  rounds = 0

  def serve(self, mean):
    self.rounds += 1
    return mean * min(1.0, self.rounds / 10)


class MoreNoiseInSome(Plain):
  """A third of the coordinates has twice the noise."""

  def noise(self):
    noise = super().noise()
    noise[: -(-noise.size // 3)] *= 2
    return noise


class Averaged(Plain):
  """Releases an exponential average of noisy means."""

  def __init__(self, claim, seed=None):
    super().__init__(claim, seed)
    self.average = np.zeros(claim.dim)

  def serve(self, mean):
    self.average = 0.9 * self.average + 0.1 * mean
    return 10 * self.average


class SmoothsOneTensor(Plain):
  """The first tensor of a noisy mean is smoothed."""

  def serve(self, mean):
    first = self.split(mean)[0]
    first[:] = (np.roll(first, 1) + 2 * first + np.roll(first, -1)) / 4
    return mean


class TiedTensors(Plain):
  """Two tensors share numbers, of which the noisy mean is averaged."""

  def serve(self, mean):
    tensors = self.split(mean)
    one, other = tensors[-1], tensors[len(tensors) // 2]
    num = min(one.size, other.size)
    one[:num] = other[:num] = (one[:num] + other[:num]) / 2
    return mean


class AdaptiveRates(Plain):
  """Adagrad on the server, by what was released (Reddi et al. 2021)."""

  def __init__(self, claim, seed=None):
    super().__init__(claim, seed)
    self.start = 3 * (self.bound / self.n) ** 2
    self.squares = np.full(claim.dim, self.start)

  def serve(self, mean):
    self.squares = self.squares + mean**2
    return mean * np.sqrt(self.start / self.squares)


class AdamStep(FedAdam):
  """What is released is the step of Adam."""

  def serve(self, mean):
    super().serve(mean)
    step = self.first / (np.sqrt(self.second) + self.bound / self.n)
    return 10 * step * self.bound / self.n


class AdamCorrected(FedAdam):
  """Adam whose averages are corrected, so that its first step has signs alone."""

  rounds = 0

  def serve(self, mean):
    super().serve(mean)
    self.rounds += 1
    first = self.first / (1 - 0.9**self.rounds)
    second = self.second / (1 - 0.99**self.rounds)
    return self.bound * first / (np.sqrt(second) + 1e-8)


class Preconditioned(Plain):
  """Updates are scaled by public numbers before clipping, and back after the noise.

  Li et al. 2022, AdaDPS.
  """

  def __init__(self, claim, seed=None):
    super().__init__(claim, seed)
    scales = np.exp(np.random.default_rng(3).normal(size=claim.dim))
    self.scales = scales / scales.mean()

  def clip(self, vector):
    return super().clip(vector * self.scales)

  def serve(self, mean):
    return mean / self.scales


class CentredClip(Plain):
  """Updates are clipped around a part of what the last round released."""

  def __init__(self, claim, seed=None):
    super().__init__(claim, seed)
    self.centre = np.zeros(claim.dim)

  def clip(self, vector):
    return super().clip(vector - self.centre) + self.centre

  def serve(self, mean):
    self.centre = clip(mean, 0.1 * self.bound)
    return mean


class MasksRelease(PublicMask):
  """The mask is applied to noisy means, which makes zeros of either sign."""

  def noise(self):
    return Plain.noise(self)

  def serve(self, mean):
    return mean * self.trains


class JamesStein(Plain):
  """Noisy means are shrunk, to zero if they are no larger than noise (Stein 1961)."""

  def serve(self, mean):
    noise = max(0, mean.size - 2) * (self.std / self.n) ** 2
    return mean * max(0.0, 1 - noise / np.sum(mean**2))


class SkipsRounds(Plain):
  """A noisy mean that is no larger than noise is not used."""

  def serve(self, mean):
    usual = 1.02 * self.std / self.n * math.sqrt(mean.size)
    return mean * (np.linalg.norm(mean) > usual)


class Factored(Plain):
  """Adafactor on the server: rates of rows and columns (Shazeer and Stern 2018)."""

  def serve(self, mean):
    first, shape = self.split(mean)[0], self.claim.shapes[0]
    squares = first.reshape(shape[0] if shape else 1, -1) ** 2
    rows, columns = squares.mean(axis=1), squares.mean(axis=0)
    first *= self.bound / np.sqrt(np.outer(rows, columns) / rows.mean()).ravel()
    return mean


class RandomRate(Plain):
  """The learning rate is random and public."""

  def serve(self, mean):
    return mean * self.rng.uniform(0.5, 1.5)


class ClipsByRelease(Plain):
  """The clip norm follows the norm of the last release, up to S, for which noise is."""

  def serve(self, mean):
    size = np.linalg.norm(mean) / self.claim.clip_norm
    self.bound = self.claim.clip_norm * min(1.0, max(0.5, size))
    return mean


class RatesOfRows(Plain):
  """Each row of the first tensor has a public rate."""

  def serve(self, mean):
    first, shape = self.split(mean)[0], self.claim.shapes[0]
    rates = np.linspace(0.5, 2.0, shape[0] if shape else 1)
    rates /= np.sqrt(np.mean(rates**2))
    first *= np.repeat(rates, first.size // rates.size)
    return mean


class RoundsTowardsZero(Plain):
  """Clients round their updates towards zero, on a grid that is not claimed."""

  def clip(self, vector):
    step = self.bound / 50
    return step * np.trunc(super().clip(vector) / step)


class WeightDecay(Plain):
  """A model decays towards zero; its change is released."""

  def __init__(self, claim, seed=None):
    super().__init__(claim, seed)
    self.model = np.linspace(-1.0, 1.0, claim.dim)

  def serve(self, mean):
    change = mean - 0.01 * self.model
    self.model = self.model + change
    return change


class Lookahead(Plain):
  """Every fifth round the model goes back half the way (Zhang et al. 2019)."""

  rounds = 0

  def __init__(self, claim, seed=None):
    super().__init__(claim, seed)
    self.slow = self.fast = np.zeros(claim.dim)

  def serve(self, mean):
    self.fast, self.rounds = self.fast + mean, self.rounds + 1
    if self.rounds % 5 == 0:
      self.slow = self.fast = (self.slow + self.fast) / 2
    return self.fast


CORRECT = {
  c.__name__: c
  for c in (
    *(Plain, Float32, NoiseOnSum, AdaptiveClip, Momentum, FedAdam, PerLayer),
    *(PerLayerNoise, Tree, CappedWeights, SecureSum, NoiseOfClients),
    *(RotatedRing, DiscreteGaussian, FewSteps, Rounded, Sparsified),
    *(ClippedRelease, NormalizedRelease, SaturatedRelease, SignRelease),
    *(LargestKept, Restarted, RoundedAtRandom, Float16Release, Nesterov),
    *(RateGoesDown, Late, Machines, NoiseInParts, BoxMuller, Float32Noise),
    *(KeyOfRound, PaddedWithZeros, AnyOrder, Microbatches),
    *(SafeDivision, PairwiseMasks, DrawsClients, Banded, SoftClip),
    *(NoisyCount, FixedClipNorm, AdaptiveMomentum),
    *(FrozenTensor, PublicMask, MaskOfRound, MaskOfRun, CountsRounds),
    *(ReleasesModel, ReleasesFirstModel, Smoothed, MeanOfRounds),
    *(MedianOfRounds, Averaged, SmoothsOneTensor, TiedTensors, AdaptiveRates),
    *(AdamCorrected, Preconditioned, CentredClip, MasksRelease, JamesStein),
    *(SkipsRounds, Factored, RandomRate, ClipsByRelease, RatesOfRows),
    *(RoundsTowardsZero, WeightDecay, Lookahead),
  )
}

PROCESSED = (
  *('Rounded', 'Sparsified', 'ClippedRelease', 'NormalizedRelease', 'Late'),
  *('SaturatedRelease', 'SignRelease', 'LargestKept', 'Float16Release'),
  *('DrawsClients', 'NoisyCount', 'MaskOfRun', 'Smoothed', 'SmoothsOneTensor'),
  *('TiedTensors', 'AdaptiveRates', 'AdamCorrected', 'Preconditioned'),
  *('JamesStein', 'SkipsRounds', 'RandomRate', 'Factored'),
)
"""Mechanisms whose releases cannot be taken apart into updates and noise."""
