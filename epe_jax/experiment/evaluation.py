"""A model on all test examples: the means of its metrics."""

from collections.abc import Callable, Iterator, Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Bool
import numpy as np
import tqdm

from epe_jax.data import cohort, federated
from epe_jax.parallel import in_flight, sharding
from epe_jax.types import Array, Batch, Params, Task, Weighted, weighted

# Examples at once on a device: a batch for which the layers have their fast
# form on a CPU, inside of a loop too.
_BATCH = 32
# Batches that a device has in one program: seconds on a CPU.
_BATCHES = 64
# Seconds after which it is shown how far an evaluation is.
_PATIENCE = 10


def evaluator(
  task: Task, *, mesh: sharding.Mesh | None = None
) -> Callable[[Params, federated.FederatedData], dict[str, float]]:
  """(params, data) -> 'test_' + name -> mean of a metric over all examples.

  Each device loops over batches of its own, in one program for some thousand
  examples; as many are on the devices at once, and those that come next. So
  neither the data nor the number of programs in flight grows with a test set.

  Args:
    task: whose metrics are taken.
    mesh: devices that share the examples, None for one.
  """

  def sums_of_batches(
    params: Params, examples: Batch, mask: Bool[Array, ' n']
  ) -> dict[str, Weighted]:
    def sums(batch: tuple[Batch, Bool[Array, ' b']]) -> dict[str, Weighted]:
      examples, mask = batch
      with jax.default_matmul_precision('float32'):
        metrics = task.metrics(params, examples)
      values = {name: weighted(x) for name, x in metrics.items()}
      return jax.tree.map(lambda x: jnp.sum(jnp.where(mask, x, 0)), values)

    batches = jax.tree.map(
      lambda x: x.reshape(-1, _BATCH, *x.shape[1:]), (examples, mask)
    )
    return jax.lax.map(sums, batches)

  if mesh is not None:
    whole, split = sharding.REPLICATED, sharding.SHARDED
    sums_of_batches = sharding.sum_over_devices(
      sums_of_batches, mesh, (whole, split, split)
    )
  program = jax.jit(sums_of_batches)

  def dispatched(
    params: Params, data: federated.FederatedData, size: int
  ) -> Iterator[dict[str, Weighted]]:
    for part in cohort.iterate_batches(data, batch_size=size):
      yield program(params, *sharding.shard_first_axis(mesh, part))

  def evaluate(
    params: Params, data: federated.FederatedData
  ) -> dict[str, float]:
    size = _examples_of_a_program(data.num_examples, sharding.num_devices(mesh))
    totals: dict[str, np.ndarray] = {}
    with _progress(data.num_examples) as progress:
      for sums in in_flight.iterate_in_order(dispatched(params, data, size)):
        _add(totals, jax.device_get(sums))
        progress.update(min(size, data.num_examples - progress.n))
    return {
      f'test_{name}': float(total / weight) if weight > 0 else 0.0
      for name, (total, weight) in totals.items()
    }

  return evaluate


def _examples_of_a_program(num_examples: int, devices: int) -> int:
  """Whole batches on all devices, as many in each program of an evaluation.

  >>> _examples_of_a_program(10_000, 2) == 2 * 53 * 32
  True
  """
  batches = -(-num_examples // (devices * _BATCH))
  programs = -(-batches // _BATCHES)
  return devices * -(-batches // programs) * _BATCH


def _add(totals: dict[str, np.ndarray], sums: Mapping[str, Weighted]) -> None:
  """Adds sums of batches up in float64: float32 stops counting at 2^24."""
  for name, of_batches in sums.items():
    total = np.asarray(of_batches, np.float64).sum(axis=1)
    totals[name] = totals.get(name, 0) + total


def _progress(num_examples: int) -> tqdm.tqdm:
  return tqdm.tqdm(
    total=num_examples,
    unit='example',
    desc='evaluation',
    delay=_PATIENCE,
    leave=False,
    disable=not sharding.is_primary(),
  )
