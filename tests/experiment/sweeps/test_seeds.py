"""Runs of many seeds: the runs of one, made at once."""

import dataclasses

import jax
import numpy as np
import pytest

from epe_jax.audit.record import Record
from epe_jax.audit.record_file import load_record
from epe_jax.data import cohort
from epe_jax.experiment import audited_run, loop, programs
from epe_jax.experiment.setup import build
from epe_jax.experiment.setup import config as config_lib
from epe_jax.experiment.sweeps import seeds
from tests import helpers
from tests.helpers import load_config

pytestmark = pytest.mark.usefixtures('quick_compilation')


@pytest.fixture(autouse=True, scope='module')
def traces():
  with pytest.MonkeyPatch.context() as patch:
    yield helpers.count_traces(patch)


def small_config(**changes):
  config = load_config('digits', rounds=3, evaluate_every=3)
  config.canaries.update(observed=5, unobserved=4)
  config.client.update(epochs=1)
  config.audit.buffer = 2
  config.update_from_flattened_dict(changes)
  return config


class Unseen:
  """A bar of progress that only counts."""

  counted = 0

  def __init__(self, **_):
    Unseen.counted = 0

  def __enter__(self):
    return self

  def __exit__(self, *_):
    return None

  def update(self, n):
    Unseen.counted += n


def made(config, which, **options):
  return [*seeds.run_seeds(config, which, progress=Unseen, **options)]


def check_same(outcome, record, accuracy):
  # An example of the 359 may lie on the border of two classes.
  assert outcome.accuracy == pytest.approx(accuracy, abs=0.005)
  for field in dataclasses.fields(Record):
    a, b = getattr(outcome.record, field.name), getattr(record, field.name)
    if field.name == 'rounds':
      # Numbers of each round, as arrays of NumPy.
      a, b = np.stack(a), np.stack(b)
    if field.name == 'cosines':
      assert a.keys() == b.keys()
      a, b = (np.concatenate([x[n].ravel() for n in b]) for x in (a, b))
    if isinstance(b, np.ndarray) and b.dtype.kind == 'f':
      assert a.shape == b.shape
      # Cosines are some 1 / sqrt(d) = 0.04.
      np.testing.assert_allclose(a, b, rtol=1e-3, atol=2e-6)
    else:
      np.testing.assert_array_equal(a, b)


@pytest.fixture(scope='module')
def alone(tmp_path_factory, traces):
  """What a run of seed 2 records by itself, and its accuracy."""
  workdir = tmp_path_factory.mktemp('runs') / 'alone'
  with pytest.MonkeyPatch.context() as patch:
    # Estimates take longer than the run, and nothing here looks at them.
    patch.setattr(loop.evaluation, 'evaluate', helpers.no_estimates)
    result = audited_run.run(small_config(seed=2), workdir)
  return load_record(workdir / 'private/scores.npz'), result.accuracy


@pytest.mark.integration
def test_many_seeds_are_the_runs_of_each_seed(alone, traces):
  traces.clear()
  outcomes = made(small_config(), [0, 1, 2], at_once=3)
  # A batch, and the half of one.
  assert sorted(traces) == [4, 8]
  assert Unseen.counted == 3 * 3
  assert [outcome.seed for outcome in outcomes] == [0, 1, 2]
  check_same(outcomes[2], *alone)
  # Seeds differ, or the law above would be an easy one.
  for other in outcomes[:2]:
    assert (
      np.abs(other.record.cosines['final'] - alone[0].cosines['final']).max()
      > 1e-3
    )


@pytest.mark.integration
def test_seeds_whose_rounds_are_of_other_sizes_have_cohorts_of_one_shape():
  config = small_config(
    **{
      'participation.kind': 'poisson',
      'data.concentration': 0.02,
      'client.batch_size': 2,
    }
  )
  which = [3, 4, 5]
  runs = [
    build.build(config_lib.replace_fields(config, seed=seed)) for seed in which
  ]
  needed = [seeds.measure_sizes(setup) for setup in runs]
  # The case is a hard one.
  assert len({room.slots for room in needed}) > 1
  assert len({room.steps for room in needed}) > 1
  room = seeds.Sizes(*map(max, *needed))
  for t in range(config.rounds):
    together = seeds.gather_cohorts(runs, room, t)
    for i, (seed, setup) in enumerate(zip(which, runs)):
      mine = jax.tree.map(lambda x, i=i: x[i, 0], together)
      alone = cohort.gather(
        setup.train,
        setup.participants.clients(t),
        setup.plan,
        seed=seed,
        round=t,
      )
      steps = min(mine.mask.shape[2], alone.mask.shape[2])
      for x, y in zip(jax.tree.leaves(mine), jax.tree.leaves(alone)):
        if x.ndim > 2:
          x, rest_x = x[:, :, :steps], x[:, :, steps:]
          y, rest_y = y[:, :, :steps], y[:, :, steps:]
          assert not rest_x.any()
          assert not rest_y.any()
        np.testing.assert_array_equal(x[: len(y)], y)
        assert (x[len(y) :] == (-1 if x.ndim == 2 else 0)).all()


@pytest.mark.integration
def test_scoring_all_canaries_stays_a_condition_of_the_round():
  config = small_config()
  runs = [
    build.build(config_lib.replace_fields(config, seed=s)) for s in (0, 1)
  ]
  room = seeds.Sizes(*map(max, *map(seeds.measure_sizes, runs)))
  draws = seeds.stack_draws(runs, room)
  params = jax.tree.map(lambda *x: np.stack(x), *(run.params for run in runs))
  init = programs.make_init(runs[0], replicates=True)
  made_ = programs.make_programs(runs[0], runs[0].state, replicates=True)
  batch = seeds.gather_cohorts(runs, room, 0)
  jaxpr = str(jax.make_jaxpr(made_.advance)(draws, init(draws, params), batch))
  # If rounds were vmapped, both branches would run and a select would choose.
  assert 'cond[' in jaxpr


@pytest.mark.parametrize(
  ('changes', 'which', 'options', 'said'),
  [
    ({'simulation': False}, [0], {}, 'simulation=False'),
    ({}, [], {}, r'seeds=\[\]'),
    ({}, [1, 1], {}, r'seeds=\[1, 1\]'),
    ({}, [0], {'at_once': 0}, 'at_once=0'),
    ({}, [-1], {}, 'seed=-1'),
  ],
)
def test_what_cannot_be_made_is_refused(changes, which, options, said):
  with pytest.raises(ValueError, match=said):
    made(small_config(**changes), which, **options)


@pytest.mark.integration
def test_a_run_that_diverges_is_named(monkeypatch):
  def check(config, metrics, name):
    wrong = float('nan') if name.endswith('seed 7') else 0.0
    return checked(config, metrics | {'update_norm': wrong}, name)

  checked = loop.check_finite
  monkeypatch.setattr(loop, 'check_finite', check)
  with pytest.raises(FloatingPointError, match='round 1 of seed 7'):
    made(small_config(), [4, 7], at_once=3)
