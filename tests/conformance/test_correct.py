"""No rule is broken by a mechanism that keeps its claim."""

import dataclasses
import math
import re

import numpy as np
import pytest

from epe_jax import accounting, conformance, epsilon
from epe_jax.conformance import affine, laws, measurements
from epe_jax.conformance.rules import rounds
from tests.conformance import correct, seeded_bugs
from tests.conformance.helpers import CLAIM, OTHER, check_seeded, seeded

# Factories that count their seeds are in no module.
EVERYBODY = {'noise_between_processes'}


# Of each kind of noise, rounds, clients and processing; integration tests have all.
_QUICK = (
  *('Plain', 'Float32', 'AdaptiveClip', 'Momentum', 'Tree', 'SecureSum'),
  *('DiscreteGaussian', 'PerLayerNoise', 'Rounded', 'SignRelease', 'Banded'),
  *('CappedWeights', 'FrozenTensor', 'PublicMask', 'MaskOfRound', 'MaskOfRun'),
  *('ReleasesModel', 'Smoothed', 'MedianOfRounds'),
)


@pytest.mark.parametrize(
  ('name', 'claim'),
  [
    pytest.param(
      *(name, claim),
      id=f'{name}-{of}',
      marks=()
      if name in _QUICK and claim is CLAIM
      else pytest.mark.integration,
    )
    for name in correct.CORRECT
    for of, claim in (('claim', CLAIM), ('other', OTHER))
  ],
)
def test_a_correct_mechanism_breaks_nothing(name, claim):
  report = check_seeded(correct.CORRECT[name], claim)
  assert not report.findings, conformance.format_report(report)
  if name in correct.PROCESSED:
    assert 'clipping' in report.not_checked
    return
  expected = {
    'DiscreteGaussian': EVERYBODY | {'rounding'},
    'NoiseOfClients': EVERYBODY | {'dropout'},
    'MaskOfRound': EVERYBODY
    | {'rounds', 'later_rounds', 'memory', 'constants'},
    'MedianOfRounds': EVERYBODY | {'rounds'},
    'CentredClip': EVERYBODY | {'memory'},
    'ClipsByRelease': EVERYBODY | {'memory'},
  }
  assert set(report.not_checked) == expected.get(name, EVERYBODY)
  exempt = {
    'AdaptiveClip': {'memory'},
    'AdaptiveMomentum': {'memory'},
    'FixedClipNorm': set(),
    'RoundsTowardsZero': {'clip_norm', 'rounding'},
  }
  exempt = exempt.get(name, {'clip_norm'}) | {'add_or_remove'}
  exempt |= {'constants'} - {'constants' * bool(report.num_constant)}
  assert set(report.not_applicable) == exempt
  # A tree has noise for all its rounds; that of one is more than it needs.
  if name not in (
    'Tree',
    'Restarted',
    'CappedWeights',
    'AdaptiveClip',
    'AdaptiveMomentum',
    'Banded',
    'SoftClip',
  ):
    assert report.epsilon == pytest.approx(report.claimed_epsilon, rel=0.03)


@pytest.mark.integration
@pytest.mark.parametrize('noise', ['gaussian', 'laplace'])
def test_a_quarter_less_noise_is_found_in_a_single_number(noise):
  class Short(correct.Plain):
    def noise(self):
      scale = 0.75 * self.std
      draw = {'gaussian': self.rng.normal, 'laplace': self.rng.laplace}[noise]
      return draw(0, scale, self.claim.dim)

  norm = {'gaussian': 2, 'laplace': 1}[noise]
  claim = dataclasses.replace(CLAIM, shapes=((1,),), noise=noise, norm=norm)
  for seed in range(3):
    report = conformance.check(seeded(Short, seed), claim)
    (finding,) = report.findings
    assert finding.rule == 'noise_scale'
    assert report.resolution < 0.15
  text = ' '.join(conformance.format_report(report).split())
  assert re.search(r'too small \(ε = \d', text)


def test_a_claim_of_next_to_no_noise_is_checked():
  claim = dataclasses.replace(CLAIM, noise_multiplier=0.02)
  assert claim.epsilon > laws.MAX_EPSILON
  assert not conformance.check(seeded(correct.Plain), claim).findings


def test_coordinates_that_are_constant_are_counted_and_said():
  report = check_seeded(correct.FrozenTensor)
  assert report.num_constant == 30
  text = ' '.join(conformance.format_report(report).split())
  assert '30 of 930 coordinates are constant' in text
  assert check_seeded(correct.Plain).num_constant == 0


def test_public_rates_are_divided_out_and_said():
  report = check_seeded(correct.RatesOfRows)
  assert report.has_rates
  text = ' '.join(conformance.format_report(report).split())
  assert 'factors of their own, by which releases were divided' in text
  assert not check_seeded(correct.Plain).has_rates


@pytest.mark.parametrize('name', ['MaskOfRun', 'Smoothed', 'AdamStep'])
def test_no_epsilon_is_measured_where_influences_cannot_be_read(name):
  report = check_seeded(getattr(correct, name))
  assert report.epsilon is None
  assert not any(x.severity == 'privacy' for x in report.findings)


