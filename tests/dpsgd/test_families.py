"""Subsampled curves and curves of a PLD against dp_accounting and closed forms."""

import numpy as np
import pytest

from epe_jax.dpsgd import families
from epe_jax.epsilon import tradeoff
from tests.epsilon.plds import from_dp_accounting

DELTA = 1e-5
LOG_FPR = np.log([1e-6, 1e-3, 0.01, 0.1, 0.3, 0.5, 0.8, 0.99])


@pytest.mark.parametrize(('noise', 'p'), [(1.0, 1.0), (0.5, 0.1), (1.0, 0.01)])
def test_the_subsampled_curve_and_epsilon_are_those_of_dp_accounting(noise, p):
  exact = families.subsampled_gaussian_family(p)
  numeric = families.pld_family(lambda z: from_dp_accounting(z, p))
  above = exact.fnr(noise, LOG_FPR) - numeric.fnr(noise, LOG_FPR)
  # The PLD is pessimistic and its lines are a grid: below, and not by much.
  assert np.all(above > -1e-6)
  assert np.all(above < 5e-4)
  epsilon = numeric.epsilon(noise, DELTA)
  assert exact.epsilon(noise, DELTA) == pytest.approx(epsilon, rel=1e-4)
  wrong = families.subsampled_gaussian_family(p / 2)
  assert np.any(
    np.abs(wrong.fnr(noise, LOG_FPR) - exact.fnr(noise, LOG_FPR)) > 1e-3
  )


def test_the_subsampled_curve_is_convex_and_its_own_inverse():
  alpha = np.linspace(1e-6, 1 - 1e-6, 2001)
  for mu, p in ((0.5, 0.3), (3.0, 0.5), (4.0, 0.05)):
    fnr = families.subsampled_gaussian_family(p).fnr(1 / mu, np.log(alpha))
    assert np.all(np.diff(fnr, 2) > -1e-9)
    assert np.all(np.diff(fnr) <= 0)
    inside = (fnr > 1e-4) & (fnr < 1 - 1e-4)
    twice = families.subsampled_gaussian_family(p).fnr(
      1 / mu, np.log(fnr[inside])
    )
    np.testing.assert_allclose(twice, alpha[inside], rtol=1e-6, atol=1e-9)


def test_epsilon_of_a_subsampled_step_has_no_cap():
  # At p = 1/2, e^ε - 1 is half of e^ε' - 1, with ε' at δ/p.
  family = families.subsampled_gaussian_family(0.5)
  inner = tradeoff.epsilon_gdp(50.0, 2 * DELTA)
  assert family.epsilon(1 / 50, DELTA) == pytest.approx(inner - np.log(2))
  assert families.subsampled_gaussian_family(1e-6).epsilon(1.0, DELTA) == 0.0


@pytest.mark.integration
@pytest.mark.parametrize(
  ('noise', 'p', 'steps'), [(1, 0.01, 2500), (0.1, 0.1, 100)]
)
def test_steps_compose_as_the_pld_of_dp_accounting_does(noise, p, steps):
  epsilon = families.subsampled_gaussian_family(p, steps=steps).epsilon(
    noise, DELTA
  )
  there = from_dp_accounting(noise, p, steps, interval=1e-4 / noise)
  expected = there.get_epsilon_for_delta(DELTA)
  assert epsilon == pytest.approx(expected, rel=1e-5)
  one = families.subsampled_gaussian_family(p).epsilon(noise, DELTA)
  assert epsilon > 2 * one


def test_a_run_has_the_curve_and_epsilon_of_all_its_steps():
  family = families.subsampled_run_family(0.1, steps=20)
  expected = families.pld_family(lambda z: from_dp_accounting(z, 0.1, 20))
  fnr = family.fnr(0.8, LOG_FPR)
  np.testing.assert_allclose(fnr, expected.fnr(0.8, LOG_FPR), atol=1e-4)
  assert family.epsilon(0.8, DELTA) == pytest.approx(
    expected.epsilon(0.8, DELTA), rel=1e-4
  )
  # Of one step it is the closed form, and lower the more steps there are.
  one = families.subsampled_run_family(0.1, steps=1).fnr(0.8, LOG_FPR)
  closed = families.subsampled_gaussian_family(0.1).fnr(0.8, LOG_FPR)
  np.testing.assert_allclose(one, closed, atol=5e-4)
  assert np.all(fnr < one)


def test_a_run_without_sampling_is_one_gaussian_mechanism():
  family = families.subsampled_run_family(1.0, steps=9)
  gaussian = tradeoff.gaussian_family()
  np.testing.assert_allclose(
    family.fnr(3.0, LOG_FPR), gaussian.fnr(1.0, LOG_FPR), rtol=1e-12
  )
  assert family.epsilon(3.0, DELTA) == pytest.approx(
    gaussian.epsilon(1.0, DELTA)
  )


def test_algorithm_4_approaches_the_curve_from_below():
  exact = tradeoff.gaussian_family().fnr(1.0, LOG_FPR)
  gaps = []
  for num in (2, 10, 50):
    family = families.pld_family(
      from_dp_accounting,
      fnr_from=families.algorithm_4(delta=DELTA, num_lines=num),
    )
    gap = exact - family.fnr(1.0, LOG_FPR)
    assert np.all(gap > -1e-6)
    gaps.append(np.max(gap))
  # "Even with 10 approximations we can get a good estimation": appendix A.
  assert gaps[0] > gaps[1] > gaps[2]
  assert gaps[1] < 0.1
  assert gaps[2] < 0.02


def test_settings_out_of_range_are_refused():
  with pytest.raises(ValueError, match=r'sampling_probability=0\.0'):
    families.subsampled_gaussian_family(0.0)
  with pytest.raises(ValueError, match='steps=0'):
    families.subsampled_gaussian_family(0.5, steps=0)
  with pytest.raises(ValueError, match=r'sampling_probability=2\.0'):
    families.subsampled_run_family(2.0, steps=3)
  with pytest.raises(ValueError, match='steps=0'):
    families.subsampled_run_family(0.5, steps=0)
  for wrong in (dict(num_lines=0), dict(delta=0.5)):
    with pytest.raises(ValueError, match=r'num_lines=0|delta=0\.5'):
      families.algorithm_4(**{'delta': DELTA, **wrong})
