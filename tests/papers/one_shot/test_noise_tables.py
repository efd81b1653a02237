"""The StackOverflow and EMNIST tables: the δ of the paper and ours, and recorded items."""

import pathlib
import re

import numpy as np
import pytest
from scipy import optimize

from epe_jax import accounting, io
from epe_jax.audit import attackers
from epe_jax.epsilon import tradeoff, two_gaussians
from epe_jax.report import tables
from papers import grid, reported
from papers.one_shot import noise_tables
from tests import recorded_runs

_REPORTED = reported.Reported('papers.one_shot')
_RESULTS = pathlib.Path(__file__).parents[3] / 'docs' / 'results'


@pytest.mark.parametrize(
  ('name', 'rounding'),
  [
    ('emnist_5x34', 0.05),
    # Three digits of a table of May 2023.
    ('accuracy', 0.5),
    # 300, 100 and 30 are round numbers in the paper.
    ('stackoverflow', 1.1),
    ('emnist', 1.1),
  ],
)
def test_at_the_papers_delta_its_noise_has_its_analytic_epsilon(name, rounding):
  delta = _REPORTED.find_delta(name)
  rows = [row for row in _REPORTED.load_rows(name) if row['noise']]
  found = [
    accounting.epsilon_of_releases(row['noise'], delta=delta).epsilon
    for row in rows
  ]
  expected = [row['analytic'] for row in rows]
  np.testing.assert_allclose(found, expected, rtol=0, atol=rounding)
  if name.startswith('emnist'):
    # Not at the δ of 3,383 clients.
    clients = 3383**-1.1
    largest = accounting.epsilon_of_releases(rows[0]['noise'], delta=clients)
    assert abs(largest.epsilon - expected[0]) > 5 * rounding


def test_a_new_table_has_the_scores_at_both_deltas():
  record = recorded_runs.by_law()
  result = recorded_runs.result(
    noise_multiplier=0.0487,
    audit=recorded_runs.audit_by_law(),
    config={
      'clients_per_round': 101,
      'client': {'max_examples': None},
      'server': {'learning_rate': 1.0, 'momentum': 0.9},
    },
  )
  run = grid.Run(result, record, ())
  made = noise_tables.make_tables([run], name='emnist')
  at_paper, at_own, calibrated = made.tables
  assert "the paper's δ = 6.7e-6" in at_paper.title
  assert 'δ = 1e-5' in at_own.title
  assert 'δ = 1e-5' in calibrated.title
  scores = attackers.FINAL.score(record).scores
  for table, delta, paper in (
    (at_paper, 6.7e-6, ' (3.71)'),
    (at_own, 1e-5, ''),
  ):
    estimate = two_gaussians.two_gaussian(scores, delta=delta, std='fitted')
    assert table.body[0][-1] == f'{estimate.epsilon:.1f}{paper}'
  assert at_paper.body[0][1] == '299.3 (300.0)'
  assert at_own.body[0][1].startswith('29')
