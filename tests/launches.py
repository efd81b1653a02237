"""Programs over several devices of a processor, a great many of them.

  python -m tests.launches DEVICES NAME ...

Run by tests as a process of its own, for the number of devices is settled when
JAX starts, and because what is wrong here never ends, or is aborted by XLA. A
NAME is that of a function below; the process ends well if all of them return.
"""

import sys
import tempfile

import jax
import jax.numpy as jnp
import numpy as np

from epe_jax.audit import evaluation
from epe_jax.data import federated
from epe_jax.experiment import audited_run, model_evaluation
from epe_jax.experiment import programs as programs_lib
from epe_jax.parallel import sharding
from epe_jax.tasks import digits
from epe_jax.types import Task
from tests import helpers
from tests.helpers import load_config, softmax_regression

# That XLA:CPU has in flight on a device before a launch waits.
XLA_CPU_PROGRAMS = 32
# Of a matrix, whose products take some milliseconds.
SIZE = 200


def product(x):
  for _ in range(4):
    x = jnp.tanh(x @ x.T @ x / SIZE)
  return x


def sums():
  """A program with a collective in it, and what it is called with."""
  mesh = sharding.make_mesh()
  x = jnp.ones((mesh.size * SIZE, SIZE), device=sharding.sharding_over(mesh))
  program = sharding.sum_over_devices(mesh, [sharding.SHARDED])(
    lambda x: product(x).sum()
  )
  return jax.jit(program), x


def at_once():
  """As many as the backend promises, and no one waits before the end."""
  program, x = sums()
  for _ in range(3):
    jax.block_until_ready([program(x) for _ in range(XLA_CPU_PROGRAMS)])


def in_order():
  program, x = sums()
  ended = [*programs_lib.iterate_in_order(program(x) for _ in range(200))]
  assert len(ended) == 200


def evaluate():
  """A test set that takes a hundred programs."""
  model_evaluation._BATCHES = 1

  def metrics(params, batch):
    del params
    work = product(jnp.ones((SIZE, SIZE)) * batch['x'][0])
    return {'mean': batch['x'] + 0 * work.sum()}

  task = Task(lambda key: {}, lambda params, batch, key: batch['x'], metrics)
  mesh = sharding.mesh()
  n = 100 * mesh.size * model_evaluation._BATCH - 1
  x = np.arange(n, dtype=np.float32) % 8
  data = federated.from_arrays({'x': x}, np.full(n, 'a'))
  found = model_evaluation.evaluator(task, mesh=mesh)({}, data)
  np.testing.assert_allclose(found['test_mean'], x.mean(), rtol=1e-6)


def small_config(**changes):
  """A run that compiles in no time, of any number of rounds."""
  config = load_config('digits', clients_per_round=4, **changes)
  config.clipping.kind = 'fixed'
  config.client.update(batch_size=2, epochs=1)
  config.canaries.update(family='hadamard', observed=2, unobserved=2)
  return config


def run():
  """A hundred rounds, and programs of an evaluation now and again."""
  model_evaluation._BATCH = 3
  digits.task = lambda width: softmax_regression()
  evaluation.evaluate = helpers.no_estimates
  config = small_config(rounds=100, evaluate_every=99, checkpoint_every=99)
  with tempfile.TemporaryDirectory() as workdir:
    assert audited_run.run(config, workdir).rounds == 100


if __name__ == '__main__':
  jax.config.update('jax_num_cpu_devices', int(sys.argv[1]))
  for name in sys.argv[2:]:
    print(name, flush=True)
    globals()[name]()
