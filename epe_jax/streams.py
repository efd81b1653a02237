"""Independent streams of random numbers on the host, each with a purpose.

A run has one root, and nobody but this module makes a generator of it. What a
stream is for is part of what it follows from: were it left out, as in
`default_rng(seed)` and `default_rng((seed, 0))`, which are the same, the data
would be dealt by the numbers that draw the clients.
"""

import hashlib
import numbers
import operator

import numpy as np


def check_root(root: int) -> None:
  """Raises a ValueError unless it is an integer >= 0."""
  whole = isinstance(root, numbers.Integral) and not isinstance(root, bool)
  if not whole or root < 0:
    raise ValueError(f'seed={root!r}; give an integer >= 0, such as 0.')


def sequence(root: int, purpose: str, *place: int) -> np.random.SeedSequence:
  """What a stream follows from: root, purpose and place, and all of each.

  Args:
    root: >= 0, of any size: the seed of a run, or more bits than that if
      nobody is to guess what follows from them.
    purpose: what the stream is for, by a name that no other one has.
    place: which stream of that purpose, such as the number of a round.

  Raises:
    ValueError: as `check_root`.
  """
  check_root(root)
  # NumPy fills short seeds with zeros and folds long ones; a hash keeps what
  # differs apart. repr is the same text on every machine.
  text = repr((operator.index(root), purpose, *map(operator.index, place)))
  digest = hashlib.sha256(text.encode()).digest()
  return np.random.SeedSequence(int.from_bytes(digest, 'big'))


def host_rng(root: int, purpose: str, *place: int) -> np.random.Generator:
  """A generator of its own for each root, purpose and place; see `sequence`.

  >>> float(host_rng(0, 'docs').random()) == float(host_rng(0, 'docs').random())
  True
  >>> host_rng(0, 'docs').random() == host_rng(0, 'docs', 0).random()
  False
  """
  return np.random.default_rng(sequence(root, purpose, *place))
