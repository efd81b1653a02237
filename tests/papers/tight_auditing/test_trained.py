"""Audited trainings, white box and black box: training, planted bugs, tables."""

import math
import types

import jax
import jax.numpy as jnp
from ml_collections import config_dict
import numpy as np
import pytest

pytest.importorskip('jax_privacy', reason='jax-privacy is not installed')

from epe_jax.dpsgd import estimates
from epe_jax.epsilon import tradeoff
from epe_jax.epsilon.types import Scores
from papers import item
from papers.tight_auditing import (
  accounted_run,
  audits,
  games,
  trained,
  workloads,
)

# jax_privacy 2.0 calls what optax 0.2.8 has renamed.
pytestmark = [
  pytest.mark.filterwarnings('ignore:optax.global_norm'),
  pytest.mark.usefixtures('quick_compilation'),
]

DELTA, STEPS = 1e-5, 2000


@pytest.fixture(name='quick_accounting')
def fixture_quick_accounting(monkeypatch):
  """A run whose ε is 2/σ, in place of a composition of PLDs."""
  log_noise = np.log(np.geomspace(0.1, 10, 9))
  run = accounted_run.AccountedRun(log_noise, np.log(2) - log_noise)
  monkeypatch.setattr(accounted_run, 'account_for_run', lambda **_: run)


def make_settings(**changes):
  return types.SimpleNamespace(
    **dict(
      title='Purchase-100, tiny',
      data='random',
      num_train=40,
      num_test=20,
      task='fully_connected',
      model=dict(hidden=(2,)),
      steps=6,
      expected_batch=4.0,
      clip_norm=1.0,
      learning_rate=0.1,
      momentum=0.0,
      microbatch=1,
    )
    | changes
  )


@pytest.mark.integration
def test_a_finished_game_is_not_trained_again(
  quick_accounting, monkeypatch, tmp_path
):
  # A network of vectors, on so few of them that the test is quick.
  rng = np.random.default_rng(0)
  draw = lambda n: {
    'features': rng.random((n, 5), np.float32),
    'label': rng.integers(0, 3, n, np.int32),
  }
  loaded = workloads.Examples(draw(40), draw(20), 'drawn', 'features', 3)
  monkeypatch.setattr(
    workloads.loading, 'load_examples', lambda *_, **__: loaded
  )
  work = workloads.load_workload(make_settings(), {}, delta=DELTA, seed=0)
  play = lambda **changes: games.play_game(
    work,
    tmp_path,
    **dict(kind='dirac', epsilon=2.0, delta=DELTA, seed=0) | changes,
  )
  first = play()
  # σ = 2/ε, by the accounting of this test.
  assert first.noise_multiplier == pytest.approx(1)
  assert 'q = 0.1,' in first.description
  assert 0 <= first.accuracy <= 1
  counts = np.bincount(loaded.test['label'])
  assert first.majority == counts.max() / 20
  monkeypatch.setattr(
    games.dp_sgd, 'gather_batch', lambda *_: pytest.fail('it trains')
  )
  again = play()
  np.testing.assert_array_equal(again.scores.observed, first.scores.observed)
  assert again.accuracy == first.accuracy
  with pytest.raises(ValueError, match='another workdir'):
    play(epsilon=1.0)


def test_data_that_are_not_given_are_asked_for():
  with pytest.raises(ValueError, match='give --data=cifar10=PATH'):
    workloads.load_workload(
      make_settings(data='cifar10'), {}, delta=DELTA, seed=0
    )


