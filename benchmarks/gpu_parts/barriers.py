"""Fusion barriers of another kind, to see what a conditional costs on a device.

A GPU reads the predicate of a conditional back to its host, and waits.
"""

from collections.abc import Callable, Iterator
import contextlib
import sys
from typing import Any

import jax

from epe_jax.parallel import barrier


@contextlib.contextmanager
def without_branches() -> Iterator[None]:
  """Puts `optimization_barrier` in place of every fusion barrier within."""
  before = barrier.fusion_barrier

  def materialize(always: jax.Array, make: Callable[[], Any]) -> Any:
    del always
    return jax.lax.optimization_barrier(make())

  users = [
    module
    for name, module in list(sys.modules.items())
    if name.startswith('epe_jax')
    and getattr(module, 'fusion_barrier', None) is before
  ]
  for module in users:
    module.fusion_barrier = materialize  # pyright: ignore[reportAttributeAccessIssue]
  jax.clear_caches()
  try:
    yield
  finally:
    for module in users:
      module.fusion_barrier = before  # pyright: ignore[reportAttributeAccessIssue]
    jax.clear_caches()