class NoiseSkipsATensor(correct.FrozenTensor):
  """The last tensor, beside one that is frozen, has no noise."""

  def noise(self):
    noise = super().noise()
    noise[-self.claim.sizes[-1] :] = 0
    return noise


class ReleasesWhatIsLarge(correct.Plain):
  """A coordinate of the last tensor is released, without noise, where it is large."""

  def serve(self, mean):
    self.size = self.claim.sizes[-1]
    mean[-self.size :] = 0
    return mean

  def aggregate(self, updates, weights):
    clipped = sum(self.clip(correct.flatten(u)) for u in updates) / self.n
    *released, last = super().aggregate(updates, weights)
    part = clipped[-self.size :].reshape(last.shape)
    return [
      *released,
      np.where(np.abs(part) > 0.05 * self.bound / self.n, part, 0),
    ]


def test_what_moves_only_if_it_is_large_is_no_constant():
  report = conformance.check(seeded(ReleasesWhatIsLarge), CLAIM)
  assert report.num_constant == 0
  assert any(f.severity == 'privacy' for f in report.findings)


class TurnsWithoutNoise(correct.Plain):
  """Tensors are trained in turns; the second one has no noise."""

  def __init__(self, claim, seed=None):
    super().__init__(claim, seed)
    self.round, self.first = 0, claim.sizes[0]

  def mean(self, vectors, weights):
    total = self.sum(vectors, weights)
    mean, even = (total + self.noise()) / self.n, self.round % 2 == 0
    self.round += 1
    now = np.arange(mean.size) < self.first
    return np.where(now, mean, 0) if even else np.where(now, 0, total / self.n)


class CountsClipped(correct.Plain):
  """Its last coordinate counts the updates that were clipped."""

  def aggregate(self, updates, weights):
    norms = [np.linalg.norm(correct.flatten(u)) for u in updates]
    released = super().aggregate(updates, weights)
    released[-1].flat[-1] = np.sum(np.array(norms) > self.bound)
    return released


class CountsPresent(correct.Plain):
  """Its last coordinate counts those who are present."""

  def aggregate(self, updates, weights):
    released = super().aggregate(updates, weights)
    released[-1].flat[-1] = len(updates)
    return released


class PublishesStd(correct.Plain):
  """Its last coordinate is the standard deviation of the noise."""

  def serve(self, mean):
    mean[-1] = self.std
    return mean


def test_layers_that_are_trained_in_turns_pass_no_rule_of_rounds():
  report = conformance.check(seeded(TurnsWithoutNoise), CLAIM)
  unseen = {'constants', 'rounds', 'later_rounds', 'memory'}
  assert unseen <= set(report.not_checked)


@pytest.mark.integration
@pytest.mark.parametrize(
  ('mechanism', 'adjacency', 'is_right'),
  [
    (CountsClipped, 'zero_out', False),
    (CountsPresent, 'zero_out', True),
    (CountsPresent, 'add_or_remove', False),
    (PublishesStd, 'zero_out', True),
  ],
)
def test_what_looks_constant_is_watched_in_all_rules(
  mechanism, adjacency, is_right
):
  claim = dataclasses.replace(CLAIM, adjacency=adjacency)
  report = conformance.check(seeded(mechanism), claim)
  if is_right:
    assert not report.findings, conformance.format_report(report)
    assert 'constants' in report.passed
  else:
    assert any(
      f.severity == 'privacy' and f.epsilon == math.inf for f in report.findings
    )


class ReleasesEveryFourth(correct.Plain):
  """Sums the noisy means of micro-batches, and releases the sum of four of them."""

  def __init__(self, claim, seed=None):
    super().__init__(claim, seed)
    self.calls, self.total = 0, np.zeros(claim.dim)

  def serve(self, mean):
    self.calls += 1
    self.total = self.total + mean
    if self.calls % 4:
      return np.zeros_like(mean)
    total, self.total = self.total, np.zeros_like(mean)
    return total


class LeaksEarlyCalls(ReleasesEveryFourth):
  """Releases the exact sum until the last of four calls."""

  def mean(self, vectors, weights):
    mean = super().mean(vectors, weights)
    self.exact = self.sum(vectors, weights)
    return mean

  def serve(self, mean):
    released = super().serve(mean)
    return released if released.any() else self.exact


class ClipsLastCallOnly(ReleasesEveryFourth):
  """Clips the updates of the last of four calls only."""

  def clip(self, vector):
    return super().clip(vector) if self.calls % 4 == 3 else vector


@pytest.mark.integration
@pytest.mark.parametrize('mechanism', [LeaksEarlyCalls, ClipsLastCallOnly])
def test_calls_before_the_last_are_seen(mechanism):
  claim = dataclasses.replace(CLAIM, calls_per_release=4)
  report = conformance.check(seeded(mechanism), claim)
  assert any(f.severity == 'privacy' for f in report.findings)


class NoNoiseInTheTail(correct.Plain):
  """Coordinates from the 20,000th on have no noise."""

  def noise(self):
    noise = super().noise()
    noise[20_000:] = 0
    return noise


