"""All estimates of an audit as one table."""

import dataclasses

import numpy as np
import pytest

from epe_jax.audit import attackers, evaluation
from epe_jax.epsilon import tradeoff
from tests import recorded_runs


@pytest.fixture(scope='module')
def audit():
  record = dataclasses.replace(recorded_runs.by_law(), noise_multiplier=1.0)
  return evaluation.evaluate(record, floors=False)


def test_the_table_has_every_estimate_once_and_says_what_it_assumes(audit):
  frame = audit.to_frame()
  assert len(frame) == sum(len(x.estimates) for x in audit.attacks)
  own = audit.find(attackers.OWN)
  rows = frame[frame.attacker == 'own_round'].set_index('method')
  for estimate in own.estimates:
    row = rows.loc[estimate.method]
    assert row.epsilon == estimate.epsilon
    assert row.kind == estimate.kind
    assert row.assumes == tuple(estimate.assumes)
    assert row.analytic == own.analytic.epsilon
    assert tradeoff.epsilon_gdp(row.mu, row.delta) == pytest.approx(
      row.epsilon, rel=1e-6, abs=1e-9
    )
  assert (rows.low.iloc[0], rows.high.iloc[0]) == (
    own.first_with_interval.interval
  )


def test_bounds_are_told_from_point_estimates_by_their_confidence(audit):
  frame = audit.to_frame()
  is_bound = frame.kind == 'confidence_bound'
  np.testing.assert_array_equal(is_bound, frame.confidence.notna())
  assert is_bound.any()
