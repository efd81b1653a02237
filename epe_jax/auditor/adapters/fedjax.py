"""Audits FedJAX: wraps an aggregator so that canaries are among its clients.

aggregator = audited(aggregator, auditor)             # A line more,
...
print(auditor.report())                               # and another at the end.
"""

from collections.abc import Iterable, Iterator
import itertools
from typing import Any

import fedjax

from epe_jax.auditor.adapters import versions
from epe_jax.auditor.auditor import Auditor

versions.check_version('fedjax', first='0.0', last='0.0')


@fedjax.dataclass
class AuditedState:
  """The state of an audited aggregator.

  Attributes:
    round: rounds made.
    inner: the state of the aggregator.
  """

  round: int
  inner: Any


def audited(
  aggregator: fedjax.aggregators.Aggregator,
  auditor: Auditor,
  *,
  weight: float = 1.0,
) -> fedjax.aggregators.Aggregator:
  """Wraps an aggregator so that canaries are among its clients and are scored.

  A canary is a client whose update has the clip norm of the auditor. Its share of a
  mean is its weight over the sum of weights: FedJAX weights clients by their numbers
  of examples, so a client with more has a larger share than the audit assumes.

  Args:
    aggregator: an aggregator that adds noise.
    auditor: rounds are counted by the state of the aggregator.
    weight: weight of a canary, > 0; 1 if all clients weigh the same.

  Raises:
    ValueError: weight is out of range; later, a round has no clients.
  """
  if not weight > 0:
    raise ValueError(f'weight={weight}; give a number > 0.')

  def init() -> AuditedState:
    return AuditedState(0, aggregator.init())

  def apply(clients: Iterable[tuple[Any, Any, float]], state: AuditedState):
    t, clients = state.round, iter(clients)
    first = next(clients, None)
    if first is None:
      raise ValueError(f'round {t} has no clients; canaries need their shapes.')
    ids, total = auditor.canary_ids(t), 0.0

    def count(all_clients: Iterable) -> Iterator:
      nonlocal total
      for client in all_clients:
        total += float(client[2])
        yield client

    # Made one by one, as clients are.
    canaries = (
      (
        f'canary {j}'.encode(),
        auditor.canary_update(int(j), like=first[1]),
        weight,
      )
      for j in ids
    )
    release, inner = aggregator.apply(
      count(itertools.chain([first], clients, canaries)), state.inner
    )
    auditor.observe(t, release, divisor=total / weight, included=ids)
    return release, AuditedState(t + 1, inner)

  return fedjax.aggregators.Aggregator(init, apply)