@pytest.mark.integration
def test_coordinates_of_large_tensors_are_seen_to_the_end():
  claim = dataclasses.replace(CLAIM, shapes=((150, 200),), num_clients=3)
  report = conformance.check(seeded(NoNoiseInTheTail), claim)
  assert any(f.severity == 'privacy' for f in report.findings)


class CentredBiases(correct.Plain):
  """The biases of a softmax are centred, with their noise."""

  def serve(self, mean):
    *others, last = self.split(mean)
    return np.concatenate([*others, last - last.mean()])


class CentredRelease(correct.Plain):
  """All that is released is centred."""

  def serve(self, mean):
    return mean - mean.mean()


@pytest.mark.parametrize('mechanism', [CentredBiases, CentredRelease])
def test_a_direction_that_nobody_moves_needs_no_noise(mechanism):
  claim = dataclasses.replace(CLAIM, shapes=((20, 30), (30,)))
  report = conformance.check(seeded(mechanism), claim)
  assert not report.findings, conformance.format_report(report)


class Float16Model(correct.ReleasesModel):
  """Releases a public model in float16."""

  def serve(self, mean):
    self.model = (self.model + mean).astype(np.float16).astype(np.float64)
    return self.model


class FineFixedPoint(correct.Plain):
  """Updates and noise are of fixed point numbers of 14 bits."""

  def sum(self, vectors, weights):
    step = self.bound / 2**14
    return step * sum(np.trunc(v / step) for v in vectors)

  def noise(self):
    step = self.bound / 2**14
    return step * np.rint(super().noise() / step)


@pytest.mark.integration
@pytest.mark.parametrize(
  ('mechanism', 'changes'),
  [
    (Float16Model, {}),
    # Of these, updates or noise are wasted.
    (correct.WarmUp, {}),
    (correct.MoreNoiseInSome, {}),
    (FineFixedPoint, {'noise_multiplier': 0.1, 'num_clients': 50}),
  ],
)
def test_what_costs_utility_alone_is_not_accused(mechanism, changes):
  claim = dataclasses.replace(CLAIM, **changes)
  report = conformance.check(seeded(mechanism), claim)
  assert not [f for f in report.findings if f.severity == 'privacy'], (
    conformance.format_report(report)
  )


def test_beside_a_frozen_tensor_one_without_noise_is_found():
  report = conformance.check(seeded(NoiseSkipsATensor), CLAIM)
  (finding,) = (f for f in report.findings if f.rule == 'tensor_noise')
  assert finding.cause == 'tensor_without_noise'
  # As the claim counts them, though the second is not seen.
  assert finding.measured.startswith('tensor 2 (30, 10) has noise 0')


@pytest.mark.integration
@pytest.mark.parametrize(
  'changes',
  [
    {'num_clients': 1},
    {'num_clients': 2},
    {'num_clients': 60},
    {'shapes': ((300,),)},
    {'shapes': ((4,), ())},
    {'max_rounds': 1},
    {'max_rounds': 3},
    {'adjacency': 'replace'},
    {'noise_multiplier': 8.0, 'clip_norm': 20.0},
  ],
  ids=str,
)
def test_every_claim_can_be_checked(changes):
  claim = dataclasses.replace(CLAIM, **changes)
  report = conformance.check(seeded(correct.Plain), claim)
  assert not report.findings, conformance.format_report(report)
  of_rounds = {'rounds', 'later_rounds', 'memory', 'resume'}
  assert (of_rounds <= set(report.not_applicable)) == (claim.max_rounds == 1)


class InPlace(correct.Plain):
  """Clips where updates are, and adds them up in those of the first client."""

  def aggregate(self, updates, weights):
    for update in updates:
      norm = np.linalg.norm(correct.flatten(update))
      for tensor in update:
        tensor[...] *= min(1.0, self.bound / norm) if norm else 0.0
        tensor[~np.isfinite(tensor)] = 0
    total, *others = updates
    for update in others:
      for sum_of_all, tensor in zip(total, update):
        sum_of_all += tensor
    noise = self.split(self.noise())
    return [(t + x.reshape(t.shape)) / self.n for t, x in zip(total, noise)]


class Shared(correct.Plain):
  """Noise of two coordinates has a correlation of 0.6."""

  def noise(self):
    noise = super().noise()
    noise[-1] = 0.6 * noise[0] + 0.8 * noise[-1]
    return noise


SHAPES = {1: ((),), 2: ((2,),), 3: ((2,), (1,)), 8: ((2, 3), (2,))}


@pytest.mark.integration
@pytest.mark.parametrize('dim', SHAPES)
@pytest.mark.parametrize('name', correct.CORRECT)
def test_a_mechanism_of_few_numbers_is_not_accused(name, dim):
  claim = dataclasses.replace(CLAIM, shapes=SHAPES[dim])
  for seed in range(3):
    report = conformance.check(seeded(correct.CORRECT[name], seed), claim)
    assert not report.findings, conformance.format_report(report)
    if name in correct.PROCESSED:
      continue
    unchecked = EVERYBODY | {'memory', 'dropout', 'rounding'}
    if name in ('MaskOfRound', 'MedianOfRounds'):
      unchecked |= {'rounds', 'later_rounds', 'constants'}
    assert set(report.not_checked) <= unchecked, report.not_checked


