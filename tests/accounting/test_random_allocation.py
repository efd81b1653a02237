"""ε of a random round: against quadrature, another program, and simulation."""

import math
import tracemalloc

import dp_accounting
import numpy as np
import pytest
from scipy import special

from epe_jax import accounting
from epe_jax.accounting import random_allocation

_END = 9.5  # Beyond there is less than 1e-20 of a normal law.


def _normal_density(x):
  return np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)


def _price(mu, k, sign):
  """E (W - K)_+ for sign 1 and E (K - W)_+ for -1: Black and Scholes."""
  with np.errstate(divide='ignore', invalid='ignore'):
    d = (mu**2 / 2 - np.log(k)) / mu
  value = sign * (special.ndtr(sign * d) - k * special.ndtr(sign * (d - mu)))
  return np.where(k > 0, value, (1 - k) if sign > 0 else 0.0)


def _integrate(mu, k, sign, t):
  """E (sign (W_1 + ... + W_t - K))_+, for each K."""
  if t == 1:
    return _price(mu, k, sign)
  # W_t alone may be more than K: where it is as much there is a kink.
  with np.errstate(divide='ignore', invalid='ignore'):
    kink = np.where(k > 0, (np.log(k) + mu**2 / 2) / mu, -_END)
  kink = np.clip(kink, -_END, _END)
  nodes, weights = np.polynomial.legendre.leggauss(_NODES[t])
  total = np.zeros(np.shape(k))
  for low, high in ((-_END, kink), (kink, _END)):
    half = np.asarray((high - low) / 2)[..., None]
    x = np.asarray(low)[..., None] + half * (1 + nodes)
    rest = np.asarray(k)[..., None] - np.exp(mu * x - mu**2 / 2)
    inner = _integrate(mu, rest, sign, t - 1)
    total += np.sum(half * weights * _normal_density(x) * inner, axis=-1)
  return total


_NODES = {2: 120, 3: 80, 4: 48}


def _deltas(mu, t, epsilon):
  """Both directions of δ(ε): E (S - e^ε)_+ and E (1 - e^ε S)_+."""
  above = _integrate(mu, np.array(t * math.exp(epsilon)), 1, t) / t
  below = _integrate(mu, np.array(t * math.exp(-epsilon)), -1, t) / t
  return float(above), float(below) * math.exp(epsilon)


@pytest.mark.integration
@pytest.mark.parametrize(
  ('z', 't'),
  [(z, t) for z in (0.4, 1.0, 3.0) for t in (1, 2, 3)],
)
def test_both_directions_are_the_integrals(z, t):
  loss = random_allocation.compute_pld(z, rounds=t)
  for delta in (1e-2, 1e-5, 1e-8):
    epsilon = loss.get_epsilon_for_delta(delta)
    largest = max(_deltas(1 / z, t, epsilon))
    # An upper bound, and by less than one part in a thousand of ε too large.
    assert largest <= delta * (1 + 1e-6)
    assert max(_deltas(1 / z, t, 0.999 * epsilon)) > delta


# gaussian_allocation_epsilon_range of PLD_accounting 2.0, by the authors of
# arXiv 2602.17284: upper and lower bounds of z, t, δ.
_OTHER_PROGRAM = [
  (0.2, 100, 2.9e-3, 20.907689907923732, 20.888287310014718),
  (1.0, 100, 1e-5, 0.635651976706838, 0.6085096057915768),
  (0.2, 2048, 1e-6, 27.96147030220189, 27.9361195998281),
  (0.5, 500, 1e-5, 3.816920864761732, 3.7967700230830266),
]


@pytest.mark.parametrize(('z', 't', 'delta', 'upper', 'lower'), _OTHER_PROGRAM)
def test_many_rounds_are_between_the_bounds_of_another_program(
  z, t, delta, upper, lower
):
  found = accounting.epsilon_of_allocation(z, delta=delta, rounds=t)
  assert lower < found.epsilon < upper


@pytest.mark.parametrize(('z', 't'), [(0.7, 37), (2.0, 64)])
def test_delta_is_the_simulated_one(z, t):
  rng = np.random.default_rng(0)
  loss = random_allocation.compute_pld(z, rounds=t)
  x = rng.standard_normal((50_000, t))
  null = special.logsumexp(x / z - 1 / (2 * z**2), axis=1) - math.log(t)
  x[:, 0] += 1 / z
  took_part = special.logsumexp(x / z - 1 / (2 * z**2), axis=1) - math.log(t)
  for epsilon in (0.05, 0.1):
    each = [
      -np.expm1(np.minimum(epsilon - took_part, 0)),
      -np.expm1(np.minimum(epsilon + null, 0)),
    ]
    i = int(np.argmax([v.mean() for v in each]))
    error = each[i].std() / math.sqrt(len(x))
    # Five standard errors: less than once in a million.
    assert abs(loss.get_delta_for_epsilon(epsilon) - each[i].mean()) < 5 * error


