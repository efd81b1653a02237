"""ε between two Gaussians against 60-digit arithmetic, and the estimators."""

import itertools
import warnings

from dp_accounting import gaussian_mechanism
import mpmath
import numpy as np
import pytest
from scipy import optimize, special, stats

from epe_jax.epsilon import hockey_stick, two_gaussians
from epe_jax.epsilon.types import Scores, Sphere

NEARLY_EQUAL = (0.0, 1.0, -0.03899418, 1.00023832)


def mass(low, high):
  if low > 0:
    low, high = -high, -low
  return mpmath.ncdf(high) - mpmath.ncdf(low)


def slow_delta(epsilon, mean0, std0, mean1, std1):
  """Section 3.2 of the paper, as printed, with 60 digits: one direction."""
  with mpmath.workdps(60):
    m0, s0, m1, s1 = map(mpmath.mpf, (mean0, std0, mean1, std1))
    a = (s1**-2 - s0**-2) / 2
    b = m0 / s0**2 - m1 / s1**2
    c = ((m1 / s1) ** 2 - (m0 / s0) ** 2) / 2 + mpmath.log(s1 / s0) - epsilon

    def difference(low, high):
      null = mass((low - m0) / s0, (high - m0) / s0)
      other = mass((low - m1) / s1, (high - m1) / s1)
      return null - mpmath.e**epsilon * other

    if a == 0:
      if b == 0:
        return mpmath.mpf(0)
      ends = (-c / b, mpmath.inf) if b > 0 else (-mpmath.inf, -c / b)
      return difference(*ends)
    discriminant = b**2 - 4 * a * c
    if discriminant <= 0:
      return mpmath.mpf(0)
    roots = [(-b + s * mpmath.sqrt(discriminant)) / (2 * a) for s in (-1, 1)]
    low, high = sorted(roots)
    if a < 0:
      return difference(low, high)
    return difference(-mpmath.inf, low) + difference(high, mpmath.inf)


def one_direction(mean0, std0, mean1, std1, delta):
  """The ε of N(mean0, std0²)(A) <= e^ε N(mean1, std1²)(A) + δ for all A."""
  *moments, delta = np.broadcast_arrays(mean0, std0, mean1, std1, delta)
  shape = delta.shape
  mean0, std0, mean1, std1 = (np.float64(x).ravel() for x in moments)
  target = np.log(delta.ravel())
  epsilon = hockey_stick.solve(
    (mean0, std0), (mean1, std1), target, np.zeros_like(target)
  )
  return epsilon.reshape(shape)


def assert_inverts(epsilon, delta, pair, tolerance=1e-10):
  """δ falls through its target within the tolerance of ε."""
  with mpmath.workdps(60):
    slack = max(tolerance * mpmath.mpf(epsilon), mpmath.mpf('1e-12'))
    assert slow_delta(epsilon + slack, *pair) <= delta, (pair, delta, epsilon)
    if epsilon > slack:
      assert slow_delta(epsilon - slack, *pair) >= delta, (pair, delta, epsilon)


def random_pairs(seed, num):
  """Equal, nearly equal and very different stds; δ from 1e-100 to 1/2."""
  rng = np.random.default_rng(seed)
  kind = rng.integers(0, 4, num)
  sign = rng.choice([-1, 1], num)
  std0 = 10 ** rng.uniform(-3, 3, num)
  near = 1 + sign * 10 ** rng.uniform(-12, -1, num)
  apart = 10 ** rng.uniform(-6, 6, num)
  std1 = std0 * np.where(kind == 0, 1, np.where(kind == 1, near, apart))
  gap = np.where(kind == 3, 0, 10 ** rng.uniform(-8, 7.5, num))
  mean0 = rng.normal(size=num) * std0 * rng.integers(0, 2, num)
  mean1 = mean0 + rng.choice([-1, 1], num) * gap * np.minimum(std0, std1)
  delta = 10 ** rng.uniform(-100, np.log10(0.5), num)
  return (mean0, std0, mean1, std1), delta


def test_one_direction_inverts_the_divergence_in_60_digits():
  pairs, delta = random_pairs(0, 150)
  epsilon = one_direction(*pairs, delta)
  assert epsilon[epsilon > 0].min() < 1e-5
  assert epsilon.max() > 1e14
  for i in range(len(delta)):
    assert_inverts(epsilon[i], delta[i], [x[i] for x in pairs])