@pytest.mark.integration
@pytest.mark.parametrize(
  ('mechanism', 'dim', 'clients', 'noise'),
  [
    (correct.NoisyCount, 3, 46, 8.9),
    (correct.NoisyCount, 2, 1, 2.5),
    (correct.NoisyCount, 1, 4, 27.0),
    (correct.ClippedRelease, 1, 2, 1.5),
  ],
)
def test_few_numbers_that_are_scaled_with_their_noise_have_no_law(
  mechanism, dim, clients, noise
):
  claim = dataclasses.replace(
    CLAIM, shapes=SHAPES[dim], num_clients=clients, noise_multiplier=noise
  )
  for seed in range(3):
    report = conformance.check(seeded(mechanism, seed), claim)
    assert not report.findings, conformance.format_report(report)
    assert 'scaled after the noise' in report.not_checked['noise_law']


@pytest.mark.integration
@pytest.mark.parametrize('dim', [3, 2, 1])
def test_another_law_is_found_in_few_numbers(dim):
  claim = dataclasses.replace(CLAIM, shapes=SHAPES[dim])
  findings = check_seeded(seeded_bugs.UniformNoise, claim).findings
  assert ('noise_law', 'not_gaussian') in [(f.rule, f.cause) for f in findings]


@pytest.mark.integration
@pytest.mark.parametrize('dim', sorted(SHAPES, reverse=True))
def test_every_rule_that_applies_is_checked_in_few_numbers(dim):
  claim = dataclasses.replace(CLAIM, shapes=SHAPES[dim])
  # In a module that a fresh process can import.
  report = conformance.check(correct.Plain, claim)
  assert not report.findings, conformance.format_report(report)
  assert not report.not_checked
  small = {'noise_level'} | (
    {'noise_between_coordinates'} if dim == 1 else set()
  )
  never = {'clip_norm', 'add_or_remove', 'constants'}
  assert set(report.not_applicable) == small | never


@pytest.mark.integration
@pytest.mark.parametrize('dim', [2, 3, 8])
def test_noise_that_few_coordinates_share_is_found(dim):
  claim = dataclasses.replace(CLAIM, shapes=SHAPES[dim])
  report = check_seeded(Shared, claim)
  assert 'noise_between_coordinates' in [f.rule for f in report.findings]


@pytest.mark.integration
@pytest.mark.parametrize('dim', [*SHAPES, 3000])
def test_a_fixed_seed_is_found_in_few_numbers_and_in_many(dim):
  claim = dataclasses.replace(CLAIM, shapes=SHAPES.get(dim, ((dim,),)))
  report = check_seeded(seeded_bugs.FixedSeed, claim)
  assert [f.cause for f in report.findings] == ['fixed_seed']


def change_size(dim, clip_norm, noise, clients):
  return dataclasses.replace(
    CLAIM,
    shapes=((dim,),),
    clip_norm=clip_norm,
    noise_multiplier=noise,
    num_clients=clients,
  )


class SlowlyAdaptive(correct.AdaptiveMomentum):
  """The clip norm moves by little, and not if updates are zeros."""

  def adapt(self, norms):
    before = self.clip_norm
    super().adapt(norms + 1e-9)
    self.clip_norm = before * (self.clip_norm / before) ** 0.01


class AdaptiveAtTimes(correct.AdaptiveMomentum):
  """The clip norm moves every fifth round."""

  round = 0

  def adapt(self, norms):
    self.round += 1
    if self.round % 5 == 0:
      super().adapt(norms)


class AdaptiveRateGoesDown(correct.RateGoesDown, correct.AdaptiveClip):
  """The clip norm moves, and the step size goes down."""


@pytest.mark.integration
# Releases over clip norms that move at random look correlated, or equal.
@pytest.mark.parametrize(
  ('mechanism', 'size'),
  [
    (correct.AdaptiveMomentum, (60, 6e-3, 19.0, 1)),
    (correct.AdaptiveMomentum, (2, 1.0, 27.0, 1)),
    (correct.AdaptiveMomentum, (60, 1e4, 2.1, 3)),
    (correct.AdaptiveMomentum, (930, 2.7e3, 9.8, 1)),
    (correct.AdaptiveMomentum, (6000, 118.0, 2.25, 1)),
    (SlowlyAdaptive, (930, 1.0, 30.0, 1)),
    (AdaptiveAtTimes, (6000, 1.0, 5.0, 1)),
    (AdaptiveRateGoesDown, (930, 1.0, 1.0, 10)),
  ],
)
def test_clip_norms_that_move_far_do_not_look_like_noise_that_is_kept(
  mechanism, size
):
  claim = change_size(*size)
  for seed in range(3):
    report = conformance.check(seeded(mechanism, seed), claim)
    assert not report.findings, conformance.format_report(report)


