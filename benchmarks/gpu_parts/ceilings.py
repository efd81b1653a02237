"""Peak speeds of the device: large products, and passes over memory."""

import pathlib
import shutil
import subprocess
from typing import Any

import harness
import jax
import jax.numpy as jnp

from gpu_parts.results import Context, Results

PRECISIONS = ('float32', 'tensorfloat32', 'bfloat16')
FILE = 'gpu_device.json'
_QUERY = 'name,driver_version,memory.total,clocks.max.sm,clocks.max.memory'


def measure(context: Context, results: Results) -> None:
  """Names the device; measures its products and its memory."""
  device = jax.devices()[0]
  results.add(
    platform=device.platform,
    backend=device.client.platform_version.splitlines()[0],
    memory_bytes=(device.memory_stats() or {}).get('bytes_limit'),
  )
  results.attempt('nvidia_smi', query_driver)
  size = 256 if context.quick else 8192
  results.attempt(
    'products_flops_per_second',
    lambda: {name: measure_product(name, size) for name in PRECISIONS},
  )
  length = 10**5 if context.quick else 10**9
  results.attempt('copy_bytes_per_second', lambda: measure_copy(length))
  results.attempt(
    'read_bytes_per_second', lambda: harness.read_bytes_per_second(length)
  )


def query_driver() -> dict[str, str] | None:
  """The first device by nvidia-smi; None if there is no nvidia-smi."""
  program = shutil.which('nvidia-smi')
  if program is None:
    return None
  command = [program, f'--query-gpu={_QUERY}', '--format=csv,noheader']
  done = subprocess.run(
    command, capture_output=True, text=True, check=True, timeout=30
  )
  values = done.stdout.splitlines()[0].split(', ')
  return dict(zip(_QUERY.split(','), values, strict=True))


def measure_product(precision: str, size: int) -> float:
  """Flops per second of a product of two random square matrices."""
  dtype = jnp.bfloat16 if precision == 'bfloat16' else jnp.float32
  x, y = jax.random.normal(jax.random.key(0), (2, size, size), dtype)
  product = jax.jit(lambda x, y: jnp.matmul(x, y, precision=precision))
  return 2 * size**3 / harness.time_call(lambda: product(x, y)).best


def measure_copy(size: int) -> float:
  """Bytes per second, read and written, while a long vector is scaled."""
  x = jax.random.normal(jax.random.key(0), (size,))
  scale = jax.jit(lambda x: 1.5 * x)
  return 8 * size / harness.time_call(lambda: scale(x)).best


def read_peak(folder: pathlib.Path, precision: str = 'float32') -> float:
  """Flops per second as recorded for this device, or measured now."""
  from epe_jax import io

  path = folder / FILE
  found = io.read_json(path) if path.exists() else {}
  products: Any = found.get('products_flops_per_second', {})
  if precision in products:
    return products[precision]
  quick = jax.default_backend() == 'cpu'
  return measure_product(precision, 512 if quick else 8192)
