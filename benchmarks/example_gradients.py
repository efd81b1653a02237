"""What clipped gradients of single examples cost, by form of the convolution.

  python benchmarks/example_gradients.py
  python benchmarks/example_gradients.py --quick

A step of DP-SGD without its noise: the gradient of each example by vmap of grad,
clipped and summed, in microbatches. Convolutions are those of
`kernels.convolve`, one matrix product; or `lax.conv`, whose gradients by the
kernel are convolutions in groups, a group for each example. Those take so long
on a CPU that fewer examples are timed.
"""

from collections.abc import Callable
import time
from typing import Any
from unittest import mock

from absl import app, flags
import jax
from jax.flatten_util import ravel_pytree
import jax.numpy as jnp
import numpy as np
import record

from epe_jax.tasks import convnet, kernels, wide_resnet
from epe_jax.types import Task

_QUICK = flags.DEFINE_bool('quick', False, 'Small sizes: does it run?')
_BATCH = flags.DEFINE_integer('batch', 256, 'Examples of a step.')
_MICROBATCHES = flags.DEFINE_multi_integer(
  'microbatches', [8, 16, 32], 'Examples at once.'
)
_LAX_BATCH = flags.DEFINE_integer('lax_batch', 8, 'The same with lax.conv.')
_REPETITIONS = flags.DEFINE_integer('repetitions', 3, 'Steps of each form.')
_OUT = flags.DEFINE_string(
  'out', str(record.FOLDER / 'example_gradients.json'), 'File of the result.'
)


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


def time_step(task: Task, batch: int, microbatch: int) -> dict[str, float]:
  """Seconds of a step, the median, and what it compiles in."""
  rng = np.random.default_rng(0)
  examples = {
    'pixels': jnp.float32(rng.uniform(size=(batch, 32, 32, 3))),
    'label': jnp.int32(rng.integers(0, 10, batch)),
  }
  params = jax.jit(task.init)(jax.random.key(0))
  start = time.perf_counter()
  step = make_step(task, microbatch).lower(params, examples).compile()
  compiled = time.perf_counter() - start
  seconds = []
  for _ in range(_REPETITIONS.value):
    start = time.perf_counter()
    jax.block_until_ready(step(params, examples))
    seconds.append(time.perf_counter() - start)
  return {
    'batch': batch,
    'microbatch': microbatch,
    'seconds': float(np.median(seconds)),
    'milliseconds_per_example': 1000 * float(np.median(seconds)) / batch,
    'seconds_to_compile': compiled,
  }


def main(argv: list[str]) -> None:
  del argv
  batch, microbatches = _BATCH.value, _MICROBATCHES.value
  task = convnet.task()
  if _QUICK.value:
    batch, microbatches, task = 8, [4], convnet.task(width=2)
  forms = [
    {'work': 'ConvNet'} | time_step(task, batch, n) for n in microbatches
  ]
  fewer = min(batch, _LAX_BATCH.value)
  with mock.patch.object(kernels, 'convolve', convolve_by_lax):
    by_lax = time_step(task, fewer, fewer)
  forms.append({'work': 'ConvNet, lax.conv'} | by_lax)
  if not _QUICK.value:
    forms.append({'work': 'WRN-16-4'} | time_step(wide_resnet.task(), 32, 8))
  record.write(_OUT.value, {'forms': forms}, 'jax')


if __name__ == '__main__':
  app.run(main)
