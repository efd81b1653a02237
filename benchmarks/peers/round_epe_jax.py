"""DP-FedAvg of epe_jax, by its public functions.

`--precision=bfloat16` is how clients compute.
"""

import sys

import driver
import jax
import numpy as np
import optax
import works as works_lib

from epe_jax.audit import audited_algorithm
from epe_jax.data import cohort, federated
from epe_jax.parallel import hosts, sharding
from epe_jax.tasks import emnist, stackoverflow
from epe_jax.training import clipping, fedavg

ROUNDED = '--precision=bfloat16' in sys.argv


def start(work: works_lib.Work) -> driver.Round:
  """One round: gather the clients, put them on the devices, step."""
  mesh = sharding.mesh()
  task = emnist.task() if work.model == 'cnn' else stackoverflow.task()
  clients = len(work.sizes)
  algorithm = audited_algorithm.unaudited(
    fedavg.dp_fedavg(
      task,
      client_opt=optax.sgd(work.learning_rate),
      server_opt=optax.sgd(
        works_lib.SERVER_LEARNING_RATE, momentum=works_lib.SERVER_MOMENTUM
      ),
      clipping=clipping.fixed(works_lib.CLIP_NORM),
      noise_multiplier=work.noise_multiplier,
      expected_clients=float(clients),
      precision='bfloat16' if ROUNDED else 'float32',
      mesh=mesh,
    )
  )
  params = task.init(jax.random.key(0))
  state = jax.jit(algorithm.init)(hosts.replicate(mesh, params))
  step = jax.jit(
    algorithm.step,
    donate_argnums=0,
    out_shardings=hosts.step_shardings(mesh, state),
  )
  data = federated.from_clients(
    {
      f'{i:03}': _columns(work, *xy)
      for i, xy in enumerate(works_lib.data(work))
    }
  )
  plan = cohort.Plan(
    batch_size=works_lib.BATCH,
    epochs=1,
    max_examples=None,
    chunk=1,
    slots=clients,
  )
  now = {'state': state, 'round': 0}

  def run() -> tuple[int, int]:
    now['round'] += 1
    t = now['round']
    made = cohort.gather(
      data,
      np.arange(clients),
      plan,
      seed=0,
      round=t,
      parts=hosts.local_devices_of(mesh),
      of=sharding.num_devices(mesh),
    )
    state, _ = step(
      now['state'],
      hosts.assemble_global(mesh, made),
      hosts.replicate_key(mesh, jax.random.key(2 * t)),
      hosts.replicate_key(mesh, jax.random.key(2 * t + 1)),
    )
    now['state'] = jax.block_until_ready(state)
    mask = np.asarray(made.mask)
    return int(mask.any(axis=-1).sum()), _rows_computed(mask)

  return driver.Round(
    run=run,
    weights=lambda: jax.tree.leaves(now['state'].algorithm.params),
    form=f'dp_fedavg, chunk=1, {sharding.num_devices(mesh)} devices'
    + ROUNDED * ', bfloat16',
  )


def _rows_computed(mask: np.ndarray) -> int:
  """Of a batch that is at most half or a quarter full only that is computed."""
  rows, batch = mask.sum(axis=-1).ravel(), works_lib.BATCH
  sizes = np.array([0, batch // 4, batch // 2, batch])
  return int(sizes[np.searchsorted(sizes, rows)].sum())


def _columns(
  work: works_lib.Work, x: np.ndarray, y: np.ndarray
) -> dict[str, np.ndarray]:
  if work.model == 'cnn':
    return {'pixels': x, 'label': y}
  return {'words': y.astype(np.int16)}


if __name__ == '__main__':
  hosts.use_cores(64)
  driver.serve(start, 'epe_jax', 'jaxlib')