@pytest.mark.integration
def test_planted_bugs_are_in_the_step(quick_accounting):
  """The same batch and noise key: what is released differs as the bug says."""
  rng = np.random.default_rng(0)
  data = {
    'features': rng.random((8, 5), np.float32),
    'label': rng.integers(0, 3, 8, np.int32),
  }
  task = workloads.models.fully_connected(3, num_features=5, hidden=(2,))
  run = accounted_run.account_for_run()
  work = workloads.Workload(make_settings(expected_batch=8.0), task, None, run)
  params = task.init(jax.random.key(0))
  dim = sum(x.size for x in jax.tree.leaves(params))
  batch = games.dp_sgd.ExampleBatch(jax.device_put(data), jnp.ones(8, bool))
  canary = jnp.zeros(dim).at[0].set(1e4)

  def release(bug, num, true_epsilon=None):
    step = games._plant(work, bug, 1e-3, true_epsilon, 0)
    of_key = lambda noise: step(
      params, batch, canary, jnp.float32(1), jax.random.key(1), noise
    )[0]
    keys = jax.vmap(jax.random.key)(jnp.arange(num))
    return 8 * np.asarray(jax.jit(jax.vmap(of_key))(keys))

  # The canary adds C to a sum of clipped gradients, and m C to a clipped mean.
  assert release('clipping', 2) == pytest.approx(8, rel=0.01)
  # 100 seeds, of which 300 draws leave 5 out on average.
  assert 80 < len(set(release('seeds', 300).tolist())) <= 100
  # The noise is that of the true ε, σ = 2/ε here, and not the claimed 1e-3.
  assert np.std(release('scale', 300, true_epsilon=4.0)) == pytest.approx(
    0.5, rel=0.2
  )


def play_by_law(epsilon=4.0, title='Purchase-100', kind='dirac', seed=0):
  """What a game on correct code sees, of a canary that is orthogonal."""
  mechanism = estimates.make_step_mechanism(steps=STEPS)
  noise = np.sqrt(STEPS) / tradeoff.mu_of_epsilon(epsilon, DELTA)
  without, with_canary = noise * np.random.default_rng(seed).standard_normal(
    (2, STEPS)
  )
  return audits.AuditedTraining(
    title=title,
    kind=kind,
    epsilon=epsilon,
    analytic=epsilon,
    clip_norm=1.0,
    noise_multiplier=float(noise),
    scores=Scores(with_canary + 1, without),
    mechanisms={'Gaussian': mechanism},
    delta=DELTA,
    accuracy=0.5,
    majority=0.1,
    description='drawn by law',
  )


def test_table1_sets_the_papers_numbers_beside_ours():
  game = play_by_law()
  limits, runs = trained.make_table1([game]).tables
  rows = {(row[0], row[1]): row[-1] for row in limits.body}
  ours = game.estimate(audits.Choice('f_dp_cp', 'same'))
  assert rows['f-DP (CP)', 'same'] == f'{ours:.2f} (3.54)'
  # A bound has no counterpart in the paper.
  assert '(' not in rows['f-DP (CP)', 'band']
  (run,) = runs.body
  assert '50.0%' in run
  assert '10.0%' in run


def test_a_page_says_which_models_did_not_learn():
  learnt = make_audited(1.0, 100, 2.0)._replace(noise_multiplier=1.0)
  failed = learnt._replace(title='WRN-40', accuracy=0.105)
  notes = [
    trained.make_figure18(games).tables[-1].notes
    for games in ([learnt, failed], [learnt])
  ]
  (caution,), none = [
    [note for note in each if note.startswith(item.CAUTION)] for each in notes
  ]
  assert 'WRN-40, blank (10.5%)' in caution
  assert not none


def test_the_first_steps_are_those_of_the_run():
  game = play_by_law(kind='blank')
  (table,) = trained.make_figure17([game]).tables
  last = dict(zip(table.head, table.body[0]))
  whole = game.estimate(audits.Choice('f_dp_cp', 'band'))
  assert float(last['2,000']) == pytest.approx(whole, abs=0.006)
  assert float(last['40']) < whole


def make_work(**changes):
  """A network of vectors, on so few of them that the test is quick."""
  rng = np.random.default_rng(0)
  draw = lambda n: {
    'features': rng.random((n, 5), np.float32),
    'label': rng.integers(0, 3, n, np.int32),
  }
  settings = config_dict.create(
    title='Tiny',
    steps=4,
    expected_batch=8.0,
    clip_norm=1.0,
    learning_rate=0.5,
    momentum=0.0,
    microbatch=None,
    **changes,
  )
  return workloads.Workload(
    settings,
    workloads.models.fully_connected(3, num_features=5, hidden=(30,)),
    workloads.Examples(draw(40), draw(70), 'drawn', 'features', 3),
    accounted_run.AccountedRun(np.zeros(1), np.zeros(1)),
  )


