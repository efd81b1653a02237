"""The StackOverflow and EMNIST tables: the δ of the paper and ours, and recorded items."""

import itertools
import pathlib

import numpy as np
import pytest
from scipy import optimize

from epe_jax import accounting, io
from epe_jax.audit import attackers
from epe_jax.epsilon import tradeoff, two_gaussians
from epe_jax.report import cells, tables
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
      'noise': {'correlation': 'independent'},
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


def spread(printed):
  """The numbers that are printed so, at least two decimals below 10."""
  value = float(printed.split()[0])
  half = 0.005 if value < 10 else 0.05
  return value - half, value + half


def convert(fitted, calibrated, delta, other, *, noise=True):
  """ε_est at another δ, from what was printed of the final model at δ.

  The calibrated ε gives the mean of the cosines, if all are shifted alike, and the
  fitted ε then their standard deviation, of which there are two, below and above 1.
  Without noise canaries keep different weights. A standard deviation of 1 gives the
  least ε at a smaller δ, and the largest at a larger one.

  >>> convert('3.38', '2.78 [2.55, 3.01]', 3383**-1.1, 6.7e-6)
  '≈ 4.19 to 4.23'
  """
  epsilon = two_gaussians.epsilon_two_gaussians
  found = []
  for target, of_mean, ends in itertools.product(
    spread(fitted), spread(calibrated), ((0.8, 1.0), (1.0, 1.25))
  ):
    mean = tradeoff.mu_of_epsilon(of_mean, delta)
    if noise and of_mean < target:
      miss = lambda std, m=mean, x=target: epsilon(0, 1, m, std, delta) - x
      std = optimize.brentq(miss, *ends)
      found.append(float(epsilon(0, 1, mean, std, other)))
  if len(found) == 8:
    return f'≈ {cells.format_range(min(found), max(found))}'
  mu = tradeoff.mu_of_epsilon(float(fitted), delta)
  limit = cells.format_number(tradeoff.epsilon_gdp(mu, other))
  return f'{"≥" if other < delta else "≤"} {limit}'


@pytest.mark.parametrize(
  ('name', 'clients'),
  [('emnist', 3383), ('emnist_5x34', 3383), ('stackoverflow', 8334)],
)
def test_a_recorded_table_at_the_papers_delta_follows_from_its_own(
  name, clients
):
  record = io.read_json(_RESULTS / name / 'item.json')
  at_paper, at_own, calibrated = (
    tables.Table(**table) for table in record['tables']
  )
  own, paper = clients**-1.1, _REPORTED.find_delta(name)
  for table, delta in ((at_paper, paper), (at_own, own), (calibrated, own)):
    assert f'δ = {cells.format_delta(delta)}' in table.title
  if not any('were not kept' in note for note in at_paper.notes):
    pytest.skip('recorded with both')
  for line, of_own, of_final in zip(
    at_paper.body, at_own.body, calibrated.body, strict=True
  ):
    noise = float(line[0])
    row = _REPORTED.find_row(name, noise=noise)
    analytic = accounting.epsilon_of_releases(noise, delta=paper).epsilon
    assert line[1] == reported.add_reported(analytic, row, 'analytic')
    converted = convert(of_own[-1], of_final[2], own, paper, noise=bool(noise))
    assert line[-1].rpartition(' (')[0] == converted
    assert (
      line[-1] == f'{converted} ({cells.format_number(row["eps_est_final"])})'
    )


def test_the_conversion_agrees_with_a_recorded_mean_and_spread():
  densities = io.read_json(_RESULTS / 'densities' / 'item.json')['tables'][0]
  once = next(row for row in densities['body'] if row[:2] == ['0.0496', '1'])
  mean, std = map(float, once[2].split(' ± '))
  own, paper = 8334**-1.1, _REPORTED.find_delta('stackoverflow')
  direct = two_gaussians.epsilon_two_gaussians(
    0, 1, mean, std, np.array([own, paper])
  )
  at_paper, at_own, _ = io.read_json(_RESULTS / 'stackoverflow' / 'item.json')[
    'tables'
  ]
  (recorded, converted) = (
    next(row[-1] for row in table['body'] if row[0] == '0.0496')
    for table in (at_own, at_paper)
  )
  np.testing.assert_allclose(direct[0], float(recorded), rtol=0.02)
  low, high = map(float, converted.split(' (')[0][2:].split(' to '))
  np.testing.assert_allclose(direct[1], (low + high) / 2, rtol=0.02)
