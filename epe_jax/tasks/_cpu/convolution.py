"""3 x 3 convolutions with gradients that are also fast inside loops.

Differentiating `lax.conv` gives forms that XLA:CPU runs 45 times slower inside a loop
than outside. Matrix products and plain forward convolutions are fast everywhere, so the
gradients consist of those: by Winograd's method where it applies, and otherwise by
forward convolutions.
"""

import jax
from jaxtyping import Float

from epe_jax.tasks._cpu import winograd
from epe_jax.types import Array

# A step of training has 16 examples in the paper. Winograd's method holds four
# times as much as the images, which would be too much for a large batch.
_MAX_IMAGES = 32
# With fewer channels the products of Winograd's method are too narrow to win.
_MIN_CHANNELS = 32


def convolve(
  x: Float[Array, 'b h w c'], kernel: Float[Array, '3 3 c f']
) -> Float[Array, 'b h-2 w-2 f']:
  """Returns the VALID convolution of x with the kernel."""
  if _is_for_winograd(x, kernel):
    return winograd.convolve(x, kernel)
  return _convolve_directly(x, kernel)


def compute_gradients(
  x: Float[Array, 'b h w c'],
  kernel: Float[Array, '3 3 c f'],
  out_grad: Float[Array, 'b h-2 w-2 f'],
) -> tuple[Float[Array, 'b h w c'], Float[Array, '3 3 c f']]:
  """Returns the gradients w.r.t. x and kernel, from that w.r.t. the output."""
  if _is_for_winograd(x, kernel):
    return winograd.compute_gradients(x, kernel, out_grad)
  flipped = kernel[::-1, ::-1].transpose(0, 1, 3, 2)
  x_grad = _convolve_directly(out_grad, flipped, pad=2)
  # Images and channels change places.
  kernel_grad = _convolve_directly(
    x.transpose(3, 1, 2, 0), out_grad.transpose(1, 2, 0, 3)
  )
  return x_grad, kernel_grad.transpose(1, 2, 0, 3)


def _is_for_winograd(
  x: Float[Array, 'b h w c'], kernel: Float[Array, '3 3 c f']
) -> bool:
  """Whether Winograd's method applies, and is worth it."""
  b, h, w, c = x.shape
  return (
    h % 2 == w % 2 == 0
    and min(c, kernel.shape[-1]) >= _MIN_CHANNELS
    and b <= _MAX_IMAGES
  )


def _convolve_directly(
  x: Float[Array, 'b h w c'], kernel: Float[Array, 'i j c f'], pad: int = 0
) -> Float[Array, 'b y x f']:
  return jax.lax.conv_general_dilated(
    x,
    kernel,
    window_strides=(1, 1),
    padding=((pad, pad), (pad, pad)),
    dimension_numbers=('NHWC', 'HWIO', 'NHWC'),
  )
