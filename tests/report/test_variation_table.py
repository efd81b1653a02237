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
  assert alike[columns['std of ε']] == '-'
  assert float(unlike[columns['std of ε']]) > 0


def test_replicates_differ_in_the_seed_alone():
  one, other = ShiftEstimate(1.0, 0.01), ShiftEstimate(2.0, 0.01)
  groups = variation_table.group_replicates(
    [
      ({'seed': 0, 'model.width': 8}, DELTA, {'own round': one}),
      ({'seed': 1, 'model.width': 8}, DELTA, {'own round': other}),
      ({'seed': 0, 'model.width': 16}, DELTA, {'own round': other}),
      ({'seed': 2, 'model.width': 8}, 1e-6, {'own round': other}),
    ]
  )
  assert [group.label for group in groups] == ['model.width = 8']
  assert groups[0].shifts == {'own round': [one, other]}
  widths = [({'model.width': w}, DELTA, {'own round': one}) for w in (8, 16)]
  assert variation_table.group_replicates(widths) == []


def test_where_errors_explain_all_scatter_no_range_is_shown():
  runs = [ShiftEstimate(mu, 1.0) for mu in (1.0, 1.1, 1.2)]
  table = variation_table.make_table(
    [variation_table.Runs('a', DELTA, {'own round': runs})]
  )
  assert table is not None
  row = dict(zip(table.head, table.body[0]))
  assert row['τ'] == '0.00'
  assert row['std of ε'] == row['5-95 % of runs'] == '-'


def test_one_run_of_each_has_no_table():
  alone = variation_table.Runs(
    'one', DELTA, {'own round': [ShiftEstimate(1, 1)]}
  )
  assert variation_table.make_table([alone]) is None
  assert variation_table.make_table([]) is None
