"""How the audited round scales over devices.

  python benchmarks/device_scaling.py
  python benchmarks/device_scaling.py --quick

Strong scaling: the same clients on 1, 2, 4 and 8 devices. Weak scaling: as many
clients for each device. Devices are made of the processor, each count in a
process of its own. There is nothing to win beyond the number of its cores,
which is in the record: what is seen there is what dealing out, waiting for each
other and adding up cost.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from absl import app, flags
import numpy as np
import record

_QUICK = flags.DEFINE_bool('quick', False, 'Small sizes: does it run?')
_DEVICES = flags.DEFINE_list('devices', ['1', '2', '4', '8'], 'Counts.')
_CLIENTS = flags.DEFINE_integer('clients', 32, 'Clients of strong scaling.')
_EACH = flags.DEFINE_integer('each', 4, 'Clients per device of weak scaling.')
_CANARIES = flags.DEFINE_integer('canaries', 2000, 'Canaries, k.')
_FAMILY = flags.DEFINE_string('family', 'hadamard', 'Family of the canaries.')
_REPETITIONS = flags.DEFINE_integer('repetitions', 3, 'Rounds of each.')
_OUT = flags.DEFINE_string(
  'out', str(record.FOLDER / 'device_scaling.json'), 'File of the result.'
)
_CHILD = flags.DEFINE_string('child', None, 'Used by the benchmark itself.')


def measured(clients: int, canaries_: int, family: str, rounds: int) -> dict:
  """Seconds of the audited EMNIST round on all devices of this process."""
  import jax
  import optax

  from epe_jax import canaries
  from epe_jax.audit import audited_algorithm, observers
  from epe_jax.data import cohort, federated
  from epe_jax.parallel import sharding
  from epe_jax.tasks import emnist
  from epe_jax.training import clipping, fedavg

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
  dim = sum(x.size for x in jax.tree.leaves(params))
  set_ = canaries.family(family, mesh=mesh)(jax.random.key(1), canaries_, dim)
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
    set_,
    np.arange(rounds + 1)[:, None] == np.arange(canaries_) // 2,
    {'trace': observers.all_iterates(set_, rounds=rounds + 1, buffer=1)},
  )
  state = jax.jit(algorithm.init)(sharding.replicate(mesh, params))
  step = jax.jit(
    algorithm.step,
    donate_argnums=0,
    out_shardings=sharding.step_shardings(mesh, state),
  )
  key = sharding.replicate_key(mesh, jax.random.key(2))
  made = cohort.gather(
    data,
    np.arange(clients),
    plan,
    seed=0,
    round=0,
    parts=sharding.local_devices_of(mesh),
    of=sharding.num_devices(mesh),
  )
  batch = sharding.assemble_global(mesh, made)
  seconds = []
  for t in range(rounds + 1):
    begun = time.perf_counter()
    state, info = step(state, batch, key, jax.random.fold_in(key, t))
    jax.block_until_ready((state, info))
    # The first round compiles.
    if t:
      seconds.append(time.perf_counter() - begun)
  return {
    'devices': sharding.num_devices(mesh),
    'clients': clients,
    'steps': int(made.mask.any(-1).sum()),
    'seconds': min(seconds),
    'seconds_median': float(np.median(seconds)),
  }


def in_process(devices: int, *arguments: int | str) -> dict:
  """The same with so many devices, in a process of its own."""
  force = f'--xla_force_host_platform_device_count={devices}'
  with tempfile.TemporaryDirectory() as folder:
    out = pathlib.Path(folder) / 'out.json'
    subprocess.run(
      [
        *(sys.executable, __file__),
        f'--child={json.dumps(arguments)}',
        f'--out={out}',
      ],
      check=True,
      env={**os.environ, 'XLA_FLAGS': force},
    )
    return json.loads(out.read_text())


def main(argv: list[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'{argv[1]!r} is not a flag; see --help.')
  if _CHILD.value is not None:
    found = measured(*json.loads(_CHILD.value))
    pathlib.Path(_OUT.value).write_text(json.dumps(found))
    return
  counts = [int(n) for n in _DEVICES.value]
  clients, each, k, rounds = (
    (4, 1, 50, 1)
    if _QUICK.value
    else (_CLIENTS.value, _EACH.value, _CANARIES.value, _REPETITIONS.value)
  )
  if _QUICK.value:
    counts = counts[:2]
  load = os.getloadavg()[0]
  rows = {'strong': [], 'weak': []}
  for n in counts:
    for name, m in (('strong', clients), ('weak', each * n)):
      rows[name].append(in_process(n, m, k, _FAMILY.value, rounds))
      print(name, json.dumps(rows[name][-1]), flush=True)
  one = rows['strong'][0]['seconds']
  result = {
    **rows,
    'speedup': [one / row['seconds'] for row in rows['strong']],
    'canaries': k,
    'family': _FAMILY.value,
    'quick': _QUICK.value,
    'load_before': load,
  }
  record.write(_OUT.value, result, 'jax', 'flax')


if __name__ == '__main__':
  app.run(main)
