"""Analytic ε: closed forms, and bounds from both sides."""

import math

import numpy as np
import pytest
from scipy import optimize, stats

from epe_jax import accounting


@pytest.mark.parametrize('z', [0.0496, 0.5, 4.22])
def test_n_rounds_are_one_with_less_noise(z):
  n = accounting.releases(z, delta=1e-6, participations=9).epsilon
  one = accounting.releases(z / 3, delta=1e-6).epsilon
  assert n == pytest.approx(one, rel=1e-12)


@pytest.mark.parametrize('z', [0.0496, 0.2, 1.0])
@pytest.mark.parametrize('rounds', [1, 4])
def test_certain_participation_is_composition(z, rounds):
  exact = accounting.releases(z, delta=1e-6, participations=rounds).epsilon
  found = accounting.poisson(z, delta=1e-6, probability=1.0, rounds=rounds)
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
  found = accounting.poisson(z, delta=1e-3, probability=q, rounds=1).epsilon
  assert exact <= found * (1 + 1e-6)
  assert found == pytest.approx(exact, rel=5e-3)


def test_sampling_helps_and_noise_helps():
  at = lambda z, q: (
    accounting.poisson(z, delta=1e-5, probability=q, rounds=50).epsilon
  )
  assert at(0.5, 0.02) < at(0.5, 0.1) < at(0.5, 1.0)
  assert at(1.0, 0.1) < at(0.5, 0.1)


def test_without_noise_there_is_no_privacy():
  for found in (
    accounting.releases(0.0, delta=1e-5),
    accounting.poisson(0.0, delta=1e-5, probability=0.1, rounds=3),
  ):
    assert found.epsilon == math.inf


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'noise_multiplier': -1.0}, 'noise_multiplier=-1.0'),
    ({'delta': 0.0}, 'delta=0.0'),
    ({'probability': 0.0}, 'probability=0.0'),
    ({'probability': 1.1}, 'probability=1.1'),
    ({'rounds': 0}, 'rounds=0'),
  ],
)
def test_arguments_out_of_range_are_refused(changes, message):
  good = {
    'noise_multiplier': 1.0,
    'delta': 1e-5,
    'probability': 0.1,
    'rounds': 2,
  }
  with pytest.raises(ValueError, match=message):
    accounting.poisson(**good | changes)
