"""What it costs to audit a model that no device has the whole of.

  python benchmarks/sharded_audit.py --dim=1e9

A vector of d parameters is split over 8 devices, which are made of the
processor where there are no others. In each round Hadamard canaries are put
into it and all cosines are read. Beside the seconds: the floor, one pass over
the vector (|x|^2); the bytes that the program sends; and peak memory.
"""

import os

os.environ.setdefault('XLA_FLAGS', '--xla_force_host_platform_device_count=8')

import re
import resource
import time

from absl import app, flags
import jax
import jax.numpy as jnp
import numpy as np
import record

from epe_jax import canaries
from epe_jax.audit import observers
from epe_jax.canaries import sharded
from epe_jax.parallel import sharding

_DIM = flags.DEFINE_float('dim', 1e9, 'Parameters, d.')
_CANARIES = flags.DEFINE_integer('canaries', 2000, 'Canaries, k.')
_INSERTED = flags.DEFINE_integer('inserted', 20, 'Canaries of a round.')
_REPETITIONS = flags.DEFINE_integer('repetitions', 5, 'Rounds.')
_OUT = flags.DEFINE_string(
  'out', str(record.FOLDER / 'sharded_audit.json'), 'File of the result.'
)


def bytes_sent(program: str) -> int:
  """Bytes that a device has to exchange, by the compiled program."""
  pattern = r'= (.*?) (?:all-[a-z-]+|collective-[a-z-]+|reduce-scatter)\('
  sizes = [
    int(np.prod([int(n) for n in shape.split(',') if n]))
    for line in re.findall(pattern, program)
    for shape in re.findall(r'[a-z]+32\[([\d,]*)\]', line)
  ]
  return 4 * sum(sizes)


def timed(function, *arguments) -> list[float]:
  """Seconds of each call; `function` returns arrays."""
  seconds = []
  for _ in range(_REPETITIONS.value):
    begun = time.perf_counter()
    jax.block_until_ready(function(*arguments))
    seconds.append(time.perf_counter() - begun)
  return seconds


def main(argv: list[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'{argv[1]!r} is not a flag; see --help.')
  dim, num = int(_DIM.value), _CANARIES.value
  mesh = sharding.make_mesh()
  c = canaries.hadamard_of_parts(jax.random.key(0), num, dim, mesh=mesh)
  length, split = (
    sharded.padded_width(dim, mesh),
    sharding.sharding_over(mesh),
  )
  ids, weights = jnp.arange(_INSERTED.value), jnp.ones(_INSERTED.value)

  def update(key):
    noise = jax.random.normal(key, (length,), jnp.float32) / dim**0.5
    return jnp.where(jnp.arange(length) < dim, noise, 0)

  vector = jax.jit(update, out_shardings=split)(jax.random.key(1))
  project = (
    jax.jit(lambda v: observers.compute_cosines(c, v)).lower(vector).compile()
  )
  insert = (
    jax.jit(lambda v, ids, weights: v + c.superpose(ids, weights))
    .lower(vector, ids, weights)
    .compile()
  )
  floor = jax.jit(lambda v: jnp.sum(v * v)).lower(vector).compile()
  before = jax.device_get(project(vector))
  after = jax.device_get(project(insert(vector, ids, weights)))
  seconds = {
    'projection': timed(project, vector),
    'insert': timed(insert, vector, ids, weights),
    'floor': timed(floor, vector),
  }
  best = {name: min(found) for name, found in seconds.items()}
  result = {
    'devices': mesh.size,
    'dim': dim,
    'canaries': num,
    'inserted': _INSERTED.value,
    'seconds': best,
    'seconds_median': {k: float(np.median(x)) for k, x in seconds.items()},
    'projection_over_floor': best['projection'] / best['floor'],
    'bytes_of_vector': 4 * dim,
    'bytes_sent_by_projection': bytes_sent(str(project.as_text())),
    'bytes_sent_by_insert': bytes_sent(str(insert.as_text())),
    # In units of the std 1 / sqrt(d) of a canary that was not put in.
    'std_before': float(before.std() * dim**0.5),
    'cosine_of_inserted': float(after[: len(ids)].mean()),
    'cosine_expected': float((1 + len(ids)) ** -0.5),
    'peak_bytes': 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    'load': os.getloadavg()[0],
  }
  record.write(_OUT.value, result, 'jax')


if __name__ == '__main__':
  app.run(main)
