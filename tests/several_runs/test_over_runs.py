"""Random effects over runs, and the table of them."""

import dataclasses
import functools
import json
import math

import numpy as np
import pytest
from scipy import stats

from epe_jax.epsilon import tradeoff
from epe_jax.epsilon.types import (
  Assumption,
  Scores,
  Sphere,
  make_null,
)
from epe_jax.report import words
from epe_jax.report.comparisons import over_reports
from epe_jax.several_runs import over_runs, run_effects
from tests import recorded_runs
from tests.in_process import run_command

DELTA = 1e-5
DIM = 10**6

# BCG vaccine against tuberculosis, 13 trials: cases and others, vaccinated and
# not. Colditz et al., "Efficacy of BCG vaccine in the prevention of tuberculosis"
# (1994).
BCG = np.array(
  [
    (4, 119, 11, 128),
    (6, 300, 29, 274),
    (3, 228, 11, 209),
    (62, 13536, 248, 12619),
    (33, 5036, 47, 5761),
    (180, 1361, 372, 1079),
    (8, 2537, 10, 619),
    (505, 87886, 499, 87892),
    (29, 7470, 45, 7232),
    (17, 1699, 65, 1600),
    (186, 50448, 141, 27197),
    (5, 2493, 3, 2338),
    (27, 16886, 29, 17825),
  ]
)


SIMULATIONS = 300
# Five standard errors of a share of so many intervals: one failure in 10⁶.
NOISE = 5 * np.sqrt(0.9 * 0.1 / SIMULATIONS)


def test_published_figures_come_out():
  a, b, c, d = BCG.T.astype(float)
  log_risk_ratio = np.log(a / (a + b) / (c / (c + d)))
  variance = 1 / a - 1 / (a + b) + 1 / c - 1 / (c + d)
  effects = over_runs.random_effects(log_risk_ratio, variance)
  # The R package metafor, tests/testthat/test_misc_rma_uni.r: iterated to its
  # end, DerSimonian and Laird's estimate is Paule and Mandel's.
  assert effects.tau**2 == pytest.approx(0.3181, abs=5e-5)
  # Viechtbauer, "Conducting meta-analyses in R with the metafor package" (2010):
  # Q(12) = 152.2330.
  q = 12 / (1 - effects.i_squared)
  assert q == pytest.approx(152.2330, abs=5e-5)
  assert effects.p_value == pytest.approx(stats.chi2.sf(q, 12))


def test_the_interval_of_tau_is_the_published_one():
  a, b, c, d = BCG.T.astype(float)
  effects = over_runs.random_effects(
    np.log(a / (a + b) / (c / (c + d))),
    1 / a - 1 / (a + b) + 1 / c - 1 / (c + d),
    confidence=0.95,
  )
  # Viechtbauer (2010), section 3.2: confint of the random-effects model.
  np.testing.assert_allclose(
    np.square(effects.tau_interval), [0.1197, 1.1115], atol=6e-5
  )


@pytest.mark.integration
@pytest.mark.parametrize(('num', 'tau'), [(3, 0.0), (10, 0.2)])
def test_bounds_of_the_mean_and_intervals_of_tau_fail_as_often_as_they_say(
  num, tau
):
  rng = np.random.default_rng(num)
  variance = np.full(num, 0.01)
  mu = rng.normal(1, np.sqrt(tau**2 + 0.01), (SIMULATIONS, num))
  truth = tradeoff.epsilon_gdp(1.0, DELTA)
  exceeded = np.mean(
    [
      over_runs.mean_shift_bound(
        y, variance, delta=DELTA, significance=0.1
      ).epsilon
      > truth
      for y in mu
    ]
  )
  assert exceeded == pytest.approx(0.1, abs=NOISE)
  ends = np.array(
    [over_runs.random_effects(y, variance).tau_interval for y in mu]
  )
  inside = np.mean((ends[:, 0] <= tau) & (tau <= ends[:, 1]))
  # At τ = 0 only the upper tail can miss it.
  assert inside == pytest.approx(0.9 if tau else 0.95, abs=NOISE)


