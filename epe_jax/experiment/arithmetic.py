"""A run checks its own arithmetic, as compilers and devices have been wrong in silence.

Before its first round, and again where it is resumed, a run has its own functions work
at its own shapes and on its own devices: canaries, observers, the clipping and summing
of chunks of clients. NumPy does the same in float64. Vectors and canaries are those of
this check alone, so that it touches no random stream of the run, and tells nothing.

All of it is float32, whatever the `precision` in which clients train. With ε = 2^-23, a
float32 sum of n positive terms, added one after the other, is off by ε√n/6 of itself in
the root mean square, and a norm by half of that; ε (8 + √d/2) is allowed. A cosine of a
random direction is off by ε/5; ε (1 + 16/√d) is allowed, and the share of the norm.
TensorFloat32 is off by some 3e-4/√d, which shows up to some four million parameters.
What rounding to integers does is allowed in addition.
"""

from collections.abc import Iterator
import itertools
import math
from typing import NamedTuple

import jax
from jax.flatten_util import ravel_pytree
import jax.numpy as jnp
from jaxtyping import Float
import numpy as np

from epe_jax import canaries, streams
from epe_jax.audit import observers
from epe_jax.audit.record import FINAL_MODEL
from epe_jax.experiment import summary
from epe_jax.experiment.setup import build, randomness
from epe_jax.experiment.setup import config as config_lib
from epe_jax.experiment.setup.config import Config
from epe_jax.parallel import hosts, sharding
from epe_jax.training import aggregation as aggregation_lib
from epe_jax.training import fedavg, local_training
from epe_jax.types import Array, Key, Params

_EPSILON = float(np.finfo(np.float32).eps)
_FEW = 4
# Numbers of canaries that are made in a fraction of a second.
_MANY = 2**26
_PIECE = 2**20
_COSINES = {
  *FINAL_MODEL,
  *(f'{kind}{view}' for kind in ('', 'max_') for view in observers.VIEWS),
}


class Miscomputed(FloatingPointError):
  """The device or the compiler gives wrong numbers."""


class Comparison(NamedTuple):
  """A number of the device and the same in float64."""

  name: str
  computed: float  # By the device.
  exact: float  # By NumPy.
  allowed: float  # Difference that rounding explains, > 0.

  @property
  def share(self) -> float:
    """The difference as a share of what rounding explains."""
    return float(abs(self.computed - self.exact) / self.allowed)


def check_arithmetic(
  config: Config, setup: build.Setup, mesh: sharding.Mesh | None = None
) -> dict[str, float]:
  """Compares what the devices of a run compute with NumPy in float64.

  Returns:
    What was compared -> its largest difference, as a share of what rounding explains.

  Raises:
    Miscomputed: one is more than rounding explains.
  """
  v = streams.host_rng(0, 'arithmetic').standard_normal(setup.dim, np.float32)
  shares: dict[str, float] = {}
  checks = [_check_norms(v), _check_sum(config, setup, mesh, v)]
  if setup.is_audited:
    checks.append(_check_canaries(config, setup, mesh, v))
  for check in checks:
    for found in check:
      # Not a number is not right either.
      if not found.share <= 1:
        versions = summary.collect_versions()
        flag = (
          'XLA_FLAGS=--xla_cpu_experimental_ynn_fusion_type='
          if jax.default_backend() == 'cpu'
          else 'JAX_DEFAULT_MATMUL_PRECISION=highest'
        )
        raise Miscomputed(
          f'this machine miscomputes: {found.name} is {found.computed:.9g}, and '
          f'{found.exact:.9g} in float64, {found.share:.3g} times as far off as '
          f'rounding explains (jax {versions["jax"]}, jaxlib {versions["jaxlib"]}, '
          f'{versions["device"]}). Numbers of a run would be wrong too. Try {flag}, '
          'or other versions of jax and jaxlib.'
        )
      shares[found.name] = max(found.share, shares.get(found.name, 0.0))
  return shares


