"""Programs in flight: how many a loop may dispatch before it waits for one.

JAX returns from a jitted function before its program has run. Over several devices of
one processor a loop that is far ahead deadlocks: XLA:CPU has one pool of as many
threads as cores, or devices if they are more. In a collective each thread waits for all
others, while threads of the same pool that launch the next program wait where 32 are in
flight on their device (`PjRtCpuExecutable::Execute` and
`CpuClientOptions::max_inflight_computations_per_device` in openxla/xla,
xla/pjrt/cpu). So a loop has at most `MAX_PROGRAMS` in flight, the one that runs and the
next, which is as fast as any number; loops within loops add up to a few.

Processors of several processes talk by Gloo, which knows no programs: what one process
sends for the next program another takes for the one that it runs, if neither needs the
result of the other. There a program ends before the next one is dispatched.
"""

import collections
from collections.abc import Iterable, Iterator
from typing import TypeVar

import jax

T = TypeVar('T')

XLA_CPU_PROGRAMS = 32
"""Programs that XLA:CPU has in flight on a device before a launch waits."""

MAX_PROGRAMS = 2
"""Programs that a loop has in flight: the one that runs, and the next."""


def max_programs() -> int:
  """Returns how many programs a loop may have in flight here."""
  is_gloo = jax.process_count() > 1 and jax.default_backend() == 'cpu'
  return 1 if is_gloo else MAX_PROGRAMS


def pop_due(queue: collections.deque[T], *, drain: bool = False) -> Iterator[T]:
  """Takes out of a queue what must end before one more may be dispatched.

  Yields:
    The oldest program each time. The caller waits for it.

  >>> queue = collections.deque('abc')
  >>> list(pop_due(queue)), queue
  (['a', 'b'], deque(['c']))
  """
  while len(queue) >= (1 if drain else max_programs()):
    yield queue.popleft()


def iterate_in_order(results: Iterable[T]) -> Iterator[T]:
  """Yields the results of a loop's programs in order, each once it is computed.

  Yields:
    The same trees in the same order.

  >>> double = jax.jit(lambda x: 2 * x)
  >>> [int(x) for x in iterate_in_order(double(i) for i in range(3))]
  [0, 2, 4]
  """
  queue = collections.deque()
  for result in results:
    queue.append(result)
    yield from map(jax.block_until_ready, pop_due(queue))
  yield from map(jax.block_until_ready, pop_due(queue, drain=True))
