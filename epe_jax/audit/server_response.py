"""What a server of SGD keeps of the aggregate of each round."""

from collections.abc import Sequence

from jaxtyping import Bool, Float
import numpy as np

from epe_jax.training.round_scalars import RoundScalars


def weigh_canaries(
  momentum: float, rounds: RoundScalars, assigned: Bool[np.ndarray, 'T k']
) -> Float[np.ndarray, ' k']:
  """What the final model keeps of each canary, up to the learning rate."""
  kept = respond_at_end(len(assigned), momentum=momentum) * rounds.canary_norm
  return (kept @ assigned).astype(np.float32)


def respond_to_rounds(
  rounds: int, *, momentum: float, stops: Sequence[int] | None = None
) -> Float[np.ndarray, 'stops rounds']:
  """Returns the weight of each aggregate in the model after some rounds of SGD.

  Momentum β adds an aggregate again in every later round, β^i times in the i-th,
  so n rounds later it has been added (1 - βⁿ)/(1 - β) times. The learning rate
  scales all weights alike and is left out.

  Args:
    rounds: T >= 1.
    momentum: β, in [0, 1).
    stops: numbers of rounds, each in [0, T]; None for all of them, 0 to T.

  Returns:
    A row for each stop: the weights in the model after so many rounds.

  Raises:
    ValueError: momentum is out of range.

  >>> respond_to_rounds(3, momentum=0.5)
  array([[0.  , 0.  , 0.  ],
         [1.  , 0.  , 0.  ],
         [1.5 , 1.  , 0.  ],
         [1.75, 1.5 , 1.  ]])
  >>> respond_to_rounds(3, momentum=0.5, stops=[2])
  array([[1.5, 1. , 0. ]])
  """
  if not 0 <= momentum < 1:
    raise ValueError(f'momentum={momentum}; give a momentum in [0, 1).')
  after = np.arange(rounds + 1) if stops is None else np.asarray(stops)
  since = np.maximum(after[:, None] - np.arange(rounds), 0)
  return (1 - momentum**since) / (1 - momentum)


def respond_at_end(
  rounds: int, *, momentum: float
) -> Float[np.ndarray, ' rounds']:
  """Returns the weight of each aggregate in the final model of SGD.

  It is the last row of `respond_to_rounds`.

  >>> respond_at_end(3, momentum=0.5)
  array([1.75, 1.5 , 1.  ])
  """
  return respond_to_rounds(rounds, momentum=momentum, stops=[rounds])[0]