class UpToThreeRounds(correct.AdaptiveMomentum):
  """A fourth round is an error."""

  round = 0

  def aggregate(self, updates, weights):
    self.round += 1
    assert self.round <= 3
    return super().aggregate(updates, weights)


def test_whether_a_clip_norm_adapts_is_seen_in_as_many_rounds_as_there_are():
  claim = dataclasses.replace(change_size(930, 1.0, 9.8, 1), max_rounds=3)
  report = conformance.check(seeded(UpToThreeRounds), claim)
  assert not report.findings, conformance.format_report(report)
  assert 'memory' in report.not_applicable


class AdaptiveMomentumFirst(
  seeded_bugs.MomentumBeforeNoise, correct.AdaptiveClip
):
  """Averages updates over rounds of different clip norms, then adds noise."""


class KeepsItsNoise(correct.AdaptiveMomentum):
  """All rounds have the noise of the first, in their clip norms."""

  kept = None

  def noise(self):
    if self.kept is None:
      self.kept = super().noise() / self.clip_norm
    return self.kept * self.clip_norm


class AdaptiveHundredSeeds(correct.AdaptiveMomentum):
  """The seed of a run is one of a hundred."""

  def __init__(self, claim, seed=None):
    super().__init__(claim, seed % 100)


@pytest.mark.parametrize(
  ('mechanism', 'size', 'finding'),
  [
    (
      AdaptiveMomentumFirst,
      (930, 1.0, 27.0, 3),
      ('rounds', 'momentum_before_noise'),
    ),
    (
      KeepsItsNoise,
      (930, 1.0, 9.8, 1),
      ('rounds', 'noise_reused_between_rounds'),
    ),
    (
      AdaptiveHundredSeeds,
      (7, 1.0, 1.0, 10),
      ('noise_between_runs', 'few_seeds'),
    ),
  ],
)
def test_noise_that_is_kept_is_found_though_clip_norms_move(
  mechanism, size, finding
):
  report = check_seeded(mechanism, change_size(*size))
  assert finding in [(f.rule, f.cause) for f in report.findings]


class OtherLaw(correct.Plain):
  """Clips in the norm of the claim and draws noise of its law."""

  def clip(self, vector):
    size = self.claim.measure(vector)
    vector = vector * min(1.0, self.bound / max(size, 1e-300))
    if step := self.claim.granularity:
      # Towards zero, but not from where float32 left a multiple.
      vector = step * np.trunc(vector / step + 1e-3 * np.sign(vector))
    return vector

  def noise(self):
    claim, dim, step = self.claim, self.claim.dim, self.claim.granularity
    if claim.noise == 'laplace':
      return self.rng.laplace(0, self.std, dim)
    if claim.noise == 'skellam':
      drawn = self.rng.poisson((self.std / step) ** 2 / 2, (2, dim))
      return step * (drawn[0] - drawn[1])
    if claim.noise == 'discrete_gaussian':
      limit = math.ceil(10 * self.std / step)
      points = np.arange(-limit, limit + 1)
      weights = np.exp(-((points * step / self.std) ** 2) / 2)
      return step * self.rng.choice(points, dim, p=weights / weights.sum())
    return super().noise()


# An update of equal coordinates has 16 steps in each.
COARSE = {
  'granularity': 1 / 16 / math.sqrt(CLAIM.dim),
  'noise_multiplier': 0.005,
}
LAWS = {
  'Laplace, L1': {'noise': 'laplace', 'norm': 1},
  'Laplace, L2': {'noise': 'laplace', 'adjacency': 'replace'},
  'Laplace, L∞': {'noise': 'laplace', 'norm': math.inf},
  'Gaussian, L1': {'norm': 1},
  'Gaussian, L∞': {'norm': math.inf},
  'Skellam': {'noise': 'skellam'} | COARSE,
  'discrete Gaussian': {'noise': 'discrete_gaussian'} | COARSE,
}


@pytest.mark.integration
@pytest.mark.parametrize('changes', LAWS.values(), ids=LAWS)
def test_every_law_and_norm_that_is_claimed_is_kept(changes):
  claim = dataclasses.replace(CLAIM, **changes)
  report = conformance.check(seeded(OtherLaw), claim)
  assert not report.findings, conformance.format_report(report)
  # Of discrete influences the least that may have been rounded to them counts.
  error = 0.15 if claim.granularity else 0.03
  assert report.epsilon == pytest.approx(report.claimed_epsilon, rel=error)
  unchecked = {'rounds'} if claim.noise == 'laplace' else set()
  assert set(report.not_checked) == EVERYBODY | unchecked
  assert ('rounding' in report.not_applicable) == (claim.granularity > 0)
  (law,) = (r for r in report.results if r.rule == 'noise_law')
  assert claim.noise.replace('_', ' ') in law.measured.lower()


class Unclipped(OtherLaw):
  """Clips nothing."""

  def clip(self, vector):
    return vector


class ClippedByTensor(OtherLaw):
  """Clips each tensor."""

  def clip(self, vector):
    ends = np.cumsum(self.claim.sizes)[:-1]
    return np.concatenate([*map(super().clip, np.split(vector, ends))])