def _check_norms(v: Float[np.ndarray, ' d']) -> Iterator[Comparison]:
  """The norm of a vector, and of many short ones."""

  @jax.jit
  def measure(v: Float[Array, ' d'], rows: Float[Array, 'n w']):
    identity = jnp.eye(rows.shape[1], dtype=jnp.float32)
    squares = jax.vmap(lambda row: jnp.sum((identity @ row) ** 2))(rows)
    return jnp.linalg.norm(v), squares

  # So many that jaxlib 0.10.2 takes some for others on a CPU.
  rows = np.resize(v, (2**15 + 1, 3))
  norm, squares = jax.device_get(measure(v, rows))
  exact = math.sqrt(_dot(v, v))
  yield Comparison('norm', norm, exact, _allow(v.size) * exact)
  exact = np.square(rows, dtype=np.float64).sum(axis=1)
  worst = np.argmax(np.abs(squares - exact) / exact)
  yield Comparison(
    'row_norms', squares[worst], exact[worst], 8 * _EPSILON * exact[worst]
  )


def _check_sum(
  config: Config,
  setup: build.Setup,
  mesh: sharding.Mesh | None,
  v: Float[np.ndarray, ' d'],
) -> Iterator[Comparison]:
  """Σ CLIP(x_i; S) of two chunks on each device, of clients with x_i = scale_i v."""
  rule, make_aggregation = build.make_clipping(
    config, setup.participants, setup.aggregation, mesh
  )
  z = rule.vector_noise(config.noise_multiplier)
  aggregation = (make_aggregation if z else aggregation_lib.float32)(z)

  def train(params: Params, batches, mask, rows, key: Key):
    del mask, rows, key
    update = jax.tree.map(lambda x: batches['scale'] * x, params)
    return local_training.LocalUpdate(update, jnp.zeros((), jnp.float32))

  is_integer = aggregation.dtype != jnp.float32

  @jax.jit
  def add_up(params, cohort: fedavg.Cohort, clip_norm: Array, one, key: Key):
    sums = fedavg.make_sum(train, aggregation, mesh)(
      params, cohort, clip_norm, key
    )
    read = lambda x: aggregation.decode(x, clip_norm)
    # The length of a step of the grid in one coordinate.
    step = jnp.float32(0)
    if is_integer:
      step = jnp.linalg.norm(read(jnp.zeros_like(sums.vector).at[0].set(one)))
    sums = sums._replace(vector=read(sums.vector))
    return sums, jnp.linalg.norm(sums.vector), step

  norm, clip_norm = math.sqrt(_dot(v, v)), np.float32(config.clipping.initial)
  v = v * np.float32(clip_norm / norm)
  square = _dot(v, v)
  slots = 2 * sharding.num_devices(mesh), setup.plan.chunk
  n = math.prod(slots)
  # Half of them are longer than S, and no two are equal.
  scales = (0.5 + np.arange(n) * 0.618033989 % 1).astype(np.float32)
  cohort = fedavg.Cohort(
    {'scale': scales.reshape(slots)},
    np.ones((*slots, 1, 1), np.bool_),  # pyright: ignore[reportArgumentType]
    np.arange(n, dtype=np.int32).reshape(slots),  # pyright: ignore[reportArgumentType]
  )
  sums, sum_norm, step = hosts.copy_to_host(
    add_up(
      hosts.replicate(mesh, _unravel(v, setup.params)),
      hosts.shard_first_axis(mesh, cohort),
      clip_norm,
      # Not a constant, or the compiler would make the vector and its norm.
      np.int32(1),
      hosts.replicate_key(mesh, randomness.derive_key(0, 'arithmetic')),
    )
  )
  norms = scales.astype(np.float64) * math.sqrt(square)
  factor = float((scales * np.minimum(1, clip_norm / norms)).sum())
  exact, relative = factor * math.sqrt(square), _allow(v.size)
  yield Comparison(
    'update_norms', sums.norm, norms.sum(), relative * norms.sum()
  )
  allowed = (relative + _EPSILON * math.sqrt(n)) * exact
  if is_integer:
    size = aggregation.size(v.size)
    allowed += 4 * aggregation_lib.bound_rounding(size) * exact
    # Each coordinate of each message goes to a neighbour on the grid.
    allowed += n * float(step) * size / math.sqrt(v.size)
  yield Comparison('sum_norm', sum_norm, exact, allowed)
  square_of_error = _dot(sums.vector, sums.vector) + factor**2 * square
  square_of_error -= 2 * factor * _dot(sums.vector, v)
  error = math.sqrt(max(square_of_error, 0.0))
  yield Comparison('error_of_clipped_sum', error, 0, allowed)


