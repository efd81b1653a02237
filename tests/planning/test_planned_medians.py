"""A plan says what audits of 100 simulated runs find."""

import numpy as np
import pytest

from benchmarks.bounds import simulated_runs
from epe_jax.audit import attackers
from epe_jax.planning import predictions
from epe_jax.planning.planned_run import PlannedRun

pytestmark = pytest.mark.slow

RUNS = 100
READINGS = (
  attackers.CHANGE,
  attackers.MAXIMUM,
  attackers.OWN,
  attackers.RESIDUAL,
)
# Clients of a simulated run agree in all of its rounds.
COMMON = {'delta': 1e-5, 'client_agreement': 1.0, 'noise_multiplier': 0.3}
SETTINGS = {
  'canaries that are hidden by noise': PlannedRun(
    **COMMON,
    dim=50_000,
    rounds=10,
    clients_per_round=3,
    num_observed=300,
    num_unobserved=300,
  ),
  'four repetitions, momentum, orthogonal canaries': PlannedRun(
    **COMMON | {'noise_multiplier': 0.6},
    dim=50_000,
    rounds=40,
    clients_per_round=3,
    num_observed=200,
    num_unobserved=200,
    repetitions=4,
    server_momentum=0.9,
    family='hadamard',
  ),
  'fair coins': PlannedRun(
    **COMMON,
    dim=2000,
    rounds=10,
    clients_per_round=1,
    num_observed=200,
    num_unobserved=200,
    design='coin_flip',
  ),
  'rounds full of canaries that are orthogonal': PlannedRun(
    **COMMON,
    dim=3000,
    rounds=5,
    clients_per_round=1,
    num_observed=300,
    num_unobserved=200,
    family='hadamard',
  ),
  'clients who hide canaries, and three repetitions': PlannedRun(
    **COMMON,
    dim=5000,
    rounds=30,
    clients_per_round=12,
    num_observed=400,
    num_unobserved=400,
    repetitions=3,
  ),
}


def simulate_audits(run, rng):
  """Attacker -> [RUNS, 2] estimates and bounds, of explicit vectors."""
  values = {reading.key: [] for reading in READINGS}
  for _ in range(RUNS):
    record = simulated_runs.simulate(
      rng,
      observed=run.num_observed,
      unobserved=run.num_unobserved,
      rounds=run.rounds,
      dim=run.dim,
      noise=run.noise_multiplier,
      clients=run.clients_per_round,
      momentum=run.server_momentum,
      repetitions=run.repetitions,
      coins=run.design == 'coin_flip',
      delta=run.delta,
      canaries='orthogonal' if run.is_orthogonal else 'sphere',
    ).record
    for reading in READINGS:
      scored = reading.score(record)
      values[reading.key].append(
        [
          float(first(scored.scores, delta=run.delta).epsilon)
          for first in (scored.points[0], scored.bounds[0])
        ]
      )
  return {key: np.array(x) for key, x in values.items()}


def error_of_median(rng, values):
  """Standard error of a median, by resampling."""
  resampled = rng.choice(values, (400, len(values)))
  return np.std(np.median(resampled, axis=1))


@pytest.mark.parametrize('name', SETTINGS)
def test_medians_are_within_five_percent_of_those_of_simulated_runs(name):
  run, rng = SETTINGS[name], np.random.default_rng(0)
  simulated = simulate_audits(run, rng)
  for prediction in predictions.plan(run).predictions:
    estimates, bounds = simulated[prediction.key].T
    median = np.median(estimates)
    # So well is it known that 5 % is a test.
    assert error_of_median(rng, estimates) < 0.025 * median
    assert prediction.estimate.q50 == pytest.approx(median, rel=0.05)
    # Bounds have steps, and scatter more: 5 %, and what 100 runs leave open.
    slack = 3 * error_of_median(rng, bounds)
    median = np.median(bounds)
    assert abs(prediction.bound.q50 - median) < 0.05 * median + slack
    # Of the estimates of 100 runs 5 % are expected on each side.
    for limit, is_outside in (
      (prediction.estimate.q05, estimates < prediction.estimate.q05),
      (prediction.estimate.q95, estimates > prediction.estimate.q95),
    ):
      assert np.mean(is_outside) < 0.2, (prediction.key, limit)
