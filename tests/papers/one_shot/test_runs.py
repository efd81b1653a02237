"""One run against several: their comparison."""

import numpy as np
import pytest

from epe_jax.audit.record import make_record
from epe_jax.epsilon import two_gaussians
from epe_jax.epsilon.types import Scores, Sphere
from epe_jax.experiment.sweeps import seeds
from papers.one_shot import runs as comparison
from tests import recorded_runs
from tests.experiment.sweeps import test_seeds

DIM = 10_000


def cosines(seed, num, shift=0.03):
  rng = np.random.default_rng(seed)
  observed = shift + rng.standard_normal(num) / np.sqrt(DIM)
  return Scores(observed, rng.standard_normal(num) / np.sqrt(DIM), Sphere(DIM))


def small_config(**changes):
  config = test_seeds.small_config()
  config.canaries.update(observed=12, unobserved=6)
  config.update_from_flattened_dict(changes)
  return config


@pytest.fixture
def trained(monkeypatch):
  """Seeds in the order in which they were asked for; nothing is trained."""
  asked = []

  def each(config, seeds_, **_):
    for seed in seeds_:
      asked.append(seed)
      k, u = config.canaries.observed, config.canaries.unobserved
      scores = cosines(seed, k + u, shift=0)
      participation = np.zeros((config.rounds, k + u), bool)
      participation[0, :k] = True
      final = (scores.observed + 0.03 * participation[0]).astype(np.float32)
      record = make_record(
        {'final': final},
        recorded_runs.scalars(config.rounds),
        included=participation,
        dim=DIM,
        delta=1e-3,
      )
      yield seeds.SeedRun(seed, record, 0.5, 1e-3)

  monkeypatch.setattr(seeds, 'run_seeds', each)
  monkeypatch.setattr(comparison.build, 'build', lambda config: None)
  return asked


def compared(workdir, *, experiments=3, runs=3, **changes):
  return comparison.compare(
    small_config(**changes),
    experiments=experiments,
    runs=runs,
    workdir=workdir,
    progress=test_seeds.Unseen,
  )


def test_every_run_of_a_comparison_has_a_seed_of_its_own(tmp_path, trained):
  rows = compared(tmp_path / 'w', seed=5)
  assert sorted(trained) == list(range(5, 5 + 3 * 4))
  assert test_seeds.Unseen.counted == 3 * 4
  for i in range(3):
    mine = [row for row in rows if row.experiment == i]
    single, several = (
      next(row for row in mine if row.design == design)
      for design in ('single', 'several')
    )
    assert len(mine) == 4
    assert (single.runs, single.canaries) == (1, 12)
    assert (several.runs, several.canaries) == (3, 4)


def test_a_row_is_the_estimate_of_the_pooled_cosines(tmp_path, trained):
  rows = compared(tmp_path / 'w', experiments=1)
  final = [
    (cosines(seed, 6, shift=0).observed + 0.03)[:4] for seed in (1, 2, 3)
  ]
  final = np.float32(np.concatenate(final))
  for std in ('null', 'fitted'):
    (row,) = comparison.select_rows(rows, 'several', std)
    expected = two_gaussians.two_gaussian(
      Scores(final, np.empty(0), Sphere(DIM)), delta=1e-3, std=std
    ).epsilon
    assert row.epsilon == pytest.approx(expected, rel=1e-3)


def test_one_of_several_runs_is_the_single_run_of_its_seed(tmp_path, trained):
  several = compared(tmp_path / 'a', experiments=1, runs=1, seed=0)
  single = compared(tmp_path / 'b', experiments=1, runs=1, seed=1)
  for std in ('null', 'fitted'):
    (a,) = comparison.select_rows(several, 'several', std)
    (b,) = comparison.select_rows(single, 'single', std)
    assert a._replace(design='single') == b


def test_finished_runs_are_not_made_again(tmp_path, trained):
  whole = compared(tmp_path / 'whole')
  workdir = tmp_path / 'w'
  compared(workdir, experiments=1)
  trained.clear()
  assert compared(workdir) == whole
  assert sorted(trained) == list(range(4, 12))
  # Those lost in the middle are the only ones to be made.
  for seed in (4, 6):
    (workdir / f'run_{seed}.json').unlink()
  trained.clear()
  assert compared(workdir) == whole
  assert sorted(trained) == [4, 6]
  trained.clear()
  assert compared(workdir) == whole
  assert not trained


