"""The coverage study: it knows a bound from a number that is none."""

import numpy as np
import pytest
from scipy import stats
from studies import coverage

from epe_jax.epsilon import tradeoff_curves

DELTA = 1e-5


@pytest.mark.integration
def test_valid_bounds_hold_and_the_papers_does_not():
  laws = [coverage.gaussian(e, DELTA) for e in (0.0, 2.0)]
  rows = coverage.run_study(1, laws, deltas=[DELTA], nums=[60], audits=60)
  assert not any(coverage.find_broken(row) for row in rows)
  assert {'confidence bound', 'credible bound'} == {row.kind for row in rows}
  paper = next(
    r for r in rows if (r.method, r.null, r.epsilon) == ('eps_lo', 'exact', 0)
  )
  assert paper.stated is None
  # Held to the 5 % that the paper states, it would be found out.
  assert coverage.find_broken(paper._replace(stated=0.05))


@pytest.mark.integration
def test_bounds_free_of_shape_hold_for_other_laws_and_the_rest_say_what_they_assume():
  laws = [
    coverage.shifted('t', stats.t(20), 2.0),
    coverage.randomised_response(2.0),
  ]
  rows = coverage.run_study(2, laws, deltas=[DELTA], nums=[100], audits=40)
  assert not any(coverage.find_broken(row) for row in rows)
  missing = {r.method for r in rows if r.stated and r.exceeded > 0.3}
  assert {'gaussian_lower_bound', 'gdp_clopper_pearson_bonferroni'} <= missing
  assert all(r.assumes_shape for r in rows if r.method in missing)
  # The test of shape sees nothing of it.
  blind = next(
    r for r in rows if (r.method, r.law) == ('gaussian_lower_bound', 't')
  )
  assert blind.passed is not None
  assert blind.passed > 0.9
  text = coverage.format_markdown(rows)
  assert '| bound | null | assumes | may exceed | t, ε = 4.65 |' in text
  assert f'; {100 * blind.passed:.0f} % pass' in text


@pytest.mark.integration
def test_of_canaries_that_leak_together_only_some_bounds_hold():
  laws = [coverage.coupled(3.0, DELTA)]
  rows = coverage.run_study(3, laws, deltas=[DELTA], nums=[400], audits=60)
  assert not any(coverage.find_broken(row) for row in rows)
  by_coins = {row.method: row for row in rows if row.null == 'coins'}
  assert by_coins['one_run'].holds
  assert by_coins['one_run'].exceeded < 0.2
  assert by_coins['one_run_gdp'].holds
  assert by_coins['one_run_gdp'].exceeded < 0.2
  assert not by_coins['one_run_independent_gdp'].holds
  assert by_coins['one_run_independent_gdp'].exceeded > 0.2
  assert by_coins['one_run_independent_gdp'].assumes_independence
  assert 'independence, a shape' in coverage.format_markdown(rows)


def test_a_coupled_mechanism_tells_of_each_canary_what_the_gaussian_one_does():
  law = coverage.coupled(3.0, DELTA)
  rng = np.random.default_rng(0)
  taken = rng.random((20_000, 2)) < 0.5
  scores = coverage.draw_scores(law, rng, taken)
  for took_part, draw in ((True, law.moved), (False, law.draw)):
    of_first = scores[taken[:, 0] == took_part, 0]
    assert stats.ks_2samp(of_first, draw(rng, 20_000)).pvalue > 1e-4
  # Errors come together.
  errors = (scores > 0) != taken
  assert (
    stats.fisher_exact(
      [
        [
          np.sum(errors[:, 0] & errors[:, 1]),
          np.sum(errors[:, 0] & ~errors[:, 1]),
        ],
        [
          np.sum(~errors[:, 0] & errors[:, 1]),
          np.sum(~errors[:, 0] & ~errors[:, 1]),
        ],
      ]
    ).pvalue
    < 1e-6
  )


@pytest.mark.parametrize('law', coverage.others(), ids=lambda law: law.name)
def test_the_epsilon_of_a_law_is_the_best_of_many_thresholds(law):
  rng = np.random.default_rng(0)
  null = np.sort(law.draw(rng, 400_000))
  moved = np.sort(law.moved(rng, 400_000))
  delta = 0.05  # Far from it a simulation says nothing.
  at = np.unique(
    np.quantile(np.concatenate([null, moved]), np.linspace(0, 1, 99))
  )
  p = 1 - np.searchsorted(moved, at) / len(moved)
  q = 1 - np.searchsorted(null, at) / len(null)
  few = 100 / len(null)
  above = np.log(
    (p - delta)[(q > few) & (p > delta)] / q[(q > few) & (p > delta)]
  )
  keep = (1 - p > few) & (1 - q > delta)
  below = np.log((1 - q - delta)[keep] / (1 - p)[keep])
  best = max(above.max(), below.max())
  # Thresholds are the best attack where the likelihood ratio is monotone, and
  # nearly so for the others.
  assert best <= law.epsilon(delta) + 0.05
  assert best >= 0.8 * law.epsilon(delta) - 0.05


def test_the_epsilon_of_a_shifted_gaussian_is_that_of_the_mechanism():
  law = coverage.shifted('Gaussian', stats.norm(), 1.5)
  exact = tradeoff_curves.epsilon_gdp(1.5, DELTA)
  assert law.epsilon(DELTA) == pytest.approx(exact, rel=1e-6)
  assert coverage.gaussian(3.0, DELTA).epsilon(DELTA) == pytest.approx(3.0)
  assert coverage.log_losses(1.5).epsilon(DELTA) == pytest.approx(exact)
  # Rounding only loses.
  assert coverage.rounded(1.5, 0.01).epsilon(DELTA) == pytest.approx(
    exact, rel=0.02
  )


def test_the_table_has_a_column_for_each_truth():
  laws = [coverage.gaussian(e, DELTA) for e in (0.0, 1.0)]
  rows = coverage.run_study(0, laws, deltas=[DELTA], nums=[8], audits=3)
  text = coverage.format_markdown(rows)
  head = '| bound | null | assumes | may exceed | ε = 0 | ε = 1 |'
  assert head in text
  assert '8 + 8 canaries' in text
  broken = rows[0]._replace(stated=0.05, exceeded=1.0, audits=500)
  assert '**broken**' in coverage.format_markdown([broken])
