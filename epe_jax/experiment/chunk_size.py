"""The number of clients that are trained at once, by the memory of the device.

On a CPU it is one, because clients share no weights and vmapping them wins
nothing. An accelerator is used better the more of them are trained at once. What
fits is estimated, and then tried before the first round.
"""

from collections.abc import Callable, Sequence
import functools
import math
from typing import Any

from absl import logging
import jax
import numpy as np

from epe_jax.data import cohort
from epe_jax.experiment import programs
from epe_jax.experiment.setup import build
from epe_jax.experiment.setup.config_files import Config
from epe_jax.parallel import hosts, sharding
from epe_jax.training import fedavg

# Of the memory of a device; the rest is for evaluation, libraries and gaps.
_SHARE = 0.8
# Cohorts on the device: made ahead, in use, and dispatched after that.
_COHORTS = 5


def choose_chunk_size(
  bytes_fixed: float, bytes_per_client: float, limit: float, clients: int
) -> int:
  """Chooses the number of clients to train at once: what fits, in even chunks.

  Args:
    bytes_fixed: the memory that is needed for any number of clients, >= 0.
    bytes_per_client: the memory that each of them needs, > 0.
    limit: the memory of the device, in bytes.
    clients: the number of clients in a round, >= 1.

  Returns:
    A chunk in [1, clients]. It is 1 where not even one client fits by these
    numbers, which are estimates; the device has the last word.

  >>> choose_chunk_size(10, 1, 60, clients=101)
  34
  """
  max_chunk = math.floor((limit - bytes_fixed) / bytes_per_client)
  return _make_even(min(max(max_chunk, 1), clients), clients)


def _make_even(max_chunk: int, clients: int) -> int:
  """Makes chunks as small as their number allows."""
  return -(-clients // -(-clients // max_chunk))


def set_chunk_size(
  config: Config,
  setup: build.Setup,
  *,
  mesh: sharding.Mesh | None = None,
) -> build.Setup:
  """Sets the chunk that config.chunk=None leaves to the device.

  The memory that a client takes is measured as the difference between rounds
  that are compiled for chunks of two and of four; a chunk of one is a program
  of another form.

  Returns:
    The same setup, in whose plan the chunk is set.
  """
  if config.chunk is not None or jax.default_backend() == 'cpu':
    return setup
  stats = jax.local_devices()[0].memory_stats() or {}
  if 'bytes_limit' not in stats:
    logging.warning(
      'The device does not say how much memory it has, so clients are trained '
      'one at a time; set chunk to train more of them at once.'
    )
    return setup
  two, four = (_measure_temporary(setup, chunk, mesh) for chunk in (2, 4))
  per_client = max((four - two) / 2, 1)
  clients = _count_clients(setup, mesh)
  cohorts = _COHORTS * config.rounds_per_dispatch * clients
  fixed = _count_bytes(setup.state) + two - 2 * per_client
  fixed += cohorts * _count_client_bytes(setup)
  chunk = choose_chunk_size(
    fixed, per_client, _SHARE * stats['bytes_limit'], clients
  )
  return setup._replace(plan=setup.plan._replace(chunk=chunk))


def is_tried() -> bool:
  """Says whether the chunk of a run is tried before its first round.

  Of several processes one alone may run out of memory, and the others would wait
  for it; they keep what is set or estimated.
  """
  return jax.default_backend() != 'cpu' and jax.process_count() == 1


def halve_until_it_fits(
  config: Config,
  setup: build.Setup,
  advance: Callable[[fedavg.Cohort], Any],
  *,
  mesh: sharding.Mesh | None = None,
) -> build.Setup:
  """Halves the chunk until the program of the rounds finds the memory it needs.

  The rounds that are tried have room for the largest clients, and no client in
  it: the memory of a program depends on its shapes alone, and nothing is trained.

  Args:
    advance: makes a group of rounds of the given cohorts, from a state of its
      own, and returns the results; it may raise if memory is short.

  Returns:
    The same setup, in whose plan the chunk is one that was tried.

  Raises:
    jax.errors.JaxRuntimeError: the device failed for another reason, or has too
      little memory for a single client.
  """
  while True:
    try:
      # The results are dropped, so that the run has all of the memory.
      jax.block_until_ready(advance(_make_empty_cohorts(config, setup, mesh)))
      return setup
    except jax.errors.JaxRuntimeError as error:
      chunk = setup.plan.chunk
      if 'RESOURCE_EXHAUSTED' not in str(error):
        raise
      if chunk == 1:
        error.add_note(
          'The memory of the device is too small for one client at a time. Set '
          f'audit.memory={config.audit.memory:g} or client.batch_size='
          f'{config.client.batch_size} lower, or use a smaller model.'
        )
        raise
    # After the handler, because its error keeps what was allocated alive.
    half = _make_even(-(-chunk // 2), _count_clients(setup, mesh))
    logging.warning(
      'The device has too little memory to train %d clients at once; trying %d.',
      chunk,
      half,
    )
    setup = setup._replace(plan=setup.plan._replace(chunk=half))


def _make_empty_cohorts(
  config: Config, setup: build.Setup, mesh: sharding.Mesh | None
) -> fedavg.Cohort:
  """Makes a group of cohorts as large as those of a run, without any client."""
  devices = sharding.num_devices(mesh)
  empty = _gather_empty(setup, hosts.local_devices_of(mesh), devices)
  rounds = min(
    config.rounds_per_dispatch,
    config.rounds,
    config.evaluate_every,
    config.checkpoint_every,
  )
  stacked = cohort.stack_rounds([empty] * rounds)
  return hosts.assemble_global(mesh, stacked, axis=1)


def _gather_empty(
  setup: build.Setup, parts: Sequence[int], of: int
) -> fedavg.Cohort:
  """Makes a cohort with room for the largest clients, and no client in it."""
  steps = cohort.count_steps(setup.train.sizes, setup.plan)
  return cohort.gather(
    setup.train,
    np.zeros(0, np.int64),
    setup.plan._replace(steps=steps),
    seed=0,
    round=0,
    parts=parts,
    of=of,
  )


def _count_clients(setup: build.Setup, mesh: sharding.Mesh | None) -> int:
  """Counts the clients of a round that each device has to make room for."""
  return -(-setup.participants.slots // sharding.num_devices(mesh))


def _measure_temporary(
  setup: build.Setup, chunk: int, mesh: sharding.Mesh | None
) -> int:
  """Measures the bytes of a device that a round needs in addition to its arguments."""
  devices = sharding.num_devices(mesh)
  plan = setup.plan._replace(chunk=chunk, slots=2 * devices * chunk)
  empty = _gather_empty(setup._replace(plan=plan), range(devices), devices)
  cohorts = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct((1, *x.shape), x.dtype), empty
  )
  step = jax.jit(
    functools.partial(programs.advance_run, setup.make_algorithm),
    donate_argnums=1,
  )
  compiled = step.lower(setup.draws, setup.state, cohorts).compile()
  memory = compiled.memory_analysis()
  assert memory is not None, 'the compiler must say what memory a round needs'
  return memory.temp_size_in_bytes


def _count_client_bytes(setup: build.Setup) -> int:
  """Counts the bytes of the batches of the largest client."""
  plan = setup.plan._replace(chunk=1, slots=1)
  return _count_bytes(_gather_empty(setup._replace(plan=plan), (0,), 1))


def _count_bytes(tree: Any) -> int:
  return sum(
    math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree)
  )
