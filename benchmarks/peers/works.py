"""What a round is: the same models, clients and data for every system.

NumPy alone is imported here, because each system runs this module in its own
environment. The data are random numbers of the real shapes: the time of a round
does not depend on what it learns.
"""

from typing import NamedTuple

import numpy as np

BATCH = 16
WORDS = 10_000  # In the vocabulary; with padding, OOV, BOS and EOS 4 more.
MAX_WORDS = 20
CLASSES = 62
CLIP_NORM = 0.1
SERVER_LEARNING_RATE = 1.0
SERVER_MOMENTUM = 0.9


class Work(NamedTuple):
  """One round.

  Attributes:
    model: 'cnn' of EMNIST or 'lstm' of StackOverflow.
    sizes: examples of each client, all >= 1.
    learning_rate: of the clients' SGD.
    noise_multiplier: z; the sum's noise has the standard deviation z S.
    parameters: of the model.
    flops: of one example's matrix products, forward and backward.
  """

  model: str
  sizes: tuple[int, ...]
  learning_rate: float
  noise_multiplier: float
  parameters: int
  flops: float

  @property
  def examples(self) -> int:
    return sum(self.sizes)

  @property
  def steps(self) -> int:
    return sum(-(-n // BATCH) for n in self.sizes)


def works(*, quick: bool) -> dict[str, Work]:
  """The rounds by name: A and B have equal clients, Ah unequal ones.

  Args:
    quick: tiny ones, to see that everything runs, with so little noise that
      what a model changes by is what it learnt.
  """
  if quick:
    sizes = {'A': (20,) * 4, 'Ah': unequal(3, 60), 'B': (18,) * 2}
  else:
    sizes = {'A': (100,) * 100, 'Ah': unequal(20, 3_500), 'B': (64,) * 20}
  noise = 1e-6 if quick else 0.1
  return {
    'A': Work('cnn', sizes['A'], 0.031, noise, 1_206_590, cnn_flops()),
    'Ah': Work('cnn', sizes['Ah'], 0.031, noise, 1_206_590, cnn_flops()),
    'B': Work('lstm', sizes['B'], 1.0, noise, 4_050_748, lstm_flops()),
  }


def unequal(clients: int, examples: int) -> tuple[int, ...]:
  """Lognormal sizes, of a fixed seed, that add up to a number of examples.

  >>> sum(unequal(20, 3500)), min(unequal(20, 3500)) >= 1
  (3500, True)
  """
  weights = np.random.default_rng(0).lognormal(size=clients)
  share = 1 + (examples - clients) * weights / weights.sum()
  ends = np.round(np.cumsum(share)).astype(int)
  return tuple(np.diff(ends, prepend=0).tolist())


def data(work: Work) -> list[tuple[np.ndarray, np.ndarray]]:
  """Of each client: pixels [n, 28, 28] and labels [n], or words twice.

  Words are [n, 20], of 1 to the vocabulary's size: inputs, which begin with
  BOS, and targets, which are the words themselves.
  """
  rng = np.random.default_rng(1)
  found = []
  for n in work.sizes:
    if work.model == 'cnn':
      x = rng.random((n, 28, 28), np.float32)
      y = rng.integers(0, CLASSES, n, np.int32)
    else:
      y = rng.integers(1, WORDS + 1, (n, MAX_WORDS), np.int32)
      begin = np.full((n, 1), WORDS + 2, np.int32)
      x = np.concatenate([begin, y[:, :-1]], axis=1)
    found.append((x, y))
  return found


def cnn_flops() -> float:
  """Of the matrix products of one image, forward and backward."""
  first = 26 * 26 * 9 * 32
  others = 24 * 24 * 9 * 32 * 64 + 12 * 12 * 64 * 128 + 128 * CLASSES
  # Nobody asks for the gradient by the pixels.
  return 2.0 * (2 * first + 3 * others)


def lstm_flops() -> float:
  """Of the matrix products of one sentence, forward and backward."""
  ids = WORDS + 4
  weights = (96 + 670) * 4 * 670 + 670 * 96 + 96 * ids
  return 6.0 * MAX_WORDS * weights