def test_a_bound_of_the_mean_says_what_it_assumes():
  bound = over_runs.mean_shift_bound(
    np.array([1.0, 1.1, 0.9]), np.full(3, 0.01), delta=DELTA
  )
  assert bound.confidence == 0.95
  assert not bound.is_shape_free
  assert Assumption.GAUSSIAN_RUNS in bound.assumes
  below = over_runs.mean_shift_bound(
    np.array([-1.0, -1.1]), np.full(2, 0.01), delta=DELTA
  )
  assert below.epsilon == 0.0
  with pytest.raises(
    ValueError, match=r'significance=0.5; give a number in \[1e-12, 0.5'
  ):
    over_runs.mean_shift_bound(
      np.ones(2), np.ones(2), delta=DELTA, significance=0.5
    )


@pytest.mark.integration
def test_the_next_run_is_in_its_interval_as_often_as_it_says():
  num, rng = 5, np.random.default_rng(5)
  inside = []
  for *mu, after in rng.normal(size=(2000, num + 1)):
    found = over_runs.random_effects(np.array(mu), np.full(num, 0.1))
    low, high = found.prediction
    inside.append(low <= after <= high)
  # Five standard errors.
  error = 5 * math.sqrt(0.9 * 0.1 / 2000)
  assert np.mean(inside) == pytest.approx(found.confidence, abs=error)


def test_the_spread_of_epsilon_is_that_of_the_shifts():
  mu, tau = 0.4, 0.3
  spread = over_runs.compute_epsilon_spread(mu, tau, delta=DELTA)
  shifts = np.maximum(np.random.default_rng(0).normal(mu, tau, 40_000), 0)
  epsilon = np.asarray(tradeoff.epsilon_gdp(shifts, DELTA))
  assert spread.std == pytest.approx(epsilon.std(), rel=0.02)
  low, high = np.quantile(epsilon, [0.05, 0.95])
  assert (spread.low, spread.high) == pytest.approx((low, high), rel=0.02)
  with pytest.raises(ValueError, match='tau=-1'):
    over_runs.compute_epsilon_spread(mu, -1, delta=DELTA)


def test_two_runs_have_a_closed_form():
  # Q(τ²) = (y_1 - y_2)²/(v_1 + v_2 + 2 τ²) = 1.
  effects = over_runs.random_effects(np.array([1.0, 3.0]), np.array([0.1, 0.7]))
  assert effects.tau**2 == pytest.approx((4 - 0.8) / 2, rel=1e-12)
  assert effects.mu == 2.0
  assert effects.i_squared == pytest.approx(1 - 0.8 / 4)


@pytest.mark.parametrize('num', [3, 6, 30])
def test_between_runs_q_equals_its_degrees_of_freedom(num):
  rng = np.random.default_rng(num)
  variance = rng.uniform(0.01, 0.2, num)
  mu = rng.normal(1, 2, num)
  effects = over_runs.random_effects(mu, variance)
  weights = 1 / (variance + effects.tau**2)
  centre = np.sum(weights * mu) / np.sum(weights)
  assert np.sum(weights * (mu - centre) ** 2) == pytest.approx(
    num - 1, rel=1e-9
  )


@pytest.mark.parametrize('scale', [0.01, 1.0])
def test_the_interval_of_the_mean_is_students(scale):
  mu = scale * np.random.default_rng(0).normal(1, 1, 7)
  effects = over_runs.random_effects(mu, np.full(7, 0.04))
  expected = stats.ttest_1samp(mu, 0).confidence_interval(0.9)
  np.testing.assert_allclose(effects.interval, expected, rtol=1e-9)
  between = max(0.0, np.var(mu, ddof=1) - 0.04)
  assert effects.tau**2 == pytest.approx(between, rel=1e-9)
  # At the small scale runs differ by less than canaries explain.
  assert (effects.tau == 0) == (effects.i_squared == 0) == (scale < 1)


