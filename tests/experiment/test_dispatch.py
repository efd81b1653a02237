"""Rounds that are sent ahead are the rounds of a loop that waits for each."""

from concurrent import futures
import itertools
import json

import jax
from jax.flatten_util import ravel_pytree
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from epe_jax import canaries
from epe_jax.audit import audited_algorithm, observers
from epe_jax.audit.record_file import load_record
from epe_jax.data import cohort
from epe_jax.experiment import audited_run, loop, programs
from epe_jax.experiment.setup import build
from epe_jax.sampling import canary_schedules
from epe_jax.training import algorithms, clipping, fedavg
from tests import helpers
from tests.audit.test_audited_algorithm import still_cohort, still_task
from tests.helpers import load_config

ROUNDS, DIM = 6, 4


@pytest.mark.parametrize('start', [0, 5])
@pytest.mark.parametrize(
  ('max_size', 'ends'), [(1, (3,)), (4, (5, 3)), (99, (7,))]
)
def test_spans_are_all_rounds_in_order_and_end_where_they_must(
  start, max_size, ends
):
  spans = list(loop.group_rounds(start, 23, max_size=max_size, ends=ends))
  assert list(itertools.chain(*spans)) == list(range(start, 23))
  stops = {span.stop for span in spans}
  for n in ends:
    assert {t for t in range(start + 1, 23) if t % n == 0} <= stops
  for span in spans:
    assert 1 <= len(span) <= max_size
    # And nowhere else.
    assert (
      len(span) == max_size
      or span.stop == 23
      or any(span.stop % n == 0 for n in ends)
    )


def small_algorithm():
  rows = np.random.default_rng(0).normal(size=(3, DIM)).astype('f4')
  set_ = canaries.from_matrix(
    jnp.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))
  )
  inner = fedavg.dp_fedavg(
    helpers.linear_task(DIM - 1),
    client_opt=optax.sgd(0.1),
    server_opt=optax.sgd(0.5, momentum=0.9),
    clipping=clipping.adaptive(
      0.1, quantile=0.5, learning_rate=0.2, count_noise=1, expected_clients=3
    ),
    noise_multiplier=0.5,
    expected_clients=3.0,
  )
  rows = canary_schedules.once_per_period(
    np.random.default_rng(0), rounds=ROUNDS, num=3
  )
  attackers = {
    'final': observers.final_model(set_),
    'late': observers.all_iterates(set_, rounds=ROUNDS, buffer=4),
    'at once': observers.all_iterates(
      set_, rounds=ROUNDS, views=('server_update',), buffer=1
    ),
  }
  return audited_algorithm.audited(inner, set_, rows, attackers)


def small_cohorts():
  """Of clients that take 1 to 3 steps; a round has room for its largest."""
  rng = np.random.default_rng(0)
  return [
    helpers.make_cohort(
      helpers.random_clients(rng, sizes), batch=2, chunk=1, ids=ids
    )
    for sizes, ids in [
      ([1, 2], [0, 1]),
      ([5, 3], [2, 3]),
      ([2, 2], [4, 5]),
      ([6, 1], [6, 7]),
      ([1, 1], [0, 2]),
      ([1, 5], [1, 3]),
    ]
  ]


def sent(algorithm, spans):
  """The last state, the metrics of all rounds and the jitted function."""
  params = helpers.linear_task(DIM - 1).init(jax.random.key(0))
  advance = jax.jit(programs.make_advance(algorithm), donate_argnums=0)
  state, cohorts, seen = algorithm.init(params), small_cohorts(), []
  for span in spans:
    together = cohort.stack_rounds([cohorts[t] for t in span])
    state, metrics = advance(state, together, *helpers.keys())
    seen.append(metrics)
  return state, jax.tree.map(lambda *x: np.concatenate(x), *seen)