@pytest.mark.integration
@pytest.mark.parametrize('z', [0.05, 0.3, 3.0])
def test_one_round_is_the_gaussian_mechanism_and_more_leak_less(z):
  delta = 1e-6
  epsilons = [
    accounting.epsilon_of_allocation(z, delta=delta, rounds=t).epsilon
    for t in (1, 2, 5, 30, 300)
  ]
  exact = dp_accounting.get_epsilon_gaussian(z, delta)
  assert epsilons[0] == pytest.approx(exact, rel=1e-4)
  assert epsilons == sorted(epsilons, reverse=True)


@pytest.mark.parametrize('periods', [2, 7])
def test_periods_of_one_round_are_as_many_rounds(periods):
  found = accounting.epsilon_of_allocation(
    1.0, delta=1e-5, rounds=1, periods=periods
  )
  exact = accounting.epsilon_of_releases(
    1.0, delta=1e-5, participations=periods
  )
  assert exact.epsilon <= found.epsilon < 1.001 * exact.epsilon
  assert found.assumes[0].values == {'rounds': 1, 'periods': periods}


def test_periods_are_composed_as_independent_ones():
  rng, z, t = np.random.default_rng(1), 1.0, 20
  loss = random_allocation.compute_pld(z, rounds=t, periods=3)
  x = rng.standard_normal((50_000, 3, t))
  x[:, :, 0] += 1 / z
  each = special.logsumexp(x / z - 1 / (2 * z**2), axis=2) - math.log(t)
  gain = -np.expm1(np.minimum(0.5 - each.sum(axis=1), 0))
  error = gain.std() / math.sqrt(len(gain))
  assert loss.get_delta_for_epsilon(0.5) > gain.mean() - 5 * error
  assert loss.get_delta_for_epsilon(0.5) < 1.02 * gain.mean() + 5 * error


@pytest.mark.parametrize('delta', [1e-5, 1e-12])
@pytest.mark.parametrize('periods', [1, 100])
def test_any_noise_has_an_upper_bound_that_falls_with_it(delta, periods):
  epsilons = [
    accounting.epsilon_of_allocation(
      noise, delta=delta, rounds=10, periods=periods
    ).epsilon
    for noise in (900.0, 1e3, 1001.0, 1e5, 1e9, 1e300)
  ]
  assert epsilons == sorted(epsilons, reverse=True)
  assert 0 <= epsilons[-1] < 1e-6


@pytest.mark.parametrize('noise', [1e3, 1e9])
def test_much_noise_takes_little_memory(noise):
  # What is imported late is of no interest, and slow while memory is traced.
  accounting.epsilon_of_allocation(900.0, delta=1e-5, rounds=10)
  tracemalloc.start()
  accounting.epsilon_of_allocation(noise, delta=1e-5, rounds=10)
  largest = tracemalloc.get_traced_memory()[1]
  tracemalloc.stop()
  assert largest < 5e7


def test_at_the_least_noise_one_round_is_one_release():
  pld = random_allocation.compute_pld(1 / 30, rounds=1)
  known = accounting.epsilon_of_releases(1 / 30, delta=1e-5, participations=1)
  found = pld.get_epsilon_for_delta(1e-5)
  assert known.epsilon <= found <= known.epsilon * (1 + 1e-4)


def test_the_least_noise_hides_the_round():
  least = random_allocation.SMALLEST_NOISE
  found = accounting.epsilon_of_allocation(least, delta=1e-5, rounds=50)
  known = accounting.epsilon_of_releases(least, delta=1e-5, participations=1)
  # At most log 50 of hundreds is hidden.
  assert 0.9 * known.epsilon < found.epsilon < known.epsilon


@pytest.mark.integration
def test_very_many_rounds_are_a_gaussian_release_by_the_central_limit():
  z, rounds = 3.0, 10_000
  # The variance of a mean of lognormal ratios.
  mu = math.sqrt(math.expm1(1 / z**2) / rounds)
  found = accounting.epsilon_of_allocation(z, delta=1e-5, rounds=rounds)
  exact = accounting.epsilon_of_releases(1 / mu, delta=1e-5, participations=1)
  assert found.epsilon == pytest.approx(exact.epsilon, rel=2e-3)


def test_without_noise_there_is_no_limit():
  found = accounting.epsilon_of_allocation(0.0, delta=1e-5, rounds=10)
  assert found.epsilon == math.inf


@pytest.mark.parametrize('noise', [0.001, 0.02, 0.033])
def test_with_next_to_no_noise_the_round_is_no_secret(noise):
  for rounds, periods in ((1, 1), (50, 2)):
    found = accounting.epsilon_of_allocation(
      noise, delta=1e-5, rounds=rounds, periods=periods
    )
    known = accounting.epsilon_of_releases(
      noise, delta=1e-5, participations=periods
    )
    assert found.epsilon == known.epsilon
    assert found.assumes[0].key == 'random_allocation'
