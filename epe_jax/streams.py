"""Independent streams of random numbers on the host, one for each purpose.

A run has one root, and only this module makes generators of it. The purpose of
a stream is part of its seed. Without it, as in `default_rng(seed)` and
`default_rng((seed, 0))`, which are the same, the data would be dealt by the
numbers that draw the clients.
"""

import hashlib
import numbers
import operator

import numpy as np


def check_root(root: int) -> None:
  """Checks a root.

  Raises:
    ValueError: it is not an integer >= 0.
  """
  is_integer = isinstance(root, numbers.Integral) and not isinstance(root, bool)
  if not is_integer or root < 0:
    raise ValueError(f'seed={root!r}; give an integer >= 0, such as 0.')


def sequence(root: int, purpose: str, *place: int) -> np.random.SeedSequence:
  """Makes the seed sequence of a stream from root, purpose and place.

  Args:
    root: an integer >= 0 of any size: the seed of a run, or a secret of so many
      bits that nobody can guess it.
    purpose: the purpose of the stream, a name that no other purpose has.
    *place: which stream of that purpose it is, such as the number of a round.

  Raises:
    ValueError: the root is not an integer >= 0.
  """
  check_root(root)
  # NumPy fills short seeds with zeros and folds long ones; a hash keeps what
  # differs apart. repr is the same text on every machine.
  text = repr((operator.index(root), purpose, *map(operator.index, place)))
  digest = hashlib.sha256(text.encode()).digest()
  return np.random.SeedSequence(int.from_bytes(digest, 'big'))


def host_rng(root: int, purpose: str, *place: int) -> np.random.Generator:
  """Makes the generator of a stream, whose arguments are those of `sequence`.

  >>> float(host_rng(0, 'docs').random()) == float(host_rng(0, 'docs').random())
  True
  >>> host_rng(0, 'docs').random() == host_rng(0, 'docs', 0).random()
  False
  """
  return np.random.default_rng(sequence(root, purpose, *place))
