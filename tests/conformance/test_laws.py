"""p-values are right: 1 % of them are below 1 %, and no fewer faults are detected."""

import math

import numpy as np
import pytest
from scipy import fft, integrate, stats

from epe_jax.conformance import laws

_TIMES = 500


def assert_level(draw, *, exact=True):
  rng = np.random.default_rng(0)
  ps = np.array([draw(rng) for _ in range(_TIMES)])
  for level in (0.01, 0.1):
    low, high = stats.binom(_TIMES, level).interval(1 - 1e-5)
    assert np.sum(ps < level) <= high
    if exact:
      assert np.sum(ps < level) >= low


def test_mu_of_one_round_has_the_law_of_a_variance():
  def draw(rng):
    std = math.sqrt(np.mean(rng.normal(0, 2, 50) ** 2))
    return laws.p_of_mu(1 / std, 1 / 2, num=50)

  assert_level(draw)


def test_mu_of_several_rounds_has_the_law_of_a_wishart_matrix():
  factor = np.array([[1, 0, 0], [0.9, 1, 0], [-0.3, 0.5, 2]])
  m = np.array([1.0, 0.5, 0.2])
  true = float(np.linalg.norm(np.linalg.solve(factor, m)))

  def draw(rng):
    rows = rng.standard_normal((40, 3)) @ factor.T
    covariance = rows.T @ rows / len(rows)
    mu = math.sqrt(m @ np.linalg.solve(covariance, m))
    return laws.p_of_mu(mu, true, num=40, rounds=3)

  assert_level(draw)


@pytest.mark.parametrize('momentum', [0.0, 0.9])
def test_dependence_of_two_rounds_has_a_law_whatever_momentum_keeps(momentum):
  def draw(rng):
    first, second = rng.standard_normal((2, 12, 60)) * np.linspace(1, 3, 60)
    return laws.p_of_dependence_between(first, second + momentum * first)[0]

  assert_level(draw, exact=False)


def test_sizes_that_depend_have_a_law_whatever_their_law_is():
  def draw(rng):
    rows = rng.standard_t(3, (30, 300)) * np.linspace(1, 3, 300)
    return laws.p_of_dependent_sizes(laws.spread_sizes(rows))[0]

  assert_level(draw, exact=False)


def test_a_rotation_is_found_between_rounds():
  rng = np.random.default_rng(0)
  first = rng.standard_normal((40, 200))
  rotated = fft.dct(first, axis=1, norm='ortho')
  p, effective = laws.p_of_dependence_between(first, rotated + 0.5 * first)
  assert p < laws.ALPHA
  assert 150 < effective < 250


def test_the_divisor_of_values_is_found_and_none_where_there_is_none():
  rng = np.random.default_rng(0)
  steps = rng.integers(-9, 9, 50)
  assert laws.find_divisor(0.3 * steps) == pytest.approx(0.3)
  assert laws.find_divisor(rng.standard_normal(50)) == 0
  assert laws.find_divisor(np.zeros(5)) == math.inf


def test_mu_of_no_noise_is_no_chance():
  assert laws.p_of_mu(math.inf, 1.0, num=10) == 0
  assert laws.p_of_mu(0.0, 1.0, num=10) == 1


@pytest.mark.parametrize('ratio', [1.05, 0.8, 2.0])
def test_epsilon_of_spreads_is_that_of_the_two_densities(ratio):
  delta = 1e-3
  epsilon = laws.epsilon_of_spreads(ratio, 1, delta)
  x = np.linspace(-40, 40, 400_001)
  p, q = (stats.norm.pdf(x, scale=s) for s in (1.0, ratio))
  excess = max(
    integrate.trapezoid(np.maximum(a - math.exp(epsilon) * b, 0), x)
    for a, b in ((p, q), (q, p))
  )
  assert excess == pytest.approx(delta, rel=1e-3)


def test_many_coordinates_tell_a_spread_as_the_central_limit_says():
  # At δ = 1/2 an attacker errs on one side half of the time: ε is near the mean of
  # the log-likelihood ratio.
  dim, log = 3930, math.log(10 / 9)
  mean = dim * (math.expm1(2 * log) / 2 - log)
  assert laws.epsilon_of_spreads(10 / 9, dim, 0.5) == pytest.approx(
    mean, rel=0.03
  )
  assert laws.epsilon_of_spreads(1.0, dim, 1e-5) == 0


def test_cosines_have_the_law_of_random_directions():
  def draw(rng):
    x, y = rng.standard_normal((2, 30))
    cosine = abs(x @ y) / np.linalg.norm(x) / np.linalg.norm(y)
    return laws.p_of_cosine(cosine, dim=30, pairs=1)

  assert_level(draw)
  assert laws.p_of_cosine(1.0, dim=30, pairs=10**6) == 0


@pytest.mark.parametrize('step', [0, 0.5, 2])
@pytest.mark.parametrize('dim', [2, 8, 40])
def test_rows_repeat_by_chance_as_often_as_is_expected(step, dim):
  def draw(rng):
    rows = rng.standard_normal((50, dim))
    rows = step * np.rint(rows / step) if step else rows
    return laws.p_of_repeats(rows)[0]

  assert_level(draw, exact=False)


def test_equal_rows_are_detected_whatever_their_sign():
  rows = np.random.default_rng(4).standard_normal((50, 8))
  rows[7] = -rows[3]
  p, equal = laws.p_of_repeats(rows)
  assert p < 1e-5
  assert {tuple(pair) for pair in np.argwhere(equal)} == {(3, 7), (7, 3)}


