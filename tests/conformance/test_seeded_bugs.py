"""Each seeded bug is named by its rule and cause, and no other rule is blamed."""

import copy
import dataclasses
import math

import numpy as np
import pytest

from epe_jax import accounting, conformance, epsilon
from epe_jax.conformance import affine, measurements, samples
from epe_jax.report import cells
from tests.conformance import correct, seeded_bugs
from tests.conformance.helpers import CLAIM, OTHER, check_seeded, seeded

REPLACE = dataclasses.replace(CLAIM, adjacency='replace')
# Noise that is kept for later rounds is kept by a checkpoint, too; and without the
# mean of its rows there is less.
_ALSO = {
  seeded_bugs.SameNoiseEveryRound: ('resume',),
  seeded_bugs.SameNoiseEveryThirdRound: ('resume',),
  seeded_bugs.NoiseRolled: ('resume',),
  seeded_bugs.RotatesNoise: ('resume',),
  seeded_bugs.CentredRows: ('tensor_noise', 'rounds'),
}


# Without the integration tests, the first bug of each rule is sought.
_FIRST = {
  rule: bug for bug, (rule, _) in reversed(seeded_bugs.EXPECTED.items())
}.values()


@pytest.mark.parametrize(
  ('bug', 'claim'),
  [
    pytest.param(
      *(bug, claim),
      id=f'{bug.__name__}-{name}',
      marks=() if bug in _FIRST and claim is CLAIM else pytest.mark.integration,
    )
    for bug in seeded_bugs.EXPECTED
    for name, claim in (
      ('claim', CLAIM),
      ('other', OTHER),
      ('replace', REPLACE),
    )
  ],
)
def test_the_report_names_the_bug(bug, claim):
  report = check_seeded(bug, seeded_bugs.change_claim(bug, claim))
  named = [(f.rule, f.cause) for f in report.findings]
  also = [x for x in named if x[0] in _ALSO.get(bug, ())]
  assert [x for x in named if x not in also] == [seeded_bugs.EXPECTED[bug]]
  finding = next(
    f for f in report.findings if f.rule == seeded_bugs.EXPECTED[bug][0]
  )
  text = ' '.join(conformance.format_report(report).split())
  titles = {'not_finite_enters': 'NaN or inf is not rejected'}
  title = titles.get(finding.cause, finding.cause.replace('_', ' '))
  assert f'{finding.rule}: {title}' in text
  if finding.severity == 'privacy' and finding.epsilon is not None:
    assert finding.epsilon > report.claimed_epsilon


def test_a_state_that_may_follow_the_release_is_neither_accused_nor_passed():
  report = check_seeded(seeded_bugs.HiddenSum)
  assert not report.findings
  assert 'is computed with it' in ' '.join(report.not_checked['memory'].split())


@pytest.mark.integration
def test_noise_of_a_random_amount_is_not_taken_for_a_scaled_release():
  # In which the noise of the first runs was short.
  for seed in (0, 2, 26, 31, 44, 48):
    m = measurements.Measurements(
      seeded(seeded_bugs.RandomScaleNoise, seed),
      CLAIM,
      budget=60.0,
      rng=np.random.default_rng(seed),
    )
    assert not affine.is_processed(m)
    assert samples.measure_level(m)[0] < 1e-9


@pytest.mark.integration
def test_the_epsilon_of_a_finding_is_that_of_the_summary_or_says_where_it_is():
  same = check_seeded(seeded_bugs.NoiseOnMachines)
  assert same.findings[0].epsilon == pytest.approx(same.epsilon, rel=1e-9)
  text = ' '.join(conformance.format_report(same).split())
  assert text.count(f'ε = {cells.format_number(same.epsilon)} ') == 2
  assert 'within the error of the measurement' not in text
  # At a clip norm of 1 noise that ignores it is right.
  other = check_seeded(seeded_bugs.NoiseOfUnitClip)
  text = ' '.join(conformance.format_report(other).split())
  assert other.findings[0].epsilon > other.epsilon
  assert 'if noise is as short as it is with clip_norm × 4; claimed' in text


def test_only_a_finite_epsilon_above_the_claim_is_within_the_error():
  report = check_seeded(correct.Plain)
  above = dataclasses.replace(report, epsilon=report.claimed_epsilon + 0.01)
  broken = tuple(
    r._replace(status='broken') if r.rule == 'tensor_noise' else r
    for r in report.results
  )
  # Of the last there is more noise than the claim needs.
  for shown, is_within in [
    (above, True),
    (dataclasses.replace(above, results=broken), False),
    (dataclasses.replace(above, epsilon=math.inf), False),
    (dataclasses.replace(above, epsilon=report.claimed_epsilon / 2), False),
  ]:
    text = ' '.join(conformance.format_report(shown).split())
    assert ('within the error of the measurement' in text) == is_within