@pytest.mark.integration
@pytest.mark.parametrize('norm', [1, 2, math.inf])
def test_what_is_not_clipped_is_named_in_every_norm(norm):
  claim = dataclasses.replace(CLAIM, norm=norm)
  report = conformance.check(seeded(Unclipped), claim)
  assert [f.cause for f in report.findings if f.rule == 'clipping'] == [
    'not_clipped'
  ]
  report = conformance.check(seeded(ClippedByTensor), claim)
  by_layers = [] if norm == math.inf else ['per_layer_clipping']
  assert [f.cause for f in report.findings] == by_layers


class DiscreteRing(OtherLaw):
  """Leaves room for rounding in the clip norm, and sums integers modulo 2^32."""

  def clip(self, vector):
    step = self.claim.granularity
    room = math.sqrt(self.claim.dim) * step / 2
    return step * np.rint(correct.clip(vector, self.bound - room) / step)

  def sum(self, vectors, weights):
    step = self.claim.granularity
    total = np.rint(super().sum(vectors, weights) / step).astype(np.int64)
    return ((total + 2**31) % 2**32 - 2**31) * step


def test_the_epsilon_of_laplace_noise_is_the_l1_norm_over_its_scale():
  claim = conformance.Claim.from_epsilon(
    2.0,
    delta=1e-5,
    clip_norm=3.0,
    noise='laplace',
    num_clients=5,
    shapes=((4,),),
  )
  # An update of L2 norm S has an L1 norm of 2 S at most.
  assert claim.noise_multiplier == pytest.approx(2 / 2, rel=1e-4)
  assert claim.epsilon == pytest.approx(2.0, rel=1e-12)


@pytest.mark.parametrize('dim', [1, 50])
@pytest.mark.parametrize('noise', ['discrete_gaussian', 'skellam'])
def test_the_epsilon_of_noise_on_a_grid_is_accounted_for(noise, dim):
  claim = conformance.Claim.from_epsilon(
    2.0,
    clip_norm=3.0,
    noise=noise,
    granularity=0.5,
    num_clients=5,
    shapes=((dim,),),
    adjacency='replace',
  )
  found = getattr(accounting, f'epsilon_of_{noise}')(
    3.0 * claim.noise_multiplier, delta=1e-5, l2=6.0, dim=dim, granularity=0.5
  )
  assert claim.epsilon == pytest.approx(found.epsilon, rel=1e-9)
  assert claim.epsilon == pytest.approx(2.0, rel=1e-6)
  # Twice the influence is as much less noise.
  half = dataclasses.replace(claim, noise_multiplier=claim.noise_multiplier / 2)
  assert claim.compute_epsilon(2 * claim.mu, 1e-5) == pytest.approx(
    half.epsilon, rel=1e-9
  )


@pytest.mark.parametrize(
  ('mechanism', 'changes', 'measured'),
  [
    # The L2 norm of d coordinates may be √d S in the L1 norm.
    (correct.Plain, LAWS['Laplace, L1'], 'moves the release by 30.5 × S / n'),
    (correct.Plain, LAWS['Laplace, L2'], 'noise is not Laplace'),
    (correct.Plain, LAWS['Skellam'], 'where 0.4'),
  ],
)
def test_another_law_or_norm_than_claimed_is_found(
  mechanism, changes, measured
):
  claim = dataclasses.replace(CLAIM, **changes)
  report = conformance.check(seeded(mechanism), claim)
  assert measured in ' '.join(f.measured for f in report.findings)


class Banded(correct.Banded):
  """With noise for k rounds that are not next to each other."""

  def __init__(self, claim, seed=None):
    super().__init__(claim, seed)
    self.std *= math.sqrt(claim.participations)


@pytest.mark.integration
def test_the_mu_of_many_starts_is_not_the_largest_of_their_errors():
  claim = dataclasses.replace(
    CLAIM, participations=4, min_separation=4, max_rounds=24
  )
  found = []
  for seed in range(12):
    rng = np.random.default_rng(seed)
    make = seeded(correct.Banded, seed)
    m = measurements.Measurements(make, claim, budget=60.0, rng=rng)
    found.append(rounds.measure_joint(m).worst[-1].mu)
  # Noise for one round of four: μ = 2. The error of a mean of 12 is about 0.6 %.
  assert np.mean(found) == pytest.approx(2, rel=0.03)
  assert np.std(found) < 0.1


@pytest.mark.parametrize('separation', [2, 1])
def test_correlated_noise_is_judged_by_all_rounds_of_a_client(separation):
  claim = dataclasses.replace(
    CLAIM, participations=4, min_separation=separation, max_rounds=12
  )
  report = conformance.check(seeded(Banded), claim)
  (result,) = (r for r in report.results if r.rule == 'rounds')
  if separation == 2:
    assert not report.findings, conformance.format_report(report)
    what = 'and every 2 after it, 4 in all at most, has μ of about '
    assert what in result.measured
    return
  # Columns (0.8, 0.6) next to each other share a row, in three pairs.
  assert [f.cause for f in report.findings] == ['sensitivity_of_participations']
  expected = math.sqrt(1 + 3 * 2 * 0.8 * 0.6 / 4)
  assert report.findings[0].mu == pytest.approx(expected, rel=0.05)


