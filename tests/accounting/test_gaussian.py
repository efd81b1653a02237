"""Analytic ε: closed forms, and bounds from both sides."""

import math

import numpy as np
import pytest
from scipy import optimize, special, stats

from epe_jax import accounting
from epe_jax.experiment.setup import analytic, build
from epe_jax.fact import Fact
from tests.helpers import load_config


def _of_sensitivity(sensitivity, z, delta):
  """ε of the Gaussian mechanism: Balle and Wang 2018, theorem 8."""
  a = sensitivity / z

  def excess(epsilon):
    log_delta = special.log_ndtr(a / 2 - epsilon / a)
    log_other = epsilon + special.log_ndtr(-a / 2 - epsilon / a)
    return log_delta + np.log1p(-np.exp(log_other - log_delta)) - np.log(delta)

  return optimize.brentq(excess, 0, 1e4, xtol=1e-12)


@pytest.mark.parametrize('z', [0.3, 1.0, 4.22])
@pytest.mark.parametrize('n', [1, 2, 3, 16])
def test_n_rounds_have_sensitivity_root_n(z, n):
  found = accounting.epsilon_of_releases(z, delta=1e-6, participations=n)
  exact = _of_sensitivity(math.sqrt(n), z, 1e-6)
  assert found.epsilon == pytest.approx(exact, rel=1e-6)
  assert Fact('participations', {'rounds': n}) in found.assumes


def analyze(**canaries):
  """The privacy of a run on digits with canaries, and who is planned to join."""
  config = load_config('digits', rounds=6, noise_multiplier=1.0)
  config.audit.delta = 1e-4
  config.participation.kind = canaries.pop('kind', config.participation.kind)
  config.canaries.update(family='hadamard', unobserved=4, **canaries)
  setup = build.build(config)
  planned = setup.participants.canaries.sum(axis=0)
  return analytic.analyze_privacy(config, setup), planned


@pytest.mark.usefixtures('small_task')
def test_the_analytic_epsilon_of_a_run_is_of_all_repetitions():
  n = 3
  privacy, _ = analyze(observed=6, repetitions=n)
  # Five rounds are an epoch of 200 clients, 40 a round, and a sixth is more.
  for found, times in ((privacy.canaries, n), (privacy.clients, 2)):
    exact = _of_sensitivity(math.sqrt(times), 1.0, 1e-4)
    assert found.epsilon == pytest.approx(exact, rel=1e-6)
    assert Fact('participations', {'rounds': times}) in found.assumes


@pytest.mark.usefixtures('small_task')
def test_the_analytic_epsilon_is_of_the_canary_that_takes_part_most():
  privacy, planned = analyze(
    observed=5, schedule='as_clients', kind='fixed_size'
  )
  assert len({*planned[:5]}) > 1
  exact = _of_sensitivity(math.sqrt(planned.max()), 1.0, 1e-4)
  assert privacy.canaries.epsilon == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize('z', [0.0496, 0.5, 4.22])
def test_n_rounds_are_one_with_less_noise(z):
  n = accounting.epsilon_of_releases(z, delta=1e-6, participations=9).epsilon
  one = accounting.epsilon_of_releases(z / 3, delta=1e-6).epsilon
  assert n == pytest.approx(one, rel=1e-12)


@pytest.mark.parametrize('z', [0.0496, 0.2, 1.0])
@pytest.mark.parametrize('rounds', [1, 4])
def test_certain_participation_is_composition(z, rounds):
  exact = accounting.epsilon_of_releases(
    z, delta=1e-6, participations=rounds
  ).epsilon
  found = accounting.epsilon_of_poisson(
    z, delta=1e-6, probability=1.0, rounds=rounds
  )
  assert exact <= found.epsilon * (1 + 1e-9)
  assert found.epsilon == pytest.approx(exact, rel=1e-3)


def _one_round(z, q, delta):
  """ε of one sampled release, by quadrature in both directions."""
  x = np.linspace(-10 * z, 1 + 10 * z, 400_001)
  null = stats.norm(0, z).pdf(x)
  mixed = (1 - q) * null + q * stats.norm(1, z).pdf(x)

  def excess(epsilon):
    scale = math.exp(epsilon)
    one, other = mixed - scale * null, null - scale * mixed
    sticks = [np.trapezoid(np.maximum(y, 0), x) for y in (one, other)]
    return max(sticks) - delta

  return optimize.brentq(excess, 1e-6, 50)


@pytest.mark.parametrize(('z', 'q'), [(1.0, 0.1), (0.5, 0.3)])
def test_one_sampled_round_is_what_quadrature_says(z, q):
  exact = _one_round(z, q, 1e-3)
  found = accounting.epsilon_of_poisson(
    z, delta=1e-3, probability=q, rounds=1
  ).epsilon
  assert exact <= found * (1 + 1e-6)
  assert found == pytest.approx(exact, rel=5e-3)


@pytest.mark.parametrize('delta', [1e-12, 1.13e-18, 1e-30])
def test_a_tiny_delta_has_an_epsilon_of_at_most_that_of_renyi_divergences(
  delta,
):
  found = accounting.epsilon_of_poisson(
    4.0, delta=delta, probability=1 / 3000, rounds=10_000
  )
  # Of one order: 2 a q² / z² a round (Mironov, Talwar and Zhang 2019, theorem 11).
  order = 30
  bound = 10_000 * 2 * order / 3000**2 / 16 - math.log(delta) / (order - 1)
  assert 0 < found.epsilon <= bound