def test_epsilon_is_the_larger_direction():
  pairs, delta = random_pairs(1, 50)
  mean0, std0, mean1, std1 = pairs
  both = two_gaussians.epsilon_two_gaussians(*pairs, delta)
  forward = one_direction(*pairs, delta)
  backward = one_direction(mean1, std1, mean0, std0, delta)
  np.testing.assert_allclose(
    both, np.maximum(forward, backward), rtol=1e-13, atol=1e-14
  )
  assert np.any(forward > backward)
  assert np.any(forward < backward)


def test_the_oracle_rejects_a_wrong_scale_and_a_small_error():
  epsilon = float(one_direction(0, 1, 1, 1.5, 1e-5))
  assert_inverts(epsilon, 1e-5, (0, 1, 1, 1.5))
  with pytest.raises(AssertionError):
    assert_inverts(epsilon, 1e-5, (0, 1, 1, 1.5 + 1e-8))
  with pytest.raises(AssertionError):
    assert_inverts(epsilon * (1 + 1e-9), 1e-5, (0, 1, 1, 1.5))


def test_nearly_equal_gaussians_keep_their_digits():
  epsilon = two_gaussians.epsilon_two_gaussians(*NEARLY_EQUAL, 1e-5)
  assert epsilon == pytest.approx(0.12452036704, rel=1e-10)
  backward = NEARLY_EQUAL[2:] + NEARLY_EQUAL[:2]
  assert_inverts(epsilon, 1e-5, backward, tolerance=1e-13)


def test_a_pair_costs_few_special_functions(monkeypatch):
  # They are what takes the time: some 20 ns each, so that a million pairs take a
  # second or two if there are a few dozen of them a pair.
  evaluated = []

  class Counted:
    def __getattr__(self, name):
      function = getattr(special, name)

      def counted(x):
        evaluated.append(np.size(x))
        return function(x)

      return counted

  monkeypatch.setattr(hockey_stick, 'special', Counted())
  rng = np.random.default_rng(0)
  num = 10_000
  gap, ratio = rng.uniform(0, 10, num), np.exp(rng.normal(0, 1, num))
  epsilon = two_gaussians.epsilon_two_gaussians(0, 1, gap, ratio, 1e-5)
  assert 10 < sum(evaluated) / num < 40
  for i in range(5):
    alone = two_gaussians.epsilon_two_gaussians(0, 1, gap[i], ratio[i], 1e-5)
    assert epsilon[i] == alone


def test_equal_gaussians_have_epsilon_zero():
  assert two_gaussians.epsilon_two_gaussians(3.0, 2.0, 3.0, 2.0, 1e-9) == 0.0
  # Total variation below δ is no leakage at that δ either.
  assert two_gaussians.epsilon_two_gaussians(0.0, 1.0, 1e-6, 1.0, 1e-5) == 0.0


@pytest.mark.parametrize('scale', [1e-100, -0.3, 1e100])
def test_epsilon_survives_swaps_and_affine_maps(scale):
  (_, std0, _, std1), delta = random_pairs(2, 40)
  gap = np.linspace(-3, 3, 40) * std0
  expected = two_gaussians.epsilon_two_gaussians(0, std0, gap, std1, delta)
  size = abs(scale)
  mapped = two_gaussians.epsilon_two_gaussians(
    scale * gap, size * std1, 0.0, size * std0, delta
  )
  np.testing.assert_allclose(mapped, expected, rtol=1e-11, atol=1e-12)


def test_epsilon_falls_with_delta_and_grows_with_the_gap():
  delta = 10.0 ** np.arange(-100, 0)
  assert np.all(
    np.diff(two_gaussians.epsilon_two_gaussians(0, 1, 1, 2, delta)) < 0
  )
  gap = np.linspace(0.1, 50, 200)
  assert np.all(
    np.diff(two_gaussians.epsilon_two_gaussians(0, 1, gap, 2, 1e-5)) > 0
  )


def test_equal_stds_agree_with_dp_accounting():
  for sigma, delta in itertools.product((0.3, 1.0, 4.22, 30.0), (1e-10, 1e-3)):
    independent = gaussian_mechanism.get_epsilon_gaussian(sigma, delta, 1e-12)
    ours = two_gaussians.epsilon_two_gaussians(0, sigma, 1, sigma, delta)
    assert ours == pytest.approx(independent, abs=1e-9)


