"""The white-box game: Gaussian laws, sampling, files, and planted bugs."""

import dataclasses
import functools

import jax
from jax.flatten_util import ravel_pytree
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

pytest.importorskip('jax_privacy', reason='jax-privacy is not installed')

from epe_jax import epsilon
from epe_jax.dpsgd import dp_sgd, white_box
from epe_jax.dpsgd.gradient_canaries import GradientCanary, make_gradient_canary
from epe_jax.epsilon import diagnostics
from papers.tight_auditing import planted_bugs
from tests import helpers

# jax_privacy 2.0 calls what optax 0.2.8 has renamed.
pytestmark = [
  pytest.mark.filterwarnings('ignore:optax.global_norm'),
  pytest.mark.usefixtures('quick_compilation'),
]

STEPS, SIGMA, CLIP_NORM, M, N = 1000, 0.8, 0.5, 4.0, 20
# Of each Anderson-Darling test of a law that is true.
FAILURE_PROBABILITY = 1e-6
# Gradients in the unused coordinates are zero: the canaries that are tested for
# their law are orthogonal to all examples, as the paper takes them to be.
LINEAR = helpers.linear_task()
TASK = LINEAR._replace(
  init=lambda key: LINEAR.init(key) | {'unused': jnp.zeros(200)}
)
PARAMS = TASK.init(jax.random.key(0))
DIM = sum(x.size for x in jax.tree.leaves(PARAMS))


def make_examples(n=N):
  rng = np.random.default_rng(0)
  return {
    'x': rng.normal(size=(n, 3)).astype(np.float32),
    'y': rng.normal(size=n).astype(np.float32),
  }


def orthogonal(canary):
  """The same canary in the coordinates that no example has a gradient in."""
  _, unravel = ravel_pytree(PARAMS)

  def gradient(state, params, step):
    g, state = canary.gradient(state, params['unused'], step)
    zero = unravel(jnp.zeros(DIM))
    return ravel_pytree(zero | {'unused': g})[0], state

  return GradientCanary(
    lambda key, params: canary.init(key, params['unused']), gradient
  )


def play(canary, seed=0, **changes):
  names = ('noisy_gradient', 'workdir', 'progress', 'params', 'batch_seed')
  options = {k: changes.pop(k) for k in names if k in changes}
  settings = dict(
    steps=STEPS,
    expected_batch=M,
    clip_norm=CLIP_NORM,
    noise_multiplier=SIGMA,
  )
  return white_box.run_white_box(
    TASK,
    make_examples(),
    canary,
    white_box.WhiteBoxSettings(**settings | changes),
    white_box.derive_game_keys(seed),
    **dict(optimizer=optax.sgd(0.1), params=PARAMS, batch_seed=seed) | options,
  )


@functools.cache
def game(kind, moving, **changes):
  canary = make_gradient_canary(kind, norm=CLIP_NORM, moving=moving)
  return play(orthogonal(canary), **changes)


def p_value(values):
  return diagnostics.anderson_darling_null(
    values, null=epsilon.Gaussian()
  ).p_value


KINDS = [
  ('dirac', False),
  ('dirac', True),
  ('constant', False),
  ('random', False),
  ('random', True),
]


@pytest.mark.parametrize(('kind', 'moving'), KINDS)
def test_observations_are_gaussian_and_one_clip_norm_apart(kind, moving):
  step_scores = game(kind, moving)
  assert step_scores.included.all()
  np.testing.assert_allclose(step_scores.signal, 1, rtol=1e-5)
  assert p_value(step_scores.without / SIGMA) > FAILURE_PROBABILITY
  assert p_value((step_scores.with_canary - 1) / SIGMA) > FAILURE_PROBABILITY
  # Both batches have noise of their own: r within 5 standard errors of 0.
  r = np.corrcoef(step_scores.without, step_scores.with_canary)[0, 1]
  assert abs(r) < 5 / np.sqrt(STEPS)


def test_the_same_test_rejects_noise_that_is_a_third_too_small():
  small = dp_sgd.noisy_gradient(
    TASK,
    clip_norm=CLIP_NORM,
    noise_multiplier=2 / 3 * SIGMA,
    expected_batch=M,
  )
  step_scores = game('dirac', True, noisy_gradient=small)
  assert p_value(step_scores.without / SIGMA) < FAILURE_PROBABILITY
  assert p_value((step_scores.with_canary - 1) / SIGMA) < FAILURE_PROBABILITY


def test_the_canary_joins_by_a_coin_of_its_own():
  rate = 0.25
  step_scores = game('random', True, canary_rate=rate)
  low, high = stats.binom.ppf([1e-9, 1 - 1e-9], STEPS, rate)
  assert low <= step_scores.included.sum() <= high
  assert p_value((step_scores.with_canary - step_scores.included) / SIGMA) > (
    FAILURE_PROBABILITY
  )
  # As one Gaussian, with or without a shift, it is none.
  assert p_value((step_scores.with_canary - 1) / SIGMA) < FAILURE_PROBABILITY
  assert step_scores.canary_rate == rate
  assert step_scores.sampling_rate == M / N


def test_a_bound_by_the_tradeoff_curve_reaches_most_of_the_analytic_epsilon():
  step_scores = game('dirac', True)
  scores = step_scores.select()
  exact = float(epsilon.epsilon_gdp(1 / SIGMA, 1e-5))
  bound = epsilon.gdp_bound(scores, delta=1e-5, significance=0.05)
  assert 0.75 * exact < float(bound.epsilon) < exact
  few = epsilon.Scores(scores.observed[:100], scores.unobserved[:100])
  assert few.observed.shape == few.unobserved.shape == (100,)
  assert float(epsilon.gdp_bound(few, delta=1e-5).epsilon) < bound.epsilon