def test_a_comparison_that_is_killed_keeps_what_it_has_finished(
  tmp_path, trained, monkeypatch
):
  whole = compared(tmp_path / 'whole')
  made = seeds.run_seeds

  def killed(config, seeds_, **_):
    for outcome in made(config, seeds_):
      if outcome.seed == 6:
        raise KeyboardInterrupt
      yield outcome

  monkeypatch.setattr(seeds, 'run_seeds', killed)
  with pytest.raises(KeyboardInterrupt):
    compared(tmp_path / 'w')
  monkeypatch.setattr(seeds, 'run_seeds', made)
  trained.clear()
  assert compared(tmp_path / 'w') == whole
  assert sorted(trained) == list(range(6, 12))


@pytest.mark.parametrize(
  ('options', 'said'),
  [
    ({'runs': 5}, r'canaries\.observed=12 cannot be dealt to runs=5'),
    ({'runs': 12}, r'canaries\.observed=12 .* at least 2'),
    ({'runs': 4}, r'canaries\.unobserved=6 cannot be dealt to runs=4'),
    ({'simulation': False}, 'simulation=False'),
  ],
)
def test_what_cannot_be_compared_is_refused(tmp_path, trained, options, said):
  with pytest.raises(ValueError, match=said):
    compared(tmp_path / 'w', **options)
  # And the folder can still be used.
  compared(tmp_path / 'w')


def test_a_folder_holds_one_comparison(tmp_path, trained):
  compared(tmp_path, experiments=1)
  for change in ({'runs': 2}, {'noise_multiplier': 0.5}):
    with pytest.raises(ValueError, match='other settings'):
      compared(tmp_path, experiments=1, **change)


def by_hand(epsilons):
  """Rows of a comparison that found these ε, the second twice as large."""
  return [
    comparison.DesignEstimate(
      i,
      design,
      runs,
      100 // runs,
      std,
      float(f * e),
      1e-3,
      DIM,
      0.2,
      0.9,
      (0.1, 0.3),
    )
    for i, e in enumerate(epsilons)
    for std in ('null', 'fitted')
    for f, (design, runs) in enumerate((('single', 1), ('several', 10)), 1)
  ]


def test_the_table_has_quantiles_over_experiments():
  _, table = comparison.make_tables(
    [by_hand(np.arange(1, 11))], source='digits'
  )
  single, several = table.body
  # The standard error of a mean of 1 .. 10 is sqrt(55 / 6 / 10) = 0.96.
  assert single == [
    *('0.2', '1 x 100', '1.00', '3.00', '5.00', '7.00', '9.00'),
    *('5.50 ± 0.96', '90.0 %'),
  ]
  assert several[1:7] == ['10 x 10', '2.00', '6.00', '10.0', '14.0', '18.0']
  assert several[7] == '11.0 ± 1.91'
  assert table.title.endswith('δ = 1e-3')
  notes = ' '.join(table.notes)
  for expected in ('over 10 experiments', '0.10 to 0.30', 'd = 10,000'):
    assert expected in notes


def test_the_figure_shows_the_share_of_experiments_up_to_each_epsilon():
  rows = by_hand([3.0, 1.0, np.inf, 2.0])
  fig = comparison.draw_single_or_several(rows)
  assert len(fig.axes) == 2
  for axes in fig.axes:
    single, several = axes.get_lines()
    for line, factor in ((single, 1), (several, 2)):
      x, y = np.asarray(line.get_data())
      np.testing.assert_array_equal(x, factor * np.array([0, 1, 2, 3]))
      np.testing.assert_array_equal(y, [0, 0.25, 0.5, 0.75])
    assert single.get_color() != several.get_color()
    assert single.get_linestyle() != several.get_linestyle()
    labels = axes.get_legend_handles_labels()[1]
    assert labels[0] == '1 run x 100 canaries, n = 4'
    assert labels[1] == '10 runs x 10 canaries, n = 4'
    assert axes.get_xlabel() == 'ε̂ at δ = 1e-3'
