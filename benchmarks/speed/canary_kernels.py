"""Seconds to project a vector onto k canaries, by family.

  python -m benchmarks.speed.canary_kernels
  python -m benchmarks.speed.canary_kernels --quick

Each family is compared with the floor, one pass over the vector (|x|^2); with the
k x d matrix, if it fits into memory; and with the same normals from `jax.random`. All
forms of one size are timed in turn within one process. Families that make canaries one
by one are timed on fewer canaries if k > --max_entries / d (fewer still for
`jax.random`), and their time is scaled up: it is proportional to k. The share that was
timed is in the record.

The default sizes take some ten minutes on two idle cores, and 3 GB of memory.
"""

from collections.abc import Callable
import json
import time
from typing import Any, NamedTuple

from absl import flags
import jax
import jax.numpy as jnp

from benchmarks import harness
from epe_jax import canaries

_DIMS = flags.DEFINE_list(
  'dims', ['1e5', '1e6', '4050748', '1e7', '1e8'], 'Sizes d.'
)
_FAMILIES = flags.DEFINE_list(
  'families',
  [*canaries.FAMILIES, 'jax.random', 'stored'],
  'Families, and the forms that they are compared with.',
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
_MAX_STACK_ENTRIES = flags.DEFINE_float(
  'max_stack_entries', 2.5e8, 'Larger stacks of vectors are left out.'
)
_CALLS = flags.DEFINE_integer(
  'calls',
  1,
  'Projections of one timing, dispatched without waiting; with 1 on a GPU, a short '
  'projection is timed by its dispatch.',
)
_ONE_BY_ONE = ('sphere', 'jax.random', 'stored')
# Entries made by jax.random, if of one canary; bytes of a matrix that is stored.
_MAX_JAX_ENTRIES, _MAX_BYTES = 2e7, 2e9


class Form(NamedTuple):
  """One way to compute the projection.

  Attributes:
    call: dispatches it.
    share: of all canaries that it covers.
  """

  call: Callable[[], jax.Array]
  share: float = 1.0


def project_regenerated(num: int, dim: int):
  """Projection on normals that `jax.random` generates block by block."""
  key = jax.random.key(0)
  block = min(16, num)
  ids = jnp.arange(num // block * block).reshape(-1, block)

  def project(v):
    def project_block(ids):
      keys = jax.vmap(lambda j: jax.random.fold_in(key, j))(ids)
      x = jax.vmap(lambda k: jax.random.normal(k, (dim,)))(keys)
      return (x @ v.T) / jnp.linalg.norm(x, axis=1, keepdims=True)

    return jax.lax.map(project_block, ids)

  return project


def make_forms(num: int, dim: int, stack: int) -> dict[str, Form]:
  """All forms of a projection of one size, compiled."""
  v = jax.random.normal(jax.random.key(1), (stack, dim), jnp.float32)
  fewer = min(num, max(16, int(_MAX_ENTRIES.value / dim)))
  by_jax = min(num, max(1, int(_MAX_JAX_ENTRIES / dim)))
  by_jax -= by_jax % min(16, by_jax)  # Whole blocks.

  def form(project, share=1.0) -> Form:
    compiled = jax.jit(project).lower(v).compile()
    return Form(lambda: compiled(v), share)

  forms = {'|x|^2': form(lambda v: jnp.sum(v * v, axis=-1))}
  for name in filter(_FAMILIES.value.__contains__, canaries.FAMILIES):
    k = fewer if name in _ONE_BY_ONE else num
    c = canaries.family(name)(jax.random.key(0), k, dim)
    forms[name] = form(c.project, k / num)
  if 'jax.random' in _FAMILIES.value:
    forms['jax.random'] = form(project_regenerated(by_jax, dim), by_jax / num)
  if 'stored' in _FAMILIES.value and 4.0 * num * dim <= _MAX_BYTES:
    matrix = jnp.ones((num, dim))  # Time does not depend on the entries.
    stored = jax.jit(lambda v, c: v @ c.T).lower(v, matrix).compile()
    forms['stored'] = Form(lambda: stored(v, matrix))
  return forms


def time_forms(forms: dict[str, Form]) -> dict[str, dict[str, float]]:
  """Seconds of each for all k canaries; forms that run out of memory are left out."""
  fitting: dict[str, Callable[[], Any]] = {}
  for name, form in forms.items():
    call = lambda form=form: [form.call() for _ in range(_CALLS.value)]
    try:
      jax.block_until_ready(call())
      fitting[name] = call
    except jax.errors.JaxRuntimeError as error:
      print(f'not measured: {name}: {str(error)[:200]}', flush=True)
  timings = harness.time_in_turn(fitting, _REPETITIONS.value)
  scale = {name: forms[name].share * _CALLS.value for name in timings}
  return {
    name: {
      'best': timing.best / scale[name],
      'median': timing.median / scale[name],
      'cpu': min(timing.cpu) / scale[name],
      'share': forms[name].share,
    }
    for name, timing in timings.items()
  }


def measure_projection(num: int, dim: int, stack: int) -> dict:
  """Seconds of a projection of one size, by form."""
  seconds = time_forms(make_forms(num, dim, stack))
  best = {name: x['best'] for name, x in seconds.items()}
  return {
    'dim': dim,
    'canaries': num,
    'vectors': stack,
    'stored_bytes': 4 * num * dim,
    'project': seconds,
    'passes': {name: x / best['|x|^2'] for name, x in best.items()},
  }


def measure_insertion(num: int, dim: int) -> dict:
  """Seconds to insert two canaries, which hardly depend on k."""
  ids, weights, forms = jnp.arange(2), jnp.ones(2), {}
  for name in filter(_FAMILIES.value.__contains__, canaries.FAMILIES):
    c = canaries.family(name)(jax.random.key(0), num, dim)
    compiled = jax.jit(c.superpose).lower(ids, weights).compile()
    forms[name] = Form(lambda compiled=compiled: compiled(ids, weights))
  return {'dim': dim, 'canaries': num, 'superpose_2': time_forms(forms)}


def measure(quick: bool) -> dict:
  dims, counts, stacks = (
    [int(float(x)) for x in flag.value] for flag in (_DIMS, _COUNTS, _STACKS)
  )
  sizes = [
    (num, dim, stack)
    for dim in dims
    for num in counts
    for stack in stacks
    if stack * dim <= _MAX_STACK_ENTRIES.value
  ]
  if quick:
    sizes = [(100, 100_000, 1), (100, 100_000, 4)]
  begun = time.perf_counter()
  rows = []
  for size in sizes:
    rows.append(measure_projection(*size))
    print(size, json.dumps(rows[-1]['passes']), flush=True)
  return {
    'sizes': rows,
    'insertions': [
      measure_insertion(2000, dim) for dim in sorted({d for _, d, _ in sizes})
    ],
    'seconds': time.perf_counter() - begun,
    'peak_bytes': harness.max_resident_bytes(),
  }


if __name__ == '__main__':
  harness.run(measure, 'jax')
