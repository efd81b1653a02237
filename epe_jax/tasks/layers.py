"""Layers in forms that XLA runs well inside loops, and under vmap.

Local training is such a loop. The parameters and numbers are those of Flax's
own layers; what differs is how the same sums are asked for, and in which order
they are added up:

  - On a CPU a convolution of a batch and its gradients are the matrix products
    of Winograd's method. Where that does not apply, they are each a plain
    forward convolution, which XLA:CPU has fast code for wherever it stands; the
    forms that differentiation gives are 45 times slower inside of a loop.
  - Elsewhere a convolution is one matrix product over nine shifted images, for
    clients that are vmapped have kernels of their own.
  - A pool keeps which of four numbers was the largest.
  - On a CPU the gradient of a dense layer's weights is a sum over the few rows
    of a batch, which XLA makes while it updates the weights. As a product it
    would be written, and read again, at the size of the weights.
"""

from collections.abc import Callable
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, UInt8, UInt32

from epe_jax.parallel.barrier import fusion_barrier
from epe_jax.tasks import winograd
from epe_jax.types import Array

# Examples at once in training, of which there are 16 in the paper, or some more.
_FEW_ROWS = 32
# With fewer the products of Winograd's method are too narrow to be any faster.
_MANY_CHANNELS = 32


class Conv3x3(nn.Module):
  """A 3 x 3 VALID convolution: the parameters and numbers of nn.Conv.

  Attributes:
    features: channels out.
  """

  features: int

  @nn.compact
  def __call__(
    self, x: Float[Array, 'b h w c']
  ) -> Float[Array, 'b h-2 w-2 features']:
    kernel = self.param(
      'kernel',
      nn.initializers.lecun_normal(),
      (3, 3, x.shape[-1], self.features),
      jnp.float32,
    )
    bias = self.param(
      'bias', nn.initializers.zeros, (self.features,), jnp.float32
    )
    return conv3x3(x, kernel) + bias


class Dense(nn.Module):
  """A dense layer: the parameters and numbers of nn.Dense.

  Attributes:
    features: numbers out.
  """

  features: int

  @nn.compact
  def __call__(self, x: Float[Array, 'b n']) -> Float[Array, 'b features']:
    kernel = self.param(
      'kernel',
      nn.initializers.lecun_normal(),
      (x.shape[-1], self.features),
      jnp.float32,
    )
    bias = self.param(
      'bias', nn.initializers.zeros, (self.features,), jnp.float32
    )
    return product(x, kernel) + bias


@jax.custom_vjp
def conv3x3(
  x: Float[Array, 'b h w c'], kernel: Float[Array, '3 3 c f']
) -> Float[Array, 'b h-2 w-2 f']:
  """A VALID convolution; it has first derivatives, by reverse mode, only."""

  def on_cpu(x: Array, kernel: Array) -> Array:
    by = winograd.convolved if _is_for_winograd(x, kernel) else _convolved
    return by(x, kernel)

  return _per_backend(on_cpu, _multiplied)(x, kernel)


