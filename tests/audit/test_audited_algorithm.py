"""Auditing: what observers see, and the law the library rests on."""

import json

import jax
from jax.flatten_util import ravel_pytree
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

from epe_jax import accounting, canaries
from epe_jax.audit import (
  audit_step,
  audited_algorithm,
  observers,
  statistics,
)
from epe_jax.audit.record_file import load_record
from epe_jax.audit.statistics import score_residual
from epe_jax.epsilon import two_gaussians
from epe_jax.epsilon.types import Gaussian, Scores, Sphere
from epe_jax.experiment import audited_run
from epe_jax.experiment.setup import build
from epe_jax.sampling import canary_schedules
from epe_jax.training import clipping, fedavg
from epe_jax.types import Task
from tests.helpers import load_config

DIM, ROUNDS = 60, 7


def still_task(dim: int) -> Task:
  """A model that no client ever moves: zero real updates."""

  def loss(params, batch, key):
    del key
    return 0 * params['theta'].sum() * batch['x']

  init = lambda key: {'theta': jax.random.normal(key, (dim,), jnp.float32)}
  return Task(init, loss, lambda params, batch: {})


def still_cohort():
  return fedavg.Cohort(
    {'x': np.zeros((1, 1, 1, 1), np.float32)},
    np.ones((1, 1, 1, 1), bool),
    np.zeros((1, 1), np.int32),
  )


def run(algorithm, params, rounds, *, step=None, between=None):
  """All rounds; gives the parameters after each, and the last state.

  What is done between rounds is a function of how many were made and the state.
  """
  step = step or jax.jit(algorithm.step)
  state, path = algorithm.init(params), []
  for t in range(rounds):
    state, info = step(
      state, still_cohort(), jax.random.key(t), jax.random.key(100 + t)
    )
    if between:
      state = between(t + 1, state)
    path.append(np.asarray(ravel_pytree(state.algorithm.params)[0]))
  return np.stack(path), state, info


def small_run(*, buffer=3, view='aggregate', flushed=(), forgets=False):
  rows = np.random.default_rng(0).normal(size=(8, DIM))
  matrix = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype('f4')
  set_ = canaries.from_matrix(jnp.asarray(matrix))
  participation = np.zeros((ROUNDS, 8), bool)
  participation[:, :5] = canary_schedules.once_per_period(
    np.random.default_rng(1), rounds=ROUNDS, num=5, periods=2
  )
  attackers = {
    'final': observers.final_model(set_),
    'trace': observers.all_iterates(
      set_, rounds=ROUNDS, views=(view,), buffer=buffer
    ),
    'maximum': observers.running_maximum(set_, views=(view,)),
  }
  inner = fedavg.dp_fedavg(
    still_task(DIM),
    client_opt=optax.sgd(0.1),
    server_opt=optax.sgd(0.5, momentum=0.9),
    clipping=clipping.fixed(2.0),
    noise_multiplier=0.1,
    expected_clients=3.0,
  )
  algorithm = audited_algorithm.audited(inner, set_, participation, attackers)
  params = still_task(DIM).init(jax.random.key(0))

  def between(made, state):
    if made in flushed:
      state = audited_algorithm.flush(state, attackers)
    if made in flushed and forgets:
      kept = audited_algorithm.drop_buffers(state)
      assert all(DIM not in x.shape[1:] for x in jax.tree.leaves(kept))
      state = audited_algorithm.restore_buffers(kept, algorithm.init(params))
    return state

  path, state, _ = run(algorithm, params, ROUNDS, between=between)
  scores = audited_algorithm.score_observers(state, attackers)
  return matrix, participation, params, path, state, scores


def numpy_aggregates(matrix, participation):
  """rho_bar of each round, from the keys that `run` used."""
  out = []
  for t in range(ROUNDS):
    key, _ = jax.random.split(jax.random.key(100 + t))
    noise = np.asarray(jax.random.normal(key, (DIM,), jnp.float32))
    out.append((2.0 * participation[t] @ matrix + 0.1 * 2.0 * noise) / 3.0)
  return np.stack(out)


def numpy_cosines(matrix, v):
  return v @ matrix.T / np.linalg.norm(v, axis=-1, keepdims=True)


