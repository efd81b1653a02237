"""How many clients of a round are trained at once, by the memory of the device.

On a CPU it is one: clients share no weights, so vmapping them wins nothing. An
accelerator is filled the better the more of them there are.
"""

import math
from typing import Any

from absl import logging
import jax
import jax.numpy as jnp
import numpy as np

from epe_jax.data import cohort
from epe_jax.experiment import build, dispatch
from epe_jax.parallel import sharding
from epe_jax.training import fedavg

# Of the memory of a device; the rest is for evaluation, libraries and gaps.
_SHARE = 0.8
# Cohorts on the device: made ahead, in use, and sent behind that.
_COHORTS = 5


def choose_chunk_size(
  bytes_fixed: float, bytes_per_client: float, limit: float, clients: int
) -> int:
  """Clients to train at once: as many as fit, in chunks that are even.

  Args:
    bytes_fixed: that are needed however many there are, >= 0.
    bytes_per_client: that each of them needs, > 0.
    limit: bytes there are.
    clients: of a round, >= 1.

  Returns:
    A chunk in [1, clients]. It is 1 where not even one client fits by these
    numbers; they are estimates, and the device has the last word.

  Raises:
    ValueError: clients or bytes_per_client is out of range.

  >>> choose_chunk_size(10, 1, 60, clients=101)
  34
  """
  if clients < 1 or not bytes_per_client > 0:
    raise ValueError(
      f'clients={clients}, bytes_per_client={bytes_per_client}; give at least '
      'one client and more than 0 bytes.'
    )
  most = min(
    max(math.floor((limit - bytes_fixed) / bytes_per_client), 1), clients
  )
  return -(-clients // -(-clients // most))


def with_chunk_size(
  config: build.Config, this: build.Run, *, mesh: sharding.Mesh | None = None
) -> build.Run:
  """The same run, with the chunk that config.chunk=None leaves to the device.

  The memory that a client takes is by the difference between rounds compiled
  for chunks of two and of four; a chunk of one is a program of another form.
  """
  if config.chunk is not None or jax.default_backend() == 'cpu':
    return this
  stats = jax.local_devices()[0].memory_stats() or {}
  if 'bytes_limit' not in stats:
    logging.warning(
      'The device does not say how much memory it has, so clients are trained '
      'one at a time; set chunk to train more of them at once.'
    )
    return this
  state = jax.eval_shape(this.algorithm.init, this.params)
  two, four = (_temporary(this, state, chunk, mesh) for chunk in (2, 4))
  per_client = max((four - two) / 2, 1)
  clients = -(-this.who.slots // sharding.num_devices(mesh))
  cohorts = _COHORTS * config.rounds_per_dispatch * clients
  fixed = _bytes(state) + two - 2 * per_client + cohorts * _bytes(_client(this))
  chunk = choose_chunk_size(
    fixed, per_client, _SHARE * stats['bytes_limit'], clients
  )
  return this._replace(plan=this.plan._replace(chunk=chunk))


def _temporary(
  this: build.Run, state: Any, chunk: int, mesh: sharding.Mesh | None
) -> int:
  """Bytes of each device that a round needs besides its arguments."""
  chunks = 2 * sharding.num_devices(mesh)
  batches = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct((1, chunks, chunk, *x.shape), x.dtype),
    _client(this),
  )
  key = jax.eval_shape(lambda: jax.random.key(0))
  step = jax.jit(dispatch.make_advance(this.algorithm), donate_argnums=0)
  compiled = step.lower(state, batches, key, key).compile()
  found = compiled.memory_analysis()
  assert found is not None, 'the compiler must say what memory a round needs'
  return found.temp_size_in_bytes


def _client(this: build.Run) -> fedavg.Cohort:
  """The shapes of what the largest client trains on."""
  steps = cohort.count_steps(this.train.sizes, this.plan)
  shape = (steps, this.plan.batch_size)

  def of(shape: tuple[int, ...], dtype: Any) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype)

  return fedavg.Cohort(
    {
      name: of(shape + x.shape[1:], x.dtype)
      for name, x in this.train.columns.items()
    },
    of(shape, np.bool_),
    of((), jnp.int32),
  )


def _bytes(tree: Any) -> int:
  return sum(
    math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree)
  )
