"""The clients of one round as padded arrays, made while the previous round runs.

Cohorts come in few shapes, so that a step is rarely traced again: with room for the
largest client of all, for a quarter of it, a sixteenth and so on.
"""

import collections
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
import itertools
from typing import NamedTuple, TypeVar

import jax
from jaxtyping import Bool, Int, Shaped
import numpy as np

from epe_jax import progress, streams
from epe_jax.data import federated
from epe_jax.training import fedavg

T = TypeVar('T')

DEPTH = 2
"""Cohorts that `prefetch` makes in advance."""


class Plan(NamedTuple):
  """How clients train in every round of a run.

  Attributes:
    batch_size: examples of a local step, b >= 1.
    epochs: local epochs, >= 1.
    max_examples: a client with more trains on as many, a new sample in each
      round; >= 1, or None for all.
    chunk: clients that are trained at once, >= 1.
    slots: clients to make room for, >= 1; rounded up to whole chunks.
    steps: local steps to make room for, >= 1, at least those of the largest client;
      None for `choose_room` of each round, which reveals something of its clients.
  """

  batch_size: int
  epochs: int
  max_examples: int | None
  chunk: int
  slots: int
  steps: int | None = None


def count_steps(sizes: Int[np.ndarray, ' clients'], plan: Plan) -> int:
  """Counts the local steps epochs * ceil(n / b) that the largest client takes.

  Args:
    sizes: number of examples of each client, at least one client.
    plan: its max_examples caps n.

  >>> plan = Plan(batch_size=10, epochs=2, max_examples=15, chunk=1, slots=1)
  >>> count_steps(np.array([3, 21]), plan)
  4
  """
  return plan.epochs * -(-_cap(int(sizes.max()), plan) // plan.batch_size)


def choose_room(need: int, largest: int) -> int:
  """Chooses how many steps to make room for: the smallest largest / 4^i >= need.

  Padding every round to the largest client of the run would waste memory, and padding
  to what a round needs would compile every round. Padding is not computed, so a factor
  of 4 costs memory only.

  >>> [choose_room(n, 100) for n in (0, 3, 7, 8, 25, 26)]
  [1, 7, 7, 25, 25, 100]
  """
  room = largest
  while room > 1 and -(-room // 4) >= need:
    room = -(-room // 4)
  return room


def gather(
  data: federated.FederatedData,
  clients: Int[np.ndarray, ' m'],
  plan: Plan,
  *,
  seed: int,
  round: int,
  parts: Sequence[int] = (0,),
  of: int = 1,
) -> fedavg.Cohort:
  """Gathers the batches of the clients of a round, in NumPy arrays of few shapes.

  A client's examples are shuffled in each local epoch, by a generator that depends
  only on (seed, round, client): its batches do not depend on the other clients of the
  round. A batch lies within one epoch; the last one of an epoch is padded with zeros
  and masked.

  Clients are sorted by decreasing number of examples and then by index, so that the
  clients of a chunk take similar numbers of steps, and the cohort is a function of the
  set of clients. They are dealt to devices back and forth, so that each device gets
  about as many examples.

  Args:
    data: of all clients.
    clients: the clients of the round, m <= plan.slots different indices in
      [0, data.num_clients).
    plan: batches, epochs and room.
    seed: of the shuffling, >= 0.
    round: number of the round, >= 0.
    parts: devices whose clients are wanted, numbers in [0, of).
    of: devices that share the clients, >= 1.

  Returns:
    The chunks of these devices in order, equally many each. Batches have the columns
    of the data and the steps of the plan, or of `choose_room`. An empty slot has
    client -1.

  >>> data = federated.from_clients(
  ...   {'a': {'x': np.array([1])}, 'b': {'x': np.array([4, 5, 6])}}
  ... )
  >>> plan = Plan(batch_size=2, epochs=1, max_examples=None, chunk=2, slots=2)
  >>> cohort = gather(data, np.array([0, 1]), plan, seed=0, round=0)
  >>> cohort.clients.tolist(), cohort.mask.tolist()
  ([[1, 0]], [[[[True, True], [True, False]], [[True, False], [False, False]]]])
  """
  sizes = data.sizes[clients]
  need = count_steps(sizes, plan) if sizes.size else 0
  steps = plan.steps or choose_room(need, count_steps(data.sizes, plan))

  index = _deal_to_devices(clients[np.lexsort((clients, -sizes))], plan, of)[
    list(parts)
  ]
  chunks = index.size // plan.chunk
  flat = (index.size, steps * plan.batch_size)
  batches = {
    name: np.zeros(flat + column.shape[1:], column.dtype)
    for name, column in data.columns.items()
  }
  mask = np.zeros(flat, np.bool_)
  for slot in np.flatnonzero(index.ravel() >= 0).tolist():
    client = int(index.flat[slot])
    rows = data.client(client)
    rng = streams.host_rng(seed, 'batches', round, client)
    for epoch, order in enumerate(
      _draw_orders(rng, federated.count_rows(rows), plan)
    ):
      n = len(order)
      start = epoch * -(-n // plan.batch_size) * plan.batch_size
      span = slice(start, start + n)
      mask[slot, span] = True
      for name, column in rows.items():
        # clip, because take buffers its output where it may have to raise.
        column.take(order, axis=0, out=batches[name][slot, span], mode='clip')

  shape = (chunks, plan.chunk, steps, plan.batch_size)
  return fedavg.Cohort(
    {name: x.reshape(shape + x.shape[2:]) for name, x in batches.items()},
    # NumPy until it is put on a device.
    mask.reshape(shape),  # pyright: ignore[reportArgumentType]
    index.reshape(shape[:2]),  # pyright: ignore[reportArgumentType]
  )


def stack_rounds(cohorts: Sequence[fedavg.Cohort]) -> fedavg.Cohort:
  """Stacks the cohorts of several rounds, with an axis of rounds in front.

  Args:
    cohorts: at least one, made by `gather` with one plan.

  Returns:
    Arrays [rounds, chunks, chunk, steps, b, ...], with as many steps as the longest
    cohort.
  """
  if len(cohorts) == 1:
    return jax.tree.map(lambda x: x[None], cohorts[0])
  steps = max(np.shape(one.mask)[2] for one in cohorts)
  return jax.tree.map(
    lambda *x: np.stack(x), *(resize_steps(one, steps) for one in cohorts)
  )


def resize_steps(one: fedavg.Cohort, steps: int) -> fedavg.Cohort:
  """Pads or cuts a cohort to a number of steps, at least those that it takes."""

  def fit(x: Shaped[np.ndarray, '...']) -> Shaped[np.ndarray, '...']:
    if x.ndim < 3 or x.shape[2] == steps:
      return x
    more = [(0, 0)] * x.ndim
    more[2] = (0, max(0, steps - x.shape[2]))
    return np.pad(x[:, :, :steps], more)

  return jax.tree.map(fit, one)


def prefetch(
  make: Callable[[int], T], rounds: Iterable[int]
) -> Iterator[tuple[int, T]]:
  """Makes what the next rounds need in a thread, while the current round runs.

  There is one thread, so calls of `make` are in order and do not overlap. Thread-local
  settings of the caller, such as `with jax.default_device(...)`, do not hold in it.

  Args:
    make: round -> anything.
    rounds: in order; may be endless. Iterated by the caller's thread.

  Yields:
    (round, make(round)). Closing the iterator drops the results that were made in
    advance and ends the thread.

  Raises:
    Exception: the error of `make`, when its round is reached, with a note that
      names the round.

  >>> dict(prefetch(lambda t: t * t, range(4)))
  {0: 0, 1: 1, 2: 4, 3: 9}
  """
  ahead, rest = collections.deque(), iter(rounds)
  pool, is_stalled = futures.ThreadPoolExecutor(1, 'prefetch'), False
  try:
    while True:
      for t in itertools.islice(rest, DEPTH + 1 - len(ahead)):
        ahead.append((t, pool.submit(make, t)))
      if not ahead:
        return
      # No local name for the result: it would outlive its use by a round.
      yield _wait_for(*ahead.popleft())
  except progress.Stalled:
    is_stalled = True
    raise
  finally:
    pool.shutdown(wait=not is_stalled, cancel_futures=True)


def iterate_batches(
  data: federated.FederatedData, *, batch_size: int
) -> Iterator[
  tuple[dict[str, Shaped[np.ndarray, 'b ...']], Bool[np.ndarray, ' b']]
]:
  """Iterates over all examples in order, one batch in memory at a time.

  Args:
    data: its clients are read as one sequence.
    batch_size: examples of a batch, b >= 1.

  Yields:
    (name -> array [b, ...], mask [b]). The last batch is padded with zeros and
    masked, so that all have one shape.

  >>> data = federated.from_arrays({'x': np.arange(3)}, np.array(['a'] * 3))
  >>> [(batch['x'].tolist(), mask.tolist()) for batch, mask in
  ...  iterate_batches(data, batch_size=2)]
  [([0, 1], [True, True]), ([2, 0], [True, False])]
  """
  for start in range(0, data.num_examples, batch_size):
    n = min(batch_size, data.num_examples - start)
    batch = {}
    for name, column in data.columns.items():
      batch[name] = np.zeros((batch_size, *column.shape[1:]), column.dtype)
      batch[name][:n] = column[start : start + n]
    yield batch, np.arange(batch_size) < n


def _deal_to_devices(
  clients: Int[np.ndarray, ' m'], plan: Plan, devices: int
) -> Int[np.ndarray, 'devices slots']:
  """The clients of each device, in whole chunks; -1 for an empty slot."""
  turns = -(-plan.slots // devices)
  slots = -(-turns // plan.chunk) * plan.chunk
  index = np.full((slots, devices), -1, np.int32)
  index.ravel()[: len(clients)] = clients
  index[1::2] = index[1::2, ::-1].copy()
  return index.T


def _draw_orders(
  rng: np.random.Generator, n: int, plan: Plan
) -> Iterator[Int[np.ndarray, ' kept']]:
  """The rows of a client in the order of each epoch; all epochs have the same rows."""
  order = rng.permutation(n)[: _cap(n, plan)]
  kept = np.sort(order)
  yield order
  for _ in range(plan.epochs - 1):
    yield kept[rng.permutation(len(kept))]


def _cap(n: int, plan: Plan) -> int:
  return n if plan.max_examples is None else min(n, plan.max_examples)


def _wait_for(t: int, future: futures.Future[T]) -> tuple[int, T]:
  # From 1, as in metrics.jsonl and in other messages of a run.
  name = f'round {t + 1}'
  try:
    return t, progress.await_result(future, f'Reading what {name} needs')
  except Exception as error:
    error.add_note(f'while making what {name} needs')
    raise
