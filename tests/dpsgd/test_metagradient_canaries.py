"""Canaries that are optimized through trainings: what the final model shows."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

pytest.importorskip('jax_privacy', reason='jax-privacy is not installed')

from epe_jax.dpsgd import black_box, dp_sgd, metagradient_canaries
from epe_jax.tasks import fully_connected
from epe_jax.training import fedavg

# jax_privacy 2.0 calls what optax 0.2.8 has renamed.
pytestmark = [
  pytest.mark.filterwarnings('ignore:optax.global_norm'),
  pytest.mark.usefixtures('quick_compilation'),
]

TASK = fully_connected.task(4, num_features=12, hidden=(6,))
PARAMS = TASK.init(jax.random.key(0))
OPTIMIZER = optax.sgd(1.0, 0.5)
SIZES = dict(clip_norm=1.0, noise_multiplier=0.1, num_steps=8)
NUM_TRAIN, NUM_CANARIES, RATE = 40, 60, 0.5


def draw(num, seed):
  rng = np.random.default_rng(seed)
  return {
    'features': rng.random((num, 12), np.float32),
    'label': rng.integers(0, 4, num, np.int32),
  }


TRAIN, CANARIES = draw(NUM_TRAIN, 0), draw(NUM_CANARIES, 1)


def score(params, canaries):
  return jax.vmap(
    lambda example: black_box.score_log_odds(
      TASK, params, example, num_classes=4
    )
  )(canaries)


def optimize(**changes):
  settings = SIZES | dict(
    train=TRAIN,
    inputs='features',
    params=PARAMS,
    score=score,
    optimizer=OPTIMIZER,
    expected_batch=RATE * (NUM_TRAIN + NUM_CANARIES / 2),
    ascent=optax.adam(0.1),
    num_updates=20,
    key=jax.random.key(1),
  )
  canaries = changes.pop('canaries', CANARIES)
  return metagradient_canaries.optimize_canaries(
    TASK, canaries, **settings | changes
  )


@functools.partial(jax.jit, static_argnames='noise')
def separate(canaries, key, noise=SIZES['noise_multiplier']):
  """Separation by a private training of the library, with a half of them."""
  order = jax.random.permutation(jax.random.fold_in(key, 0), NUM_CANARIES)
  half = order[: NUM_CANARIES // 2]
  examples = {
    name: jnp.concatenate([TRAIN[name], canaries[name][half]]) for name in TRAIN
  }
  num = NUM_TRAIN + NUM_CANARIES // 2
  algorithm = dp_sgd.dpsgd(
    TASK,
    optimizer=OPTIMIZER,
    clip_norm=SIZES['clip_norm'],
    noise_multiplier=noise,
    expected_batch=RATE * num,
  )

  def step(state, key):
    batch_key, training_key, noise_key = jax.random.split(key, 3)
    taken = jax.random.uniform(batch_key, (num,)) < RATE
    indices = jnp.where(taken, jnp.arange(num), -1)
    batch = dp_sgd.gather_batch(examples, indices)
    state, _ = algorithm.step(
      state, batch, fedavg.no_canaries(), training_key, noise_key
    )
    return state, None

  keys = jax.random.split(jax.random.fold_in(key, 1), SIZES['num_steps'])
  state, _ = jax.lax.scan(step, algorithm.init(PARAMS), keys)
  includes = jnp.zeros(NUM_CANARIES, bool).at[half].set(True)
  return metagradient_canaries.standardize_separation(
    score(state.params, canaries), includes
  )


@pytest.mark.integration
def test_optimized_canaries_separate_more_in_trainings_that_nobody_saw():
  found = optimize()
  # Keys of other streams than those of the ascent.
  keys = jax.random.split(jax.random.key(100), 40)
  before, after = (
    np.array([separate(canaries, key) for key in keys])
    for canaries in (CANARIES, found)
  )
  gain = after - before
  # Five standard errors: a false alarm is rarer than one in a million.
  error = gain.std(ddof=1) / np.sqrt(len(keys))
  assert gain.mean() > 5 * error
  # They still have nothing to show if they hardly move the model.
  hidden = np.array([separate(found, key, noise=100.0) for key in keys])
  assert abs(hidden.mean()) < 5 * hidden.std(ddof=1) / np.sqrt(len(keys))


@pytest.mark.integration
def test_inputs_stay_within_their_bounds_and_labels_as_they_are():
  found = optimize(
    num_updates=3, ascent=optax.sign_sgd(5.0), bounds=(-0.5, 2.0)
  )
  x = np.asarray(found['features'])
  # Steps are longer than the interval.
  assert set(np.unique(x)) <= {np.float32(-0.5), np.float32(2.0)}
  np.testing.assert_array_equal(found['label'], CANARIES['label'])
  assert x.shape == CANARIES['features'].shape
  assert x.dtype == np.float32
  same = optimize(num_updates=0)
  np.testing.assert_array_equal(same['features'], CANARIES['features'])


@pytest.mark.integration
def test_canaries_depend_on_the_key_alone():
  first, again, other = (
    optimize(num_updates=1, key=jax.random.key(seed))['features']
    for seed in (1, 1, 2)
  )
  np.testing.assert_array_equal(first, again)
  assert np.any(np.asarray(first) != np.asarray(other))


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    (dict(canaries=draw(5, 0)), 'there are 5 canaries'),
    (dict(bounds=(1.0, 1.0)), r'bounds=\(1\.0, 1\.0\)'),
    (dict(clip_norm=0.0), r'clip_norm=0\.0'),
    (dict(noise_multiplier=-1.0), r'noise_multiplier=-1\.0'),
    (dict(num_steps=0), 'num_steps=0'),
    (dict(num_updates=-1), 'num_updates=-1'),
    (dict(expected_batch=71.0), r'expected_batch=71\.0, but there are 70'),
  ],
)
def test_settings_out_of_range_are_refused(changes, message):
  with pytest.raises(ValueError, match=message):
    optimize(**changes)
