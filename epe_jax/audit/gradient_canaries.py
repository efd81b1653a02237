"""Canaries of the white-box game: gradients that join a batch of DP-SGD."""

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxtyping import Float, Int

from epe_jax.types import Array, Key, Params


class GradientCanary(NamedTuple):
  """A canary of DP-SGD: in each step a gradient, chosen before the noise is.

  Attributes:
    init: (canary key, params) -> state.
    gradient: (state, params, step) -> the gradient g' [d], float32 and not
      clipped, and the new state. Steps come in order, from 0.
  """

  init: Callable[[Key, Params], Any]
  gradient: Callable[
    [Any, Params, Int[Array, '']], tuple[Float[Array, ' d'], Any]
  ]