@pytest.mark.slow
def test_rounds_that_are_sent_as_one_are_those_that_are_sent_alone():
  algorithm = small_algorithm()
  alone = sent(algorithm, [range(t, t + 1) for t in range(ROUNDS)])
  together = sent(algorithm, [range(0, 3), range(3, 6)])
  for a, b in zip(
    jax.tree.leaves(together), jax.tree.leaves(alone), strict=True
  ):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
  # What a round makes depends on its number, or this would show little.
  norms = alone[1]['aggregate_norm']
  assert norms.shape == (ROUNDS,)
  assert len(set(norms.tolist())) == ROUNDS


SPANS = [
  pytest.param([range(t, t + 1) for t in range(ROUNDS)], id='alone'),
  pytest.param([range(6)], id='as one'),
  pytest.param([range(0, 1), range(1, 4), range(4, 6)], id='both'),
]


def keeping_aggregates(rounds, dim):
  """A server that moves nothing, and keeps what each round gives it."""

  def update(gradient, state, params):
    t, kept = state
    kept = kept.at[t].set(-ravel_pytree(gradient)[0])
    return jax.tree.map(jnp.zeros_like, params), (t + 1, kept)

  init = lambda params: (jnp.zeros((), jnp.int32), jnp.zeros((rounds, dim)))
  return optax.GradientTransformation(init, update)


def check_uncorrelated(vectors):
  """That no two of some vectors have to do with each other."""
  vectors = np.asarray(vectors, np.float64)
  num, dim = vectors.shape
  correlation = np.corrcoef(vectors)[np.triu_indices(num, 1)]
  # Six standard errors, or by chance once in ten million for 28 pairs.
  assert np.abs(correlation).max() < 6 / np.sqrt(dim)


@pytest.mark.parametrize('spans', SPANS)
def test_the_noise_of_each_round_is_new(spans):
  d = 4096
  task = still_task(d)
  algorithm = audited_algorithm.unaudited(
    fedavg.dp_fedavg(
      task,
      client_opt=optax.sgd(0.1),
      server_opt=keeping_aggregates(ROUNDS, d),
      clipping=clipping.fixed(2.0),
      noise_multiplier=0.5,
      expected_clients=1.0,
    )
  )
  advance = jax.jit(programs.make_advance(algorithm))
  state = algorithm.init(task.init(jax.random.key(0)))
  for span in spans:
    together = cohort.stack_rounds([still_cohort() for _ in span])
    state, _ = advance(state, together, *helpers.keys())
  # The client sends nothing, so that this is the noise and nothing else.
  _, noise = state.algorithm.opt_state
  check_uncorrelated(noise)
  # The sample std has relative error 1/sqrt(2 d) = 1.1 %; 5 of them.
  np.testing.assert_allclose(np.std(noise, axis=1), 1.0, rtol=0.055)
  with pytest.raises(AssertionError):
    check_uncorrelated(noise[jnp.array([0, 1, 0])])


@pytest.mark.parametrize('spans', SPANS)
def test_each_round_has_two_keys_of_its_own(spans):
  words = lambda key: jax.random.key_data(key)

  def step(state, batch, training_key, noise_key):
    after = state._replace(
      algorithm=state.algorithm._replace(round=state.algorithm.round + 1)
    )
    return after, helpers.make_round(
      None, None, loss=words(training_key), update_norm=words(noise_key)
    )

  algorithm = algorithms.Algorithm(small_algorithm().init, step)
  _, seen = sent(algorithm, spans)
  training, noise = helpers.keys()
  for t in range(ROUNDS):
    for name, key in (('loss', training), ('update_norm', noise)):
      np.testing.assert_array_equal(
        seen[name][t], words(jax.random.fold_in(key, t))
      )
  both = np.concatenate([seen['loss'], seen['update_norm']])
  assert len(np.unique(both, axis=0)) == 2 * ROUNDS


def test_the_state_of_a_round_is_written_over_by_the_next():
  algorithm = small_algorithm()
  params = helpers.linear_task(DIM - 1).init(jax.random.key(0))
  advance = jax.jit(programs.make_advance(algorithm), donate_argnums=0)
  batch = cohort.stack_rounds(small_cohorts()[:1])
  # Beside the state of a run there is no room for a second one.
  state, _ = advance(algorithm.init(params), batch, *helpers.keys())
  at = lambda state: {
    x.unsafe_buffer_pointer() for x in jax.tree.leaves(state) if x.ndim
  }
  before, old = at(state), state
  state, _ = advance(state, batch, *helpers.keys())
  assert all(x.is_deleted() for x in jax.tree.leaves(old))
  assert at(state) == before
  # The parameters that it started from are the caller's.
  assert np.isfinite(ravel_pytree(params)[0]).all()


