"""Programs in flight: how many a loop may dispatch before it waits for one.

JAX returns from a jitted function before its program has run, so that a loop
can be any number of programs ahead of the devices. Over several devices of one
processor this ends in a deadlock. XLA:CPU has one pool of as many threads as
there are cores, or devices if they are more. A program takes one of them for
each of its devices, and in a collective each waits for all the others. But the
next program is launched by threads of the same pool, one for each device, and
they wait while 32 programs are in flight on theirs: these threads are missing
where the program that runs could end.

So a loop has at most `MAX_PROGRAMS` in flight, the one that runs and the next,
which is as fast as any number. Loops within loops, as an evaluation while
rounds are under way, add up to a few, far below 32 on any number of devices.

Processors of several processes talk by Gloo, which knows no programs: what one
process sends for the next program another takes for the one that it runs, if
neither needs the result of the other. There a program ends before the next
one is dispatched.

Source: openxla/xla, xla/pjrt/cpu/cpu_client.cc. `GetPjRtCpuClient` makes "at
least CpuDeviceCount threads to launch one collective";
`PjRtCpuExecutable::Execute` schedules one launch for each device on them, and
in `CpuPjRtRawLoadedExecutable::Execute` each acquires
`max_inflight_computations_semaphore`. Its size is
`CpuClientOptions::max_inflight_computations_per_device`, 32 in
xla/pjrt/plugin/xla_cpu/cpu_client_options.h, which JAX leaves as it is.
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

  Args:
    queue: the programs in flight, the oldest first.
    drain: take out all, for a caller that needs the results of all of them.

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

  Args:
    results: trees of arrays; each step of the iteration dispatches a program.

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