@pytest.mark.integration
def test_models_that_are_scored_are_not_trained_again(monkeypatch, tmp_path):
  def run(**changes):
    return games.audit_models(
      make_work(),
      tmp_path,
      **dict(
        kind='blank',
        epsilon=math.inf,
        num_models=3,
        chunk=2,
        delta=DELTA,
        seed=0,
      )
      | changes,
    )

  first = run()
  assert first.scores.observed.shape == first.scores.unobserved.shape == (3,)
  assert first.analytic == math.inf
  assert 0 <= first.accuracy <= 1
  monkeypatch.setattr(
    games.dp_sgd, 'gather_batch', lambda *_: pytest.fail('it trains')
  )
  again = run()
  np.testing.assert_array_equal(again.scores.observed, first.scores.observed)
  assert again.accuracy == first.accuracy
  with pytest.raises(ValueError, match='another audit'):
    run(clip_norm=2.0)


def test_canaries_are_white_or_have_a_label_that_is_not_theirs():
  work = make_work()
  blank = games.make_canary_example(work, 'blank', 0)
  np.testing.assert_array_equal(blank['features'], np.ones(5))
  wrong = games.make_canary_example(work, 'mislabelled', 0)
  pool = {k: x[:64] for k, x in work.data.test.items()}
  (row,) = np.flatnonzero((pool['features'] == wrong['features']).all(axis=1))
  assert pool['label'][row] != wrong['label']


def make_audited(clip_norm, num, apart):
  rng = np.random.default_rng(0)
  without, with_canary = rng.standard_normal((2, num))
  return audits.AuditedTraining(
    title='CIFAR-10 WRN-16',
    kind='blank',
    epsilon=math.inf,
    clip_norm=clip_norm,
    noise_multiplier=0.0,
    analytic=math.inf,
    scores=Scores(with_canary + apart, without),
    mechanisms={'Gaussian': estimates.make_step_mechanism()},
    delta=DELTA,
    accuracy=0.5,
    majority=0.1,
    description='drawn by law',
  )


def test_figure11_has_the_papers_largest_epsilon_of_a_thousand_models():
  audited = [make_audited(0.1, 1000, 1.0), make_audited(10.0, 1000, 100.0)]
  table, every, _ = trained.make_figure11(audited).tables
  rows = dict(table.body)
  # The paper says 44.0, and that without noise 10 comes close to it.
  assert rows['scores that are all separated'] == '44.1 (44.0)'
  assert rows['10'] == '44.1 (41.0)'
  assert rows['0.1'].endswith('(23.4)')
  assert float(rows['0.1'].split()[0]) < 10
  assert [row[0] for row in every.body] == ['C = 0.1, blank', 'C = 10, blank']


@pytest.mark.integration
def test_private_models_are_audited_by_the_curve_of_their_training():
  def make(mechanisms):
    return make_audited(1.0, 100, 2.0)._replace(
      mechanisms=mechanisms, noise_multiplier=1.0, analytic=8.0
    )

  run = estimates.make_run_mechanism(sampling_probability=0.1, steps=100)
  gaussian = estimates.make_step_mechanism()
  found = trained.make_figure12([make({'PLD': run, 'Gaussian': gaussian})])
  shown, by_curve, _ = found.tables
  assert [row[2] for row in by_curve.body] == ['PLD', 'Gaussian']
  # What is reported is by the first of them.
  head = 'f-DP (CP), band'
  values = [float(row[by_curve.head.index(head)]) for row in by_curve.body]
  assert float(shown.body[0][shown.head.index(head)]) == values[0]
  assert values[0] != values[1]


def test_models_without_noise_have_no_curve_but_the_gaussian():
  make = games.make_mechanisms
  assert list(make(make_work(), 0.0, DELTA)) == ['Gaussian']
  assert list(make(make_work(), 1.0, DELTA)) == [
    'PLD',
    'Algorithm 4, 10 lines',
    'Gaussian',
  ]
