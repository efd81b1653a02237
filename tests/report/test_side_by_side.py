"""Runs side by side: each number where it belongs."""

import dataclasses
import math

from epe_jax.audit import evaluation, threat_models
from epe_jax.epsilon import types
from epe_jax.report import side_by_side
from tests import recorded_runs


def _attack(threat_model, is_calibrated, *epsilons):
  floor = types.Floor(0.1, 0.01, 0.1, 0.43)
  found = tuple(
    types.Estimate(epsilon, 1e-5, 'method', None, floor=floor)
    for epsilon in epsilons
  )
  return evaluation.Attack(
    threat_model, 'it all', 60, 60, is_calibrated, (), None, None, found
  )


RESULT = recorded_runs.result(
  config={'clients_per_round': 40},
  rounds=2048,
  audit=evaluation.Audit(
    (
      _attack(threat_models.FINAL, True, 1.2, 1.31),
      _attack(threat_models.OWN, False, 8.25),
    )
  ),
)


def test_a_line_has_the_first_estimates_of_its_own_run_and_marks_doubtful_ones():
  other = dataclasses.replace(
    RESULT,
    accuracy=0.5,
    analytic_epsilon=math.inf,
    clients_participations=1,
  )
  head, _, one, two = side_by_side.format_side_by_side(
    {'one': RESULT, 'two': other}
  ).splitlines()
  cells = [[x.strip() for x in line.split('|')] for line in (head, one, two)]
  first, second = (dict(zip(cells[0], line, strict=True)) for line in cells[1:])
  assert first == {
    '': '',
    'run': 'one',
    'rounds x clients': '2,048 x 40',
    'd': '55,210',
    'noise': '0.2',
    'accuracy (majority class)': '93.0 % (10.0 %)',
    'analytic ε': '35.5; 57.2 (clients)',
    'ε, final model': '1.20 (floor 0.01 to 0.43)',
    'ε, own round': '8.25 †',
    'ε, own round, others removed': 'not measured',
  }
  assert second['accuracy (majority class)'] == '50.0 % (10.0 %)'
  assert second['analytic ε'] == '∞'