def test_times_of_a_round_are_those_of_the_device():
  def landed(span, *, asked, begun, done, free):
    coming = futures.Future()
    coming.set_result(({'loss': np.arange(float(len(span)))}, done))
    return loop.collect(loop.Group(span, asked, begun, coming), free)

  # Sent at 3 to a device that was busy until 5: nobody waited for data.
  records, free = landed(range(7, 8), asked=1, begun=3, done=9, free=5)
  assert records == [{'round': 8, 'loss': 0.0, 'seconds': 4, 'waited': 0}]
  assert free == 9
  # The cohorts came at 8, when the device had been idle since 5.
  records, _ = landed(range(2, 4), asked=1, begun=8, done=12, free=5)
  assert records == [
    {'round': 3, 'loss': 0.0, 'seconds': 2, 'waited': 3},
    {'round': 4, 'loss': 1.0, 'seconds': 2, 'waited': 0},
  ]
  # Between 5 and 6 the host did something else.
  records, _ = landed(range(1), asked=6, begun=8, done=9, free=5)
  assert records[0]['waited'] == 2


@pytest.fixture
def traces(monkeypatch, unestimated):
  return helpers.count_traces(monkeypatch)


def ragged_config(**changes):
  """Rounds of few clients, who have from 1 to more than 100 examples."""
  config = load_config('digits', **{'data.concentration': 0.01}, rounds=10)
  config.clipping.kind = 'fixed'
  config.client.update(batch_size=2, epochs=1)
  config.canaries.update(family='hadamard', observed=2, unobserved=2)
  config.update(clients_per_round=1, evaluate_every=9, checkpoint_every=5)
  config.update_from_flattened_dict(changes)
  return config


@pytest.mark.integration
def test_a_run_of_several_rounds_a_dispatch_is_the_same_run(tmp_path, traces):
  audited_run.run(ragged_config(), tmp_path / 'one')
  alone = len(traces)
  traces.clear()
  config = ragged_config(rounds_per_dispatch=4)
  setup = build.build(config)
  shapes, made = set(), set()
  spans = [*loop.group_rounds(0, 10, max_size=4, ends=(9, 5))]
  for span in spans:
    each = [
      cohort.gather(
        setup.train,
        setup.participants.clients(t),
        setup.plan,
        seed=config.seed,
        round=t,
      )
      for t in span
    ]
    shapes |= {x.mask.shape for x in each}
    made.add(cohort.stack_rounds(each).mask.shape)
  audited_run.run(config, tmp_path / 'four')
  # One for each shape and length; shapes differ, or it would be too easy.
  assert len({shape[1:] for shape in made}) > 1
  assert (alone, len(traces)) == (len(shapes), len(made))
  one, four = (
    load_record(tmp_path / name / 'private/scores.npz')
    for name in ('one', 'four')
  )
  np.testing.assert_allclose(four.trace, one.trace, rtol=1e-4, atol=1e-6)
  np.testing.assert_allclose(
    four.cosines['final'], one.cosines['final'], rtol=1e-4, atol=1e-6
  )
  lines = [
    [
      json.loads(line)
      for line in (tmp_path / name / 'private/metrics.jsonl')
      .read_text()
      .splitlines()
    ]
    for name in ('one', 'four')
  ]
  assert [r['round'] for r in lines[1]] == list(range(11))
  for a, b in zip(*lines, strict=True):
    assert a.keys() == b.keys()
    for name in a.keys() - {'seconds', 'waited'}:
      assert b[name] == pytest.approx(a[name], rel=1e-4, abs=1e-6)


