"""The kernels of layers. Only this module chooses a kernel by backend.

  - On a CPU, a convolution and its gradients are matrix products of Winograd's method,
    or forward convolutions. Elsewhere they are one matrix product over nine shifted
    images, because vmapped clients have different kernels.
  - On a CPU, the gradient of a dense layer's weights is a sum over the few rows of a
    batch, which XLA fuses with the update of the weights. A matrix product would write
    and read an array of the size of the weights.
  - The pool, the LSTM and the cross-entropy have one form for all backends, the one that
    a CPU needs.

These have only first derivatives, by reverse mode. `convolve` has derivatives of all
orders and is for per-example gradients: on every backend, it and its derivatives are
matrix products.
"""

from collections.abc import Callable
import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, UInt8, UInt32

from epe_jax.parallel.sharding import fusion_barrier
from epe_jax.tasks._cpu import convolution, pooling
from epe_jax.tasks._cpu.cross_entropy import cross_entropy
from epe_jax.tasks._cpu.lstm import lstm
from epe_jax.types import Array, Key

__all__ = [
  'conv3x3',
  'convolve',
  'cross_entropy',
  'draw_keep_mask',
  'lstm',
  'max_pool2x2',
  'multiply',
]

# Rows of a batch in training; the paper has 16.
_MAX_ROWS = 32


@jax.custom_vjp
def conv3x3(
  x: Float[Array, 'b h w c'], kernel: Float[Array, '3 3 c f']
) -> Float[Array, 'b h-2 w-2 f']:
  """Returns the VALID convolution of images with a 3 x 3 kernel."""
  return _choose(convolution.convolve, _convolve_by_patches)(x, kernel)


def _conv3x3_forward(
  x: Array, kernel: Array
) -> tuple[Array, tuple[Array, Array]]:
  return conv3x3(x, kernel), (x, kernel)


def _conv3x3_backward(
  inputs: tuple[Float[Array, 'b h w c'], Float[Array, '3 3 c f']],
  out_grad: Float[Array, 'b h-2 w-2 f'],
) -> tuple[Float[Array, 'b h w c'], Float[Array, '3 3 c f']]:
  def elsewhere(x: Array, kernel: Array, out_grad: Array):
    return jax.vjp(_convolve_by_patches, x, kernel)[1](out_grad)

  return _choose(convolution.compute_gradients, elsewhere)(*inputs, out_grad)


conv3x3.defvjp(_conv3x3_forward, _conv3x3_backward)