def test_noise_for_one_round_does_not_suffice_for_four():
  claim = dataclasses.replace(CLAIM, participations=4, max_rounds=4)
  report = conformance.check(seeded(correct.Plain), claim)
  assert report.findings[0].rule == 'rounds'
  assert report.findings[0].mu == pytest.approx(2, rel=0.05)


class Finer(correct.Plain):
  """The release is rounded to a twentieth of the clip norm of a client."""

  def serve(self, mean):
    step = 0.05 * self.bound / self.n
    return step * np.rint(mean / step)


@pytest.mark.integration
@pytest.mark.parametrize(
  ('mechanism', 'why'),
  [(correct.Rounded, 'rounded to 0.2 S / n'), (Finer, 'rounded away')],
)
def test_noise_that_is_rounded_away_is_not_called_missing(mechanism, why):
  claim = dataclasses.replace(
    CLAIM, shapes=((),), num_clients=300, noise_multiplier=0.005
  )
  report = conformance.check(seeded(mechanism), claim)
  assert not report.findings, conformance.format_report(report)
  assert why in report.not_checked['noise_scale']


def test_the_step_of_few_releases_is_their_common_divisor():
  claim = dataclasses.replace(
    CLAIM, shapes=((8,),), num_clients=251, noise_multiplier=0.0275
  )
  for seed in range(20):
    rng = np.random.default_rng(seed)
    make = seeded(correct.Rounded, seed)
    m = measurements.Measurements(make, claim, budget=10.0, rng=rng)
    assert affine.find_rounding_step(m) == pytest.approx(0.2, rel=1e-6)


def test_a_noisy_count_is_seen_in_eight_numbers():
  # Large noise of the count, so that releases of equal noise differ by far.
  claim = dataclasses.replace(CLAIM, shapes=((8,),), noise_multiplier=10.0)
  for mechanism in (correct.NoisyCount, correct.Plain):
    rng = np.random.default_rng(0)
    m = measurements.Measurements(
      seeded(mechanism), claim, budget=10.0, rng=rng
    )
    assert affine.is_processed(m) == (mechanism is correct.NoisyCount)


class Sum(correct.Plain):
  """Releases a sum, times a step size."""

  def serve(self, mean):
    return mean * self.n * self.claim.step_size


@pytest.mark.integration
def test_releases_that_are_withheld_are_said_and_can_be_claimed():
  report = conformance.check(seeded(ReleasesEveryFourth), CLAIM)
  assert not report.findings
  assert 'or claim calls_per_release' in report.not_checked['noise_scale']
  claim = dataclasses.replace(CLAIM, calls_per_release=4)
  report = conformance.check(seeded(ReleasesEveryFourth), claim)
  (finding,) = report.findings
  # Each of the four has its noise; one client is in one of them.
  assert finding.cause == 'too_much_noise'
  assert finding.severity == 'utility'
  assert set(report.not_checked) == EVERYBODY
  assert report.epsilon == pytest.approx(
    epsilon.epsilon_gdp(0.5, 1e-5), rel=0.05
  )


@pytest.mark.integration
def test_laplace_noise_of_a_pure_epsilon_is_checked_without_a_delta():
  given = dict(clip_norm=1.0, num_clients=5, shapes=((4,),))
  claim = conformance.Claim.from_epsilon(
    0.5, 0.0, noise='laplace', norm=1, **given
  )
  assert claim.noise_multiplier == pytest.approx(2)
  assert claim.epsilon == pytest.approx(0.5)
  report = conformance.check(seeded(OtherLaw), claim)
  assert not report.findings, conformance.format_report(report)
  assert report.epsilon == pytest.approx(0.5, rel=0.1)
  with pytest.raises(ValueError, match='delta=0'):
    conformance.Claim.from_epsilon(0.5, 0.0, **given)


def test_a_claim_of_zcdp_has_the_noise_of_its_rho():
  given = dict(clip_norm=2.0, num_clients=10, shapes=((3,),))
  claim = conformance.Claim.from_zcdp(0.125, **given)
  assert claim.noise_multiplier == pytest.approx(2)
  # Of any two updates up to 2 S apart it needs twice as much.
  claim = conformance.Claim.from_zcdp(0.125, adjacency='replace', **given)
  assert claim.noise_multiplier == pytest.approx(4)
  with pytest.raises(ValueError, match="noise='laplace'"):
    conformance.Claim.from_zcdp(1.0, noise='laplace', norm=1, **given)


@pytest.mark.integration
def test_a_known_count_breaks_a_claim_of_add_or_remove():
  claim = dataclasses.replace(CLAIM, adjacency='add_or_remove')
  assert not check_seeded(correct.Plain, claim).findings
  report = conformance.check(seeded(correct.NoiseOnSum), claim)
  (finding,) = report.findings
  assert finding.mu == pytest.approx(2, rel=0.05)
  # Of 930 coordinates, whose noise is as 10 to 9.
  assert finding.cause == 'spread_not_private'
  expected = laws.epsilon_of_spreads(10 / 9, 930, claim.delta)
  assert finding.epsilon == pytest.approx(expected, rel=0.15)
  few = dataclasses.replace(claim, shapes=((4,),))
  report = conformance.check(seeded(correct.NoiseOnSum), few)
  (finding,) = report.findings
  assert finding.cause == 'count_not_private'


