"""What it costs to project a vector onto k canaries, by family.

  python benchmarks/canary_kernels.py
  python benchmarks/canary_kernels.py --quick

Each family against the floor, one pass over the vector (|x|^2); against the
k x d matrix, where it fits into memory; and against the same normals made by
`jax.random`. All of a size are timed in turn within one process. For k above
--max_entries / d fewer canaries are timed, the more so with `jax.random`, and
the time is multiplied: the work of those families that are made canary by canary
is proportional to k. The share that was timed is in the result.

The default sizes take some ten minutes on two idle cores, and 3 GB of memory.
"""

from collections.abc import Callable
import json
import os
import resource
import time
from typing import NamedTuple

from absl import app, flags
import jax
import jax.numpy as jnp
import numpy as np
import record

from epe_jax import canaries
from epe_jax.canaries import _normals, _threefry

_QUICK = flags.DEFINE_bool('quick', False, 'Small sizes: does it run?')
_DIMS = flags.DEFINE_list(
  'dims', ['1e5', '1e6', '4050748', '1e7', '1e8'], 'Sizes d.'
)
_FAMILIES = flags.DEFINE_list(
  'families',
  [*canaries.FAMILIES, 'jax.random', 'stored'],
  'Canaries, and what they are compared with.',
)
_COUNTS = flags.DEFINE_list('counts', ['1e2', '2e3', '1e5'], 'Numbers k.')
_STACKS = flags.DEFINE_list(
  'stacks', ['1', '50'], 'Vectors projected together.'
)
_REPETITIONS = flags.DEFINE_integer(
  'repetitions', 3, 'Projections of each form.'
)
_MAX_ENTRIES = flags.DEFINE_float(
  'max_entries', 2e8, 'Entries of C made in one projection, if of 16 canaries.'
)
_MAX_JAX_ENTRIES = flags.DEFINE_float(
  'max_jax_entries', 2e7, 'The same with jax.random, if of one canary.'
)
_MAX_STACK_ENTRIES = flags.DEFINE_float(
  'max_stack_entries', 2.5e8, 'Larger stacks of vectors are left out.'
)
_MAX_BYTES = flags.DEFINE_float(
  'max_bytes', 2e9, 'Of a stored matrix, at most.'
)
_CALLS = flags.DEFINE_integer(
  'calls',
  1,
  'Projections of a timing, none of which waits for the one before: on a GPU, '
  'else it is their start that is timed.',
)
_OUT = flags.DEFINE_string(
  'out',
  str(record.FOLDER / 'canary_kernels.json'),
  'File of the result.',
)
_ONE_BY_ONE = ('sphere', 'sign', 'jax.random', 'stored')


class Form(NamedTuple):
  """One way to do it.

  Attributes:
    call: what is timed; its result may not be there yet.
    share: the part of all canaries that it covers.
  """

  call: Callable[[], jax.Array]
  share: float


class Seconds(NamedTuple):
  """Of one projection onto all k canaries."""

  best: float
  median: float
  cpu: float  # Of all threads, in the fastest projection by this clock.
  share: float  # Below 1: that part was timed.


def regenerated(num: int, dim: int):
  """Projection on normals that `jax.random` makes anew, block by block."""
  key = jax.random.key(0)
  block = min(16, num)
  blocks = num // block

  def project(v):
    def project(ids):
      keys = jax.vmap(lambda j: jax.random.fold_in(key, j))(ids)
      x = jax.vmap(lambda k: jax.random.normal(k, (dim,)))(keys)
      return (x @ v.T) / jnp.linalg.norm(x, axis=1, keepdims=True)

    ids = jnp.arange(blocks * block).reshape(blocks, block)
    return jax.lax.map(project, ids)

  return project


def forms(num: int, dim: int, stack: int) -> dict[str, Form]:
  """Everything that is timed for one size."""
  root = _threefry.derive_root(jax.random.key(1), 0)
  v = _normals.draw_normals(root, stack * dim).reshape(stack, dim)
  fewer = min(num, max(16, int(_MAX_ENTRIES.value / dim)))
  by_jax = min(num, max(1, int(_MAX_JAX_ENTRIES.value / dim)))
  by_jax -= by_jax % min(16, by_jax)  # Whole blocks.

  def form(project, share=1.0) -> Form:
    # Compiled here, so that no form is timed while another compiles.
    compiled = jax.jit(project).lower(v).compile()
    return Form(lambda: compiled(v), share)

  found = {'|x|^2': form(lambda v: jnp.sum(v * v, axis=-1))}
  for name in canaries.FAMILIES:
    if name not in _FAMILIES.value or (name == 'dirac' and num > dim):
      continue
    k = fewer if name in _ONE_BY_ONE else num
    made = canaries.family(name)(jax.random.key(0), k, dim)
    found[name] = form(made.project, k / num)
  if 'jax.random' in _FAMILIES.value:
    found['jax.random'] = form(regenerated(by_jax, dim), by_jax / num)
  if 'stored' in _FAMILIES.value and 4.0 * num * dim <= _MAX_BYTES.value:
    matrix = jnp.ones((num, dim))  # What they are does not matter to time.
    stored = jax.jit(lambda v, c: v @ c.T).lower(v, matrix).compile()
    found['stored'] = Form(lambda: stored(v, matrix), 1.0)
  return found