@functools.cache
def covered(num, tau, sizes, *, simulations=SIMULATIONS):
  """Shares of intervals with the truth: mean, new run, and canaries as one run."""
  rng = np.random.default_rng(num)
  variance = 1 / np.resize(sizes, num).astype(float)
  inside = np.zeros((simulations, 3), bool)
  for i in range(simulations):
    *shifts, new = rng.normal(1, tau, num + 1)
    mu = rng.normal(shifts, np.sqrt(variance))
    effects = over_runs.random_effects(mu, variance)
    pooled = np.average(mu, weights=1 / variance)
    half = stats.norm.ppf(0.95) / np.sqrt(np.sum(1 / variance))
    for j, (low, high), truth in (
      (0, effects.interval, 1),
      (1, effects.prediction, new),
      (2, (pooled - half, pooled + half), 1),
    ):
      inside[i, j] = low <= truth <= high
  return inside.mean(axis=0)


@pytest.mark.integration
@pytest.mark.parametrize('tau', [0.0, 0.5])
@pytest.mark.parametrize('num', [3, 5, 10])
def test_intervals_of_the_mean_cover_it(num, tau):
  mean, _, pooled = covered(num, tau, (100,))
  # Of equal runs the coverage is exact.
  assert mean == pytest.approx(0.9, abs=NOISE)
  # The canaries of all runs as those of one are right for equal runs alone.
  if tau == 0:
    assert pooled == pytest.approx(0.9, abs=NOISE)
  else:
    assert pooled < 0.5


@pytest.mark.integration
@pytest.mark.parametrize('tau', [0.0, 0.1, 1.0])
@pytest.mark.parametrize(
  'sizes', [(50, 5000), (30,) * 9 + (10_000,), (30, 300)]
)
def test_intervals_of_unequal_runs_cover_as_often_as_they_say(sizes, tau):
  mean, _, _ = covered(len(sizes), tau, sizes)
  assert mean > 0.9 - NOISE


@pytest.mark.integration
@pytest.mark.parametrize('sizes', [(50, 5000), (30,) * 9 + (10_000,)])
def test_bounds_of_unequal_runs_fail_no_more_often_than_they_say(sizes):
  rng = np.random.default_rng(0)
  variance = 1 / np.array(sizes, float)
  mu = rng.normal(1, np.sqrt(0.1**2 + variance), (SIMULATIONS, len(sizes)))
  truth = tradeoff.epsilon_gdp(1.0, DELTA)
  exceeded = [
    over_runs.mean_shift_bound(y, variance, delta=DELTA).epsilon > truth
    for y in mu
  ]
  # Binomials of 5 % exceed this once in 10,000 times.
  assert np.mean(exceeded) < 0.1


@pytest.mark.integration
@pytest.mark.parametrize('sizes', [(100,), (30, 3000)])
@pytest.mark.parametrize('num', [3, 5, 10])
def test_predictions_cover_a_new_run(num, sizes):
  _, new, _ = covered(num, 0.5, sizes)
  assert -NOISE < new - 0.9 < NOISE + 0.04


@pytest.mark.integration
@pytest.mark.parametrize('kind', ['known', 'fitted', 'shifted'])
def test_shifts_have_the_variance_they_say(kind):
  rng = np.random.default_rng(0)
  num, shift = 2000, None
  unobserved = 60 if kind == 'fitted' else 0
  if kind == 'shifted':
    shift = rng.uniform(0.5, 1.5, 40)
    shift /= shift.mean()
  dim = None if kind == 'fitted' else DIM
  runs = [
    Scores(
      rng.normal(2 * (1 if shift is None else shift), 1, 40) / 1000,
      rng.normal(0, 1, unobserved) / 1000,
      make_null(dim),
      shift=shift,
    )
    for _ in range(num)
  ]
  mu, variance = over_runs.estimate_shifts(runs)
  stated = np.mean(variance)
  assert np.mean(mu) == pytest.approx(2, abs=5 * np.sqrt(stated / num) + 0.02)
  # A variance of 2000 has a relative error of 3.2 %; to first order, 5 % more.
  slack = 5 * np.sqrt(2 / num) + (0.05 if kind == 'fitted' else 0)
  assert np.var(mu) == pytest.approx(stated, rel=slack)
  assert (kind == 'known') == np.allclose(variance, 1 / 40)