@pytest.mark.parametrize(
  ('sigma', 'delta', 'epsilon'),
  [
    # The paper's settings, and what an exact accountant makes of them.
    (4.22, 1e-6, 1.00),
    (1.54, 1e-6, 3.00),
    (0.541, 1e-6, 10.00),
    (0.0496, 341_000**-1.1, 298.98),
    (0.0986, 341_000**-1.1, 99.23),
    (0.2317, 341_000**-1.1, 29.33),
  ],
)
def test_the_papers_noise_multipliers_have_their_analytic_epsilon(
  sigma, delta, epsilon
):
  ours = two_gaussians.epsilon_two_gaussians(0, sigma, 1, sigma, delta)
  assert ours == pytest.approx(epsilon, abs=0.01)


def test_no_finite_input_gives_nan_or_a_warning():
  means = (0.0, 1e-300, 1.0, -1e308, 1e308)
  stds = (5e-324, 1e-300, 1.0, 1 + 2**-52, 1e150, 1.7e308)
  deltas = (5e-324, 1e-100, 1e-5, 0.5, 1 - 2**-53)
  grid = np.array(list(itertools.product(means, stds, means, stds, deltas))).T
  with warnings.catch_warnings(), np.errstate(all='raise'):
    warnings.simplefilter('error')
    epsilon = two_gaussians.epsilon_two_gaussians(*grid)
    for value in (0.0, 1e-300, 1.0, 1e300, 1.7e308):
      log_delta = two_gaussians.log_delta_one_direction(value, *grid[:4])
      assert np.all(log_delta <= 0)
  assert np.all(epsilon >= 0)


def test_extremes_have_their_limits():
  epsilon = two_gaussians.epsilon_two_gaussians
  assert epsilon(0.0, 1.0, 1e200, 1.0, 1e-5) == np.inf
  assert epsilon(0.0, 1e-300, 0.0, 1e300, 1e-5) == np.inf
  # The difference of these means overflows, but not in units of the std.
  assert epsilon(-1e308, 1e308, 1e308, 1e308, 1e-5) == pytest.approx(
    epsilon(0.0, 1.0, 2.0, 1.0, 1e-5), rel=1e-14
  )
  assert epsilon(0.0, 1.0, 1e150, 1.0, 1e-5) == pytest.approx(5e299)


@pytest.mark.parametrize('log10_ratio', [50, 150, 600])
def test_a_point_against_a_wide_gaussian_has_its_closed_form(log10_ratio):
  # A constant density q: {L > ε} is |x| < h, e^ε q = φ(h), and
  # δ = P(|X| < h) - 2 h φ(h).
  delta = 1e-5
  half = optimize.brentq(
    lambda h: stats.chi2.cdf(h**2, 1) - 2 * h * stats.norm.pdf(h) - delta,
    1e-3,
    10,
    xtol=1e-14,
  )
  expected = log10_ratio * np.log(10) - half**2 / 2
  std = 10.0 ** (log10_ratio / 2)
  epsilon = one_direction(0.0, 1 / std, 0.0, std, delta)
  assert epsilon == pytest.approx(expected, rel=1e-12)


def test_log_delta_agrees_with_60_digits():
  pairs, _ = random_pairs(3, 100)
  epsilon = one_direction(*pairs, 1e-20) / 2
  log_delta = two_gaussians.log_delta_one_direction(epsilon, *pairs)
  for i in np.flatnonzero((epsilon > 1e-3) & (epsilon < 1e4)):
    with mpmath.workdps(60):
      expected = mpmath.log(slow_delta(epsilon[i], *(x[i] for x in pairs)))
    assert log_delta[i] == pytest.approx(float(expected), rel=1e-9, abs=1e-9)


def test_a_narrow_gaussian_has_a_largest_privacy_loss():
  # log p/q is at most log r where Q has the same mean and r times the std.
  log_delta = two_gaussians.log_delta_one_direction
  assert log_delta(np.log(2) + 1e-9, 0, 1, 0, 2) == -np.inf
  assert log_delta(np.log(2) - 1e-3, 0, 1, 0, 2) > -30
  assert log_delta(np.log(2) + 1e-9, 0, 2, 0, 1) > -3


