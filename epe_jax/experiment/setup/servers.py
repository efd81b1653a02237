"""Server optimizers by name: what the server makes of a round's aggregate.

A new one is an entry of `SERVERS`. Configs, their checks and the analysis of what the
final model keeps of each round follow its attributes.
"""

from collections.abc import Callable
from typing import NamedTuple

import optax


class Server(NamedTuple):
  """A server optimizer.

  Attributes:
    make: (learning_rate, momentum) -> the optax transformation.
    takes_momentum: whether `server.momentum` is a setting of it.
    is_linear: whether the final model is a weighted sum of the aggregates.
    is_coordinate_wise: whether it is a non-linear function of each coordinate, behind
      which canaries that share coordinates may depend on one another.
  """

  make: Callable[[float, float], optax.GradientTransformation]
  takes_momentum: bool
  is_linear: bool
  is_coordinate_wise: bool


def _make_sgd(
  learning_rate: float, momentum: float
) -> optax.GradientTransformation:
  return optax.sgd(learning_rate, momentum=momentum or None)


def _make_adam(
  learning_rate: float, momentum: float
) -> optax.GradientTransformation:
  del momentum  # Adam has its own.
  # beta_1, beta_2 and tau of Reddi et al. 2020, "Adaptive Federated
  # Optimization", appendix D.
  return optax.adam(learning_rate, b1=0.9, b2=0.99, eps=1e-3)


SERVERS: dict[str, Server] = {
  'sgd': Server(
    _make_sgd, takes_momentum=True, is_linear=True, is_coordinate_wise=False
  ),
  'adam': Server(
    _make_adam, takes_momentum=False, is_linear=False, is_coordinate_wise=True
  ),
}
"""The server optimizers by name."""
