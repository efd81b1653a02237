"""The cost of clipped per-example gradients, by form of the convolution.

  python benchmarks/example_gradients.py
  python benchmarks/example_gradients.py --quick

A step of DP-SGD without its noise: the gradient of each example by vmap of grad,
clipped and summed, in microbatches. Convolutions are those of `kernels.convolve`, one
matrix product; or `lax.conv`, whose gradients by the kernel are grouped convolutions
with a group for each example. On a CPU those take so long that fewer examples are timed.
"""

from collections.abc import Callable
import time
from typing import Any
from unittest import mock

from absl import flags
import harness
import jax
from jax.flatten_util import ravel_pytree
import jax.numpy as jnp
import numpy as np

from epe_jax.tasks import convnet, kernels, wide_resnet
from epe_jax.types import Task

_BATCH = flags.DEFINE_integer('batch', 256, 'Examples of a step.')
_MICROBATCHES = flags.DEFINE_multi_integer(
  'microbatches', [8, 16, 32], 'Examples at once.'
)
_LAX_BATCH = flags.DEFINE_integer('lax_batch', 8, 'The same with lax.conv.')
_REPETITIONS = flags.DEFINE_integer('repetitions', 3, 'Steps of each form.')


def convolve_by_lax(x: jax.Array, kernel: jax.Array, stride: int = 1):
  """The convolution of XLA."""
  return jax.lax.conv_general_dilated(
    x,
    kernel,
    window_strides=(stride, stride),
    padding='SAME',
    dimension_numbers=('NHWC', 'HWIO', 'NHWC'),
  )


def make_step(task: Task, microbatch: int) -> Callable[..., jax.Array]:
  """(params, batch) -> the sum of clipped gradients."""

  def clip(params: Any, example: Any) -> jax.Array:
    one = jax.tree.map(lambda x: x[None], example)
    loss = lambda p: task.loss(p, one, jax.random.key(0)).sum()  # pyright: ignore
    gradient = ravel_pytree(jax.grad(loss)(params))[0]
    return gradient / jnp.maximum(1, jnp.linalg.norm(gradient))

  def step(params: Any, batch: Any) -> jax.Array:
    chunks = jax.tree.map(
      lambda x: x.reshape(-1, microbatch, *x.shape[1:]), batch
    )

    def add(total: jax.Array, chunk: Any) -> tuple[jax.Array, None]:
      clipped = jax.vmap(clip, in_axes=(None, 0))(params, chunk)
      return total + clipped.sum(axis=0), None

    zero = jnp.zeros(ravel_pytree(params)[0].size)
    return jax.lax.scan(add, zero, chunks)[0]

  return jax.jit(step)


def time_step(
  name: str, task: Task, batch: int, microbatch: int
) -> dict[str, Any]:
  """Median seconds of a step, and seconds to compile it."""
  rng = np.random.default_rng(0)
  examples = {
    'pixels': jnp.float32(rng.uniform(size=(batch, 32, 32, 3))),
    'label': jnp.int32(rng.integers(0, 10, batch)),
  }
  params = jax.jit(task.init)(jax.random.key(0))
  begun = time.perf_counter()
  step = make_step(task, microbatch).lower(params, examples).compile()
  compiled = time.perf_counter() - begun
  # Not warmed up: a step takes seconds.
  seconds = harness.time_in_turn(
    {'': lambda: step(params, examples)}, _REPETITIONS.value, warm_up=0
  )[''].median
  return {
    'work': name,
    'batch': batch,
    'microbatch': microbatch,
    'seconds': seconds,
    'milliseconds_per_example': 1000 * seconds / batch,
    'seconds_to_compile': compiled,
  }


def measure(quick: bool) -> dict:
  batch, microbatches, task = _BATCH.value, _MICROBATCHES.value, convnet.task()
  if quick:
    batch, microbatches, task = 8, [4], convnet.task(width=2)
  forms = [time_step('ConvNet', task, batch, n) for n in microbatches]
  fewer = min(batch, _LAX_BATCH.value)
  with mock.patch.object(kernels, 'convolve', convolve_by_lax):
    forms.append(time_step('ConvNet, lax.conv', task, fewer, fewer))
  if not quick:
    forms.append(time_step('WRN-16-4', wide_resnet.task(), 32, 8))
  return {'forms': forms}


if __name__ == '__main__':
  harness.run(measure, 'jax')
