"""The law of shifted cosines against arithmetic of 30 digits, and simulation."""

import pathlib

import mpmath
import numpy as np
import pytest
from scipy import integrate, stats

from epe_jax.epsilon.null_laws.cosine_null import CosineNull
from epe_jax.epsilon.points import cosine_alternative, gaussian
from epe_jax.epsilon.points.cosine_alternative import (
  ShiftedCosine,
  epsilon_cosines,
)
from epe_jax.epsilon.trade_offs import tradeoff_curves
from epe_jax.epsilon.types import Scores, Sphere, make_null

DELTA = 1e-5


def exact_sf(dim, shift, cosine):
  """P(cos > x): the density of the direction, integrated over the angle."""
  with mpmath.workdps(30):
    shift, half = mpmath.mpf(shift), mpmath.mpf(dim - 1) / 2

    def density(angle):
      # 2 ∫ r^(d-1) exp(-r²/2 + a r) dr, by Kummer's functions.
      a = shift * mpmath.cos(angle)
      even = mpmath.gamma(half + 0.5) * mpmath.hyp1f1(half + 0.5, 0.5, a**2 / 2)
      odd = mpmath.gamma(half + 1) * mpmath.hyp1f1(half + 1, 1.5, a**2 / 2)
      radial = even + mpmath.sqrt(2) * a * odd
      return mpmath.sin(angle) ** (dim - 2) * radial

    scale = mpmath.exp(-(shift**2) / 2) / mpmath.gamma(half)
    scale /= mpmath.sqrt(mpmath.pi)
    # ∫ over angles of sin^(d-2) times Γ(d/2) is √π Γ((d-1)/2) at μ = 0.
    edge = mpmath.acos(mpmath.mpf(cosine))
    points = mpmath.linspace(0, edge, 9)
    return float(mpmath.log(scale * mpmath.quad(density, points)))