def test_scalars_give_a_float_and_arrays_broadcast():
  assert isinstance(two_gaussians.epsilon_two_gaussians(0, 1, 1, 1, 0.1), float)
  gap = np.array([[0.5], [1.0]])
  delta = np.array([1e-9, 1e-5, 0.1])
  epsilon = two_gaussians.epsilon_two_gaussians(0, 1, gap, 2, delta)
  one = two_gaussians.epsilon_two_gaussians(0, 1, 1.0, 2, 1e-5)
  assert epsilon.shape == (2, 3)
  assert epsilon[1, 1] == one


def normal_scores(mean, std, num):
  """Scores whose sample is a Gaussian without randomness."""
  return mean + std * stats.norm.ppf((np.arange(num) + 0.5) / num)


def test_two_gaussian_is_epsilon_between_the_sample_moments():
  observed = normal_scores(0.02, 0.012, 500)
  unobserved = normal_scores(0.001, 0.009, 400)
  known = Scores(observed, unobserved, null=Sphere(10_000))
  estimate = two_gaussians.two_gaussian(known, delta=1e-5)
  assert estimate.epsilon == two_gaussians.epsilon_two_gaussians(
    0, 0.01, observed.mean(), observed.std(), 1e-5
  )
  assert estimate.method == 'two_gaussian_fitted'
  assert estimate.confidence is None
  null = two_gaussians.two_gaussian(known, delta=1e-5, std='null')
  assert null.method == 'two_gaussian_null'
  assert null.epsilon == two_gaussians.epsilon_two_gaussians(
    0, 0.01, observed.mean(), 0.01, 1e-5
  )
  unknown = Scores(observed, unobserved)
  assert two_gaussians.two_gaussian(unknown, delta=1e-5).epsilon == (
    two_gaussians.epsilon_two_gaussians(
      unobserved.mean(), unobserved.std(), observed.mean(), observed.std(), 1e-5
    )
  )


def test_scores_without_spread_are_refused_with_a_cure():
  constant = Scores(np.full(10, 0.1), np.empty(0), null=Sphere(100))
  with pytest.raises(ValueError, match="use std='null' or more canaries"):
    two_gaussians.two_gaussian(constant, delta=1e-5)
  one = Scores(np.array([0.1]), np.empty(0), null=Sphere(100))
  assert two_gaussians.two_gaussian(one, delta=1e-5, std='null').epsilon == (
    two_gaussians.epsilon_two_gaussians(0, 0.1, 0.1, 0.1, 1e-5)
  )
  with pytest.raises(ValueError, match='unobserved scores of an audit'):
    two_gaussians.two_gaussian(
      Scores(normal_scores(0, 1, 10), np.zeros(5)), delta=1e-5, std='null'
    )


# Algorithm 1 at d = 1e6, k = 1000, δ = 1e-6: cosines are N(1/(σ√d), 1/d). The
# means of the fitted reading are those of 4000 simulations. Each tolerance is
# five standard errors of 400: a failure has probability 6e-7.
@pytest.mark.parametrize(
  ('sigma', 'analytic', 'fitted', 'null_std', 'fitted_std'),
  [
    (4.22, 1.00, 1.37, 0.15, 0.33),
    (1.54, 3.00, 3.47, 0.17, 0.40),
    (0.541, 10.00, 10.66, 0.21, 0.60),
  ],
)
def test_only_the_null_reading_is_calibrated_for_algorithm_1(
  sigma, analytic, fitted, null_std, fitted_std
):
  rng = np.random.default_rng(0)
  cosines = rng.normal(1 / (sigma * 1e3), 1e-3, (400, 1000))
  scores = Scores(cosines, np.empty(0), null=Sphere(10**6))
  calibrated = two_gaussians.two_gaussian(
    scores, delta=1e-6, std='null'
  ).epsilon
  assert calibrated.mean() == pytest.approx(analytic, abs=5 * null_std / 20)
  assert calibrated.std() == pytest.approx(null_std, rel=0.25)
  biased = two_gaussians.two_gaussian(scores, delta=1e-6, std='fitted').epsilon
  assert biased.mean() == pytest.approx(fitted, abs=5 * fitted_std / 20)
  assert biased.mean() > analytic + 5 * fitted_std / 20


def test_the_wider_gaussian_is_told_from_the_narrower_more_easily():
  forward, backward = (
    float(one_direction(0, *stds, 1e-5)) for stds in ((1, 0, 3), (3, 0, 1))
  )
  assert forward < np.log(3) + 1e-9 < backward