def test_epsilon_follows_from_mu():
  effects = over_runs.random_effects(
    np.array([0.2, 0.5, 0.4]), np.array([0.01, 0.02, 0.01])
  )
  mean = over_runs.epsilon_of_mean(effects, delta=DELTA)
  new = over_runs.epsilon_of_new_run(effects, delta=DELTA)
  for estimate, limits in ((mean, effects.interval), (new, effects.prediction)):
    assert estimate.epsilon == tradeoff.epsilon_gdp(effects.mu, DELTA)
    assert estimate.interval == tuple(
      float(tradeoff.epsilon_gdp(max(mu, 0), DELTA)) for mu in limits
    )
    assert (estimate.kind, estimate.confidence) == ('point_estimate', None)
  assert new.interval[0] == 0 < mean.interval[0]
  assert mean.interval[1] < new.interval[1]


def one_kind(dim=100, design='fixed', shape=(4,)):
  scores = np.random.default_rng(0).normal(size=(*shape, 2)) / 100
  return Scores(scores[..., 0], scores[..., 1], make_null(dim), design)


@pytest.mark.parametrize(
  ('runs', 'message'),
  [
    ([one_kind()], 'runs has 1 of them'),
    ([one_kind(), one_kind(dim=200)], r'values of null: .Sphere.*200'),
    ([one_kind(), one_kind(dim=None)], 'values of null'),
    (
      [one_kind(), one_kind(design='coin_flip')],
      "design: .'coin_flip', 'fixed'",
    ),
    ([one_kind(shape=(2, 4))] * 2, r'shape \(2, 4\)'),
  ],
)
def test_runs_of_several_kinds_are_refused(runs, message):
  with pytest.raises(ValueError, match=message):
    over_runs.estimate_shifts(runs)


@pytest.mark.usefixtures('types_unchecked')
def test_one_run_and_one_variance_of_two_are_refused():
  for mu, name in ([1.0], 'mu'), ([1.0, 2.0], 'variance'):
    with pytest.raises(ValueError, match=rf'{name} has shape \(1,\)'):
      over_runs.random_effects(np.array(mu), np.array([0.1]))


def test_the_table_has_each_run_their_mean_and_a_new_one():
  runs = {
    f'runs/{shift}': recorded_runs.by_law(shift=shift) for shift in (2, 3, 4)
  }
  rows = run_effects.evaluate_runs(runs)
  assert [words.spell_statistic(row.threat_model) for row in rows] == [
    'cosine with the final model',
    'cosine with the change of the model',
    'own round',
    'own round, others removed',
  ]
  own = rows[-2]
  # √60 canaries in each run: the shift is known to 0.13.
  for run, shift in zip(own.runs, (2, 3, 4)):
    assert run.mu == pytest.approx(shift, abs=5 / np.sqrt(60))
    assert run.standard_error == pytest.approx(1 / np.sqrt(60), rel=0.01)
  assert own.mean.mu == pytest.approx(3, abs=5 / np.sqrt(180))
  low, high = own.mean.interval
  assert low < own.mean.epsilon < high
  assert own.new_run.interval[1] > high
  assert own.i_squared > 0.9
  table = over_reports.format_over_runs(rows)
  for name in (*runs, 'mean of runs', 'a new run'):
    assert table.count(name) == 4
  assert '| a new run |' in table
  with pytest.raises(ValueError, match='runs differ in more than their seeds'):
    run_effects.evaluate_runs(
      {'a': recorded_runs.by_law(), 'b': recorded_runs.by_law(dim=10**5)}
    )
  with pytest.raises(ValueError, match='external scores; give one kind'):
    run_effects.evaluate_runs({'a': runs['runs/2'], 'b': one_kind()})
  with pytest.raises(ValueError, match='for example --delta=1e-5'):
    run_effects.evaluate_runs({'a': one_kind(), 'b': one_kind()})


def test_a_null_law_that_one_run_rejects_is_believed_in_none():
  rng = np.random.default_rng(0)
  runs = {
    name: Scores(
      rng.normal(1, std, 90) / 1000, rng.normal(0, std, 90) / 1000, Sphere(DIM)
    )
    for name, std in (('good', 1), ('bad', 2), ('also good', 1))
  }
  (row,) = run_effects.evaluate_runs(runs, delta=DELTA)
  assert {name for name, failed in row.failed_checks.items() if failed} == {
    'bad'
  }
  assert row.failed_checks['bad'][0].key == 'null_law_rejected'
  assert 'bad: scores of canaries held out' in (
    over_reports.format_over_runs([row])
  )
  assert row.runs[1].mu == pytest.approx(0.5, abs=5 * np.sqrt(2 / 90))