@pytest.mark.integration
@pytest.mark.parametrize('buffer', [1, 3, 7, 50])
def test_the_trace_is_the_cosines_of_every_round_whatever_the_buffer(buffer):
  matrix, participation, _, _, _, scores = small_run(buffer=buffer)
  expected = numpy_cosines(matrix, numpy_aggregates(matrix, participation))
  np.testing.assert_allclose(scores['aggregate'], expected, atol=1e-5)
  np.testing.assert_allclose(
    scores['max_aggregate'], expected.max(axis=0), atol=1e-5
  )


@pytest.mark.integration
@pytest.mark.parametrize('flushed', [(2,), (3,), (1, 2, 6), range(1, 8)])
@pytest.mark.parametrize('buffer', [1, 3, 7])
def test_the_trace_is_the_same_whenever_what_waits_is_scored(buffer, flushed):
  matrix, participation, _, _, _, scores = small_run(
    buffer=buffer, flushed=flushed
  )
  expected = numpy_cosines(matrix, numpy_aggregates(matrix, participation))
  np.testing.assert_allclose(scores['aggregate'], expected, atol=1e-5)
  # Who goes on without the vectors goes on to the same bits.
  again = small_run(buffer=buffer, flushed=flushed, forgets=True)[-1]
  np.testing.assert_array_equal(again['aggregate'], scores['aggregate'])


def test_what_is_scored_at_once_is_kept_nowhere():
  set_ = canaries.hadamard(jax.random.key(0), 4, DIM)
  params = still_task(DIM).init(jax.random.key(0))
  for buffer, kept in ((1, 0), (3, 2 * 3 * DIM)):
    observer = observers.all_iterates(
      set_, rounds=ROUNDS, views=('aggregate', 'residual'), buffer=buffer
    )
    leaves = jax.tree.leaves(observer.init(params))
    assert sum(x.size for x in leaves if DIM in x.shape) == kept


@pytest.mark.parametrize('memory', [1.0, 1e3, 1e4, 1e9])
def test_as_many_rounds_are_scored_together_as_memory_holds(memory):
  found = audit_step.choose_buffer(memory, rounds=ROUNDS, views=2, dim=DIM)
  assert 1 <= found <= ROUNDS
  size = 2 * 4 * DIM
  assert found == 1 or found * size <= memory
  assert found == ROUNDS or (found + 1) * size > memory


@pytest.mark.parametrize(
  ('family', 'changes', 'buffer'),
  [
    ('hadamard', {}, 1),
    ('sphere', {'checkpoint_every': 9}, 6),
    # As many as lie between two checkpoints, in equal parts.
    ('sphere', {}, 2),
    (
      'sphere',
      {'checkpoint_every': 6, 'audit.memory': 8 * 55_210 * 4.5},
      3,
    ),
    (
      'sphere',
      {'checkpoint_every': 6, 'audit.memory': 8 * 55_210 * 2.5},
      2,
    ),
    ('sphere', {'audit.memory': 1.0}, 1),
    ('hadamard', {'checkpoint_every': 6, 'audit.buffer': 3}, 3),
    ('hadamard', {'audit.buffer': 3}, 2),
  ],
)
def test_rounds_are_kept_where_a_look_is_dear(family, changes, buffer):
  config = load_config('digits', **{'canaries.family': family} | changes)
  kept = build.build(config).state.observers['rounds'].buffer
  assert (1 if kept is None else kept.shape[1]) == buffer


@pytest.mark.parametrize('family', canaries.FAMILIES)
def test_canaries_are_float32_whatever_products_are_rounded_to(family):
  set_ = canaries.family(family)(jax.random.key(0), 4, 8192)
  with jax.default_matmul_precision('bfloat16'):
    for jaxpr in (
      jax.make_jaxpr(set_.project)(jnp.zeros((2, 8192))),
      jax.make_jaxpr(set_.superpose)(jnp.arange(2), jnp.ones(2)),
    ):
      text = str(jaxpr)
      assert text.count('dot_general[') == text.count(
        'precision=(Precision.HIGHEST, Precision.HIGHEST)'
      )


