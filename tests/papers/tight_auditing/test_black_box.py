"""Black-box audits of models: training, tables, costs."""

import math

from ml_collections import config_dict
import numpy as np
import pytest

pytest.importorskip('jax_privacy', reason='jax-privacy is not installed')

from epe_jax.dpsgd import estimates
from epe_jax.epsilon.types import Scores
from epe_jax.papers.tight_auditing import (
  accounted_run,
  audits,
  black_box,
  costs,
  workloads,
)

# jax_privacy 2.0 calls what optax 0.2.8 has renamed.
pytestmark = [
  pytest.mark.filterwarnings('ignore:optax.global_norm'),
  pytest.mark.usefixtures('quick_compilation'),
]

DELTA = 1e-5


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
    workloads.fully_connected.task(3, num_features=5, hidden=(30,)),
    workloads.examples_lib.Examples(draw(40), draw(70), 'drawn', 'features', 3),
    accounted_run.AccountedRun(np.zeros(1), np.zeros(1)),
  )


@pytest.mark.integration
def test_models_that_are_scored_are_not_trained_again(monkeypatch, tmp_path):
  def run(**changes):
    return black_box.audit_models(
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
    black_box.dp_sgd, 'gather_batch', lambda *_: pytest.fail('it trains')
  )
  again = run()
  np.testing.assert_array_equal(again.scores.observed, first.scores.observed)
  assert again.accuracy == first.accuracy
  with pytest.raises(ValueError, match='another audit'):
    run(clip_norm=2.0)


def test_canaries_are_white_or_have_a_label_that_is_not_theirs():
  work = make_work()
  blank = black_box.make_canary_example(work, 'blank', 0)
  np.testing.assert_array_equal(blank['features'], np.ones(5))
  wrong = black_box.make_canary_example(work, 'mislabelled', 0)
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
  table, every, _ = black_box.make_figure11(audited).tables
  rows = dict(table.body)
  # The paper says 44.0, and that without noise 10 comes close to it.
  assert rows['scores that are all separated'] == '44.1 (44.0)'
  assert rows['10'] == '44.1 (41.0)'
  assert rows['0.1'].endswith('(23.4)')
  assert float(rows['0.1'].split()[0]) < 10
  assert [row[0] for row in every.body] == ['C = 0.1, blank', 'C = 10, blank']


def test_many_models_are_compared_at_the_cost_of_one_training():
  def make(name, trainings, num, seconds):
    scores = make_audited(1.0, num, 3.0).scores
    return costs.TimedAudit(
      name,
      trainings,
      scores,
      seconds,
      estimates.make_step_mechanism(),
      DELTA,
      8.0,
      'drawn by law',
    )

  # A model takes 0.5 s: eight of them as long as the one training.
  one, many = make('one', 1, 100, 4.2), make('many', 200, 100, 100.0)
  (table,) = costs.make_costs([one, many]).tables
  first, few, last = table.body
  assert few[1:3] == ['8', '4 + 4']
  assert float(few[7]) == 4
  assert float(few[6]) < float(first[6]) == float(last[6])
  # Scores are 3 standard deviations apart, up to five standard errors.
  assert abs(float(first[3]) - 3) < 5 * np.sqrt(2 / 100 + 3**2 / 400)
  assert first[4] == '–'
  # As many scores for a 24th of the seconds.
  assert float(first[9]) == pytest.approx(float(last[9]) * 100 / 4.2, rel=0.01)


@pytest.mark.integration
def test_gradient_canaries_that_took_part_are_found_in_the_final_model():
  work = make_work()
  # Examples without gradients, and hardly any noise.
  loss = work.task.loss
  still = work.task._replace(loss=lambda *args: 0 * loss(*args))
  scores, seconds = costs.audit_gradients(
    work._replace(task=still), 0.001, 60, 0
  )
  assert seconds > 0
  assert scores.observed.shape == scores.unobserved.shape == (60,)
  # A canary is in some of 4 steps of rate 1/5 with this probability.
  found = np.mean(scores.observed > 2 * scores.unobserved.max())
  assert abs(found - (1 - 0.8**4)) < 5 * np.sqrt(0.25 / 60)


@pytest.mark.integration
def test_data_canaries_have_scores_of_one_training():
  work = make_work()
  drawn = costs.draw_mislabelled(work, 5, 0)
  scores, _ = costs.audit_inputs(work, 0.0, drawn, 0)
  assert scores.observed.shape == scores.unobserved.shape == (5,)
  assert np.isfinite(scores.observed).all()


@pytest.mark.integration
def test_optimized_canaries_are_other_inputs_with_the_same_labels():
  work = make_work()
  crafting = config_dict.create(
    num_train=20, num_steps=2, num_updates=2, step_size=0.1
  )
  drawn = {k: x[:10] for k, x in work.data.test.items()}
  found, seconds = costs.craft_inputs(work, drawn, 0, crafting)
  assert seconds > 0
  np.testing.assert_array_equal(found['label'], drawn['label'])
  x = np.asarray(found['features'])
  assert np.all((x >= 0) & (x <= 1))
  assert np.any(x != drawn['features'])


@pytest.mark.integration
def test_private_models_are_audited_by_the_curve_of_their_training():
  def make(mechanisms):
    return make_audited(1.0, 100, 2.0)._replace(
      mechanisms=mechanisms, noise_multiplier=1.0, analytic=8.0
    )

  run = estimates.make_run_mechanism(sampling_probability=0.1, steps=100)
  gaussian = estimates.make_step_mechanism()
  found = black_box.make_figure12([make({'PLD': run, 'Gaussian': gaussian})])
  shown, by_curve, _ = found.tables
  assert [row[2] for row in by_curve.body] == ['PLD', 'Gaussian']
  # What is reported is by the first of them.
  head = 'f-DP (CP), band'
  values = [float(row[by_curve.head.index(head)]) for row in by_curve.body]
  assert float(shown.body[0][shown.head.index(head)]) == values[0]
  assert values[0] != values[1]


def test_models_without_noise_have_no_curve_but_the_gaussian():
  make = black_box.make_mechanisms
  assert list(make(make_work(), 0.0, DELTA)) == ['Gaussian']
  assert list(make(make_work(), 1.0, DELTA)) == [
    'PLD',
    'Algorithm 4, 10 lines',
    'Gaussian',
  ]