def insertions(num: int, dim: int, m: int) -> dict[str, Form]:
  """The sum of m canaries, by family."""
  ids, weights = jnp.arange(m), jnp.ones(m)
  found = {}
  for name in canaries.FAMILIES:
    if name not in _FAMILIES.value:
      continue
    made = canaries.family(name)(jax.random.key(0), min(num, dim), dim)
    compiled = jax.jit(made.superpose).lower(ids, weights).compile()
    found[name] = Form(lambda compiled=compiled: compiled(ids, weights), 1.0)
  return found


def timed(forms: dict[str, Form], repetitions: int) -> dict[str, Seconds]:
  """Seconds of each, in turn; without those that the device has no memory for."""
  wall: dict[str, list[float]] = {name: [] for name in forms}
  cpu: dict[str, list[float]] = {name: [] for name in forms}
  failed: set[str] = set()
  for repetition in range(repetitions + 1):
    for name, form in forms.items():
      if name in failed:
        continue
      begun, worked = time.perf_counter(), time.process_time()
      try:
        results = [form.call() for _ in range(_CALLS.value)]
        jax.block_until_ready(results)
      except jax.errors.JaxRuntimeError as error:
        print(f'not measured: {name}: {str(error)[:200]}', flush=True)
        failed.add(name)
        continue
      share = form.share * _CALLS.value
      if repetition:  # The first one is warm-up.
        wall[name].append((time.perf_counter() - begun) / share)
        cpu[name].append((time.process_time() - worked) / share)
  return {
    name: Seconds(
      min(wall[name]),
      float(np.median(wall[name])),
      min(cpu[name]),
      form.share,
    )
    for name, form in forms.items()
    if name not in failed
  }


def measured(num: int, dim: int, stack: int) -> dict:
  """One row of the result."""
  projections = timed(forms(num, dim, stack), _REPETITIONS.value)
  floor = projections['|x|^2'].best
  return {
    'dim': dim,
    'canaries': num,
    'vectors': stack,
    'stored_bytes': 4 * num * dim,
    'bytes_of_vectors': 4 * stack * dim,
    'project': {name: s._asdict() for name, s in projections.items()},
    'passes': {name: s.best / floor for name, s in projections.items()},
    'entries_per_second': {
      name: num * dim / s.best
      for name, s in projections.items()
      if name in _ONE_BY_ONE
    },
    'load': os.getloadavg()[0],
  }


def inserted(num: int, dim: int) -> dict:
  """Seconds of putting in two canaries, on which k has next to no effect."""
  sums = timed(insertions(num, dim, 2), _REPETITIONS.value)
  return {
    'dim': dim,
    'canaries': num,
    'superpose_2': {name: s._asdict() for name, s in sums.items()},
  }


def main(argv: list[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'{argv[1]!r} is not a flag; see --help.')
  whole = lambda values: [int(float(x)) for x in values]
  sizes = [
    (num, dim, stack)
    for dim in whole(_DIMS.value)
    for num in whole(_COUNTS.value)
    for stack in whole(_STACKS.value)
    if stack * dim <= _MAX_STACK_ENTRIES.value
  ]
  if _QUICK.value:
    sizes = [(100, 100_000, 1), (100, 100_000, 4)]
  load = os.getloadavg()[0]
  begun = time.perf_counter()
  rows = []
  for size in sizes:
    rows.append(measured(*size))
    print(size, json.dumps(rows[-1]['passes']), flush=True)
  dims = sorted({dim for _, dim, _ in sizes})
  result = {
    'sizes': rows,
    'insertions': [inserted(2000, dim) for dim in dims],
    'seconds': time.perf_counter() - begun,
    # Linux counts it in KiB.
    'peak_bytes': 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    'quick': _QUICK.value,
    'load_before': load,
  }
  record.write(_OUT.value, result, 'jax')


if __name__ == '__main__':
  app.run(main)