@pytest.mark.parametrize('clip_norm', [0.3, 0.01])
def test_a_missing_square_root_is_found_between_s_and_what_is_huge(clip_norm):
  claim = dataclasses.replace(CLAIM, clip_norm=clip_norm)
  report = conformance.check(seeded(seeded_bugs.ClippedBySquare), claim)
  (finding,) = report.findings
  assert finding.cause == 'clipped_by_another_norm'
  # Longest for updates of norm √S, which arrive as they are; sizes are steps.
  assert finding.mu == pytest.approx(clip_norm**-0.5, rel=0.25)


def test_what_is_drawn_besides_the_noise_is_named_and_not_judged():
  class Rounded(seeded_bugs.Plain):
    """Private: rounded at random after the noise."""

    def serve(self, mean):
      step = 0.05 * self.bound / self.n
      return step * np.floor(mean / step + self.rng.random(mean.shape))

  report = conformance.check(seeded(Rounded), CLAIM)
  assert not report.findings
  assert 'rounded at random' in report.not_checked['clipping']


def test_a_claim_of_any_two_updates_has_twice_the_influence():
  zero_out = check_seeded(seeded_bugs.ClippedMean)
  replace = check_seeded(seeded_bugs.ClippedMean, REPLACE)
  exact = accounting.epsilon_of_releases(0.5, delta=1e-5).epsilon
  assert replace.claimed_epsilon == pytest.approx(exact, rel=1e-6)
  (finding,) = replace.findings
  assert finding.cause == 'clipped_after_the_mean'
  assert finding.mu is not None
  # The mean turns from one side to the other, whether zeros or others are left.
  assert finding.mu == pytest.approx(zero_out.findings[0].mu, rel=0.05)
  assert finding.epsilon == pytest.approx(
    epsilon.epsilon_gdp(finding.mu, 1e-5), rel=1e-9
  )


@pytest.mark.parametrize(
  ('bug', 'mu', 'error'),
  [
    (seeded_bugs.PerLayerGlobalNoise, 3**0.5, 0.02),  # √L tensors.
    # The whole mean, from one side to the other.
    (seeded_bugs.ClippedMean, 2 * 10, 0.02),
    # √(1 + β² + β⁴ + ...).
    (seeded_bugs.MomentumBeforeNoise, (1 / (1 - 0.9**2)) ** 0.5, 0.1),
    (seeded_bugs.NoiseOnMachines, 3**0.5, 0.02),
    # Of 5 clients that are left each has twice its share, a single one ten times.
    (seeded_bugs.DropoutNotCounted, 10, 0.05),
    (seeded_bugs.EqualPart, 0.7**-0.5, 0.05),
    # |1 - 1/2|² / 1.25 of the variance is at the highest frequency.
    (seeded_bugs.MovingAverage, 0.2**-0.5, 0.05),
  ],
)
def test_the_measured_mu_is_that_of_the_bug(bug, mu, error):
  assert check_seeded(bug).findings[0].mu == pytest.approx(mu, rel=error)


@pytest.mark.parametrize(
  'bug', [seeded_bugs.FaintBit, seeded_bugs.HiddenClipNorm]
)
def test_a_rule_is_checked_alone(bug):
  rule, cause = seeded_bugs.EXPECTED[bug]
  rng = np.random.default_rng(0)
  m = measurements.Measurements(seeded(bug), CLAIM, budget=60.0, rng=rng)
  result = conformance.RULES[rule].check(m)
  assert result.finding.cause == cause


class SharesItsState(seeded_bugs.Replay):
  """A checkpoint that holds references, as `vars` gives them."""

  def save(self):
    return {k: v for k, v in vars(self).items() if k != 'claim'}


class ReplaysBehindASchedule(correct.RateGoesDown):
  def save(self):
    return super().save() | {'rng': copy.deepcopy(self.rng)}


@pytest.mark.parametrize(
  ('bug', 'changes'),
  [(SharesItsState, {}), (ReplaysBehindASchedule, {'shapes': ((30,),)})],
)
def test_noise_that_a_checkpoint_replays_is_found(bug, changes):
  claim = dataclasses.replace(CLAIM, **changes)
  rng = np.random.default_rng(0)
  m = measurements.Measurements(seeded(bug), claim, budget=60.0, rng=rng)
  result = conformance.RULES['resume'].check(m)
  assert result.finding.cause == 'noise_replayed_after_restore'


def test_laplace_noise_that_is_too_small_is_found_at_a_delta_of_zero():
  bug = seeded_bugs.StdForScale
  claim = dataclasses.replace(CLAIM, **bug.changes, delta=0.0)
  rng = np.random.default_rng(0)
  m = measurements.Measurements(seeded(bug), claim, budget=60.0, rng=rng)
  assert conformance.RULES['noise_scale'].check(m).finding is not None
