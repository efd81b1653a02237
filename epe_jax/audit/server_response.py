"""What a server with SGD keeps of each aggregate, and so of each canary."""

from jaxtyping import Bool, Float
import numpy as np

from epe_jax.audit.round_scalars import RoundScalars


def respond_to_rounds(
  rounds: int, *, momentum: float
) -> Float[np.ndarray, 'stops rounds']:
  """What each aggregate weighs in the model after each round: SGD is linear.

  Momentum β keeps adding an aggregate, β^i times in the i-th round after its
  own, so that after n rounds it has been added (1 - βⁿ)/(1 - β) times. The
  learning rate scales all weights alike and is left out.

  Args:
    rounds: T >= 1.
    momentum: β, in [0, 1).

  Returns:
    Row t, from 0 to T, is of the model after t rounds.

  Raises:
    ValueError: momentum is out of range.

  >>> respond_to_rounds(3, momentum=0.5)
  array([[0.  , 0.  , 0.  ],
         [1.  , 0.  , 0.  ],
         [1.5 , 1.  , 0.  ],
         [1.75, 1.5 , 1.  ]])
  """
  if not 0 <= momentum < 1:
    raise ValueError(f'momentum={momentum}; give a momentum in [0, 1).')
  since = np.arange(rounds + 1)[:, None] - np.arange(rounds)
  return (1 - momentum ** np.maximum(since, 0)) / (1 - momentum)


def respond_at_end(
  rounds: int, *, momentum: float
) -> Float[np.ndarray, ' rounds']:
  """The last row of `respond_to_rounds`, without the others.

  Args:
    rounds: T >= 1.
    momentum: β, in [0, 1).

  Raises:
    ValueError: momentum is out of range.

  >>> respond_at_end(3, momentum=0.5)
  array([1.75, 1.5 , 1.  ])
  """
  if not 0 <= momentum < 1:
    raise ValueError(f'momentum={momentum}; give a momentum in [0, 1).')
  since = np.arange(rounds, 0, -1)
  return (1 - momentum**since) / (1 - momentum)


def weigh_canaries(
  rounds: RoundScalars, assigned: Bool[np.ndarray, 'T k'], *, momentum: float
) -> Float[np.ndarray, ' k']:
  """What training leaves of each canary in the change of the model.

  Its rounds put in S_t/m each, of which the server keeps what `respond_to_rounds` says.
  The server's learning rate, alike for all, is left out, and so is what clients
  do because of it.

  Args:
    rounds: of the whole run.
    assigned: row t holds the canaries of round t.
    momentum: of the server's SGD, in [0, 1).
  """
  effect = respond_to_rounds(len(assigned), momentum=momentum)[-1]
  return (effect * rounds.canary_norm) @ assigned