def _check_canaries(
  config: Config,
  setup: build.Setup,
  mesh: sharding.Mesh | None,
  v: Float[np.ndarray, ' d'],
) -> Iterator[Comparison]:
  """Canaries, and cosines of the observers of the package with two vectors."""
  dim, num = setup.dim, setup.participants.canaries.shape[1]
  family, block = config.canaries.family, config.canaries.block
  if canaries.FAMILIES[family].one_by_one and num * dim > _MANY:
    num = min(num, block * sharding.num_devices(mesh))
  make = canaries.family(family, block=block, mesh=mesh)
  # A round is scored at once. A buffer of more has more rows of the same kind, and
  # takes gigabytes.
  one = config_lib.replace_fields(config, rounds=1)
  observe = lambda key: build.make_observers(one, make(key, num, dim), mesh)

  @jax.jit
  def score(key: Key, before: Params, after: Params):
    start, end = ravel_pytree(before)[0], ravel_pytree(after)[0]
    view = observers.RoundView(start, end, aggregate=end, noiseless=start)
    scores = {}
    for x in observe(key).values():
      scores |= x.scores(x.update(x.init(before), view), after)
    # What another observer scores is not known here.
    return {name: x for name, x in scores.items() if name in _COSINES}

  @jax.jit
  def superpose(key: Key, ids: Array, weights: Array):
    return make(key, num, dim).superpose(ids, weights)

  # A view, so that the host has one vector only.
  u = v[::-1]
  key = hosts.replicate_key(mesh, randomness.derive_key(0, 'arithmetic'))
  before, after = (
    hosts.replicate(mesh, _unravel(x, setup.params)) for x in (u, v)
  )
  scores = hosts.copy_to_host(score(key, before, after))
  del before, after
  square, product = _dot(v, v), _dot(u, v)
  relative, absolute = _allow(dim), _EPSILON * (1 + 16 / math.sqrt(dim))
  ids = np.arange(_FEW**2, dtype=np.int32) * max(num // _FEW**2, 1) % num
  signs = np.where(np.arange(_FEW) % 2, -1, 1).astype(np.float32)
  first = np.eye(1, _FEW, dtype=np.float32)[0]
  # Of some canaries one by one, and of more that are added up.
  for row, weights in itertools.product(
    ids.reshape(_FEW, _FEW), (first, signs)
  ):
    c = hosts.copy_to_host(superpose(key, row, weights))
    if weights is first:
      length = math.sqrt(_dot(c, c))
      yield Comparison('canary_norm', length, 1, 16 * _EPSILON)
    of_end, of_start = _dot(c, v), _dot(c, u)
    for name, x in scores.items():
      if name.endswith(('change', 'server_update', 'residual')):
        exact = (of_end - of_start) / math.sqrt(2 * (square - product))
      else:
        exact = of_end / math.sqrt(square)
      # Of the rounds there is one.
      computed = _dot(weights, np.atleast_2d(x)[0][row])
      allowed = float(np.abs(weights).sum()) * absolute
      allowed += relative * abs(exact)
      yield Comparison(f'cosine_{name}', computed, exact, allowed)


def _allow(dim: int) -> float:
  """Relative error of a norm of d numbers that rounding explains."""
  return _EPSILON * (8 + math.sqrt(dim) / 2)


def _dot(x: np.ndarray, y: np.ndarray) -> float:
  """<x, y> in float64, a piece at a time."""
  wide = lambda x, i: x[i : i + _PIECE].astype(np.float64)
  return sum(float(wide(x, i) @ wide(y, i)) for i in range(0, len(x), _PIECE))


def _unravel(v: Float[np.ndarray, ' d'], like: Params) -> Params:
  """A vector in the shapes of a model."""
  leaves, structure = jax.tree.flatten(like)
  ends = np.cumsum([x.size for x in leaves])[:-1]
  parts = [part.reshape(x.shape) for part, x in zip(np.split(v, ends), leaves)]
  return jax.tree.unflatten(structure, parts)