@pytest.mark.integration
def test_the_model_follows_the_batch_without_the_canary():
  """A canary of norm 1e6 in a step that clips nothing would be visible in it."""
  models = []
  for norm in (CLIP_NORM, 1e6):
    canary = make_gradient_canary('random', norm=norm)
    play(
      canary,
      steps=3,
      progress=lambda t, params: models.append(
        np.asarray(ravel_pytree(params)[0])
      ),
    )
  np.testing.assert_array_equal(*models)
  assert np.linalg.norm(models[0] - ravel_pytree(PARAMS)[0]) > 0


@pytest.mark.integration
def test_a_canary_smaller_than_the_clip_norm_signals_as_much_less():
  canary = make_gradient_canary('dirac', norm=CLIP_NORM / 4)
  step_scores = play(orthogonal(canary), noise_multiplier=0.0, steps=3)
  np.testing.assert_allclose(step_scores.signal, 0.25, rtol=1e-6)
  np.testing.assert_allclose(step_scores.with_canary, 0.25, rtol=1e-5)
  np.testing.assert_allclose(step_scores.without, 0, atol=1e-6)
  nothing = GradientCanary(
    lambda key, params: None, lambda state, params, t: (jnp.zeros(DIM), None)
  )
  step_scores = play(nothing, steps=3)
  assert not np.any(
    [step_scores.signal, step_scores.without, step_scores.with_canary]
  )


def test_gradient_canaries_have_their_shape_and_norm():
  params = {'w': jnp.zeros((10, 30))}
  for kind, moving in KINDS:
    canary = make_gradient_canary(kind, norm=3.0, moving=moving)
    state = canary.init(jax.random.key(1), params)
    steps = []
    for t in range(4):
      g, state = canary.gradient(state, params, jnp.int32(t))
      assert (g.shape, g.dtype) == ((300,), jnp.float32)
      assert np.linalg.norm(g) == pytest.approx(3, rel=1e-5)
      steps.append(np.asarray(g))
    num_nonzero = np.count_nonzero(steps[0])
    assert num_nonzero == (1 if kind == 'dirac' else 300)
    assert (len(np.unique(steps, axis=0)) > 1) == moving
  with pytest.raises(ValueError, match="kind='constant' has nothing"):
    make_gradient_canary('constant', norm=1.0, moving=True)
  with pytest.raises(ValueError, match="kind='none'; give one of"):
    make_gradient_canary('none', norm=1.0)
  with pytest.raises(ValueError, match='norm=0'):
    make_gradient_canary('dirac', norm=0.0)


@pytest.mark.integration
@pytest.mark.parametrize(
  ('kind', 'moving'), [('dirac', False), ('random', True)]
)
def test_a_game_that_was_stopped_goes_on_to_the_same_bits(
  kind, moving, tmp_path, monkeypatch
):
  monkeypatch.setattr(white_box, '_SAVE_EVERY', 3)
  canary = make_gradient_canary(kind, norm=CLIP_NORM, moving=moving)
  settings = dict(steps=7, canary_rate=0.5)
  whole, models = play(canary, **settings), []

  def stop(t, params):
    if t == 6:
      raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    play(canary, **settings, workdir=tmp_path, progress=stop)
  keep = lambda t, params: models.append((t, ravel_pytree(params)[0].sum()))
  again = play(canary, **settings, workdir=tmp_path, progress=keep)
  for name, value in dataclasses.asdict(whole).items():
    np.testing.assert_array_equal(getattr(again, name), value)
  # A finished game is read and not played again.
  play(canary, **settings, workdir=tmp_path, progress=keep)
  assert [t for t, _ in models] == [7, 7]
  assert models[0][1] == models[1][1]
  for changes in ({'noise_multiplier': 1.0}, {'seed': 1}, {'batch_seed': 5}):
    with pytest.raises(ValueError, match='other settings, keys, model'):
      play(canary, **settings | changes, workdir=tmp_path)


@pytest.mark.parametrize(
  ('changes', 'match'),
  [
    ({'canary_rate': 0.0}, 'canary_rate=0.0'),
    ({'steps': 0}, 'steps=0'),
    ({'expected_batch': 30.0}, 'expected_batch=30.0'),
  ],
)
def test_settings_out_of_range_are_refused(changes, match):
  with pytest.raises(ValueError, match=match):
    play(make_gradient_canary('dirac', norm=1.0), **changes)


def correct(sigma):
  return dp_sgd.noisy_gradient(
    TASK, clip_norm=CLIP_NORM, noise_multiplier=sigma, expected_batch=M
  )


def test_noise_from_a_hundred_seeds_repeats_itself():
  sigma = 1.0
  release = planted_bugs.noise_of_few_seeds(
    correct(sigma), jax.random.key(5), num_seeds=100
  )
  canary = make_gradient_canary('dirac', norm=CLIP_NORM)
  step_scores = play(
    orthogonal(canary), noise_multiplier=sigma, noisy_gradient=release
  )
  values = np.unique(np.round(step_scores.without, 4))
  assert len(values) <= 100
  assert len(np.unique(np.round(game('dirac', False).without, 4))) > 900
