"""ε of noise on a grid, against sums over all outcomes and another program."""

import itertools
import math

from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.rdp import rdp_privacy_accountant
import numpy as np
import pytest
from scipy import special

from epe_jax import accounting, epsilon
from epe_jax.accounting import discrete_noise

DELTA = 1e-5
SIZE = 60
X = np.arange(-SIZE, SIZE + 1)


def discrete_gaussian(std, clients=1):
  share = np.exp(-(X**2) * clients / (2 * std**2))
  share /= share.sum()
  law = share
  for _ in range(clients - 1):
    law = np.convolve(law, share, mode='same')
  return law


def skellam(std):
  return special.ive(np.abs(X), std**2)


# By its name: the law in one coordinate, what computes ε, and its further arguments.
LAWS = {
  'discrete Gaussian': (
    discrete_gaussian,
    accounting.epsilon_of_discrete_gaussian,
    {},
  ),
  'of three clients': (
    lambda std: discrete_gaussian(std, 3),
    accounting.epsilon_of_discrete_gaussian,
    {'clients': 3},
  ),
  'Skellam': (skellam, accounting.epsilon_of_skellam, {}),
}
every_law = pytest.mark.parametrize('law', LAWS.values(), ids=LAWS)


def compute_delta(p, shift, epsilon_):
  """The larger δ of both directions, over all outcomes of a few coordinates."""
  laws = [np.roll(p, k) for k in shift]
  q, p = (math.prod(np.ix_(*one)) for one in (laws, [p] * len(shift)))
  factor = math.exp(epsilon_)
  return max(
    np.sum(np.maximum(p - factor * q, 0)), np.sum(np.maximum(q - factor * p, 0))
  )


@every_law
@pytest.mark.parametrize('std', [0.9, 1.5, 4.0])
@pytest.mark.parametrize('shift', [1, 3])
def test_one_coordinate_is_the_sum_over_all_integers(law, std, shift):
  make, account, more = law
  step = 0.125
  found = account(
    std * step, delta=DELTA, l2=shift * step, granularity=step, **more
  )
  delta = compute_delta(make(std), [shift], found.epsilon)
  assert delta == pytest.approx(DELTA, rel=1e-6)


@every_law
@pytest.mark.parametrize('std', [0.9, 2.0])
def test_no_direction_of_several_coordinates_exceeds_the_bound(law, std):
  make, account, more = law
  p = make(std)[SIZE - 25 : SIZE + 26]
  found = account(std, delta=DELTA, l2=2.0, dim=3, **more)
  directions = [
    v
    for v in itertools.combinations_with_replacement(range(3), 3)
    if 0 < np.dot(v, v) <= 4
  ]
  deltas = [compute_delta(p, v, found.epsilon) for v in directions]
  assert max(deltas) <= DELTA
  # It is a bound, but not a far one; that of Skellam noise is, if there is little.
  low = found.epsilon * (0.6 if make is not skellam else 0.25 * std)
  assert max(compute_delta(p, v, low) for v in directions) > DELTA


@every_law
def test_two_rounds_are_two_coordinates_of_one_shift_each(law):
  make, account, more = law
  found = account(1.5, delta=DELTA, l2=1.0, rounds=2, **more)
  delta = compute_delta(make(1.5), [1, 1], found.epsilon)
  assert DELTA * 0.99 < delta <= DELTA


@pytest.mark.parametrize('rounds', [1, 2, 50])
@pytest.mark.parametrize(('std', 'shift'), [(0.7, 1), (10.0, 1), (10.0, 7)])
def test_rounds_are_composed_as_by_another_program(std, shift, rounds):
  loss = privacy_loss_distribution.from_discrete_gaussian_mechanism(std, shift)
  expected = loss.self_compose(rounds).get_epsilon_for_delta(DELTA)
  found = accounting.epsilon_of_discrete_gaussian(
    std, delta=DELTA, l2=float(shift), rounds=rounds
  )
  assert found.epsilon == pytest.approx(expected, rel=2e-3)


@every_law
@pytest.mark.parametrize(('dim', 'gap'), [(1, 1e-3), (100, 0.11)])
@pytest.mark.parametrize('z', [0.5, 1.0, 10.0])
@pytest.mark.parametrize('rounds', [1, 4])
def test_a_fine_grid_has_the_epsilon_of_gaussian_noise(
  law, dim, gap, z, rounds
):
  _, account, more = law
  found = account(
    z, delta=DELTA, l2=1.0, dim=dim, granularity=1e-3, rounds=rounds, **more
  )
  exact = epsilon.epsilon_gdp(math.sqrt(rounds) / z, DELTA)
  # Rényi divergences of several coordinates lose some of it.
  assert exact * (1 - 2e-3) < found.epsilon < exact * (1 + gap)


