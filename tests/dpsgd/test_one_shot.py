"""One-shot audits of DP-SGD: many canary gradients in one training."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

pytest.importorskip('jax_privacy', reason='jax-privacy is not installed')

from epe_jax import accounting, canaries, epsilon
from epe_jax.audit import (
  attackers,
  audited_algorithm,
  evaluation,
  observers,
)
from epe_jax.audit.record import make_record
from epe_jax.dpsgd import dp_sgd, poisson_batches
from epe_jax.training import correlated_noise
from epe_jax.types import Task
from tests import helpers

# jax_privacy 2.0 calls what optax 0.2.8 has renamed.
pytestmark = [
  pytest.mark.filterwarnings('ignore:optax.global_norm'),
  pytest.mark.usefixtures('quick_compilation'),
]

DELTA, M, N = 1e-5, 8.0, 64


def audit_run(
  task,
  participation,
  family,
  *,
  steps,
  noise_multiplier,
  optimizer,
  momentum=0.0,
  correlation=None,
):
  """The record of a run of DP-SGD with these canaries in it."""
  params = task.init(jax.random.key(0))
  dim = sum(x.size for x in jax.tree.leaves(params))
  canary_set = canaries.family(family)(
    jax.random.key(1), participation.shape[1], dim
  )
  attackers = {
    'final': observers.final_model(canary_set),
    'rounds': observers.all_iterates(
      canary_set, rounds=steps, views=('aggregate', 'residual'), buffer=1
    ),
  }
  plain = dp_sgd.dpsgd(
    task,
    optimizer=optimizer,
    clip_norm=1.0,
    noise_multiplier=noise_multiplier,
    expected_batch=M,
    **({} if correlation is None else {'correlation': correlation.stream}),
  )
  algorithm = audited_algorithm.audited(
    plain, canary_set, participation, attackers
  )
  batches = poisson_batches.draw_poisson_batches(
    0, 'batch', num_examples=N, expected_batch=M, steps=steps
  )
  rng = np.random.default_rng(0)
  examples = {
    'pixels': jnp.asarray(rng.random((N, 8, 8), np.float32)),
    'label': jnp.asarray(rng.integers(0, 10, N, np.int32)),
  }

  @jax.jit
  def advance(state, indices, t):
    batch = dp_sgd.gather_batch(examples, indices)
    keys = [jax.random.fold_in(jax.random.key(i), t) for i in (2, 3)]
    return algorithm.step(state, batch, *keys)[0]

  state = algorithm.init(params)
  for t in range(steps):
    state = advance(state, batches[t], t)
  return make_record(
    audited_algorithm.score_observers(state, attackers),
    state.rounds,
    included=participation,
    dim=dim,
    delta=DELTA,
    momentum=momentum,
    noise_multiplier=noise_multiplier,
    strategy=None if correlation is None else correlation.whitened,
  )


def evaluate(record):
  """Of the attackers that tests ask about."""
  return evaluation.evaluate(
    record,
    floors=False,
    threat_models=(
      attackers.CHANGE,
      attackers.OWN,
      attackers.RESIDUAL,
    ),
  )


def find(audit, key):
  return next(a for a in audit.attacks if a.threat_model.key == key)


@pytest.mark.integration
def test_who_knows_the_steps_finds_the_analytic_epsilon():
  """k canaries, each in one random step, among real examples."""
  k, steps, z = 400, 20, 0.5
  rng = np.random.default_rng(0)
  participation = np.zeros((steps, 2 * k), bool)
  participation[rng.integers(0, steps, k), np.arange(k)] = True
  record = audit_run(
    helpers.softmax_regression(unused=60_000),
    participation,
    'hadamard',
    steps=steps,
    noise_multiplier=z,
    optimizer=optax.sgd(0.1),
  )
  audit = evaluate(record)
  residual = find(audit, 'residual')
  exact = accounting.epsilon_of_releases(z, delta=DELTA).epsilon
  assert residual.is_calibrated
  assert residual.analytic is not None
  assert residual.analytic.epsilon == pytest.approx(exact)
  # μ = 1/z has a standard error of 1/√k; 5 of them.
  low, high = (
    epsilon.epsilon_gdp(1 / z + side / np.sqrt(k), DELTA) for side in (-5, 5)
  )
  assert low < residual.first.epsilon < high
  # Examples are noise to who does not remove them; the final model has that
  # of all steps.
  own, change = find(audit, 'own_round'), find(audit, 'change')
  assert own.first.epsilon < residual.first.epsilon
  assert change.first.epsilon < own.first.epsilon


@pytest.mark.integration
@pytest.mark.parametrize('bands', [1, 4])
def test_noise_that_is_correlated_over_steps_hides_what_its_matrix_says(bands):
  """μ of canaries of every fourth step, within 5 standard errors."""
  k, steps, z = 400, 20, 1.0
  correlation = correlated_noise.banded(steps, bands=bands)
  participation = np.zeros((steps, 2 * k), bool)
  participation[::4, :k] = True
  run = functools.partial(
    audit_run,
    still_task(2**15),
    participation,
    'hadamard',
    steps=steps,
    noise_multiplier=z,
    optimizer=optax.sgd(0.1),
    momentum=0.0,
  )
  record = run(correlation=correlation)
  # Of noise that is correlated, the attacker who undoes that.
  model = attackers.DECORRELATED if bands > 1 else attackers.RESIDUAL
  (attack,) = evaluation.evaluate(
    record, floors=False, threat_models=[model]
  ).attacks
  mu = np.linalg.norm(correlation.strategy @ participation[:, 0]) / z
  low, high = (
    epsilon.epsilon_gdp(mu + side / np.sqrt(k), DELTA) for side in (-5, 5)
  )
  assert low < attack.first.epsilon < high
  assert attack.analytic is not None
  assert attack.analytic.epsilon == pytest.approx(
    epsilon.epsilon_gdp(mu, DELTA), rel=1e-6
  )
  if bands == 1:
    independent = run()
    for name, cosines in independent.cosines.items():
      np.testing.assert_array_equal(cosines, record.cosines[name])


def still_task(dim):
  """A model without gradients: nothing but canaries and noise moves it."""
  return Task(
    lambda key: {'theta': jnp.zeros(dim, jnp.float32)},
    lambda params, batch, key: 0 * params['theta'].sum() * batch['label'],
    lambda params, batch: {},
  )


@pytest.mark.integration
@pytest.mark.parametrize(
  ('optimizer', 'momentum', 'share'),
  [
    (optax.sgd(0.1), 0.0, 1.0),
    # What momentum adds in late steps is less, of noise as of canaries.
    (optax.sgd(0.1, momentum=0.9), 0.9, None),
  ],
  ids=['sgd', 'momentum'],
)
def test_one_direction_in_all_steps_is_as_plain_in_the_final_model_as_in_all(
  optimizer, momentum, share
):
  """The hidden-state preset: μ = √T/z with a linear optimizer."""
  k, steps, z, dim = 500, 16, 4.0, 2**16
  participation = np.zeros((steps, 2 * k), bool)
  participation[:, :k] = True
  record = audit_run(
    still_task(dim),
    participation,
    # Orthogonal, so that canaries are no noise to one another.
    'hadamard',
    steps=steps,
    noise_multiplier=z,
    optimizer=optimizer,
    momentum=momentum,
  )
  mu = np.sqrt(steps) / z
  weights = (1 - momentum ** np.arange(steps, 0, -1)) / (1 - momentum)
  if share is None:
    share = weights.sum() / np.sqrt(steps) / np.linalg.norm(weights)
    assert 0.8 < share < 0.95
  # <c, θ_T - θ_0> in units of the noise in it.
  noise = np.linalg.norm(weights * np.asarray(record.rounds.noise_std)) * 0.1
  # The norm of the change is that of noise and of k canaries.
  signal = weights.sum() * 0.1 / M
  norm = np.sqrt(dim * noise**2 + k * signal**2)
  scores = norm * np.asarray(record.cosines['change'], np.float64) / noise
  tolerance = 5 / np.sqrt(k)
  assert scores[:k].mean() == pytest.approx(share * mu, abs=tolerance)
  assert scores[k:].mean() == pytest.approx(0, abs=tolerance)
  # The law is N(μ, 1): the std has a standard error of 1/√(2k).
  assert scores.reshape(2, k).std(axis=1) == pytest.approx(
    1, abs=5 / np.sqrt(2 * k)
  )
  audit = evaluate(record)
  low, high = (
    epsilon.epsilon_gdp(share * mu + side * tolerance, DELTA)
    for side in (-1, 1)
  )
  change, residual = find(audit, 'change'), find(audit, 'residual')
  assert low < change.first.epsilon < high
  assert residual.first.epsilon == pytest.approx(
    float(epsilon.epsilon_gdp(mu, DELTA)), rel=0.3
  )
  if momentum == 0:
    # Sums of the same numbers, so that nothing is lost in the final model.
    assert change.first.epsilon == pytest.approx(
      residual.first.epsilon, rel=0.05
    )


@pytest.mark.integration
def test_canaries_that_never_took_part_are_an_error():
  """As coins may have it, of few canaries in few steps."""
  steps = 2
  record = audit_run(
    helpers.softmax_regression(unused=1000),
    np.zeros((steps, 8), bool),
    'hadamard',
    steps=steps,
    noise_multiplier=1.0,
    optimizer=optax.sgd(0.1),
  )
  with pytest.raises(ValueError, match='none of the 8 canaries took part'):
    evaluate(record)
