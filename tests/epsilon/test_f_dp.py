"""The recursion of Mahloujifar et al. for Gaussian curves."""

import numpy as np
import pytest
from scipy import stats

from epe_jax.epsilon import f_dp, tradeoff_curves
from epe_jax.epsilon.types import Scores

DELTA = 1e-5


def guessed(num, correct):
  """Half are guessed "in" and half "out", and so many guesses are right."""
  half, right_in, right_out = num // 2, (correct + 1) // 2, correct // 2
  return Scores(
    np.repeat([1.0, 0.0], [right_in, half - right_out]),
    np.repeat([1.0, 0.0], [half - right_in, right_out]),
    design='coin_flip',
  )


@pytest.mark.slow
def test_canaries_that_leak_together_do_not_break_it():
  # One probability of error for all canaries of an audit: still μ-Gaussian DP.
  rng, mu, num, audits = np.random.default_rng(0), 1.0, 200, 200
  truth = tradeoff_curves.epsilon_gdp(mu, DELTA)
  odds = np.abs(rng.normal(mu**2 / 2, mu, audits))
  correct = rng.binomial(num, 1 / (1 + np.exp(-odds)))
  bounds = {
    int(c): f_dp.one_run_gdp(
      guessed(num, int(c)), delta=DELTA, guesses=[(num // 2, num // 2)]
    ).epsilon
    for c in np.unique(correct)
    if c < num
  }
  exceeded = np.mean([bounds.get(int(c), np.inf) > truth for c in correct])
  # At 5 % a failure has probability 1e-6.
  assert exceeded <= stats.binom.isf(1e-6, audits, 0.05) / audits
