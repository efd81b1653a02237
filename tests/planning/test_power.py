"""Power against simulated audits with the bounds themselves."""

import functools

import numpy as np
import pytest
from scipy import integrate, special, stats

from epe_jax.epsilon import (
  gaussian_bound,
  lower_bounds,
  one_run_bounds,
  tradeoff,
)
from epe_jax.epsilon.types import Scores, Sphere
from epe_jax.planning import power

DELTA = 1e-5
DIM = 10**8  # So large that a cosine is Gaussian.
BOUNDS = {
  'lower_bound': lower_bounds.lower_bound,
  'gdp': lower_bounds.gdp_bound,
  'gaussian': functools.partial(
    gaussian_bound.gaussian_lower_bound, std='common'
  ),
  'one_run': one_run_bounds.one_run,
  'one_run_gdp': one_run_bounds.one_run_gdp,
}


def agrees(result, bounds, certified):
  # A bound of exactly ε₀ is solved for to seven digits. A failure has
  # probability 1e-5 in each case.
  exceeds = int(np.sum(np.asarray(bounds) >= certified))
  low, high = stats.binom.interval(
    1 - 1e-5, len(bounds), result.probability
  ) + np.array([-1, 1]) * 5 * result.error * len(bounds)
  return low <= exceeds <= high


def assert_powers_are_shares(bounds, notable, bound, num, num_null):
  """The power to certify an ε₀ is the share of bounds from there on.

  A power that is off by `notable` would be found out. Returns the errors.
  """
  errors = []
  for quantile in (0.25, 0.6):
    # Not a value that a bound takes, of which there are few.
    certified = float(np.quantile(bounds, quantile)) + 1e-3
    result = power.compute_power(
      bound,
      certified=certified,
      truth=4.0,
      delta=DELTA,
      num_observed=num,
      num_unobserved=num_null,
    )
    assert agrees(result, bounds, certified)
    wrong = power.Power(result.probability - notable, result.error)
    assert not agrees(wrong, bounds, certified)
    errors.append(result.error)
  return errors


@pytest.mark.parametrize('bound', ['lower_bound', 'gdp', 'gaussian'])
@pytest.mark.parametrize('known_law', [True, False])
def test_power_is_how_often_simulated_bounds_certify(bound, known_law):
  rng, num, num_null, audits = np.random.default_rng(0), 60, 90, 600
  mu = tradeoff.mu_of_epsilon(4.0, DELTA)
  observed = rng.normal(mu, 1, (audits, num))
  unobserved = rng.normal(0, 1, (audits, num_null))
  scores = Scores(observed, unobserved)
  if known_law:
    scores = Scores(observed / np.sqrt(DIM), np.empty(0), Sphere(DIM))
  bounds = BOUNDS[bound](scores, delta=DELTA).epsilon
  unobserved = None if known_law else num_null
  errors = assert_powers_are_shares(bounds, 0.15, bound, num, unobserved)
  exact = known_law or bound == 'gaussian'
  assert all((error == 0) == exact for error in errors)


@pytest.mark.parametrize('bound', ['one_run', 'one_run_gdp'])
def test_power_of_one_run_is_how_often_simulated_bounds_certify(bound):
  rng, num, audits = np.random.default_rng(1), 300, 80
  mu = tradeoff.mu_of_epsilon(4.0, DELTA)
  bounds = []
  for _ in range(audits):
    inside = rng.random(num) < 0.5
    values = rng.standard_normal(num) + mu * inside
    scores = Scores(values[inside], values[~inside], design='coin_flip')
    bounds.append(BOUNDS[bound](scores, delta=DELTA).epsilon)
  assert_powers_are_shares(bounds, 0.35, bound, 100, num - 100)


def test_power_where_nothing_is_true_is_the_level():
  for bound in ('lower_bound', 'gdp', 'gaussian'):
    result = power.compute_power(
      bound,
      certified=0.0,
      truth=0.0,
      delta=DELTA,
      num_observed=100,
      num_unobserved=100,
    )
    assert abs(result.probability - 0.05) < 0.01


def test_the_known_law_of_means_is_a_normal_integral():
  mu, least = (tradeoff.mu_of_epsilon(e, DELTA) for e in (3.0, 1.0))
  settings = dict(certified=1.0, truth=3.0, delta=DELTA, num_observed=12)
  exact = power.compute_power('gaussian', **settings, num_unobserved=None)
  z = stats.norm.isf(0.05)
  expected = stats.norm.sf(z + (least - mu) * np.sqrt(12))
  assert exact.probability == pytest.approx(expected, rel=1e-9)
  # With a spread of its own: P(T > t) over the law of the pooled variance.
  df, unit = 12 + 9 - 2, np.sqrt(1 / 12 + 1 / 9)

  def exceeds(t, ncp):
    return integrate.quad(
      lambda w: stats.chi2.pdf(w, df) * special.ndtr(ncp - t * np.sqrt(w / df)),
      0,
      100,
    )[0]

  both = power.compute_power('gaussian', **settings, num_unobserved=9)
  critical = stats.nct.isf(0.05, df, least / unit)
  assert exceeds(critical, least / unit) == pytest.approx(0.05, rel=1e-6)
  assert both.probability == pytest.approx(exceeds(critical, mu / unit))


@pytest.mark.slow
def test_the_number_needed_has_the_power_and_fewer_do_not():
  settings = dict(certified=1.0, truth=4.0, delta=DELTA)
  for bound, known_law in (
    ('gdp', False),
    ('gdp', True),
    ('one_run_gdp', False),
  ):
    num = power.min_canaries(bound, **settings, known_law=known_law)

    def reached(k, bound=bound, known_law=known_law):
      unobserved = None if known_law else k
      return power.compute_power(
        bound, **settings, num_observed=k, num_unobserved=unobserved
      ).probability

    assert reached(num) >= 0.8
    assert reached(int(num * 0.8)) < 0.8
  more = power.min_canaries('gaussian', **settings, probability=0.99)
  assert more > power.min_canaries('gaussian', **settings)


def test_some_bounds_never_get_there():
  # (ε, δ)-DP alone: 2 m δ of the p-value grows with the canaries.
  settings = dict(certified=3.0, truth=4.0, delta=0.01)
  assert power.min_canaries('one_run', **settings) is None
  assert power.min_canaries('gaussian', **settings) < 10_000


def test_settings_that_contradict_each_other_are_refused():
  settings = dict(certified=1.0, truth=2.0, delta=DELTA)
  with pytest.raises(ValueError, match='give num_unobserved'):
    power.compute_power(
      'one_run', **settings, num_observed=10, num_unobserved=None
    )
  with pytest.raises(ValueError, match=r'certified=4\.0 is not below truth=3'):
    power.min_canaries('gdp', certified=4.0, truth=3.0, delta=DELTA)
