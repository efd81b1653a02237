"""How the audited round scales over devices.

  python benchmarks/device_scaling.py
  python benchmarks/device_scaling.py --quick

Strong scaling: the same clients on 1, 2, 4 and 8 devices. Weak scaling: as many clients
for each device. Devices are made of the processor, each count in a process of its own.
Beyond the number of cores, which is in the record, nothing can be gained: the figures
then show what distribution, waiting and summation cost.
"""

import json
from typing import Any

from absl import flags
import harness
import jax
import numpy as np
import optax

from epe_jax import canaries
from epe_jax.audit import audited_algorithm, observers
from epe_jax.data import cohort, federated
from epe_jax.parallel import sharding
from epe_jax.tasks import emnist
from epe_jax.training import clipping, fedavg

_DEVICES = flags.DEFINE_list('devices', ['1', '2', '4', '8'], 'Counts.')
_CLIENTS = flags.DEFINE_integer('clients', 32, 'Clients of strong scaling.')
_EACH = flags.DEFINE_integer('each', 4, 'Clients per device of weak scaling.')
_CANARIES = flags.DEFINE_integer('canaries', 2000, 'Canaries, k.')
_FAMILY = flags.DEFINE_string('family', 'hadamard', 'Family of the canaries.')
_REPETITIONS = flags.DEFINE_integer('repetitions', 3, 'Rounds of each.')


def time_rounds(
  clients: int, num_canaries: int, family: str, rounds: int
) -> dict[str, Any]:
  """Seconds of the audited EMNIST round on all devices of this process."""
  mesh, task = sharding.mesh(), emnist.task(10)
  rng = np.random.default_rng(0)
  data = federated.from_clients(
    {
      f'{i:04}': {
        'pixels': rng.random((n, 28, 28), np.float32),
        'label': rng.integers(0, 10, n, np.int32),
      }
      for i, n in enumerate(rng.integers(20, 101, clients))
    }
  )
  plan = cohort.Plan(
    batch_size=20, epochs=1, max_examples=None, chunk=1, slots=clients
  )
  params = task.init(jax.random.key(0))
  dim = harness.count_parameters(params)
  c = canaries.family(family, mesh=mesh)(jax.random.key(1), num_canaries, dim)
  plain = fedavg.dp_fedavg(
    task,
    client_opt=optax.sgd(0.1),
    server_opt=optax.sgd(1.0),
    clipping=clipping.fixed(0.1),
    noise_multiplier=0.2,
    expected_clients=float(clients),
    mesh=mesh,
  )
  algorithm = audited_algorithm.audited(
    plain,
    c,
    np.arange(rounds + 1)[:, None] == np.arange(num_canaries) // 2,
    {'trace': observers.all_iterates(c, rounds=rounds + 1, buffer=1)},
  )
  state = jax.jit(algorithm.init)(sharding.replicate(mesh, params))
  step = jax.jit(
    algorithm.step,
    donate_argnums=0,
    out_shardings=sharding.step_shardings(mesh, state),
  )
  key = sharding.replicate_key(mesh, jax.random.key(2))
  local = cohort.gather(
    data,
    np.arange(clients),
    plan,
    seed=0,
    round=0,
    parts=sharding.local_devices_of(mesh),
    of=sharding.num_devices(mesh),
  )
  batch, t = sharding.assemble_global(mesh, local), 0

  def advance():
    nonlocal state, t
    state, metrics = step(state, batch, key, jax.random.fold_in(key, t))
    t += 1
    return state, metrics

  seconds = harness.time_call(advance, rounds)
  return {
    'devices': sharding.num_devices(mesh),
    'clients': clients,
    'steps': int(local.mask.any(-1).sum()),
    'seconds': seconds.best,
    'seconds_median': seconds.median,
  }


def measure(quick: bool) -> dict:
  counts = [int(n) for n in _DEVICES.value]
  clients, each, k, rounds = (
    _CLIENTS.value,
    _EACH.value,
    _CANARIES.value,
    _REPETITIONS.value,
  )
  if quick:
    counts, clients, each, k, rounds = counts[:2], 4, 1, 50, 1
  rows = {'strong': [], 'weak': []}
  for n in counts:
    force = f'--xla_force_host_platform_device_count={n}'
    for name, m in (('strong', clients), ('weak', each * n)):
      row = harness.call_in_process(
        'device_scaling:time_rounds',
        *(m, k, _FAMILY.value, rounds),
        environment={'XLA_FLAGS': force},
      )
      rows[name].append(row)
      print(name, json.dumps(row), flush=True)
  one = rows['strong'][0]['seconds']
  return {
    **rows,
    'speedup': [one / row['seconds'] for row in rows['strong']],
    'canaries': k,
    'family': _FAMILY.value,
  }


if __name__ == '__main__':
  harness.run(measure, 'jax', 'flax')