def test_the_running_maximum_has_a_number_for_each_canary_and_view():
  set_ = canaries.hadamard(jax.random.key(0), 4, DIM)
  observer = observers.running_maximum(set_, views=('aggregate', 'residual'))
  params = still_task(DIM).init(jax.random.key(0))
  (kept,) = jax.tree.leaves(observer.init(params))
  assert kept.shape == (2, 4)
  assert np.all(kept == -1)
  with pytest.raises(ValueError, match='nothing'):
    observers.running_maximum(set_, views=('nothing',))


def test_the_delta_is_what_the_server_optimizer_made_of_it():
  matrix, _, params, path, _, scores = small_run(view='server_update')
  start = np.asarray(ravel_pytree(params)[0])
  deltas = np.diff(np.concatenate([start[None], path]), axis=0)
  np.testing.assert_allclose(
    scores['server_update'], numpy_cosines(matrix, deltas), atol=1e-4
  )


def test_the_final_model_is_looked_at_as_it_is_and_from_its_start():
  matrix, _, params, path, _, scores = small_run()
  start = np.asarray(ravel_pytree(params)[0])
  looked_at = np.stack([path[-1], path[-1] - start])
  np.testing.assert_allclose(
    np.stack([scores['final'], scores['change']]),
    numpy_cosines(matrix, looked_at),
    atol=1e-5,
  )
  # The two differ, or looking at both would show nothing.
  assert np.abs(scores['final'] - scores['change']).max() > 1e-2


def test_canaries_are_as_long_as_the_clip_norm_of_their_round():
  initial, quantile, rate, m = 0.1, 0.9, 0.5, 2.0
  # Orthonormal, so that what each adds to a round is seen by itself.
  normals = np.random.default_rng(0).normal(size=(DIM, 4))
  matrix = np.linalg.qr(normals)[0].T.astype('f4')
  set_ = canaries.from_matrix(jnp.asarray(matrix))
  participation = np.zeros((ROUNDS, 4), bool)
  participation[[0, 2, 2, 4, 5, 6], [0, 1, 2, 0, 1, 0]] = True
  inner = fedavg.dp_fedavg(
    still_task(DIM),
    client_opt=optax.sgd(0.1),
    # The model moves by the aggregate itself.
    server_opt=optax.sgd(1.0),
    clipping=clipping.adaptive(
      initial,
      quantile=quantile,
      learning_rate=rate,
      count_noise=1.0,
      expected_clients=m,
    ),
    noise_multiplier=0.0,
    expected_clients=m,
  )
  observer = observers.all_iterates(set_, rounds=ROUNDS, views=('residual',))
  algorithm = audited_algorithm.audited(
    inner, set_, participation, {'trace': observer}
  )
  # From 0, or moves would be rounded to the precision of where the model is.
  params = jax.tree.map(jnp.zeros_like, still_task(DIM).init(jax.random.key(0)))
  path, state, _ = run(algorithm, params, ROUNDS)
  aggregates = np.diff(path, axis=0, prepend=np.zeros((1, DIM)))

  # The one client never moves and is below any S; canaries never are.
  per_round = participation.sum(axis=1)
  share = (1 - (1 + per_round) / 2) / m + 0.5
  steps = np.exp(-rate * (share - quantile))
  clip_norms = initial * np.append(1, np.cumprod(steps)[:-1])
  assert np.all(clip_norms[1:] > 1.1 * initial)
  added = participation * (clip_norms / m)[:, None]
  np.testing.assert_allclose(aggregates, added @ matrix, rtol=1e-4, atol=2e-7)
  known = jax.device_get(state.rounds)
  np.testing.assert_allclose(known.clip_norm, clip_norms, rtol=1e-5)
  np.testing.assert_allclose(known.canary_norm, clip_norms / m, rtol=1e-5)
  # Who knows all that was put in has nothing left.
  assert np.all(known.residual_norm < 1e-5 * known.canary_norm)