class EvenNoisyCount(correct.NoisyCount):
  """Sum and count spend half of the claim each."""

  shares = math.sqrt(0.5), math.sqrt(0.5)


COUNT_IS_PRIVATE = {'adjacency': 'add_or_remove', 'num_clients': 60}


@pytest.mark.parametrize(
  ('mechanism', 'changes', 'passed'),
  [
    (InPlace, {}, 'clipping'),
    (Sum, {'release': 'sum', 'step_size': -0.25}, 'noise_scale'),
    # Room for rounding is not a second clipping.
    (DiscreteRing, LAWS['discrete Gaussian'], 'arrives_whole'),
    # The count has noise of its own.
    (correct.NoisyCount, COUNT_IS_PRIVATE, 'add_or_remove'),
    (EvenNoisyCount, COUNT_IS_PRIVATE, 'add_or_remove'),
  ],
)
def test_a_mechanism_of_another_kind_keeps_its_claim(
  mechanism, changes, passed
):
  claim = dataclasses.replace(CLAIM, **changes)
  report = conformance.check(seeded(mechanism), claim)
  assert not report.findings, conformance.format_report(report)
  assert passed in report.passed
  if not claim.granularity and claim.adjacency == 'zero_out':
    assert set(report.not_checked) == EVERYBODY


def test_a_release_that_is_scaled_is_recognized_among_many_coordinates():
  claim = dataclasses.replace(CLAIM, num_clients=1, shapes=((300, 200),))
  report = check_seeded(correct.NormalizedRelease, claim)
  assert not report.findings, conformance.format_report(report)
  assert 'noise_scale' in report.not_checked


def test_the_first_step_of_adam_is_no_noise_that_ends():
  claim = dataclasses.replace(
    CLAIM, clip_norm=0.014, noise_multiplier=0.079, num_clients=1
  )
  report = check_seeded(correct.AdamCorrected, claim)
  assert not report.findings, conformance.format_report(report)
  assert 'noise_grid' in report.not_checked


class SoftClipOfModel(correct.SoftClip, correct.ReleasesModel):
  """An update of norm S arrives a little shorter than a large one."""


class SoftClipWithMomentum(correct.SoftClip, correct.Momentum):
  pass


class CappedClip(correct.AdaptiveClip):
  """The clip norm has an upper bound, as Opacus gives it."""

  def adapt(self, norms):
    super().adapt(norms)
    self.clip_norm = min(self.clip_norm, self.claim.clip_norm)


class Coarse(correct.Plain):
  """The model is released in bfloat16."""

  def __init__(self, claim, seed=None):
    super().__init__(claim, seed)
    self.model = np.random.default_rng(0).normal(0, 0.02, claim.dim)

  def serve(self, mean):
    self.model = self.model + mean
    bits = self.model.astype(np.float32).view(np.uint32) & 0xFFFF0000
    return bits.view(np.float32).astype(np.float64)


class OfOnes(correct.ReleasesModel):
  dtype = np.float32

  def __init__(self, claim, seed=None):
    super().__init__(claim, seed)
    self.model = np.ones(claim.dim)


def measure(cls, claim=CLAIM):
  rng = np.random.default_rng(0)
  return measurements.Measurements(seeded(cls), claim, budget=60.0, rng=rng)


@pytest.mark.integration
@pytest.mark.parametrize(
  ('cls', 'rule', 'changes'),
  [
    (SoftClipOfModel, 'later_rounds', {}),
    (SoftClipWithMomentum, 'later_rounds', {}),
    (CappedClip, 'clip_norm', {'num_clients': 60}),
  ],
)
def test_a_rule_is_kept_by(cls, rule, changes):
  m = measure(cls, dataclasses.replace(CLAIM, **changes))
  result = conformance.RULES[rule].check(m)
  assert result.status == 'passed', result


def test_numbers_are_rounded_by_their_type_and_not_by_a_guess():
  claim = dataclasses.replace(CLAIM, num_clients=200)
  # In units of S / n: the last of 8 bits at 0.02, and of 24 bits at 1.
  assert 0.3 < measure(Coarse, claim).rounding < 3
  assert 1e-4 < measure(OfOnes, claim).rounding < 1e-2
  assert measure(correct.Plain, claim).rounding < 1e-10


@pytest.mark.usefixtures('types_unchecked')
def test_a_claim_is_of_shapes_in_lists_too_and_one_shape_is_not_shapes():
  lists = dataclasses.replace(CLAIM, shapes=[[3], [2]])
  assert lists.shapes == ((3,), (2,))
  assert hash(lists) == hash(dataclasses.replace(CLAIM, shapes=((3,), (2,))))
  with pytest.raises(ValueError, match=r'shapes=\(20, 30\); give the shape of'):
    dataclasses.replace(CLAIM, shapes=(20, 30))
