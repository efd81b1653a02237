"""Which programs are compiled, and how long that takes."""

import collections
from typing import Any

import jax

_EVENT = '/jax/core/compile/backend_compile_duration'


class Compilations:
  """Counts programs by the name of their function, from when it is made on.

  A program that is read from a cache of compiled ones counts too, and takes less.
  """

  def __init__(self):
    self.seconds: dict[str, list[float]] = collections.defaultdict(list)
    jax.monitoring.register_event_duration_secs_listener(self._listen)

  def count(self, name: str) -> int:
    """How often a function was compiled."""
    return len(self.seconds[f'jit({name})'])

  def total(self) -> float:
    """Seconds of all compilations."""
    return sum(map(sum, self.seconds.values()))

  def _listen(self, event: str, duration_secs: float, **about: Any) -> None:
    if event == _EVENT:
      self.seconds[str(about.get('fun_name'))].append(duration_secs)
