"""Dispatches rounds to the device before the metrics of the last ones are fetched.

A device is idle while its host reads numbers, writes a line and dispatches the next
round. So several rounds may be dispatched as one, a thread gathers their cohorts in
advance, and another one fetches metrics while the next rounds are in flight.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent import futures
import time
from typing import Any, NamedTuple, TypeVar

import jax
from jaxtyping import Float
import numpy as np

from epe_jax import progress
from epe_jax.data import cohort
from epe_jax.experiment.setup import build
from epe_jax.experiment.setup.config_files import Config
from epe_jax.parallel import hosts, sharding
from epe_jax.training import fedavg
from epe_jax.types import Array

T = TypeVar('T')

NORMS = 'aggregate_norm', 'update_norm'
"""Metrics of a round that are finite as long as training has not diverged."""

Fetched = tuple[dict[str, Float[np.ndarray, ' rounds']], float]


class Group(NamedTuple):
  """Rounds that were dispatched as one, with times by `time.perf_counter`.

  Attributes:
    rounds: the numbers of the rounds, from 0.
    request_time: when their cohorts were requested.
    start_time: when the cohorts were ready and the rounds were dispatched.
    future: their metrics, and when the device had finished them.
  """

  rounds: range
  request_time: float
  start_time: float
  future: futures.Future[Fetched]


def group_rounds(
  start: int, stop: int, *, max_size: int, ends: Sequence[int]
) -> Iterator[range]:
  """Divides rounds into groups that are dispatched as one.

  Args:
    start: the first round.
    stop: the round after the last one.
    max_size: the largest number of rounds in a group, >= 1.
    ends: a group ends at every multiple of these, where the state is needed on
      the host; each >= 1.

  >>> list(group_rounds(0, 7, max_size=3, ends=(4,)))
  [range(0, 3), range(3, 4), range(4, 7)]
  """
  while start < stop:
    next_ends = ((start // n + 1) * n for n in ends)
    end = min(start + max_size, stop, *next_ends)
    yield range(start, end)
    start = end


def iterate_groups(
  config: Config,
  setup: build.Setup,
  start: int,
  mesh: sharding.Mesh | None,
) -> Iterator[tuple[range, fedavg.Cohort]]:
  """Iterates over groups of rounds, each with its cohorts on the devices.

  The cohorts are made ahead by a thread.
  """
  groups = {
    group.start: group
    for group in group_rounds(
      start,
      config.rounds,
      max_size=config.rounds_per_dispatch,
      ends=(config.evaluate_every, config.checkpoint_every),
    )
  }

  def gather(t: int) -> fedavg.Cohort:
    return cohort.gather(
      setup.train,
      setup.participants.clients(t),
      setup.plan,
      seed=setup.randomness.order,
      round=t,
      parts=hosts.local_devices_of(mesh),
      of=sharding.num_devices(mesh),
    )

  def assemble(first: int) -> fedavg.Cohort:
    cohorts = cohort.stack_rounds([gather(t) for t in groups[first]])
    return hosts.assemble_global(mesh, cohorts, axis=1)

  # By map: a local name would keep a cohort alive while the next round runs.
  return map(
    lambda item: (groups[item[0]], item[1]), cohort.prefetch(assemble, groups)
  )


def time_requests(items: Iterable[T]) -> Iterator[tuple[float, T]]:
  """Iterates over items, each with the time when it was requested.

  >>> [item for _, item in time_requests('ab')]
  ['a', 'b']
  """
  items = iter(items)
  while True:
    request_time = time.perf_counter()
    try:
      # Without a local name, which would keep a cohort alive for a round.
      yield request_time, next(items)
    except StopIteration:
      return


def fetch_metrics(metrics: dict[str, Array]) -> Fetched:
  """Fetches the metrics of a group, and blocks until its rounds have ended.

  Returns:
    The same in NumPy, and the time when they arrived.
  """
  values = jax.device_get(metrics)
  return values, time.perf_counter()


def name_group(group: Group) -> str:
  """What a message calls a group: its rounds, numbered from 1."""
  first, last = group.rounds.start + 1, group.rounds.stop
  return (
    f'Round {first}' if first == last else f'Work on rounds {first} to {last}'
  )


def collect(
  group: Group, idle_since: float
) -> tuple[list[dict[str, Any]], float]:
  """Collects the metrics of each round of a group, and waits for the group.

  'seconds' is the time that the device spent on the group, divided by its
  rounds: from its dispatch, or the end of the previous group if that is later, to
  its end. 'waited' is the time for which the device was idle because the cohorts
  were not ready; it is attributed to the first round of the group.

  Returns:
    A record for each round, and when the device had finished them.

  Raises:
    progress.Stalled: the group does not end.
  """
  metrics, end_time = progress.await_result(group.future, name_group(group))
  seconds = (end_time - max(group.start_time, idle_since)) / len(group.rounds)
  waited = max(0.0, group.start_time - max(group.request_time, idle_since))
  records = [
    {
      'round': t + 1,
      **{name: float(x[i]) for name, x in metrics.items()},
      'seconds': seconds,
      'waited': 0.0 if i else waited,
    }
    for i, t in enumerate(group.rounds)
  ]
  return records, end_time


def check_finite(
  config: Config, metrics: Mapping[str, float], name: str
) -> None:
  """Checks that training has not diverged.

  Raises:
    FloatingPointError: the norm of the aggregate or of updates is not finite.
  """
  # With exact noise, a client that has diverged leaves the aggregate finite.
  if not np.isfinite(sum(metrics[name] for name in NORMS)):
    raise FloatingPointError(
      f'{name}: updates or their aggregate are not finite, training has diverged. Lower '
      f'client.learning_rate={config.client.learning_rate} or '
      f'server.learning_rate={config.server.learning_rate}, or '
      f'canaries.observed={config.canaries.observed} if a round has more canaries than '
      'clients.'
    )
