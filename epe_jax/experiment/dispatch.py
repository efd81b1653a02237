"""Rounds go to the device before the last ones have come back.

A device whose host first reads some numbers, writes a line and then sends the
next round stands idle meanwhile. So several rounds may be sent as one, and what
rounds measured is fetched by a thread while the next ones are under way.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
import time
from typing import Any, NamedTuple

import jax
from jaxtyping import Float
import numpy as np

from epe_jax.audit import wrapper
from epe_jax.training import fedavg
from epe_jax.types import Array, Key

# (state, cohorts with an axis of rounds in front, training key, noise key)
Advance = Callable[
  [wrapper.AuditState, fedavg.Cohort, Key, Key],
  tuple[wrapper.AuditState, dict[str, Array]],
]
Fetched = tuple[dict[str, Float[np.ndarray, ' rounds']], float]


class Dispatched(NamedTuple):
  """Rounds that were sent as one, with times by `time.perf_counter`.

  Attributes:
    rounds: which.
    asked: when their cohorts were asked for.
    begun: when the cohorts were there and the rounds were sent.
    coming: their metrics, and when the device had finished them.
  """

  rounds: range
  asked: float
  begun: float
  coming: futures.Future[Fetched]


def dispatch_groups(
  start: int, stop: int, *, most: int, every: Sequence[int]
) -> Iterator[range]:
  """The rounds that are sent as one.

  Args:
    start: the first round.
    stop: behind the last round.
    most: rounds of a span, >= 1.
    every: a span ends behind every so many rounds, where the state is looked at.

  >>> list(dispatch_groups(0, 7, most=3, every=(4,)))
  [range(0, 3), range(3, 4), range(4, 7)]
  """
  while start < stop:
    ends = ((start // n + 1) * n for n in every)
    end = min(start + most, stop, *ends)
    yield range(start, end)
    start = end


def make_advance(algorithm: fedavg.Algorithm) -> Advance:
  """Steps of a span of rounds, to be jitted by the caller.

  Keys of a round are folds of the run's by its number, so they do not depend on
  which rounds are sent as one.

  Args:
    algorithm: as `wrapper.audited` gives it.

  Returns:
    A function of (state, cohorts as `cohort.stack_rounds` gives them, training key,
    noise key of the run) -> (state, name -> metrics [rounds]).
  """

  def advance(state, batches, training_key, noise_key):
    def one(state: wrapper.AuditState, batch: fedavg.Cohort):
      t = state.algorithm.round
      state, info = algorithm.step(
        state,
        batch,
        jax.random.fold_in(training_key, t),
        jax.random.fold_in(noise_key, t),
      )
      return state, info.metrics

    if batches.clients.shape[0] > 1:
      return jax.lax.scan(one, state, batches)
    # No loop around a single round, for loops are compiled less well.
    state, metrics = one(state, jax.tree.map(lambda x: x[0], batches))
    return state, {name: x[None] for name, x in metrics.items()}

  return advance


def fetch_metrics(metrics: dict[str, Array]) -> Fetched:
  """Metrics on the host, and when they came; blocks until they do."""
  found = jax.device_get(metrics)
  return found, time.perf_counter()


def collect(
  sent: Dispatched, free: float
) -> tuple[list[dict[str, Any]], float]:
  """What each round of a span measured, once the span has come back.

  'seconds' is the time the device had the span in its hands, divided by its
  rounds: from when it was sent, or the device had finished what was before it,
  to when it was finished. 'waited' is the time for which the device had nothing
  to do because the cohorts were not there yet; the first round of a span has it.

  Args:
    sent: the span; the wait for it may be long.
    free: when the device had finished all that was sent before it.

  Returns:
    A record for each round, and when the device had finished them.
  """
  metrics, done = sent.coming.result()
  seconds = (done - max(sent.begun, free)) / len(sent.rounds)
  waited = max(0.0, sent.begun - max(sent.asked, free))
  records = [
    {
      'round': t + 1,
      **{name: float(x[i]) for name, x in metrics.items()},
      'seconds': seconds,
      'waited': 0.0 if i else waited,
    }
    for i, t in enumerate(sent.rounds)
  ]
  return records, done
