"""The clients of one round as padded arrays, made while the last round runs.

Every round of a run has the same shapes, so that a step is traced once.
"""

import collections
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
import itertools
from typing import TypeVar

from jaxtyping import Bool, Int, Shaped
import numpy as np

from epe_jax import fedavg
from epe_jax.data import federated

T = TypeVar('T')


def steps_for(
  sizes: Int[np.ndarray, ' clients'], *, batch_size: int, epochs: int
) -> int:
  """Local steps epochs * ceil(n / b) that the largest client takes.

  Args:
    sizes: number of examples of each client, n.
    batch_size: examples of a local step, b.
    epochs: local epochs.

  >>> steps_for(np.array([3, 21]), batch_size=10, epochs=2)
  6
  """
  _check_positive(batch_size=batch_size, epochs=epochs)
  return epochs * -(-int(sizes.max()) // batch_size)


def gather(
  data: federated.FederatedData,
  clients: Int[np.ndarray, ' m'],
  *,
  seed: int,
  round: int,
  batch_size: int,
  epochs: int,
  steps: int,
  chunk: int,
  slots: int,
) -> fedavg.Cohort:
  """The batches of the clients of a round, in NumPy arrays of a fixed shape.

  A client's examples are shuffled anew in each local epoch, by a generator
  that depends on (seed, round, client) alone: its batches are the same
  whoever else takes part. A batch lies within one epoch; the last of an epoch
  is padded with zeros and masked.

  Clients come by decreasing number of examples, equal ones by index, so that
  those of a chunk take nearly as many steps, and the cohort is a function of
  the set of clients.

  Args:
    data: of all clients.
    clients: who takes part, m different indices in [0, data.num_clients).
    seed: of the shuffling, >= 0.
    round: number of the round, >= 0.
    batch_size: examples of a local step, b >= 1.
    epochs: local epochs, >= 1.
    steps: local steps to make room for, as `steps_for` says.
    chunk: clients that are trained at once, >= 1.
    slots: clients to make room for, >= m; rounded up to whole chunks.

  Returns:
    Batches with the columns of the data. An empty slot has client -1.

  Raises:
    ValueError: if an argument is out of its range.

  >>> data = federated.from_clients(
  ...   {'a': {'x': np.array([1])}, 'b': {'x': np.array([4, 5, 6])}}
  ... )
  >>> cohort = gather(
  ...   data, np.array([0, 1]), seed=0, round=0, batch_size=2, epochs=1,
  ...   steps=2, chunk=2, slots=2,
  ... )
  >>> cohort.clients.tolist(), cohort.mask.tolist()
  ([[1, 0]], [[[[True, True], [True, False]], [[True, False], [False, False]]]])
  """
  _check_positive(
    batch_size=batch_size, epochs=epochs, chunk=chunk, slots=slots
  )
  _check_clients(clients, data.num_clients, slots)
  sizes = data.sizes[clients]
  _check_steps(clients, sizes, steps, batch_size=batch_size, epochs=epochs)

  chunks = -(-slots // chunk)
  flat = (chunks * chunk, steps * batch_size)
  batches = {
    name: np.zeros(flat + column.shape[1:], column.dtype)
    for name, column in data.columns.items()
  }
  mask = np.zeros(flat, np.bool_)
  index = np.full(chunks * chunk, -1, np.int32)
  index[: len(clients)] = clients[np.lexsort((clients, -sizes))]
  for slot, client in enumerate(index[: len(clients)].tolist()):
    rows = data.client(client)
    n = federated.num_rows(rows)
    rng = _rng(seed, round, client)
    for epoch in range(epochs):
      start = epoch * -(-n // batch_size) * batch_size
      places = slice(start, start + n)
      mask[slot, places] = True
      order = rng.permutation(n)
      for name, column in rows.items():
        # clip, because take buffers its output where it may have to raise.
        column.take(order, axis=0, out=batches[name][slot, places], mode='clip')

  shape = (chunks, chunk, steps, batch_size)
  return fedavg.Cohort(
    {name: x.reshape(shape + x.shape[2:]) for name, x in batches.items()},
    # NumPy until it is put on a device.
    mask.reshape(shape),  # pyright: ignore[reportArgumentType]
    index.reshape(chunks, chunk),  # pyright: ignore[reportArgumentType]
  )


def prefetch(
  make: Callable[[int], T], rounds: Iterable[int], *, depth: int = 2
) -> Iterator[tuple[int, T]]:
  """Makes what the next rounds need in a thread, while this one runs.

  There is one thread, so `make` is called in order and never twice at once.
  It does not see settings of JAX that hold for a thread, like a `with
  jax.default_device(...)` of the caller.

  Args:
    make: round -> anything.
    rounds: in order; may be endless. Iterated by the caller's thread.
    depth: results made or being made ahead of the one in use, >= 1.

  Yields:
    (round, make(round)). Closing the iterator drops what was made ahead and
    ends the thread.

  Raises:
    ValueError: if depth < 1.
    Exception: what `make` raises, when its round is reached, with a note that
      names the round.

  >>> dict(prefetch(lambda t: t * t, range(4)))
  {0: 0, 1: 1, 2: 4, 3: 9}
  """
  _check_positive(depth=depth)
  return _prefetch(make, iter(rounds), depth)


def eval_batches(
  data: federated.FederatedData, *, batch_size: int
) -> Iterator[
  tuple[dict[str, Shaped[np.ndarray, 'b ...']], Bool[np.ndarray, ' b']]
]:
  """All examples in order, one batch in memory at a time.

  Args:
    data: whose clients are read as one.
    batch_size: examples of a batch, b >= 1.

  Yields:
    (name -> array [b, ...], mask [b]). The last batch is padded with zeros and
    masked, so that all have one shape.

  >>> data = federated.from_arrays({'x': np.arange(3)}, np.array(['a'] * 3))
  >>> [(batch['x'].tolist(), mask.tolist()) for batch, mask in
  ...  eval_batches(data, batch_size=2)]
  [([0, 1], [True, True]), ([2, 0], [True, False])]
  """
  _check_positive(batch_size=batch_size)
  for start in range(0, data.num_examples, batch_size):
    n = min(batch_size, data.num_examples - start)
    batch = {}
    for name, column in data.columns.items():
      batch[name] = np.zeros((batch_size, *column.shape[1:]), column.dtype)
      batch[name][:n] = column[start : start + n]
    yield batch, np.arange(batch_size) < n


def _rng(seed: int, round: int, client: int) -> np.random.Generator:
  # spawn_key and not a longer seed: no two triples give the same words.
  sequence = np.random.SeedSequence(seed, spawn_key=(round, client))
  return np.random.default_rng(sequence)


def _check_positive(**values: int) -> None:
  for name, value in values.items():
    if value < 1:
      raise ValueError(f'{name}={value} is not positive. Use 1 or more.')


def _check_clients(clients: np.ndarray, num_clients: int, slots: int) -> None:
  wrong = clients[(clients < 0) | (clients >= num_clients)]
  if wrong.size:
    raise ValueError(
      f'clients has the index {wrong[0]}, but the data have {num_clients} '
      f'clients. Draw indices from 0 to {num_clients - 1}.'
    )
  values, counts = np.unique(clients, return_counts=True)
  if len(values) < len(clients):
    raise ValueError(
      f'clients has the index {values[counts.argmax()]} {counts.max()} times. '
      'A client takes part in a round at most once: draw without replacement.'
    )
  if len(clients) > slots:
    raise ValueError(
      f'slots={slots}, but {len(clients)} clients take part. Set slots to the '
      'largest number of clients of any round.'
    )


def _check_steps(
  clients: np.ndarray,
  sizes: np.ndarray,
  steps: int,
  *,
  batch_size: int,
  epochs: int,
) -> None:
  if not sizes.size:
    return
  need = steps_for(sizes, batch_size=batch_size, epochs=epochs)
  if need > steps:
    largest = sizes.argmax()
    raise ValueError(
      f'steps={steps}, but client {clients[largest]} with its {sizes[largest]} '
      f'examples takes {need}: epochs={epochs} of batch_size={batch_size}. Set '
      'steps=steps_for(data.sizes, ...).'
    )


def _prefetch(
  make: Callable[[int], T], rounds: Iterator[int], depth: int
) -> Iterator[tuple[int, T]]:
  ahead = collections.deque()
  pool = futures.ThreadPoolExecutor(1, 'prefetch')
  try:
    while True:
      for t in itertools.islice(rounds, depth + 1 - len(ahead)):
        ahead.append((t, pool.submit(make, t)))
      if not ahead:
        return
      # No local name for the result: it would outlive its use by a round.
      yield _outcome(*ahead.popleft())
  finally:
    pool.shutdown(cancel_futures=True)


def _outcome(t: int, future: futures.Future[T]) -> tuple[int, T]:
  try:
    return t, future.result()
  except Exception as error:
    error.add_note(f'while making what round {t} needs')
    raise