@pytest.mark.integration
def test_a_round_is_sent_before_the_last_one_is_waited_for(
  tmp_path, traces, monkeypatch
):
  events = []
  landed, sent_ = loop.collect, loop.Group

  def land(one, free):
    events.append(('collect', one.rounds.start))
    return landed(one, free)

  def send(rounds, *rest):
    events.append(('sent', rounds.start))
    return sent_(rounds, *rest)

  monkeypatch.setattr(loop, 'collect', land)
  monkeypatch.setattr(loop, 'Group', send)
  config = ragged_config(rounds=6, evaluate_every=4, checkpoint_every=6)
  audited_run.run(config, tmp_path / 'run')
  assert len(events) == 12
  for t in (0, 1, 2, 4):
    assert events.index(('sent', t + 1)) < events.index(('collect', t))
  # Nothing is under way when the state is looked at.
  assert events.index(('collect', 3)) < events.index(('sent', 4))


@pytest.mark.integration
def test_nothing_of_a_round_that_diverged_is_kept(
  tmp_path, traces, monkeypatch
):
  fetched, coming = loop.fetch_metrics, itertools.count()

  def diverging(metrics):
    found, done = fetched(metrics)
    if next(coming) == 4:
      found = found | {'aggregate_norm': np.array([np.nan])}
    return found, done

  monkeypatch.setattr(loop, 'fetch_metrics', diverging)
  config = ragged_config(checkpoint_every=2)
  with pytest.raises(FloatingPointError, match='round 5: updates or'):
    audited_run.run(config, tmp_path / 'run')
  lines = (tmp_path / 'run' / 'private/metrics.jsonl').read_text().splitlines()
  assert [json.loads(line)['round'] for line in lines] == [0, 1, 2, 3, 4]
  folders = (tmp_path / 'run' / 'private/checkpoints').iterdir()
  assert {path.name for path in folders} == {'2.npz', '4.npz'}


def noise_config(monkeypatch, **changes):
  """A run whose residuals are the first 640 numbers of the noise of 650."""

  def unit_vectors(key, num, dim):
    # Rounds are traced with the key, which these do not need.
    with jax.ensure_compile_time_eval():
      return canaries.from_matrix(jnp.eye(num, dim))

  monkeypatch.setattr(canaries, 'family', lambda *_, **__: unit_vectors)
  config = load_config('digits', rounds=6, **changes)
  config.clipping.kind = 'fixed'
  # A single step, so that there is one shape of cohorts.
  config.client.update(epochs=1, max_examples=8)
  config.canaries.update(family='hadamard', observed=4, unobserved=636)
  config.update(clients_per_round=4, evaluate_every=6, checkpoint_every=3)
  return config


def cut_off(config, workdir, after, monkeypatch):
  """Makes a run as far as its only checkpoint, and some rounds more."""
  fetched, coming = loop.fetch_metrics, itertools.count()

  def failing(metrics):
    if next(coming) == after:
      raise RuntimeError('cut off')
    return fetched(metrics)

  with monkeypatch.context() as patch:
    patch.setattr(loop, 'fetch_metrics', failing)
    with pytest.raises(RuntimeError, match='cut off'):
      audited_run.run(config, workdir)
  (path,) = (workdir / 'private/checkpoints').iterdir()
  assert path.name == '3.npz'


@pytest.mark.integration
def test_the_noise_of_each_round_of_a_run_that_goes_on_is_new(
  tmp_path, traces, monkeypatch
):
  # Spans of two rounds and of one, before a checkpoint and behind it.
  config = noise_config(monkeypatch, rounds_per_dispatch=2)
  cut_off(config, tmp_path / 'run', 2, monkeypatch)
  audited_run.run(config, tmp_path / 'run')
  scores = load_record(tmp_path / 'run/private/scores.npz')
  check_uncorrelated(scores.cosines['residual'])

  # It is what follows from the key of the noise and the number of the round.
  setup = build.build(config)
  drawn = [
    jax.random.normal(
      jax.random.split(jax.random.fold_in(setup.randomness.noise, t))[0],
      (setup.dim,),
    )
    for t in range(config.rounds)
  ]
  unit = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
  np.testing.assert_allclose(
    scores.cosines['residual'], unit[:, :640], atol=1e-4
  )
