"""How far one trade-off curve is from another, in rates of errors."""

import numpy as np
import pytest
from scipy import optimize, special

from epe_jax.epsilon import regret, tradeoff_curves


def gaussian(mu):
  return lambda log_fpr: special.ndtr(-special.ndtri_exp(log_fpr) - mu)


def test_a_curve_has_no_regret_of_itself_and_regret_is_symmetric():
  assert regret.compute_regret(gaussian(1.0), gaussian(1.0)) == 0.0
  there = regret.compute_regret(gaussian(1.0), gaussian(2.0))
  assert there == regret.compute_regret(gaussian(2.0), gaussian(1.0)) > 0


@pytest.mark.parametrize(
  ('weak', 'strong'), [(0.0, 1.0), (0.5, 2.0), (2.0, 5.0)]
)
def test_of_symmetric_curves_it_is_where_the_diagonal_crosses(weak, strong):
  # Gaussian curves are moved along the diagonal by most where both rates are equal.
  found = regret.compute_regret(gaussian(weak), gaussian(strong))
  middle = special.ndtr(-strong / 2)
  # There the stronger curve has both rates equal; giving κ of each takes the weaker
  # one to it.
  by_diagonal = special.ndtr(-weak / 2) - middle
  assert found == pytest.approx(by_diagonal, abs=2e-4)


def test_a_guarantee_at_one_delta_is_above_no_curve_that_keeps_it():
  mu, delta = 1.5, 1e-3
  epsilon = float(tradeoff_curves.epsilon_gdp(mu, delta))
  lines = tradeoff_curves.Lines(np.array([epsilon]), np.array([delta]))
  found = regret.compute_regret(gaussian(mu), lines.fnr)

  def gap(kappa):
    rates = np.linspace(0, 1 - kappa, 100_001)[1:]
    moved = gaussian(mu)(np.log(rates + kappa)) - kappa
    return float(np.max(moved - lines.fnr(np.log(rates))))

  # The other direction needs nothing, as the lines are below.
  assert found == pytest.approx(optimize.brentq(gap, 1e-4, 0.4), abs=1e-3)
