"""Runs beside each other: estimates, floors, and differences with intervals."""

import dataclasses

import numpy as np
import pytest

from epe_jax.audit import attackers, evaluation
from epe_jax.epsilon.types import Estimate
from epe_jax.experiment.sweeps.seed_sweep import SeedEstimates
from epe_jax.report.comparisons import comparison, labelled_runs, sweeps
from epe_jax.report.figures import comparison as figures
from epe_jax.several_runs import over_runs
from tests import recorded_runs

_OWN = attackers.OWN


def describe(label, shift, **changes):
  record = recorded_runs.by_law(shift=shift)
  result = recorded_runs.result(audit=evaluation.evaluate(record), **changes)
  return labelled_runs.label_run(label, result)


@pytest.fixture(scope='module')
def runs():
  return [describe('weak', 2.0), describe('strong', 4.0)]


def test_an_interval_of_a_difference_covers_it_as_often_as_it_says():
  rng, z, trials, covered = np.random.default_rng(0), 1.6449, 2000, 0
  for _ in range(trials):
    # Two estimates of unequal scatter, whose difference is 3.
    one, other = rng.normal([5.0, 8.0], [1.0, 0.5])
    estimate = [
      Estimate(e, 1e-5, 'any', None, interval=(e - z * std, e + z * std))
      for e, std in ((one, 1.0), (other, 0.5))
    ]
    low, high = labelled_runs.subtract(estimate[1], estimate[0]).interval
    covered += low <= 3.0 <= high
  # Five standard errors of a share of 0.9.
  assert abs(covered / trials - 0.9) < 5 * np.sqrt(0.09 / trials)


def test_a_difference_without_intervals_has_none():
  one, other = (Estimate(e, 1e-5, 'any', None) for e in (1.0, 3.0))
  assert labelled_runs.subtract(other, one) == (2.0, None)
  infinite = dataclasses.replace(other, epsilon=np.inf)
  assert np.isnan(labelled_runs.subtract(infinite, one).epsilon)
  with pytest.raises(ValueError, match='compare runs of one δ'):
    labelled_runs.subtract(dataclasses.replace(other, delta=1e-6), one)


def test_runs_of_several_deltas_do_not_compare(runs):
  other = runs[1]._replace(delta=1e-6)
  with pytest.raises(
    ValueError, match=r'strong: 1e-06\), and ε of different δ'
  ):
    labelled_runs.check_comparable([runs[0], other])
  with pytest.raises(ValueError, match='give two or more'):
    labelled_runs.check_comparable(runs[:1])


def test_the_table_has_every_attacker_of_every_run(runs):
  table = comparison.make_table(runs)
  assert len(table.body) == 2 * 4
  for attacker, run, bound, epsilon, floor, difference in table.body:
    assert '[' in epsilon
    assert ' to ' in floor
    assert float(bound) <= float(epsilon.split()[0])
    assert (difference == '-') == (run == 'weak'), attacker
  assert comparison.make_title(runs).startswith('worst case: ε ≈')


def test_the_figure_shows_points_floors_and_differences(runs):
  upper, lower = figures.draw_comparison(
    runs, labelled_runs.subtract_first(runs)
  ).axes
  (own,) = [
    line
    for line in lower.get_lines()
    if len(line.get_xdata()) == 1 and line.get_color() == '#009E73'
  ]
  expected = labelled_runs.subtract(
    runs[1].estimates[_OWN], runs[0].estimates[_OWN]
  )
  assert own.get_xdata()[0] == pytest.approx(expected.epsilon)
  bars = [tuple(x.get_xdata()) for x in lower.get_lines()]
  assert expected.interval in bars
  # A floor for each attacker of each run.
  assert len(upper.collections) == 2 * 4
  assert not upper.patches


