"""A model small enough to write by hand, cohorts for it, and runs cut short."""

import importlib.util
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import optax

from epe_jax import canaries
from epe_jax.audit import audited_algorithm, observers, results
from epe_jax.training import algorithms, fedavg
from epe_jax.training.round_scalars import RoundScalars
from epe_jax.types import Task

ROOT = pathlib.Path(__file__).parents[1]


def linear_task(features: int = 3) -> Task:
  """Least squares: loss (w x + b - y)^2 / 2 of each example."""

  def init(key):
    w = jax.random.normal(key, (features,), jnp.float32)
    return {'w': w, 'b': jnp.zeros((), jnp.float32)}

  def loss(params, batch, key):
    del key
    error = batch['x'] @ params['w'] + params['b'] - batch['y']
    return error**2 / 2

  def metrics(params, batch):
    losses = loss(params, batch, None)
    return {'loss': losses, 'accuracy': (losses < 1).astype(jnp.float32)}

  return Task(init, loss, metrics)


def random_clients(rng, sizes, features=3):
  """For each client its x [n, features] and y [n]."""
  return [
    (
      rng.normal(size=(n, features)).astype(np.float32),
      rng.normal(size=n).astype(np.float32),
    )
    for n in sizes
  ]


def named_clients(num_clients=7, seed=0):
  """Columns of each client by its name, of 1 to 8 examples."""
  rng = np.random.default_rng(seed)
  return {
    f'c{i}': {
      'pixels': rng.normal(size=(n, 2, 3)).astype(np.float32),
      'label': rng.integers(10, size=n, dtype=np.int32),
    }
    for i, n in enumerate(rng.integers(1, 9, num_clients))
  }


def draw_params(task):
  """Parameters of the size that init has them, which compile nothing."""
  rng = np.random.default_rng(0)

  def draw(x):
    scale = np.sqrt(np.prod(x.shape[:-1])) if x.ndim > 1 else 1
    return jnp.asarray(rng.normal(size=x.shape) / scale, jnp.float32)

  return jax.tree.map(draw, jax.eval_shape(task.init, jax.random.key(0)))


def make_cohort(clients, *, batch, chunk, steps=None, slots=None, ids=None):
  """Pads and stacks, the slow way, without shuffling."""
  steps = steps or max(-(-len(y) // batch) for _, y in clients)
  slots = slots or len(clients)
  slots = -(-slots // chunk) * chunk
  features = clients[0][0].shape[1]
  x = np.zeros((slots, steps * batch, features), np.float32)
  y = np.zeros((slots, steps * batch), np.float32)
  mask = np.zeros((slots, steps * batch), bool)
  index = np.full(slots, -1, np.int32)
  for i, (xs, ys) in enumerate(clients):
    x[i, : len(ys)], y[i, : len(ys)], mask[i, : len(ys)] = xs, ys, True
    index[i] = i if ids is None else ids[i]
  shape = (slots // chunk, chunk, steps, batch)
  return fedavg.Cohort(
    {'x': x.reshape(*shape, features), 'y': y.reshape(shape)},
    mask.reshape(shape),
    index.reshape(shape[:2]),
  )


def injection(direction: jax.Array, count: int) -> algorithms.Injection:
  given = jax.tree_util.Partial(jnp.asarray, direction)
  return algorithms.Injection(given, jnp.asarray(count, jnp.int32))


def make_round(
  aggregate: jax.Array | None,
  client_part: jax.Array | None,
  **metrics: jax.Array,
) -> algorithms.Round:
  """A round whose scalars are 1."""
  scalars = RoundScalars(*[jnp.float32(1)] * 7)
  return algorithms.Round(
    aggregate, client_part, scalars, algorithms.RoundMetrics(**metrics)
  )


def keys(seed: int = 0):
  """A training key and a noise key."""
  return jax.random.key(seed), jax.random.key(seed + 1)


def run_audited(algorithm, included, cohort, dim):
  """Cosines and scalars of the rounds of an audited run, in one program.

  Args:
    algorithm: of `softmax_regression` with as many parameters as `dim`.
    included: [rounds, canaries], as of `audited_algorithm.audited`.
    cohort: of every round.
    dim: d.
  """
  rounds, num = included.shape
  canary_set = canaries.sphere(jax.random.key(7), num, dim)
  seen = {
    'rounds': observers.all_iterates(
      canary_set, rounds=rounds, views=('aggregate', 'residual')
    )
  }
  audited = audited_algorithm.audited(algorithm, canary_set, included, seen)

  @jax.jit
  def run(params):
    step = lambda state, keys: audited.step(state, cohort, *keys)
    keys = [jax.random.split(jax.random.key(i), rounds) for i in (1, 2)]
    state, _ = jax.lax.scan(step, audited.init(params), tuple(keys))
    state = audited_algorithm.flush(state, seen)
    return audited_algorithm.score_observers(state, seen), state.rounds

  params = softmax_regression(dim - 650).init(jax.random.key(0))
  return jax.tree.map(np.asarray, run(params))


def no_estimates(record, **settings) -> results.Audit:
  """In place of `estimates.evaluate`, which takes longer than a small run."""
  del record, settings
  return results.Audit(())


def softmax_regression(unused: int = 0) -> Task:
  """650 parameters, which compile in no time.

  Cosines with canaries scatter as 1/√d. Where a test has to tell them apart, as
  many `unused` parameters as it takes, whose gradients are zero, make d larger.
  """

  def init(key):
    w = jax.random.normal(key, (64, 10), jnp.float32) / 8
    params = {'w': w, 'b': jnp.zeros(10, jnp.float32)}
    return params | ({'unused': jnp.zeros(unused)} if unused else {})

  def logits(params, batch):
    pixels = batch['pixels'].reshape(-1, 64)
    return pixels @ params['w'] + params['b']

  def loss(params, batch, key):
    del key
    return optax.softmax_cross_entropy_with_integer_labels(
      logits(params, batch), batch['label']
    )

  def metrics(params, batch):
    right = logits(params, batch).argmax(axis=-1) == batch['label']
    return {
      'loss': loss(params, batch, None),
      'accuracy': right.astype(jnp.float32),
    }

  return Task(init, loss, metrics)


def count_traces(patch):
  """Digits by `softmax_regression`, and the batches that it is traced for.

  Args:
    patch: a `pytest.MonkeyPatch`.

  Returns:
    A list that grows, whenever a training step is traced, by the rows of its batch.
  """
  rows, task = [], softmax_regression()
  counted = task._replace(
    loss=lambda *a: rows.append(len(a[1]['label'])) or task.loss(*a)
  )
  patch.setattr('epe_jax.tasks.digits.task', lambda width: counted)
  return rows


def quick_digits(**changes):
  """The digits by Hadamard canaries and a client's single step of training."""
  config = load_config('digits', **changes)
  config.client.update(epochs=1, max_examples=8)
  config.clipping.kind = 'fixed'
  config.canaries.family = 'hadamard'
  return config


def load_config(name, mode='smoke', **changes):
  """A config of configs/ with some fields changed, as the command line does."""
  path = ROOT / 'configs' / f'{name}.py'
  spec = importlib.util.spec_from_file_location(name, path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  config = module.get_config(mode).lock()
  config.update_from_flattened_dict(changes)
  return config