@pytest.mark.integration
@pytest.mark.parametrize(
  'dim', [2, 3, 10, pytest.param(40, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize('shift', [0.0, 0.7, 6.0])
def test_tails_agree_with_thirty_digits(dim, shift):
  law = ShiftedCosine(dim, shift)
  for cosine in (-0.95, 0.3, 0.999):
    expected = exact_sf(dim, shift, cosine)
    assert law.logsf(cosine) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    # Turned round, the canary is taken out.
    if expected < -1e-8:
      below = np.log(-np.expm1(expected))
      assert law.logcdf(cosine) == pytest.approx(below, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(('dim', 'shift'), [(2, 60.0), (3, 300.0), (500, 30.0)])
def test_far_shifts_agree_with_noncentral_t(dim, shift):
  law = ShiftedCosine(dim, shift)
  for probability in (0.001, 0.3, 0.9, 0.9999):
    t = stats.nct.ppf(probability, dim - 1, shift)
    cosine = t / np.hypot(t, np.sqrt(dim - 1))
    # A cosine near 1 is itself rounded.
    assert law.cdf(cosine) == pytest.approx(probability, rel=2e-5)
    assert law.sf(cosine) == pytest.approx(1 - probability, rel=2e-5)


def test_no_shift_is_the_null_law():
  x = np.linspace(-0.999, 0.999, 41)
  for dim in (2, 3, 7, 1000, 10**6):
    law, central = ShiftedCosine(dim, 0.0), CosineNull(dim)
    np.testing.assert_allclose(law.log_ratio(x), 0, atol=1e-9)
    np.testing.assert_allclose(law.logsf(x), central.logsf(x), rtol=1e-9)


@pytest.mark.parametrize(('dim', 'shift'), [(3, 0.5), (8, 3.0), (200, 10.0)])
def test_density_tails_and_moments_belong_together(dim, shift):
  law = ShiftedCosine(dim, shift)
  points = list(np.clip(law.mean + law.std * np.arange(-3, 4), -0.999, 0.999))
  for power, expected in (
    (0, 1.0),
    (1, law.mean),
    (2, law.mean**2 + law.std**2),
  ):
    moment = integrate.quad(
      lambda x, n=power: x**n * law.pdf(x), -1, 1, points=points, limit=200
    )[0]
    assert moment == pytest.approx(expected, abs=1e-8)
  above = integrate.quad(law.pdf, 0.6, 1, limit=200)[0]
  assert law.sf(0.6) == pytest.approx(above, rel=1e-7, abs=1e-12)
  assert law.cdf(0.6) + law.sf(0.6) == pytest.approx(1)
  assert (law.sf(-2), law.sf(1), law.cdf(1), law.pdf(2)) == (1, 0, 1, 0)


def test_cosines_of_sums_follow_the_law():
  rng, dim, s, sigma, num = np.random.default_rng(0), 5, 1.4, 0.7, 20_000
  c = rng.standard_normal((num, dim))
  c /= np.linalg.norm(c, axis=1, keepdims=True)
  v = s * c + sigma * rng.standard_normal((num, dim))
  cosine = np.sum(c * v, axis=1) / np.linalg.norm(v, axis=1)
  assert stats.kstest(cosine, ShiftedCosine(dim, s / sigma).cdf).pvalue > 1e-6
  wrong = ShiftedCosine(dim, s / sigma * 1.05)
  assert stats.kstest(cosine, wrong.cdf).pvalue < 1e-6


def maximum(value):
  """Of a function on (-1, 1), on a grid that is refined once."""
  coarse = np.linspace(-7, 7, 1001)
  with np.errstate(divide='ignore'):
    best = coarse[np.argmax(value(np.tanh(coarse)))]
    return np.max(value(np.tanh(best + np.linspace(-0.03, 0.03, 1001))))


@pytest.mark.parametrize('dim', [2, 3, 30])
@pytest.mark.parametrize('shift', [0.2, 1.0, 4.0])
def test_epsilon_is_the_best_of_all_thresholds(dim, shift):
  epsilon = epsilon_cosines(dim, shift, DELTA)
  law, central = ShiftedCosine(dim, shift), CosineNull(dim)

  def above(x):
    return np.log(np.maximum(law.sf(x) - DELTA, 0)) - central.logsf(x)

  def below(x):
    return np.log(np.maximum(central.cdf(x) - DELTA, 0)) - law.logcdf(x)

  best = max(maximum(above), maximum(below))
  assert epsilon == pytest.approx(best, abs=1e-5)
  assert epsilon >= best - 1e-9


def test_epsilon_grows_to_that_of_the_gaussian_mechanism():
  shifts = np.array([0.0, 0.03, 1.0, 20.0])
  limit = tradeoff_curves.epsilon_gdp(shifts, DELTA)
  before = np.zeros(4)
  for dim in (2, 5, 50, 1000, 10**7):
    epsilon = epsilon_cosines(dim, shifts, DELTA)
    assert np.all(epsilon >= before)
    assert np.all(epsilon <= limit + 1e-9)
    before = epsilon
  np.testing.assert_allclose(before, limit, rtol=1e-4)
  # Nothing is learnt that δ does not allow.
  assert epsilon_cosines(3, 0.03, 0.1) == 0


def test_how_far_the_approximation_is_out():
  # Estimates of infinitely many canaries.
  mu = tradeoff_curves.mu_of_epsilon(3.0, DELTA)
  for dim, known, fitted in (
    (10, 35.3, 90.8),
    (100, 3.6, 8.3),
    (1000, 0.4, 0.8),
  ):
    law, root = ShiftedCosine(dim, mu), np.sqrt(dim)
    exact = epsilon_cosines(dim, mu, DELTA)
    for std, percent in ((1.0, known), (root * law.std, fitted)):
      approximate = gaussian.epsilon_two_gaussians(
        0.0, 1.0, root * law.mean, std, DELTA
      )
      assert 100 * (approximate / exact - 1) == pytest.approx(percent, abs=0.06)


@pytest.mark.integration
def test_the_table_of_the_docs_is_what_the_law_says():
  text = (pathlib.Path(__file__).parents[3] / 'docs/estimates.md').read_text()
  for dim in (3, 10, 100, 1000, 10_000):
    cells = [f'{dim:,}']
    for truth in (1.0, 3.0, 10.0):
      mu = float(tradeoff_curves.mu_of_epsilon(truth, DELTA))
      law, root = ShiftedCosine(dim, mu), np.sqrt(dim)
      cells.append(f'{epsilon_cosines(dim, mu, DELTA):.2f}')
      for std in (1.0, root * law.std):
        approximate = gaussian.epsilon_two_gaussians(
          0.0, 1.0, root * law.mean, std, DELTA
        )
        cells.append(f'{approximate:.2f}')
    assert f'| {" | ".join(cells)} |' in text


def test_the_estimate_is_right_where_gaussians_are_not():
  rng, dim, shift, k = np.random.default_rng(1), 10, 2.0, 1000
  z = rng.standard_normal((20, k)) + shift
  length = np.hypot(z, np.sqrt(rng.chisquare(dim - 1, (20, k))))
  scores = Scores(z / length, np.empty(0), null=make_null(dim))
  estimate = cosine_alternative.shifted_cosine(scores, delta=DELTA)
  assert estimate.confidence is None
  truth = epsilon_cosines(dim, shift, DELTA)
  # Twenty audits of a standard error of 3 %; a failure has probability 1e-6.
  assert np.mean(estimate.epsilon) == pytest.approx(truth, rel=0.04)
  gaussians = gaussian.two_gaussian(scores, delta=DELTA, std='null').epsilon
  assert np.mean(gaussians) > 1.15 * truth
  alone = Scores(scores.observed[3], np.empty(0), null=make_null(dim))
  one = cosine_alternative.shifted_cosine(alone, delta=DELTA).epsilon
  assert one == pytest.approx(estimate.epsilon[3], rel=1e-9)


def test_shifts_are_found_from_means():
  for dim in (2, 3, 100, 10**5):
    for shift in (1e-6, 0.3, 5.0, 300.0):
      mean = ShiftedCosine(dim, shift).mean
      found = cosine_alternative.shift_of_mean(dim, mean)
      assert found == pytest.approx(shift, rel=1e-5)
    ends = cosine_alternative.shift_of_mean(dim, np.array([-0.2, 0.0, 1.0]))
    np.testing.assert_array_equal(ends, [0, 0, np.inf])
  ones = Scores(np.ones(3), np.empty(0), null=Sphere(4))
  assert cosine_alternative.shifted_cosine(ones, delta=DELTA).epsilon == np.inf


def test_settings_out_of_range_are_refused():
  with pytest.raises(ValueError, match='dim=1'):
    ShiftedCosine(1, 0.0)
  with pytest.raises(ValueError, match=r'shift=-1\.0'):
    ShiftedCosine(3, -1.0)
  with pytest.raises(ValueError, match='shift=inf'):
    epsilon_cosines(3, np.inf, DELTA)
  with pytest.raises(ValueError, match='delta=0'):
    epsilon_cosines(3, 1.0, 0.0)
  with pytest.raises(ValueError, match=r'null=Unknown\(\)'):
    cosine_alternative.shifted_cosine(
      Scores(np.ones(3), np.zeros(3)), delta=DELTA
    )
