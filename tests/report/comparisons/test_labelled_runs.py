"""How much ε varies between runs that claim the same."""

import numpy as np
import pytest

from epe_jax.audit import attackers
from epe_jax.report.comparisons import labelled_runs, sweeps
from epe_jax.several_runs.over_runs import ShiftEstimate

DELTA = 1e-5
OWN_ROUND = attackers.find('own_round')


def label(settings, shifts, delta=DELTA):
  return labelled_runs.LabelledRun(
    'run', delta, [0.9], {}, {}, settings=settings, shifts={OWN_ROUND: shifts}
  )


def draw(rng, mu, tau, num):
  shifts = rng.normal(mu, np.sqrt(tau**2 + 0.01), num)
  return [ShiftEstimate(float(y), 0.01) for y in shifts]


def test_the_scatter_of_canaries_is_no_variance_of_privacy():
  rng = np.random.default_rng(0)
  runs = [
    label({'kind': name}, draw(rng, 2.0, tau, 200))
    for name, tau in (('alike', 0.0), ('unlike', 0.5))
  ]
  table = sweeps.make_variation_table(runs)
  assert table is not None
  columns = {name: i for i, name in enumerate(table.head)}
  alike, unlike = table.body
  assert [alike[0], unlike[0]] == ['kind = alike', 'kind = unlike']
  assert float(unlike[columns['τ']]) == pytest.approx(0.5, rel=0.2)
  assert float(alike[columns['τ']]) < 0.1
  assert float(unlike[columns['p']]) < 1e-6
  assert alike[columns['std of ε']] == '-'
  assert float(unlike[columns['std of ε']]) > 0


def test_replicates_differ_in_the_seed_alone():
  one, other = ShiftEstimate(1.0, 0.01), ShiftEstimate(2.0, 0.01)
  (group,) = labelled_runs.group_replicates(
    [
      label({'seed': 0, 'model.width': 8}, [one]),
      label({'seed': 1, 'model.width': 8}, [other]),
      label({'seed': 0, 'model.width': 16}, [other]),
      label({'seed': 2, 'model.width': 8}, [other], delta=1e-6),
    ]
  )
  assert group.settings == {'model.width': 8}
  assert group.shifts == {OWN_ROUND: [one, other]}
  widths = [label({'model.width': width}, [one]) for width in (8, 16)]
  assert labelled_runs.group_replicates(widths) == []
