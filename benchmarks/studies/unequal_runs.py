"""Several runs with very different numbers of canaries, and statements on their mean.

A case is (title, simulate), where simulate(rng) simulates one set of runs and returns
whether each statement is false; `STATED` has the probability with which it may be.
"""

from collections.abc import Mapping, Sequence
import functools

import numpy as np

from epe_jax.epsilon import Gaussian, Scores
from epe_jax.epsilon.scatter import over_runs
from epe_jax.epsilon.trade_offs import tradeoff_curves

_DELTA, _MU = 1e-5, 1.0
_BOUND = 'lower bound of the mean of runs'
_INTERVAL = '90 % interval of the mean of runs'
_PREDICTION = '90 % prediction of a new run'

STATED = {_BOUND: 0.05, _INTERVAL: 0.1, _PREDICTION: 0.1}


def simulate(
  rng: np.random.Generator, *, sizes: Sequence[int], tau: float
) -> Mapping[str, bool]:
  """One set of runs, of Gaussian shifts N(1, τ²) and a known null law.

  Args:
    rng: of the scores.
    sizes: numbers of observed canaries of each run.
    tau: standard deviation of the shift between runs.

  Returns:
    Whether each statement is false.
  """
  *shifts, new = rng.normal(_MU, tau, len(sizes) + 1)
  runs = [
    Scores(rng.normal(mu, 1, num), np.empty(0), Gaussian())
    for mu, num in zip(shifts, sizes)
  ]
  mu, variance = over_runs.estimate_shifts(runs)
  effects = over_runs.random_effects(mu, variance)
  bound = over_runs.mean_shift_bound(mu, variance, delta=_DELTA)
  low, high = effects.interval
  least, most = effects.prediction
  truth = float(tradeoff_curves.epsilon_gdp(_MU, _DELTA))
  return {
    _BOUND: bool(bound.epsilon > truth),
    _INTERVAL: not low <= _MU <= high,
    _PREDICTION: not least <= new <= most,
  }


CASES = tuple(
  (
    f'{name} canaries, τ = {tau:g}',
    functools.partial(simulate, sizes=sizes, tau=tau),
  )
  for name, sizes in (
    ('runs of 50 and 5,000', (50, 5000)),
    ('nine runs of 30 and one of 10,000', (30,) * 9 + (10_000,)),
    ('runs of 30, 300 and 3,000', (30, 300, 3000)),
    ('five runs of 100', (100,) * 5),
  )
  for tau in (0.0, 0.1, 1.0)
)
"""(title, simulate) of each case."""
