"""No rule is broken by a mechanism that keeps its claim."""

import dataclasses

import pytest

from epe_jax import conformance
from tests.conformance import correct, seeded_bugs
from tests.conformance.helpers import CLAIM, OTHER, check_seeded, seeded

EVERYBODY = {'clip_norm', 'add_or_remove'}


@pytest.mark.parametrize('claim', [CLAIM, OTHER], ids=['claim', 'other'])
@pytest.mark.parametrize('name', correct.CORRECT)
def test_a_correct_mechanism_breaks_nothing(name, claim):
  report = check_seeded(correct.CORRECT[name], claim)
  assert not report.findings, conformance.format_report(report)
  if name in ('Rounded', 'Sparsified'):
    # The noise is seen after processing.
    assert 'return what comes before' in report.not_checked['noise_scale']
    return
  expected = {
    'AdaptiveClip': {'memory', 'add_or_remove'},
    'NoiseOfClients': EVERYBODY | {'dropout'},
  }
  assert set(report.not_checked) == expected.get(name, EVERYBODY)
  # A tree has noise for all its rounds; that of one is more than it needs.
  if name not in ('Tree', 'CappedWeights', 'AdaptiveClip'):
    assert report.epsilon == pytest.approx(report.claimed_epsilon, rel=0.03)


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


SHAPES = {1: ((),), 2: ((2,),), 3: ((2,), (1,)), 8: ((2, 3), (2,))}


@pytest.mark.parametrize('dim', SHAPES)
@pytest.mark.parametrize('name', correct.CORRECT)
def test_a_mechanism_of_few_numbers_is_not_accused(name, dim):
  claim = dataclasses.replace(CLAIM, shapes=SHAPES[dim])
  for seed in range(3):
    report = conformance.check(seeded(correct.CORRECT[name], seed), claim)
    assert not report.findings, conformance.format_report(report)
    if name in ('Rounded', 'Sparsified'):
      continue
    unchecked = EVERYBODY | {'noise_between_coordinates', 'noise_law'}
    unchecked |= {'memory', 'dropout', 'noise_level'}
    assert set(report.not_checked) <= unchecked


@pytest.mark.parametrize('dim', SHAPES)
def test_a_fixed_seed_is_found_in_few_numbers(dim):
  claim = dataclasses.replace(CLAIM, shapes=SHAPES[dim])
  report = check_seeded(seeded_bugs.FixedSeed, claim)
  assert [f.cause for f in report.findings] == ['fixed_seed']


class Sum(correct.Plain):
  """Releases a sum, times a step size that goes down."""

  def serve(self, mean):
    return mean * self.n * self.claim.step_size


def test_a_sum_and_a_step_are_released():
  claim = dataclasses.replace(CLAIM, release='sum', step_size=-0.25)
  report = conformance.check(seeded(Sum), claim)
  assert not report.findings, conformance.format_report(report)
  assert not report.not_checked.keys() - EVERYBODY


def test_a_known_count_breaks_a_claim_of_add_or_remove():
  claim = dataclasses.replace(CLAIM, adjacency='add_or_remove')
  assert not check_seeded(correct.Plain, claim).findings
  report = conformance.check(seeded(correct.NoiseOnSum), claim)
  assert [f.cause for f in report.findings] == ['count_not_private']
  assert report.findings[0].mu == pytest.approx(2, rel=0.05)