def test_clients_of_little_noise_leak_more_and_too_little_is_refused():
  def account(clients, dim=1000):
    return accounting.epsilon_of_discrete_gaussian(
      8.0, delta=DELTA, l2=8.0, dim=dim, clients=clients
    ).epsilon

  assert account(1) == pytest.approx(account(16), rel=1e-9)
  assert account(1) < account(100) < account(200)
  with pytest.raises(
    ValueError, match=r'0\.49\d* steps for each of clients=261'
  ):
    account(261)


def compute_tau(variance, clients):
  """τ of Kairouz, Liu & Steinke (2021), Theorem 1."""
  k = np.arange(1, clients)
  return 10 * np.sum(np.exp(-2 * math.pi**2 * variance / clients * k / (k + 1)))


@pytest.mark.parametrize('clients', [91, 150])
@pytest.mark.parametrize('l1', [8.0, 64.0])
def test_noise_of_clients_has_the_divergences_of_its_theorem(clients, l1):
  tau, dim, shift = compute_tau(64.0, clients), 1000, 1.0
  orders = 1 + np.geomspace(1e-2, 1e4, 20_000)
  of_l1 = shift**2 + 2 * l1 / 8 * tau + tau**2 * dim
  by_theorem = np.minimum(orders / 2 * shift**2 + tau * dim, orders / 2 * of_l1)
  by_other, _ = rdp_privacy_accountant.compute_epsilon(
    orders, by_theorem, DELTA
  )
  found = accounting.epsilon_of_discrete_gaussian(
    8.0, delta=DELTA, l2=8.0, l1=l1, dim=dim, clients=clients
  )
  assert found.epsilon == pytest.approx(by_other, rel=1e-5)


def test_noise_of_very_many_clients_is_that_of_one_but_for_a_margin():
  clients = 10**6
  tau = compute_tau(1e6, clients)
  assert 0.01 < tau < 0.1

  def account(delta, clients=1):
    return accounting.epsilon_of_discrete_gaussian(
      1000.0, delta=delta, l2=1000.0, clients=clients
    ).epsilon

  expected = account(DELTA * math.exp(-tau)) + 2 * tau
  assert account(DELTA, clients) == pytest.approx(expected, rel=1e-9)


def test_shares_of_less_than_a_step_are_summed_exactly_on_a_coarse_grid():
  def account(clients):
    return accounting.epsilon_of_discrete_gaussian(
      30.0, delta=DELTA, l2=30.0, clients=clients
    ).epsilon

  # The margin of what is not summed would be 1 %.
  assert compute_tau(900.0, 1260) > 0.01
  assert account(1260) == pytest.approx(account(1), rel=1e-3)


def test_a_smaller_l1_norm_leaks_less():
  def account(l1):
    return accounting.epsilon_of_skellam(
      1.0, delta=DELTA, l2=1.5, l1=l1, dim=1000, granularity=0.1
    ).epsilon

  # The square of an integer is no less than it.
  assert account(2.0) < account(None) <= account(1000.0)
  assert account(None) == pytest.approx(account(22.5), rel=1e-12)


@every_law
def test_without_noise_there_is_no_privacy_and_much_noise_needs_no_epsilon(law):
  _, account, more = law
  for dim, rounds in itertools.product((1, 5), (1, 3)):
    sizes = {'l2': 1.0, 'dim': dim, 'rounds': rounds} | more
    assert account(0.0, delta=DELTA, **sizes).epsilon == math.inf
    found = [
      account(std, delta=DELTA, **sizes).epsilon
      for std in (0.9, 2.0, 10.0, 1e4, 1e7)
    ]
    assert found == sorted(found, reverse=True)
    assert found[-1] < 1e-5
    # Of a δ that no sum of float64 numbers near 1 has.
    assert found[0] < account(0.9, delta=1e-60, **sizes).epsilon < 200


def test_bessel_functions_go_on_where_float64_ends():
  x = np.arange(150.0)
  for v in (1e-3, 3.0, 50.0):
    exact = discrete_noise._log_bessel(x, v)
    with np.errstate(divide='ignore'):
      usual = np.log(special.ive(x, v))
    is_usual = special.ive(x, v) > 1e-290
    np.testing.assert_allclose(exact[is_usual], usual[is_usual], rtol=1e-12)
    # The recurrence I_{k-1} - I_{k+1} = (2k / v) I_k, of all three in logarithms.
    a, b, c = exact[:-2], exact[1:-1], exact[2:]
    right = np.log(2 * x[1:-1] / v) + b
    np.testing.assert_allclose(a + np.log1p(-np.exp(c - a)), right, atol=1e-4)
