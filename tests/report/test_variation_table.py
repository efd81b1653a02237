"""How much ε varies between runs that claim the same."""

import numpy as np
import pytest

from epe_jax.epsilon.over_runs import ShiftEstimate
from epe_jax.report import variation_table

DELTA = 1e-5


def draw(rng, mu, tau, num):
  shifts = rng.normal(mu, np.sqrt(tau**2 + 0.01), num)
  return [ShiftEstimate(float(y), 0.01) for y in shifts]


def test_the_scatter_of_canaries_is_no_variance_of_privacy():
  rng = np.random.default_rng(0)
  groups = [
    variation_table.Runs(name, DELTA, {'own round': draw(rng, 2.0, tau, 200)})
    for name, tau in (('alike', 0.0), ('unlike', 0.5))
  ]
  table = variation_table.make_table(groups)
  assert table is not None
  columns = {name: i for i, name in enumerate(table.head)}
  alike, unlike = table.body
  assert [alike[0], unlike[0]] == ['alike', 'unlike']
  assert float(unlike[columns['τ']]) == pytest.approx(0.5, rel=0.2)
  assert float(alike[columns['τ']]) < 0.1
  assert float(unlike[columns['p']]) < 1e-6
  assert float(alike[columns['std of ε']]) < float(unlike[columns['std of ε']])


def test_runs_of_one_claim_are_put_together_whatever_else_they_set():
  one, other = ShiftEstimate(1.0, 0.01), ShiftEstimate(2.0, 0.01)
  groups = variation_table.group_by_claim(
    [
      (3.0, DELTA, {'own round': one}),
      (3.0000001, DELTA, {'own round': other}),
      (3.0, 1e-6, {'own round': other}),
      (5.0, DELTA, {'own round': other}),
      (None, DELTA, {'own round': other}),
    ]
  )
  assert [group.label for group in groups] == ['all of analytic ε = 3.00']
  assert groups[0].shifts == {'own round': [one, other]}


def test_one_run_of_each_has_no_table():
  alone = variation_table.Runs(
    'one', DELTA, {'own round': [ShiftEstimate(1, 1)]}
  )
  assert variation_table.make_table([alone]) is None
  assert variation_table.make_table([]) is None