@pytest.mark.integration
@pytest.mark.usefixtures('small_task', 'unestimated')
def test_canaries_of_a_run_follow_its_clip_norm(tmp_path):
  config = load_config('digits', noise_multiplier=0.0, rounds=8)
  assert config.clipping.kind == 'adaptive'
  # It begins far too large.
  config.clipping.update(initial=1.0, learning_rate=0.7)
  # A single step, so that there is one shape of cohorts.
  config.client.update(epochs=1, max_examples=8)
  config.canaries.update(family='hadamard', observed=7, unobserved=3)
  audited_run.run(config, tmp_path)
  scores = load_record(tmp_path / 'private/scores.npz')
  known = scores.rounds
  lines = (tmp_path / 'private/metrics.jsonl').read_text().splitlines()
  lines = [json.loads(line) for line in lines[1:]]
  below = (
    np.array([line['fraction_unclipped'] for line in lines]) * known.num_clients
  )

  m = 40 + 7 / 8
  share = (below - (known.num_clients + known.num_canaries) / 2) / m + 0.5
  steps = np.exp(-0.7 * (share - config.clipping.quantile))
  clip_norms = config.clipping.initial * np.append(1, np.cumprod(steps)[:-1])
  # It moves far and does not come back, or this would show nothing.
  assert np.abs(np.log(clip_norms[1:] / clip_norms[0])).min() > 0.1
  np.testing.assert_allclose(known.clip_norm, clip_norms, rtol=1e-4)
  np.testing.assert_allclose(known.canary_norm, clip_norms / m, rtol=1e-4)
  # Without noise nothing is left of the aggregate but rounding, once canaries
  # of this length are removed from it.
  np.testing.assert_array_equal(known.num_canaries, scores.included.sum(1))
  assert known.num_canaries.sum() == 7
  assert np.all(known.residual_norm < 1e-3 * known.canary_norm)


@pytest.mark.integration
@pytest.mark.parametrize('z', [0.5, 3.0])
def test_own_round_gives_the_analytic_epsilon_when_clients_are_still(z):
  """The law the whole library rests on.

  With zero real updates and one canary a round, rho = S c + z S Z, so
  sqrt(d) cos has mean 1/z and variance 1, up to 1/d: the Gaussian mechanism.
  """
  d, rounds, delta = 4_000, 1000, 1e-5
  set_ = canaries.sphere(jax.random.key(1), rounds, d)
  participation = canary_schedules.once_per_period(
    np.random.default_rng(0), rounds=rounds, num=rounds
  )
  inner = fedavg.dp_fedavg(
    still_task(d),
    client_opt=optax.sgd(0.1),
    server_opt=optax.sgd(0.5, momentum=0.9),
    clipping=clipping.fixed(0.3),
    noise_multiplier=z,
    expected_clients=3.0,
  )
  observer = observers.all_iterates(set_, rounds=rounds, buffer=100)
  algorithm = audited_algorithm.audited(
    inner, set_, participation, {'trace': observer}
  )
  params = still_task(d).init(jax.random.key(0))
  _, state, _ = run(algorithm, params, rounds)
  trace = np.asarray(
    audited_algorithm.score_observers(state, {'trace': observer})['aggregate']
  )
  own = statistics.score_own_round(trace, participation)

  analytic = accounting.epsilon_of_releases(z, delta=delta).epsilon
  estimate = two_gaussians.two_gaussian(
    Scores(own, np.zeros(0), null=Sphere(d)), delta=delta, std='null'
  ).epsilon
  # sqrt(d) mean has standard error 1/sqrt(k); carried through epsilon(mu).
  error = 1 / np.sqrt(rounds)
  slope = (
    two_gaussians.epsilon_two_gaussians(0, 1, 1 / z + error, 1, delta)
    - analytic
  )
  assert abs(estimate - analytic) < 3 * slope
  # A noise twice as large would be seen.
  other = accounting.epsilon_of_releases(2 * z, delta=delta).epsilon
  assert abs(estimate - other) > 3 * slope
  # A canary is a null score in the rounds of the others.
  others = trace[~participation]
  assert stats.norm.cdf(others.mean() * np.sqrt(d * others.size)) > 1e-6
  assert others.std() * np.sqrt(d) == pytest.approx(1, rel=0.02)


