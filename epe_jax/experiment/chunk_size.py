"""The number of clients that are trained at once, by the memory of the device.

On a CPU it is one, because clients share no weights and vmapping them wins nothing. An
accelerator is used better the more of them are trained at once, so there it is the
largest that fits, as a trial before the first round shows.
"""

from collections.abc import Callable, Sequence
from typing import Any

from absl import logging
import jax
import numpy as np

from epe_jax.data import cohort
from epe_jax.experiment import programs
from epe_jax.experiment.setup import build
from epe_jax.experiment.setup.config import Config
from epe_jax.parallel import hosts, sharding
from epe_jax.training import fedavg

AHEAD = cohort.DEPTH + programs.MAX_PROGRAMS - 1
"""Groups of cohorts that a run has on its devices next to that of the program that runs."""


def set_chunk_size(
  config: Config, setup: build.Setup, *, mesh: sharding.Mesh | None = None
) -> build.Setup:
  """Sets the chunk that config.chunk=None leaves to the device, in the plan.

  Of several processes it is one, since none is tried.
  """
  if config.chunk is not None or jax.default_backend() == 'cpu':
    return setup
  if not is_tried():
    logging.warning(
      'Of several processes clients are trained one at a time, because nobody can try '
      'how many fit; set chunk to train more of them at once.'
    )
    return setup
  return set_even(setup, setup.participants.slots, mesh)


def is_tried() -> bool:
  """Says whether the chunk of a run is tried before its first round.

  Of several processes one alone may run out of memory, and the others would wait
  for it; they keep what is set, or one.
  """
  return jax.default_backend() != 'cpu' and jax.process_count() == 1


def halve_until_it_fits(
  config: Config,
  setup: build.Setup,
  advance: Callable[[Any], Any],
  *,
  mesh: sharding.Mesh | None = None,
  make_cohorts: Callable[..., Any] | None = None,
) -> build.Setup:
  """Halves the chunk until the program of the rounds finds the memory it needs.

  The rounds that are tried have room for the largest clients, and no client in
  it: the memory of a program depends on its shapes alone, and nothing is trained.

  Args:
    advance: makes a group of rounds of the given cohorts, from a state of its
      own, and returns the results; it may raise if memory is short.
    make_cohorts: (config, setup, mesh) -> these cohorts, or what stands for them;
      None for `make_empty_cohorts`.

  Raises:
    jax.errors.JaxRuntimeError: the device failed for another reason, or has too
      little memory for a single client.
  """
  make_cohorts = make_cohorts or make_empty_cohorts
  while True:
    chunk, ahead = setup.plan.chunk, []
    try:
      ahead += [make_cohorts(config, setup, mesh) for _ in range(AHEAD)]
      # The results are dropped, so that the run has all of the memory.
      jax.block_until_ready(advance(make_cohorts(config, setup, mesh)))
      return setup
    except jax.errors.JaxRuntimeError as error:
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
    setup = set_even(setup, -(-chunk // 2), mesh)
    logging.warning(
      'The device has too little memory to train %d clients at once; trying %d.',
      chunk,
      setup.plan.chunk,
    )


def set_even(
  setup: build.Setup, max_chunk: int, mesh: sharding.Mesh | None
) -> build.Setup:
  """Sets a chunk that is as small as the number of chunks allows."""
  clients = -(-setup.participants.slots // sharding.num_devices(mesh))
  chunk = -(-clients // -(-clients // max_chunk))
  return setup._replace(plan=setup.plan._replace(chunk=chunk))


def make_empty_cohorts(
  config: Config, setup: build.Setup, mesh: sharding.Mesh | None
) -> fedavg.Cohort:
  """Makes a group of cohorts as large as those of a run, without any client."""
  stacked = gather_nobody(config, setup, mesh, hosts.local_devices_of(mesh))
  return hosts.assemble_global(mesh, stacked, axis=1)


def gather_nobody(
  config: Config,
  setup: build.Setup,
  mesh: sharding.Mesh | None,
  parts: Sequence[int],
) -> fedavg.Cohort:
  """The same of some devices, in NumPy."""
  steps = cohort.count_steps(setup.train.sizes, setup.plan)
  empty = cohort.gather(
    setup.train,
    np.zeros(0, np.int64),
    setup.plan._replace(steps=steps),
    seed=0,
    round=0,
    parts=parts,
    of=sharding.num_devices(mesh),
  )
  rounds = min(
    config.rounds_per_dispatch,
    config.rounds,
    config.evaluate_every,
    config.checkpoint_every,
  )
  return cohort.stack_rounds([empty] * rounds)
