"""How many rounds to score together."""


def choose_buffer(memory: float, *, rounds: int, views: int, dim: int) -> int:
  """Returns the number of rounds that memory holds, at least 1 and at most T.

  Args:
    memory: bytes for the buffered vectors, > 0.
    rounds: T >= 1.
    views: vectors per round.
    dim: d.

  Raises:
    ValueError: memory is not positive.

  >>> choose_buffer(1e9, rounds=2048, views=2, dim=4_050_748)
  30
  """
  if not memory > 0:
    raise ValueError(f'memory={memory}; give a number of bytes > 0.')
  return int(min(max(memory / (views * 4 * dim), 1), rounds))
