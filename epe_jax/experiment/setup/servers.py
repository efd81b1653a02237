"""Server optimizers by name: what the server makes of a round's aggregate.

A new one is an entry of `SERVERS`. Configs, their checks and the analysis of what the
final model keeps of each round follow its attributes.
"""

from collections.abc import Callable
from typing import NamedTuple

import optax


class Server(NamedTuple):
  """A server optimizer."""

  # (learning_rate, momentum) -> the optax transformation.
  make: Callable[[float, float], optax.GradientTransformation]
  takes_momentum: bool  # Whether `server.momentum` is a setting of it.
  # Whether the final model is a weighted sum of the aggregates.
  is_linear: bool
  # Whether it is a non-linear function of each coordinate, behind which canaries that
  # share coordinates may depend on one another.
  is_coordinate_wise: bool


SERVERS: dict[str, Server] = {
  'sgd': Server(
    lambda rate, momentum: optax.sgd(rate, momentum=momentum or None),
    takes_momentum=True,
    is_linear=True,
    is_coordinate_wise=False,
  ),
  # Adam has a momentum of its own. beta_1, beta_2 and tau of Reddi et al. 2020,
  # "Adaptive Federated Optimization", appendix D.
  'adam': Server(
    lambda rate, momentum: optax.adam(rate, b1=0.9, b2=0.99, eps=1e-3),
    takes_momentum=False,
    is_linear=False,
    is_coordinate_wise=True,
  ),
}
"""The server optimizers by name."""
