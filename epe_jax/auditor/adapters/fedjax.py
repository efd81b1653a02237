"""Audits FedJAX: wraps an aggregator so that canaries are among its clients.

aggregator = fedjax.audit(aggregator, rounds=..., clip_norm=..., ...)   # A line more,
...
print(aggregator.auditor.report())                    # and another at the end.

FedJAX calls functions that JAX 0.10 has removed, so both need an environment with an
older JAX.
"""

from collections.abc import Iterable, Iterator
import itertools
from typing import Any

from epe_jax.auditor.adapters import versions
from epe_jax.auditor.adapters.settings import Settings
from epe_jax.auditor.adapters.weights import note_larger
from epe_jax.auditor.auditor import Auditor
from epe_jax.auditor.host_canaries import structures

# Ahead of the import, which fails beside another JAX without saying so.
versions.check_version('jax', first='0.4', last='0.9', beside='FedJAX')
versions.check_version(
  'fedjax',
  first='0.0',
  last='0.0',
  uses=['fedjax:aggregators.Aggregator(init, apply)'],
)

import fedjax  # noqa: E402


@fedjax.dataclass
class AuditedState:
  """The state of an audited aggregator.

  Attributes:
    round: rounds made.
    inner: the state of the aggregator.
  """

  round: int
  inner: Any


class AuditedAggregator(fedjax.aggregators.Aggregator):
  """An aggregator with canaries among its clients; made by `audit`."""

  def __init__(self, init: Any, apply: Any, settings: Settings):
    super().__init__(init, apply)
    # Aggregators are frozen.
    object.__setattr__(self, '_settings', settings)

  @property
  def auditor(self) -> Auditor:
    """The auditor.

    Raises:
      ValueError: no round was made yet.
    """
    return self._settings.auditor


def audit(
  aggregator: fedjax.aggregators.Aggregator,
  *,
  weight: float = 1.0,
  auditor: Auditor | None = None,
  seed: int | None = None,
  **settings: Any,
) -> AuditedAggregator:
  """Wraps an aggregator so that canaries are among its clients and are scored.

  A canary is a client whose update has the clip norm. Its share of a mean is its
  weight over the sum of weights: FedJAX weights clients by their numbers of examples,
  so a client with more has a larger share, and the report has its ε.

  Args:
    aggregator: an aggregator that adds noise.
    weight: weight of a canary, > 0; 1 if all clients weigh the same.
    auditor: to continue with, in place of settings; rounds are counted by the state
      of the aggregator.
    seed: of the canaries, for simulations; None for secret ones.
    **settings: of `AuditConfig`: rounds, clip_norm, noise_multiplier, delta, and
      others; dim is read from the first update.

  Raises:
    TypeError: a setting is unknown.
    ValueError: a setting is missing, or weight is out of range; later, a round has no
      clients.
  """
  if not weight > 0:
    raise ValueError(f'weight={weight}; give a number > 0.')
  known = Settings(settings, auditor=auditor, seed=seed)
  known.require(later=('dim',))

  def init() -> AuditedState:
    return AuditedState(0, aggregator.init())

  def apply(clients: Iterable[tuple[Any, Any, float]], state: AuditedState):
    t, clients = state.round, iter(clients)
    first = next(clients, None)
    if first is None:
      raise ValueError(f'round {t} has no clients; canaries need their shapes.')
    arrays = structures.flatten(first[1], 'update')
    sizes = {name: x.size for name, x in arrays.items()}
    known.read_dim('first update', sizes)
    auditor = known.make()
    ids, total, largest = auditor.canary_ids(t), 0.0, 0.0

    def count(all_clients: Iterable) -> Iterator:
      nonlocal total, largest
      for client in all_clients:
        total += float(client[2])
        largest = max(largest, float(client[2]))
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
    note_larger(
      auditor,
      largest=largest,
      canary=weight,
      weighted_by='weight',
      option='weight',
    )
    auditor.observe(t, release, divisor=total / weight, included=ids)
    return release, AuditedState(t + 1, inner)

  return AuditedAggregator(init, apply, known)