def test_the_upper_bound_of_mu_fails_as_seldom_as_it_says():
  for num in (1, 20, 500):
    # Of μ = 1 one measures √(N/χ²), and the bound is below it from here on.
    measured = 1 / laws.upper_mu(1.0, num=num)
    chance = stats.chi2.sf(num / measured**2, num)
    assert chance == pytest.approx(laws.ALPHA, rel=1e-6)


@pytest.mark.parametrize(
  'law',
  [
    lambda rows: laws.p_of_sphericity(rows)[0],
    lambda rows: laws.p_of_lags(rows)[0],
    lambda rows: laws.p_of_smallest_variance(rows)[0],
    lambda rows: laws.p_of_law(rows.ravel())[0],
  ],
  ids=['sphericity', 'lags', 'smallest variance', 'Gaussian'],
)
def test_noise_as_it_should_be_is_seldom_suspected(law):
  assert_level(lambda rng: law(rng.standard_normal((20, 150))), exact=False)


def test_half_way_around_pairs_are_counted_once():
  # Of two coordinates there is one lag, so that its p-value is not a bound.
  assert_level(lambda rng: laws.p_of_lags(rng.standard_normal((300, 2)))[0])


def test_repeated_coordinates_are_detected():
  rng = np.random.default_rng(1)
  rows = rng.standard_normal((50, 400))
  rows[:, 300:] = rows[:, :100]
  p, effective = laws.p_of_sphericity(rows)
  assert p < 1e-9
  # 200 coordinates alone and 100 twice: 400² / (200 + 4 x 100).
  assert effective == pytest.approx(400**2 / 600, rel=0.1)
  p, lag, correlation = laws.p_of_lags(rows)
  assert (p < 1e-9, lag) == (True, 100)
  assert correlation == pytest.approx(0.25, rel=0.1)


def test_one_row_tells_no_effective_dimension():
  assert laws.p_of_sphericity(np.ones((1, 40))) == (1.0, 40.0)


def test_a_coordinate_without_noise_is_detected():
  rows = np.random.default_rng(2).standard_normal((50, 400))
  rows[:, 7] = 0
  assert laws.p_of_smallest_variance(rows) == (0.0, 7, 0.0)


@pytest.mark.parametrize('law', ['skellam', 'discrete_gaussian'])
def test_discrete_noise_is_told_apart_by_its_law(law):
  points = np.arange(-30, 31)
  weights = {
    'skellam': stats.skellam.pmf(points, 0.5, 0.5),
    'discrete_gaussian': np.exp(-(points**2) / 2),
  }

  def draw(rng, drawn=law):
    p = weights[drawn] / weights[drawn].sum()
    values = rng.choice(points, 4000, p=p) / math.sqrt(p @ points**2)
    return laws.p_of_law(values, law, 1.0)[0]

  assert_level(draw, exact=False)
  (other,) = {*weights} - {law}
  assert draw(np.random.default_rng(1), other) < 1e-3


@pytest.mark.parametrize(
  ('values', 'what'),
  [
    (lambda rng: rng.uniform(-(3**0.5), 3**0.5, 50_000), 'none of'),
    (lambda rng: np.clip(rng.standard_normal(50_000), -3, 3), 'none of'),
    (lambda rng: rng.standard_t(4, 50_000) / 2**0.5, 'one of'),
  ],
  ids=['uniform', 'cut off', 'heavy tails'],
)
def test_noise_of_another_law_is_detected(values, what):
  p, why = laws.p_of_law(values(np.random.default_rng(3)))
  assert p < 1e-9
  assert what in why


@pytest.mark.parametrize(
  ('kind', 'is_made'),
  [
    ('uniform', True),
    ('float32 uniform', True),
    ('rounded', False),
    ('grid', False),
    ('finer grid', False),
    ('rounded grid', False),
    ('some on a grid', False),
  ],
)
def test_numbers_that_are_made_of_uniform_float32_ones_are_known(kind, is_made):
  rng = np.random.default_rng(0)
  shape = (100, 6000) if 'float32' in kind or 'grid' in kind else (40, 3000)
  noise = rng.standard_normal(shape)
  steps = {'finer grid': 1.2e-7, 'rounded grid': 1.2e-7, 'grid': 2e-7}
  if 'uniform' in kind:
    noise = stats.norm.ppf(rng.integers(1, 2**23, shape) / 2**23)
  if kind in steps:
    noise = steps[kind] * np.rint(noise / steps[kind])
  if kind == 'some on a grid':
    noise[:, :300] = 1e-4 * np.rint(noise[:, :300] / 1e-4)
  noise = 0.3 * noise / 7
  if 'rounded' in kind or 'float32' in kind:
    noise = noise.astype(np.float32).astype(float)
  values = laws.count_values(noise)
  assert values.num is not None
  assert (values.p_value < laws.ALPHA) == is_made


def test_numbers_on_a_fine_grid_are_equal_by_chance():
  rng = np.random.default_rng(0)
  noise = rng.standard_normal((600, 16, 1))
  on_grid = np.rint(170 * noise) / 170
  assert laws.p_of_equal_sizes(on_grid)[0] > 0.01
  again = np.concatenate([noise, -noise], axis=1)
  p, first, second = laws.p_of_equal_sizes(again)
  assert p < laws.ALPHA
  assert second == first + 16


def test_noise_next_to_a_large_model_has_its_own_values():
  rng = np.random.default_rng(0)
  model = np.linspace(-2, 3, 930)
  released = model + 3.6e-8 * rng.standard_normal((100, 930))
  assert laws.count_values(released).p_value < laws.ALPHA, 'of few digits'
  assert laws.count_values(released, model).p_value > 0.01
