"""The cost of auditing a model that is sharded over several devices.

  python -m benchmarks.speed.sharded_audit --dim=1e9

A vector of d parameters is split over 8 devices, made of the processor if there are no
others. In each round Hadamard canaries are inserted and all cosines are computed.
Recorded with the seconds: the floor, one pass over the vector (|x|^2); the bytes that
the program sends; and peak memory.
"""

import os

os.environ.setdefault('XLA_FLAGS', '--xla_force_host_platform_device_count=8')

import re

from absl import flags
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import harness
from epe_jax import canaries
from epe_jax.audit import observers
from epe_jax.parallel import sharding

_DIM = flags.DEFINE_float('dim', 1e9, 'Parameters, d.')
_CANARIES = flags.DEFINE_integer('canaries', 2000, 'Canaries, k.')
_INSERTED = flags.DEFINE_integer('inserted', 20, 'Canaries of a round.')
_REPETITIONS = flags.DEFINE_integer('repetitions', 5, 'Rounds.')


def count_bytes_sent(program: str) -> int:
  """Bytes that a device exchanges, by the compiled program."""
  pattern = r'= (.*?) (?:all-[a-z-]+|collective-[a-z-]+|reduce-scatter)\('
  sizes = [
    int(np.prod([int(n) for n in shape.split(',') if n]))
    for line in re.findall(pattern, program)
    for shape in re.findall(r'[a-z]+32\[([\d,]*)\]', line)
  ]
  return 4 * sum(sizes)


def measure(quick: bool) -> dict:
  dim, num = int(1e5 if quick else _DIM.value), _CANARIES.value
  mesh = sharding.make_mesh()
  c = canaries.hadamard_of_parts(jax.random.key(0), num, dim, mesh=mesh)
  length = canaries.padded_width(dim, mesh)
  ids, weights = jnp.arange(_INSERTED.value), jnp.ones(_INSERTED.value)

  def update(key):
    noise = jax.random.normal(key, (length,), jnp.float32) / dim**0.5
    return jnp.where(jnp.arange(length) < dim, noise, 0)

  split = sharding.sharding_over(mesh)
  vector = jax.jit(update, out_shardings=split)(jax.random.key(1))

  def compile_for(function, *arguments):
    return jax.jit(function).lower(vector, *arguments).compile()

  project = compile_for(lambda v: observers.compute_cosines(c, v))
  insert = compile_for(
    lambda v, ids, weights: v + c.superpose(ids, weights), ids, weights
  )
  floor = compile_for(lambda v: jnp.sum(v * v))
  before = jax.device_get(project(vector))
  after = jax.device_get(project(insert(vector, ids, weights)))
  seconds = harness.time_in_turn(
    {
      'projection': lambda: project(vector),
      'insert': lambda: insert(vector, ids, weights),
      'floor': lambda: floor(vector),
    },
    _REPETITIONS.value,
  )
  return {
    'devices': mesh.size,
    'dim': dim,
    'canaries': num,
    'inserted': len(ids),
    'seconds': harness.summarize(seconds),
    'seconds_median': harness.summarize(seconds, 'median'),
    'projection_over_floor': seconds['projection'].best / seconds['floor'].best,
    'bytes_of_vector': 4 * dim,
    'bytes_sent_by_projection': count_bytes_sent(str(project.as_text())),
    'bytes_sent_by_insert': count_bytes_sent(str(insert.as_text())),
    # In units of the std 1 / sqrt(d) of a canary that was not inserted.
    'std_before': float(before.std() * dim**0.5),
    'cosine_of_inserted': float(after[: len(ids)].mean()),
    'cosine_expected': float((1 + len(ids)) ** -0.5),
    'peak_bytes': harness.max_resident_bytes(),
  }


if __name__ == '__main__':
  harness.run(measure, 'jax')