def test_a_comparison_is_a_page_a_text_and_a_figure(runs, tmp_path):
  text = comparison.write_comparison(tmp_path / 'new', runs)
  names = {path.name for path in (tmp_path / 'new').iterdir()}
  assert names == {f'comparison.{x}' for x in ('md', 'html', 'png', 'svg')}
  assert '+14.7 [+12.4, +16.9]' in text
  page = (tmp_path / 'new/comparison.html').read_text()
  assert 'id="word-difference"' in page
  assert '<img' in page


def test_sweeps_show_the_floors_of_their_estimates(runs):
  points = [
    run._replace(settings={'noise': noise})
    for run, noise in zip(runs, (0.5, 0.2))
  ]
  title = comparison.make_title(points)
  fig = figures.draw_sweep(points, finding=title)
  (axes,) = fig.axes
  assert len(axes.collections) == 2 * 4
  floor = runs[0].estimates[_OWN].floor
  heights = [c.get_paths()[0].get_extents().ymax for c in axes.collections]
  assert any(height == pytest.approx(floor.q95) for height in heights)
  assert '(weak) to' in fig.get_suptitle()
  assert figures.draw_sweep([], finding='none') is None


def test_figures_of_sweeps_name_files_without_their_folders(runs):
  paths = ('/home/ada/one.csv', '/home/ada/two.csv')
  points = [
    run._replace(settings={'participation.log': path, 'noise': 0.5})
    for run, path in zip(runs, paths)
  ]
  fig = figures.draw_sweep(points, finding='')
  titles = [axes.get_title() for axes in fig.axes]
  assert titles == [
    f'participation.log = PATH_TO/{x}.csv' for x in ('one', 'two')
  ]


def seeds_of(num):
  return [
    SeedEstimates(
      seed,
      0.9 + 0.01 * seed,
      {_OWN.key: 8.0},
      {_OWN.key: over_runs.ShiftEstimate(3.0 + 0.1 * seed, 0.01)},
      None,
      1e-5,
    )
    for seed in range(num)
  ]


def test_points_of_several_seeds_are_compared_by_their_means():
  point = labelled_runs.label_seeds('z=1', seeds_of(4), {'z': 1.0})
  low, high = point.estimates[_OWN].interval
  assert low < point.estimates[_OWN].epsilon < high
  assert list(point.estimates) == [_OWN]
  assert point.analytic == {}
  table = sweeps.make_settings_table([point])
  (line,) = table.body
  row = dict(zip(table.head, line, strict=True))
  # The standard deviation of 90, 91, 92 and 93 is 1.29.
  assert (row['z'], row['seeds'], row['accuracy']) == (
    '1',
    '4',
    '91.5 ± 1.29 %',
  )
  # What has no estimate, bound or limit has no column.
  assert [*row] == ['z', 'seeds', 'accuracy', 'every round, estimate']
  assert row['every round, estimate'].endswith(']')
  alone = labelled_runs.label_seeds('z=1', seeds_of(1), {'z': 1.0})
  assert alone.estimates[_OWN].epsilon == 8.0
  assert alone.estimates[_OWN].interval is None


def test_no_text_of_the_figure_of_long_labels_is_cut_off(runs):
  long = [
    run._replace(label=f'noise_multiplier={z},canaries.repetitions=16,seed={z}')
    for z, run in enumerate(runs)
  ]
  fig = figures.draw_comparison(long, labelled_runs.subtract_first(long))
  fig.draw_without_rendering()
  box, (width, _) = fig.get_tightbbox(), fig.get_size_inches()
  assert 0 <= box.x0 < box.x1 <= width


def test_points_that_failed_have_a_line_and_a_reason(runs):
  point = runs[0]._replace(settings={'noise': 0.5})
  failed = {'noise=0': ({'noise': 0.0}, 'no noise in /home/ada/x')}
  table = sweeps.make_settings_table([point], failed)
  assert [line[0] for line in table.body] == ['0.5', '0']
  assert table.body[1][1] == 'failed'
  assert {len(line) for line in table.body} == {len(table.head)}
  assert 'noise=0 failed: no noise in' in table.notes[-1]
  assert 'ada' not in table.notes[-1]
