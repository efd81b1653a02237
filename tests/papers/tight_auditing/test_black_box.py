"""Algorithm 1: models with and without a canary, and what the final model says."""

import jax
from jax.flatten_util import ravel_pytree
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip('jax_privacy', reason='jax-privacy is not installed')

from epe_jax.training import algorithms, fedavg
from papers import models
from papers.tight_auditing import black_box

TASK = models.fully_connected(3, num_features=4, hidden=())
RNG = np.random.default_rng(0)
TRAIN = {
  'features': RNG.uniform(size=(30, 4)).astype(np.float32),
  'label': RNG.integers(0, 3, 30).astype(np.int32),
}
CANARY = {'features': np.ones(4, np.float32), 'label': np.int32(2)}


def make_algorithm(*, clip_norm=1.0, noise=0.0, learning_rate=0.5):
  """DP-SGD, the slow and plain way."""

  def init(params):
    return fedavg.TrainState(jnp.int32(0), params, None, None)  # pyright: ignore

  def step(state, batch, injection, training_key, noise_key):
    examples, mask = batch
    assert injection.direction().shape == ()

    def gradient(example):
      one = jax.tree.map(lambda x: x[None], example)
      loss = lambda p: TASK.loss(p, one, training_key).sum()
      grad = jax.grad(loss)(state.params)
      norm = jnp.linalg.norm(ravel_pytree(grad)[0])
      return jax.tree.map(lambda g: g * jnp.minimum(1, clip_norm / norm), grad)

    grads = jax.vmap(gradient)(examples)
    total = jax.tree.map(lambda g: jnp.einsum('b,b...->...', mask, g), grads)
    move = lambda p, g: p - learning_rate * g / 10
    params = jax.tree.map(move, state.params, total)
    if noise:
      leaves, tree = jax.tree.flatten(params)
      keys = jax.random.split(noise_key, len(leaves))
      leaves = [
        x + learning_rate * noise * clip_norm / 10 * jax.random.normal(k, x.shape)
        for k, x in zip(keys, leaves)
      ]  # fmt: skip
      params = jax.tree.unflatten(tree, leaves)
    return state._replace(round=state.round + 1, params=params), None

  return algorithms.Algorithm(init, step)


def score(params):
  return black_box.score_log_odds(TASK, params, CANARY, num_classes=3)


def make_trainer(*, num_steps=20, expected_batch=10, **settings):
  return black_box.make_trainer(
    TASK,
    make_algorithm(**settings),
    train=TRAIN,
    canary=CANARY,
    num_steps=num_steps,
    expected_batch=expected_batch,
    score=score,
  )


def test_log_odds_are_exact_at_both_ends():
  # Logits 0, 0 and x: log(p / (1 - p)) = x - log 2 for the last.
  for x in (-60.0, -1.0, 0.0, 3.0, 30.0, 60.0):
    params = {'Dense_0': {'kernel': jnp.zeros((4, 3)).at[0, 2].set(x),
                          'bias': jnp.zeros(3)}}  # fmt: skip
    assert float(score(params)) == pytest.approx(x - np.log(2), rel=1e-5)


@pytest.mark.slow
def test_clipping_alone_leaves_the_canary_plain_to_see():
  # Every model takes every example, and steps enough to forget its start: models
  # with and without the canary differ by it.
  trainer = make_trainer(expected_batch=30, num_steps=300)
  scores = black_box.run_black_box(
    trainer, num_models=12, key=jax.random.key(0), chunk=6
  )
  assert scores.observed.shape == scores.unobserved.shape == (12,)
  assert scores.observed.min() > scores.unobserved.max()
  # Models start differently, so that scores scatter.
  assert len(np.unique(scores.unobserved)) == 12


@pytest.mark.slow
def test_noise_hides_the_canary():
  trainer = make_trainer(noise=30.0, num_steps=5)
  scores = black_box.run_black_box(
    trainer, num_models=100, key=jax.random.key(0), chunk=100
  )
  shift = scores.observed.mean() - scores.unobserved.mean()
  spread = np.hypot(scores.observed.std(), scores.unobserved.std()) / 10
  # Four standard deviations: a false alarm at one key in 10^4.
  assert abs(shift) < 4 * spread


