"""The evaluation of a model: the means of its metrics on the test data."""

from collections.abc import Callable, Iterator, Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Bool
import numpy as np
import tqdm

from epe_jax import progress
from epe_jax.data import cohort, federated
from epe_jax.experiment import programs
from epe_jax.parallel import hosts, sharding
from epe_jax.types import Array, Batch, Params, Task, Weighted, weighted

# Examples at once on a device: a batch for which the layers have their fast
# form on a CPU, inside a loop too.
_BATCH = 32
# Batches that a device has in one program: seconds on a CPU.
_BATCHES = 64
# Seconds after which an evaluation shows its progress.
_PATIENCE = 10


def evaluator(
  task: Task, *, mesh: sharding.Mesh | None = None
) -> Callable[[Params, federated.FederatedData], dict[str, float]]:
  """Makes the function that evaluates a model.

  Each device loops over batches of its own, in one program for some thousand
  examples. The examples of two programs are on the devices at a time, so
  neither they nor the programs in flight grow with the test set.

  Returns:
    A function (params, data) -> the mean of each metric over all examples, by
    its name with 'test_' in front. Sums are float64.
  """

  program = make_program(task, mesh=mesh)

  def dispatch(
    params: Params, data: federated.FederatedData, size: int
  ) -> Iterator[dict[str, Weighted]]:
    for part in cohort.iterate_batches(data, batch_size=size):
      yield program(params, *hosts.shard_first_axis(mesh, part))

  def evaluate(
    params: Params, data: federated.FederatedData
  ) -> dict[str, float]:
    size = count_program_examples(data.num_examples, sharding.num_devices(mesh))
    totals: dict[str, np.ndarray] = {}
    with _progress_bar(data.num_examples) as shown:
      for sums in programs.iterate_in_order(dispatch(params, data, size)):
        _add_sums(totals, jax.device_get(sums))
        shown.update(min(size, data.num_examples - shown.n))
    return {
      f'test_{name}': float(total / weight) if weight > 0 else 0.0
      for name, (total, weight) in totals.items()
    }

  return evaluate


def make_program(
  task: Task, *, mesh: sharding.Mesh | None = None
) -> jax.stages.Wrapped:
  """Makes (params, examples [n, ...], mask [n]) -> sums of metrics over each batch."""

  @sharding.sum_over_devices(
    mesh, (sharding.REPLICATED, sharding.SHARDED, sharding.SHARDED)
  )
  def sum_batches(
    params: Params, examples: Batch, mask: Bool[Array, ' n']
  ) -> dict[str, Weighted]:
    def sum_batch(
      batch: tuple[Batch, Bool[Array, ' b']],
    ) -> dict[str, Weighted]:
      examples, mask = batch
      with jax.default_matmul_precision('float32'):
        metrics = task.metrics(params, examples)
      values = {name: weighted(x) for name, x in metrics.items()}
      return jax.tree.map(lambda x: jnp.sum(jnp.where(mask, x, 0)), values)

    batches = jax.tree.map(
      lambda x: x.reshape(-1, _BATCH, *x.shape[1:]), (examples, mask)
    )
    return jax.lax.map(sum_batch, batches)

  return jax.jit(sum_batches)


def count_program_examples(num_examples: int, devices: int) -> int:
  """Counts the examples of each program of an evaluation: even, whole batches.

  >>> count_program_examples(10_000, 2) == 2 * 53 * 32
  True
  """
  batches = -(-num_examples // (devices * _BATCH))
  programs = -(-batches // _BATCHES)
  return devices * -(-batches // programs) * _BATCH


def _add_sums(
  totals: dict[str, np.ndarray], sums: Mapping[str, Weighted]
) -> None:
  """Adds sums to totals in float64, as float32 stops counting at 2^24."""
  for name, of_batches in sums.items():
    total = np.asarray(of_batches, np.float64).sum(axis=1)
    totals[name] = totals.get(name, 0) + total


def _progress_bar(num_examples: int) -> tqdm.tqdm:
  return progress.bar(
    total=num_examples,
    unit=' examples',
    desc='evaluation',
    delay=_PATIENCE,
    leave=False,
    disable=not hosts.is_primary(),
  )
