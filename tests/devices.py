"""An audited run on 1, 2, 4 and 8 devices, and what their programs send.

  python -m tests.devices OUT

Run by a test as a process of its own, for the number of devices is settled when
JAX starts. Writes an .npz file.
"""

import functools
import os
import sys

import jax
from jax.flatten_util import ravel_pytree
import jax.numpy as jnp
import numpy as np
import optax

from epe_jax import canaries
from epe_jax.audit import audited_algorithm, observers
from epe_jax.data import cohort, federated
from epe_jax.parallel import hosts, sharding
from epe_jax.training import clipping, exact_noise, fedavg
from tests import helpers

FEATURES, ROUNDS, CANARIES = 40, 5, 11
PLAN = cohort.Plan(batch_size=4, epochs=2, max_examples=None, chunk=2, slots=13)


def noisy_task():
  """Like dropout: losses that would change if keys depended on the slot."""
  task = helpers.linear_task(FEATURES)

  def loss(params, batch, key):
    drawn = jax.random.uniform(key, batch['y'].shape)
    return task.loss(params, batch, key) * drawn

  return task._replace(loss=loss)


def federation() -> federated.FederatedData:
  sizes = [3, 30, 1, 8, 9, 2, 25, 4, 4, 7, 1, 16, 5]
  made = helpers.random_clients(np.random.default_rng(0), sizes, FEATURES)
  return federated.from_clients(
    {f'{i:02}': {'x': x, 'y': y} for i, (x, y) in enumerate(made)}
  )


def run(family: str, num_devices: int):
  """Parameters, metrics and scores after all rounds."""
  mesh = sharding.mesh(jax.devices()[:num_devices])
  task, data = noisy_task(), federation()
  set_ = canaries.family(family, block=3, mesh=mesh)(
    jax.random.key(5), CANARIES, FEATURES + 1
  )
  plain = fedavg.dp_fedavg(
    task,
    client_opt=optax.sgd(0.02, momentum=0.9),
    server_opt=optax.sgd(0.5, momentum=0.9),
    clipping=clipping.adaptive(
      0.5, quantile=0.5, learning_rate=0.2, count_noise=1, expected_clients=16
    ),
    noise_multiplier=0.5,
    expected_clients=16,
    mesh=mesh,
  )
  participation = np.arange(ROUNDS)[:, None] == np.arange(CANARIES) % 4
  attackers = {
    'final': observers.final_model(set_),
    'trace': observers.all_iterates(
      set_, rounds=ROUNDS, views=('aggregate', 'residual'), buffer=4, mesh=mesh
    ),
  }
  algorithm = audited_algorithm.audited(plain, set_, participation, attackers)
  state = jax.jit(algorithm.init)(
    hosts.replicate(mesh, task.init(jax.random.key(0)))
  )
  step = jax.jit(
    algorithm.step,
    donate_argnums=0,
    out_shardings=hosts.step_shardings(mesh, state),
  )
  shown = []
  for t in range(ROUNDS):
    made = cohort.gather(
      data,
      np.arange(13),
      PLAN,
      seed=0,
      round=t,
      parts=hosts.local_devices_of(mesh),
      of=sharding.num_devices(mesh),
    )
    training_key, noise_key = helpers.keys(2 * t)
    state, info = step(
      state,
      hosts.assemble_global(mesh, made),
      hosts.replicate_key(mesh, training_key),
      hosts.replicate_key(mesh, noise_key),
    )
    shown.append(info)
  params = state.algorithm.params
  score = jax.jit(
    functools.partial(audited_algorithm.score_observers, observers=attackers)
  )
  scores = hosts.copy_to_host(score(state))
  host = hosts.copy_to_host((params, shown[-1].by_name()))
  buffer = state.observers['trace'].buffer
  return {
    'params': ravel_pytree(host[0])[0],
    **host[1],
    **scores,
    'buffer_split': np.array(not buffer.sharding.is_fully_replicated),
  }


def draw_exact_noise(num_devices: int) -> np.ndarray:
  """Noise to the last bit, drawn on so many devices."""
  mesh = sharding.mesh(jax.devices()[:num_devices])
  way = exact_noise.exact(3, mesh=mesh)(0.5)

  def draw(key, clip_norm):
    return sharding.shard_if_divisible(
      mesh, way.draw(key, 4096, clip_norm), axes=(0,)
    )

  key = hosts.replicate_key(mesh, jax.random.key(4))
  clip_norm = hosts.replicate(mesh, jnp.float32(0.1))
  drawn = jax.jit(draw)(key, clip_norm)
  assert drawn.sharding.is_fully_replicated == (num_devices == 1)
  return np.asarray(drawn)


def sent() -> dict[str, np.ndarray]:
  """Sizes of what the compiled audit of a split vector sends."""
  mesh, dim = sharding.make_mesh(), 9 * 65536 + 5
  c = canaries.hadamard_of_parts(jax.random.key(0), 20, dim, mesh=mesh)
  length = canaries.padded_width(dim, mesh)
  v = jax.ShapeDtypeStruct(
    (length,), jnp.float32, sharding=sharding.sharding_over(mesh)
  )

  def audited(v, ids, weights):
    v = v + c.superpose(ids, weights)
    return v, observers.compute_cosines(c, v)

  program = jax.jit(audited).lower(v, jnp.zeros(3, int), jnp.zeros(3)).compile()
  whole = canaries.hadamard(jax.random.key(0), 20, dim)
  drawn = jnp.pad(
    jax.random.normal(jax.random.key(1), (dim,)), (0, length - dim)
  )
  start = jax.device_put(drawn, sharding.sharding_over(mesh))
  ids, weights = jnp.arange(3), jnp.arange(3.0)
  after, scores = program(start, ids, weights)
  expected = drawn[:dim] + whole.superpose(ids, weights)
  return {
    'program': np.array(program.as_text()),
    'after': np.asarray(after),
    'after_expected': np.asarray(expected),
    'scores': np.asarray(scores),
    'scores_expected': np.asarray(observers.compute_cosines(whole, expected)),
    'parts': np.array([s.data.size for s in after.addressable_shards]),
  }


def main(out: str) -> None:
  found = {f'sent/{k}': x for k, x in sent().items()}
  for family, counts in (('sphere', (1, 2, 4, 8)), ('hadamard', (1, 8))):
    for n in counts:
      for name, x in run(family, n).items():
        found[f'{family}/{n}/{name}'] = x
  for n in (1, 2, 8):
    found[f'noise/{n}'] = draw_exact_noise(n)
  with open(out, 'wb') as f:
    np.savez(f, allow_pickle=False, **found)


if __name__ == '__main__':
  # The compiler need not try hard: programs run for milliseconds.
  os.environ['XLA_FLAGS'] = '--xla_backend_optimization_level=0'
  jax.config.update('jax_num_cpu_devices', 8)
  main(sys.argv[1])