def convolve(
  x: Float[Array, 'b h w c'], kernel: Float[Array, 'i j c f'], stride: int = 1
) -> Float[Array, 'b y x f']:
  """Returns the SAME convolution of images, fast under vmap of grad.

  There the gradients by the kernel are one matrix product for each example. In
  `lax.conv` they would be a convolution of as many groups as examples, which
  XLA:CPU runs slowly.

  Args:
    x: images.
    kernel: of any size.
    stride: of both axes; the output has ceil(h / stride) rows.
  """

  def pad(size: int, width: int) -> tuple[int, int]:
    total = max(0, (-(-size // stride) - 1) * stride + width - size)
    return total // 2, total - total // 2

  margins = [pad(n, m) for n, m in zip(x.shape[1:3], kernel.shape[:2])]
  x = jnp.pad(x, ((0, 0), *margins, (0, 0)))
  return _convolve_by_patches(x, kernel, stride)


@jax.custom_vjp
def multiply(
  x: Float[Array, 'b n'], w: Float[Array, 'n f']
) -> Float[Array, 'b f']:
  """Returns x w, the product of a dense layer."""
  return x @ w


def _multiply_forward(x: Array, w: Array) -> tuple[Array, tuple[Array, Array]]:
  return x @ w, (x, w)


def _multiply_backward(
  inputs: tuple[Float[Array, 'b n'], Float[Array, 'n f']],
  out_grad: Float[Array, 'b f'],
) -> tuple[Float[Array, 'b n'], Float[Array, 'n f']]:
  x, w = inputs

  def sum_outer_products(x: Array, out_grad: Array) -> Float[Array, 'n f']:
    return sum(
      (x[i, :, None] * out_grad[i, None] for i in range(1, x.shape[0])),
      start=x[0, :, None] * out_grad[0, None],
    )

  def multiply_once(x: Array, out_grad: Array) -> Float[Array, 'n f']:
    return jax.lax.dot_general(x, out_grad, (((0,), (0,)), ((), ())))

  on_cpu = sum_outer_products if x.shape[0] <= _MAX_ROWS else multiply_once
  return (
    jax.lax.dot_general(out_grad, w, (((1,), (1,)), ((), ()))),
    _choose(on_cpu, multiply_once)(x, out_grad),
  )


multiply.defvjp(_multiply_forward, _multiply_backward)


@jax.custom_vjp
def max_pool2x2(
  x: Float[Array, 'b h w c'],
) -> Float[Array, 'b h//2 w//2 c']:
  """Returns the maxima of 2 x 2 windows, with stride 2 and VALID padding.

  Of equal numbers the first one has the gradient.
  """
  return _max_pool2x2_forward(x)[0]


def _max_pool2x2_forward(x: Float[Array, 'b h w c']):
  top, index = _materialize(pooling.find_maxima)(x)
  # An empty array, for its shape.
  return top, (index, x[:0])


def _max_pool2x2_backward(
  activations: tuple[UInt8[Array, 'b i j c'], Float[Array, '0 h w c']],
  out_grad: Float[Array, 'b i j c'],
) -> tuple[Float[Array, 'b h w c']]:
  index, like = activations
  _, height, width, _ = like.shape

  def spread(out_grad: Array, index: Array) -> Float[Array, 'b h w c']:
    return pooling.spread_gradient(out_grad, index, height, width)

  return (_materialize(spread)(out_grad, index),)


max_pool2x2.defvjp(_max_pool2x2_forward, _max_pool2x2_backward)


def draw_keep_mask(
  key: Key, shape: tuple[int, ...], threshold: int
) -> Bool[Array, '*n']:
  """Draws a mask of dropout, true with probability 1 - threshold / 256.

  It takes a byte of random bits for each entry, a fourth of what a float takes.

  Args:
    key: of the random bits.
    shape: of the mask.
    threshold: in [0, 256).
  """
  size = math.prod(shape)
  words = jax.random.bits(key, (-(-size // 4),))

  def compare(words: UInt32[Array, ' m']) -> Bool[Array, '*n']:
    numbers = jax.lax.bitcast_convert_type(words, jnp.uint8).ravel()
    return (numbers[:size] >= threshold).reshape(shape)

  return _materialize(compare)(words)


def _convolve_by_patches(
  x: Float[Array, 'b h w c'], kernel: Float[Array, 'i j c f'], stride: int = 1
) -> Float[Array, 'b y x f']:
  """The VALID convolution as one matrix product over shifted images."""
  rows, columns = kernel.shape[:2]
  h, w = x.shape[1] - rows + 1, x.shape[2] - columns + 1
  shifted = [
    x[:, i : i + h : stride, j : j + w : stride]
    for i in range(rows)
    for j in range(columns)
  ]
  patches = jnp.concatenate(shifted, axis=-1)
  return patches @ kernel.reshape(-1, kernel.shape[-1])


def _choose(
  on_cpu: Callable[..., Any], elsewhere: Callable[..., Any]
) -> Callable[..., Any]:
  """Chooses between two functions by the backend of the compilation."""
  # Clients in sequence: XLA:CPU has no fast code for batched kernels.
  in_turn = jax.custom_batching.sequential_vmap(on_cpu)
  return lambda *args: jax.lax.platform_dependent(
    *args, cpu=in_turn, default=elsewhere
  )


def _materialize(function: Callable[..., Any]) -> Callable[..., Any]:
  """Makes a CPU compute the result of a function once for all its uses."""

  def on_cpu(x: Array, *args: Array) -> Any:
    # Always true, but XLA cannot infer it.
    first = x.ravel()[0].astype(jnp.float32)
    always = (jax.lax.bitcast_convert_type(first, jnp.int32) | 1) != 0
    return fusion_barrier(always, lambda: function(x, *args))

  return _choose(on_cpu, function)