def _conv_forward(x: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
  return conv3x3(x, kernel), (x, kernel)


def _conv_backward(
  kept: tuple[Float[Array, 'b h w c'], Float[Array, '3 3 c f']],
  out_grad: Float[Array, 'b h-2 w-2 f'],
) -> tuple[Float[Array, 'b h w c'], Float[Array, '3 3 c f']]:
  def on_cpu(x: Array, kernel: Array, out_grad: Array):
    if _is_for_winograd(x, kernel):
      return winograd.gradients(x, kernel, out_grad)
    flipped = kernel[::-1, ::-1].transpose(0, 1, 3, 2)
    x_grad = _convolved(out_grad, flipped, pad=2)
    # Images in the place of channels, and channels in that of images.
    kernel_grad = _convolved(
      x.transpose(3, 1, 2, 0), out_grad.transpose(1, 2, 0, 3)
    )
    return x_grad, kernel_grad.transpose(1, 2, 0, 3)

  def elsewhere(x: Array, kernel: Array, out_grad: Array):
    return jax.vjp(_multiplied, x, kernel)[1](out_grad)

  return _per_backend(on_cpu, elsewhere)(*kept, out_grad)


conv3x3.defvjp(_conv_forward, _conv_backward)


def _is_for_winograd(
  x: Float[Array, 'b h w c'], kernel: Float[Array, '3 3 c f']
) -> bool:
  """Whether the method of Winograd can be used, and is worth it."""
  b, h, w, c = x.shape
  return (
    h % 2 == w % 2 == 0
    and min(c, kernel.shape[-1]) >= _MANY_CHANNELS
    # It keeps four times as much as the images.
    and b <= _FEW_ROWS
  )


def _convolved(
  x: Float[Array, 'b h w c'], kernel: Float[Array, 'i j c f'], pad: int = 0
) -> Float[Array, 'b y x f']:
  return jax.lax.conv_general_dilated(
    x,
    kernel,
    window_strides=(1, 1),
    padding=((pad, pad), (pad, pad)),
    dimension_numbers=('NHWC', 'HWIO', 'NHWC'),
  )


def _multiplied(
  x: Float[Array, 'b h w c'], kernel: Float[Array, '3 3 c f']
) -> Float[Array, 'b h-2 w-2 f']:
  h, w = x.shape[1] - 2, x.shape[2] - 2
  shifted = [x[:, i : i + h, j : j + w] for i in range(3) for j in range(3)]
  patches = jnp.concatenate(shifted, axis=-1)
  return patches @ kernel.reshape(-1, kernel.shape[-1])


def _per_backend(
  on_cpu: Callable[..., Any], elsewhere: Callable[..., Any]
) -> Callable[..., Any]:
  """One of two forms, by what the program is compiled for."""
  # One client after another: XLA has no good code for kernels of each.
  in_turn = jax.custom_batching.sequential_vmap(on_cpu)
  return lambda *args: jax.lax.platform_dependent(
    *args, cpu=in_turn, default=elsewhere
  )


def _once(make: Callable[..., Any]) -> Callable[..., Any]:
  """The same function, which on a CPU is computed once for all who use it."""

  def on_cpu(x: Array, *args: Array) -> Any:
    # Always true, and XLA does not know it.
    first = x.ravel()[0].astype(jnp.float32)
    always = (jax.lax.bitcast_convert_type(first, jnp.int32) | 1) != 0
    return fusion_barrier(always, lambda: make(x, *args))

  return _per_backend(on_cpu, make)


@jax.custom_vjp
def product(
  x: Float[Array, 'b n'], w: Float[Array, 'n f']
) -> Float[Array, 'b f']:
  """x w; it has first derivatives, by reverse mode, only."""
  return x @ w


def _product_backward(
  kept: tuple[Float[Array, 'b n'], Float[Array, 'n f']],
  out_grad: Float[Array, 'b f'],
) -> tuple[Float[Array, 'b n'], Float[Array, 'n f']]:
  x, w = kept

  def by_rows(x: Array, out_grad: Array) -> Float[Array, 'n f']:
    return sum(
      (x[i, :, None] * out_grad[i, None] for i in range(1, x.shape[0])),
      start=x[0, :, None] * out_grad[0, None],
    )

  def by_product(x: Array, out_grad: Array) -> Float[Array, 'n f']:
    return jax.lax.dot_general(x, out_grad, (((0,), (0,)), ((), ())))

  on_cpu = by_rows if x.shape[0] <= _FEW_ROWS else by_product
  return (
    jax.lax.dot_general(out_grad, w, (((1,), (1,)), ((), ()))),
    _per_backend(on_cpu, by_product)(x, out_grad),
  )


product.defvjp(lambda x, w: (x @ w, (x, w)), _product_backward)


@jax.custom_vjp
def max_pool2x2(
  x: Float[Array, 'b h w c'],
) -> Float[Array, 'b h//2 w//2 c']:
  """Maximum over 2 x 2 windows; of equal values the first has the gradient.

  An odd last row or column is left out, as VALID pooling does. It has first
  derivatives, by reverse mode, only.
  """
  return _pool_forward(x)[0]


def _pool_forward(x: Float[Array, 'b h w c']):
  top, which = _once(_largest)(x)
  # For its shape alone.
  return top, (which, x[:0])


def _largest(
  x: Float[Array, 'b h w c'],
) -> tuple[Float[Array, 'b i j c'], UInt8[Array, 'b i j c']]:
  """The largest of four numbers, and which it is."""
  h, w = x.shape[1] // 2 * 2, x.shape[2] // 2 * 2
  x = x[:, :h, :w]
  first, second = x[:, ::2, ::2], x[:, ::2, 1::2]
  third, fourth = x[:, 1::2, ::2], x[:, 1::2, 1::2]
  top = jnp.maximum(jnp.maximum(first, second), jnp.maximum(third, fourth))
  which = jnp.where(
    first == top, 0, jnp.where(second == top, 1, jnp.where(third == top, 2, 3))
  )
  return top, which.astype(jnp.uint8)


def _pool_backward(
  kept: tuple[UInt8[Array, 'b i j c'], Float[Array, '0 h w c']],
  out_grad: Float[Array, 'b i j c'],
) -> tuple[Float[Array, 'b h w c']]:
  which, like = kept
  _, h, w, c = like.shape
  b, i, j, _ = out_grad.shape

  def spread(out_grad: Array, which: Array) -> Float[Array, 'b h w c']:
    place = jnp.arange(4, dtype=jnp.uint8).reshape(1, 1, 2, 1, 2, 1)
    here = which[:, :, None, :, None] == place
    grad = jnp.where(here, out_grad[:, :, None, :, None], 0)
    grad = grad.reshape(b, 2 * i, 2 * j, c)
    return jnp.pad(grad, ((0, 0), (0, h - 2 * i), (0, w - 2 * j), (0, 0)))

  return (_once(spread)(out_grad, which),)


max_pool2x2.defvjp(_pool_forward, _pool_backward)


class Dropout(nn.Module):
  """Sets a share of the numbers to 0 and scales the others up by as much.

  It has the law of nn.Dropout, for a fourth of the random bits.

  Attributes:
    rate: share of zeros, in [0, 1), a multiple of 1/256.

  Raises:
    ValueError: rate is not.
  """

  rate: float

  @nn.compact
  def __call__(self, x: Float[Array, 'b *n'], train: bool) -> Array:
    below = round(256 * self.rate)
    if below != 256 * self.rate or not 0 <= below < 256:
      raise ValueError(
        f'rate={self.rate}; give a multiple of 1/256 in [0, 1), for a byte '
        'decides about a number.'
      )
    if not train:
      return x
    words = jax.random.bits(self.make_rng('dropout'), (-(-x.size // 4),))

    def mask(words: UInt32[Array, ' n']) -> Bool[Array, 'b *n']:
      numbers = jax.lax.bitcast_convert_type(words, jnp.uint8).ravel()
      return (numbers[: x.size] >= below).reshape(x.shape)

    return jnp.where(_once(mask)(words), x / (1 - self.rate), 0)


def checked_width(width: int) -> int:
  """A number of filters, or a ValueError."""
  if width < 1:
    raise ValueError(f'model.width={width} filters; give 1 or more.')
  return width