@pytest.mark.integration
@pytest.mark.parametrize('z', [0.2, 1.0])
def test_who_removes_the_other_updates_reads_the_analytic_epsilon(z):
  """However large and aligned they are: the residual audits noise and clip.

  Four other canaries of the round are removed with them.
  """
  d, rounds, num, delta = 2000, 200, 1000, 1e-5
  set_ = canaries.sphere(jax.random.key(1), num, d)
  participation = canary_schedules.once_per_period(
    np.random.default_rng(0), rounds=rounds, num=num
  )

  def pull(params, batch, key):
    del key
    return 1e3 * params['theta'].sum() * batch['x']

  task = still_task(d)._replace(loss=pull)
  clients = 40
  cohort = fedavg.Cohort(
    {'x': np.ones((clients, 1, 1, 1), np.float32)},
    np.ones((clients, 1, 1, 1), bool),
    np.arange(clients, dtype=np.int32)[:, None],
  )
  inner = fedavg.dp_fedavg(
    task,
    client_opt=optax.sgd(0.1),
    server_opt=optax.sgd(0.5, momentum=0.9),
    clipping=clipping.fixed(0.3),
    noise_multiplier=z,
    expected_clients=3.0,
  )
  observer = observers.all_iterates(
    set_, rounds=rounds, views=('aggregate', 'residual'), buffer=100
  )
  algorithm = audited_algorithm.audited(
    inner, set_, participation, {'trace': observer}
  )
  params = task.init(jax.random.key(0))
  state, step = algorithm.init(params), jax.jit(algorithm.step)
  norms = []
  for t in range(rounds):
    state, info = step(
      state, cohort, jax.random.key(t), jax.random.key(1000 + t)
    )
    norms.append(float(info.scalars.sum_norm))
  np.testing.assert_allclose(norms, 0.3 * clients, rtol=1e-3)
  known = jax.device_get(state.rounds)
  scores = jax.device_get(observer.scores(state.observers['trace'], params))
  aggregate, residual = scores['aggregate'], scores['residual']
  seen = statistics.score_own_round(aggregate, participation) * np.sqrt(d)
  alone = score_residual(residual, participation, participation, known)
  # Means of 1000 of variance 1; 5 standard errors.
  error = 5 / np.sqrt(num)
  assert alone.mean() == pytest.approx(1 / z, abs=error)
  # Were the other canaries left in, the noise would seem larger.
  left_in = (z**2 + num / rounds / d) ** -0.5
  assert z == 1.0 or alone.mean() > left_in + error / 5
  # Who sees the aggregate alone has the other clients for extra noise.
  sigma_eff = np.sqrt(z**2 + (clients**2 + num / rounds) / d)
  assert seen.mean() == pytest.approx(1 / sigma_eff, abs=error)
  if z == 0.2:
    assert 1 / sigma_eff < 1 / z - 1
  analytic = accounting.epsilon_of_releases(z, delta=delta).epsilon
  estimate = two_gaussians.two_gaussian(
    Scores(alone, np.zeros(0), null=Gaussian()), delta=delta, std='null'
  ).epsilon
  slope = two_gaussians.epsilon_two_gaussians(
    0, 1, 1 / z + 1 / np.sqrt(num), 1, delta
  )
  assert abs(estimate - analytic) < 3 * (slope - analytic)


def test_what_does_not_fit_together_is_refused():
  set_ = canaries.sphere(jax.random.key(0), 4, DIM)
  inner = fedavg.dp_fedavg(
    still_task(DIM + 1),
    client_opt=optax.sgd(0.1),
    server_opt=optax.sgd(0.5),
    clipping=clipping.fixed(2.0),
    noise_multiplier=0.1,
    expected_clients=3.0,
  )
  with pytest.raises(ValueError, match=r'shape \(3, 5\).*4 canaries'):
    audited_algorithm.audited(inner, set_, np.zeros((3, 5), bool), {})
  wrong_size = audited_algorithm.audited(
    inner, set_, np.zeros((3, 4), bool), {}
  )
  with pytest.raises(ValueError, match='dim=60, but the model has 61'):
    wrong_size.init(still_task(DIM + 1).init(jax.random.key(0)))
  with pytest.raises(ValueError, match=r"views=\('loss',\)"):
    observers.all_iterates(set_, rounds=3, views=('loss',))
  with pytest.raises(ValueError, match='buffer=0'):
    observers.all_iterates(set_, rounds=3, buffer=0)