@pytest.mark.parametrize('delta', [1e-15, 1e-18, 1e-300])
def test_no_delta_makes_epsilon_infinite_and_noise_is_what_does(delta):
  given = {'delta': delta, 'rounds': 3}
  for z in (0.05, 1.0, 30.0):
    certain = accounting.epsilon_of_releases(z, delta=delta, participations=3)
    for q in (0.5, 1.0):
      found = accounting.epsilon_of_poisson(z, probability=q, **given)
      assert found.epsilon <= certain.epsilon < math.inf
    found = accounting.epsilon_of_allocation(z, **given)
    one = accounting.epsilon_of_releases(z, delta=delta)
    assert found.epsilon <= one.epsilon


def _draw_best(cdf, law, m):
  """The distribution function of the best of a random number of runs."""
  if law == 'geometric':
    return cdf / m / (1 - (1 - 1 / m) * cdf)
  if law == 'poisson':
    return np.exp(m * (cdf - 1))
  gamma = optimize.brentq(
    lambda g: (1 - g) / g / math.log(1 / g) - m, 1e-9, 0.99
  )
  return np.log1p(-(1 - gamma) * cdf) / math.log(gamma)


@pytest.mark.parametrize(
  'law', ['geometric', 'poisson', 'logarithmic', 'fixed']
)
@pytest.mark.parametrize('m', [3, 20])
def test_the_best_of_runs_leaks_no_more_than_its_epsilon(law, m):
  """Of one release each, of which the largest is the best."""
  z, delta = 1.5, 1e-4
  found = accounting.epsilon_of_best(
    z, delta=delta, probability=1.0, rounds=1, runs=m, law=law
  ).epsilon
  x = np.linspace(-14, 16, 60_001)
  laws = []
  for shift in (0.0, 1.0):
    cdf = stats.norm(shift, z).cdf(x)
    best = cdf**m if law == 'fixed' else _draw_best(cdf, law, m)
    laws.append(np.diff(best))
  # Of no run at all, which says nothing.
  for p, q in (laws, laws[::-1]):
    assert np.sum(np.maximum(p - math.exp(found) * q, 0)) <= delta
  one = accounting.epsilon_of_releases(z, delta=delta).epsilon
  all_ = accounting.epsilon_of_releases(
    z, delta=delta, participations=m
  ).epsilon
  assert one < found
  assert (
    found == pytest.approx(all_) if law == 'fixed' else m < 20 or found < all_
  )


def test_theorem_2_of_papernot_and_steinke_is_what_bounds_the_best():
  z, m, delta, order, other = 2.0, 7.0, 1e-6, 12, 6
  renyi = lambda a: a / (2 * z**2)
  gamma = 1 / m
  bound = (
    renyi(order)
    + 2 * (1 - 1 / other) * renyi(other)
    + 2 * math.log(1 / gamma) / other
    + math.log(m) / (order - 1)
    - math.log(delta) / (order - 1)
  )
  found = accounting.epsilon_of_best(
    z, delta=delta, probability=1.0, rounds=1, runs=m, law='geometric'
  )
  assert 0.8 * bound < found.epsilon <= bound


@pytest.mark.usefixtures('types_unchecked')
def test_one_run_is_the_best_of_one():
  given = {'delta': 1e-5, 'probability': 0.1, 'rounds': 5}
  one = accounting.epsilon_of_poisson(1.0, **given).epsilon
  for law in ('fixed', 'geometric'):
    found = accounting.epsilon_of_best(1.0, runs=1, law=law, **given)
    assert found.epsilon == one
  # With Poisson's law one is the mean, and the number is seen.
  found = accounting.epsilon_of_best(1.0, runs=1, law='poisson', **given)
  assert found.epsilon > one
  for changes, message in (
    ({'runs': 0.5, 'law': 'poisson'}, r'runs=0\.5'),
    ({'runs': 2.5, 'law': 'fixed'}, r'runs=2\.5'),
    ({'runs': 2, 'law': 'uniform'}, "law='uniform'"),
  ):
    with pytest.raises(ValueError, match=message):
      accounting.epsilon_of_best(1.0, **given, **changes)


def test_sampling_helps_and_noise_helps():
  at = lambda z, q: (
    accounting.epsilon_of_poisson(
      z, delta=1e-5, probability=q, rounds=50
    ).epsilon
  )
  assert at(0.5, 0.02) < at(0.5, 0.1) < at(0.5, 1.0)
  assert at(1.0, 0.1) < at(0.5, 0.1)


def test_without_noise_there_is_no_privacy():
  for found in (
    accounting.epsilon_of_releases(0.0, delta=1e-5),
    accounting.epsilon_of_poisson(0.0, delta=1e-5, probability=0.1, rounds=3),
    accounting.epsilon_of_best(
      0.0, delta=1e-5, probability=0.1, rounds=3, runs=2, law='geometric'
    ),
  ):
    assert found.epsilon == math.inf


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'rounds': 10**9}, 'rounds=1000000000 with .*: the loss takes some 2e'),
    (
      {'rounds': 10**6, 'noise_multiplier': 0.01},
      'rounds=1000000 with noise_multiplier=0.01',
    ),
  ],
)
def test_rounds_whose_loss_is_too_long_are_refused(changes, message):
  good = {'noise_multiplier': 1.0, 'delta': 1e-5, 'probability': 0.1}
  with pytest.raises(ValueError, match=message):
    accounting.epsilon_of_poisson(**good | changes)
