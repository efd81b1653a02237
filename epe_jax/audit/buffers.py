"""How many rounds are scored together."""


def choose_buffer(memory: float, *, rounds: int, views: int, dim: int) -> int:
  """R: as many rounds scored together as memory holds, 1 at least.

  Args:
    memory: bytes for the vectors of the rounds that are not scored yet, > 0.
    rounds: T >= 1; more would hold nothing.
    views: vectors of a round.
    dim: d.

  Raises:
    ValueError: memory is not positive.

  >>> choose_buffer(1e9, rounds=2048, views=2, dim=4_050_748)
  30
  """
  if not memory > 0:
    raise ValueError(f'memory={memory}; give a number of bytes > 0.')
  return int(min(max(memory / (views * 4 * dim), 1), rounds))