def test_the_command_takes_several_files(tmp_path):
  rng = np.random.default_rng(0)
  names = [str(tmp_path / f'{i}.npz') for i in range(3)]
  for i, name in enumerate(names):
    np.savez(
      name,
      observed=rng.normal(1 + i, 1, 80),
      unobserved=rng.normal(0, 1, 80),
    )

  done = run_command('estimate', *names, '--delta=1e-5', '--format=json')
  assert done.returncode == 0, done.stderr
  (row,) = json.loads(done.stdout)
  assert [run['run'] for run in row['runs']] == names
  assert row['mean']['interval'][0] < row['mean']['epsilon']


def test_copies_of_a_run_and_runs_of_other_configs_are_no_several_runs():
  one = recorded_runs.by_law()
  copy = dataclasses.replace(one)
  with pytest.raises(ValueError, match='a and b have the same scores'):
    run_effects.evaluate_runs({'a': one, 'b': copy})
  reordered = dataclasses.replace(
    recorded_runs.replace_cosines(
      one, **{name: x[..., ::-1] for name, x in one.cosines.items()}
    ),
    included=one.included[:, ::-1],
    assigned=one.assigned[:, ::-1],
    weight=one.weight[::-1],
  )
  with pytest.raises(ValueError, match='a and b have the same scores'):
    run_effects.evaluate_runs({'a': one, 'b': reordered})
  scores = one_kind()
  turned = Scores(scores.observed[::-1], scores.unobserved[::-1], scores.null)
  with pytest.raises(ValueError, match='a and b have the same scores'):
    run_effects.evaluate_runs({'a': scores, 'b': turned}, delta=DELTA)
  half = recorded_runs.replace_cosines(
    one, **{name: x.astype(np.float16) for name, x in one.cosines.items()}
  )
  with pytest.raises(ValueError, match='up to units and rounding'):
    run_effects.evaluate_runs({'a': one, 'b': half})
  longer = recorded_runs.by_law(rounds=25)
  with pytest.raises(ValueError, match=r'runs differ .*a: 20 rounds.* b: 25'):
    run_effects.evaluate_runs({'a': one, 'b': longer})


@pytest.mark.parametrize(
  'change',
  [
    lambda x: x.astype(np.float32),
    lambda x: 3 + 1e-3 * x,
    lambda x: (10 * x).round(),
    lambda x: (1e3 * x).round()[::-1],
    lambda x: np.exp(x / 1e3),
  ],
)
@pytest.mark.parametrize('num', [8, 200])
def test_a_copy_in_other_units_or_rounded_is_no_second_run(change, num):
  rng = np.random.default_rng(num)
  one = Scores(rng.normal(2, 1, num), rng.normal(0, 1, num))
  changed = (change(x).astype(float) for x in (one.observed, one.unobserved))
  copy = Scores(*changed)
  with pytest.raises(ValueError, match='a and b have the same scores'):
    run_effects.evaluate_runs({'a': one, 'b': copy}, delta=DELTA)


@pytest.mark.parametrize(
  'draw',
  [
    lambda rng, shape: rng.standard_normal(shape),
    lambda rng, shape: rng.random(shape),
    lambda rng, shape: rng.standard_t(3, shape),
    lambda rng, shape: rng.exponential(size=shape).round(2),
    lambda rng, shape: rng.integers(0, 50, shape).astype(float),
  ],
)
@pytest.mark.parametrize('num', [4, 500])
def test_independent_runs_of_one_law_are_no_copies(draw, num):
  rng = np.random.default_rng(0)
  for _ in range(100):
    one, other = (Scores(*draw(rng, (2, num))) for _ in range(2))
    assert not run_effects.are_copies(one, other)


def test_shifts_that_all_runs_have_are_no_copies():
  """Without noise canaries that took part score alike in all runs."""
  rng = np.random.default_rng(0)
  shift = np.linspace(1e3, 1e5, 100)
  one, other = (
    Scores(shift + rng.normal(size=100), rng.normal(size=100)) for _ in range(2)
  )
  assert not run_effects.are_copies(one, other)