@pytest.mark.integration
def test_models_trained_side_by_side_have_the_scores_of_one_after_the_other(
  monkeypatch,
):
  keys = black_box.make_model_keys(
    jax.random.key(2), jnp.arange(3), included=True
  )
  scores = {}
  for backend in ('cpu', 'gpu'):
    monkeypatch.setattr(jax, 'default_backend', lambda backend=backend: backend)
    scores[backend] = make_trainer(num_steps=3, noise=0.1)(keys, True)
  np.testing.assert_allclose(scores['cpu'], scores['gpu'], rtol=1e-4)


@pytest.mark.slow
def test_a_canary_that_takes_part_in_no_step_is_not_there():
  keys = black_box.make_model_keys(
    jax.random.key(1), jnp.arange(6), included=True
  )
  trainer = make_trainer(num_steps=1, expected_batch=10)
  with_it, without = trainer(keys, True), trainer(keys, False)
  same = np.asarray(with_it == without)
  # By the same keys the models differ only where the canary was drawn.
  drawn = [
    bool(jax.random.uniform(jax.random.fold_in(k, 0), (31,))[30] < 1 / 3)
    for k in keys.batches
  ]
  np.testing.assert_array_equal(same, ~np.array(drawn))
  assert 0 < sum(drawn) < 6


def count_calls(trainer, fail_at=None):
  calls = []

  def counted(keys, included):
    calls.append(len(keys.init))
    if len(calls) == fail_at:
      raise KeyboardInterrupt
    return trainer(keys, included)

  return counted, calls


def draw_scores(keys, included):
  """In place of training."""
  return included + jax.vmap(jax.random.normal)(keys.noise)


@pytest.mark.integration
def test_an_audit_that_was_stopped_goes_on_to_the_same_scores(tmp_path):
  trainer = draw_scores
  settings = {'steps': 2, 'clip_norm': 1.0}
  run = lambda f, path, **more: black_box.run_black_box(
    f,
    **{'num_models': 6, 'key': jax.random.key(3), 'chunk': 2, **more},
    path=path,
    settings=settings,
  )
  whole = run(trainer, None)
  path = tmp_path / 'folder' / 'scores.npz'
  stopped, calls = count_calls(trainer, fail_at=4)
  with pytest.raises(KeyboardInterrupt):
    run(stopped, path)
  resumed, calls = count_calls(trainer)
  # Another chunk changes nothing.
  scores = run(resumed, path, chunk=3)
  assert sum(calls) == 6
  np.testing.assert_array_equal(scores.observed, whole.observed)
  np.testing.assert_array_equal(scores.unobserved, whole.unobserved)
  # What is complete is not trained again.
  again, calls = count_calls(trainer)
  run(again, path)
  assert not calls
  for change in ({'key': jax.random.key(4)}, {'num_models': 7}):
    with pytest.raises(ValueError, match='of another audit'):
      run(again, path, **change)
  settings['clip_norm'] = 2.0
  with pytest.raises(ValueError, match='of another audit'):
    run(again, path)


def test_models_have_keys_of_their_own():
  keys = [
    np.asarray(jax.random.key_data(leaf)).reshape(-1, 2)
    for included in (False, True)
    for leaf in black_box.make_model_keys(
      jax.random.key(0), jnp.arange(10), included=included
    )
  ]
  assert len(np.unique(np.concatenate(keys), axis=0)) == 2 * 4 * 10


def test_scores_that_are_not_finite_end_the_audit():
  for bad in (np.inf, np.nan):
    with pytest.raises(ValueError, match=r'models \[0, 1\].*not finite'):
      black_box.run_black_box(
        lambda keys, included, bad=bad: jnp.full(2, bad),
        num_models=2,
        key=jax.random.key(0),
        chunk=2,
      )


def test_a_batch_of_more_than_all_examples_is_refused():
  with pytest.raises(ValueError, match='expected_batch=32'):
    make_trainer(expected_batch=31)
