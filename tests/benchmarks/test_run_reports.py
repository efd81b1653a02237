"""Reports of simulated runs: what they claim is true, and a false claim is named."""

import dataclasses

import numpy as np
import pytest

from benchmarks.bounds import run_reports, simulated_runs
from epe_jax.audit import attackers
from epe_jax.report import tables


@pytest.fixture(scope='module')
def found():
  return run_reports.simulate_reports(0, runs=14)


@pytest.mark.integration
def test_reports_of_runs_of_many_shapes_claim_what_is_true(found):
  assert run_reports.find_broken(found) == []
  for run in found:
    assert run.truths[attackers.RESIDUAL] == pytest.approx(run.analytic)
    for attack in run.audit.attacks:
      below = any(attack.first.epsilon < e.epsilon for e in attack.bounds)
      assert not (attack.is_calibrated and below)
  text = tables.format_markdown(run_reports.make_table(found))
  assert '| own round, others removed | location_mixture_bound | 14 |' in text


@pytest.mark.integration
def test_bounds_that_claim_too_much_are_named(found):
  def inflated(run, factor):
    attacks = tuple(
      dataclasses.replace(
        attack,
        estimates=tuple(
          dataclasses.replace(e, epsilon=factor * e.epsilon)
          if e.method == 'location_mixture_bound'
          else e
          for e in attack.estimates
        ),
      )
      for attack in run.audit.attacks
    )
    return run._replace(audit=run.audit._replace(attacks=attacks))

  bad = run_reports.find_broken([inflated(run, 1.3) for run in found])
  assert any('own round, others removed exceeds the analytic' in s for s in bad)
  narrow = [
    run._replace(intervals={name: (0.0, 1e-3) for name in run.intervals})
    for run in found
  ]
  assert any(
    'intervals of own round' in s for s in run_reports.find_broken(narrow)
  )


def test_a_simulated_run_is_what_its_vectors_say():
  run = simulated_runs.simulate(
    np.random.default_rng(0),
    observed=40,
    unobserved=30,
    rounds=6,
    dim=300,
    noise=0.4,
    momentum=0.9,
    repetitions=2,
    clip_norms=np.linspace(1, 2, 6),
  )
  record, rounds = run.record, run.record.rounds
  assert record.assigned.sum(axis=0).tolist() == [2] * 40 + [0] * 30
  np.testing.assert_allclose(np.linalg.norm(run.canaries, axis=1), 1)
  # Each step of the server is momentum times the last one and the aggregate.
  steps = np.diff(run.models, axis=0)
  aggregates = steps - 0.9 * np.concatenate(
    [np.zeros_like(steps[:1]), steps[:-1]]
  )
  np.testing.assert_allclose(
    np.linalg.norm(aggregates, axis=1), rounds.aggregate_norm
  )
  np.testing.assert_allclose(
    record.trace,
    simulated_runs.compute_cosines(run.canaries, aggregates),
    atol=1e-6,
  )
  # What is left of an aggregate is noise: its norm is known to 1/√(2d).
  np.testing.assert_allclose(
    rounds.residual_norm, rounds.noise_std * np.sqrt(300), rtol=0.3
  )
  without = dataclasses.replace(record, weight=None)
  assert [r.is_calibrated for r in attackers.score_all(without)][:2] == [
    False
  ] * 2


@pytest.mark.slow
def test_workers_change_no_report():
  one, two = (
    run_reports.simulate_reports(1, runs=2, workers=n) for n in (1, 2)
  )
  assert run_reports.make_table(one) == run_reports.make_table(two)
