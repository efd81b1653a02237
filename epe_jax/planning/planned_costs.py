"""What an audit costs a run: memory, disk, and passes over the model."""

from typing import NamedTuple

import numpy as np

from epe_jax.audit import audit_step
from epe_jax.canaries import registry
from epe_jax.planning.planned_run import PlannedRun

SECONDS_PER_COORDINATE = 1.7e-10
"""Time of one pass over a vector, |x|²."""

CANARIES = (100, 2_000, 100_000)
"""Numbers of canaries for which `PASSES` and `NANOSECONDS` were measured."""

PASSES = {
  'hadamard': (1.9, 2.15, 20.3),
  'hadamard2': (2.91, 3.84, 79.7),
  'dirac': (0.281, 0.396, 11.6),
}
"""Passes over a vector for its projection onto all canaries."""

NANOSECONDS = {
  'sphere': {1: (1.86, 3.73, 1.56), 50: (3.06, 3.31, 3.16)},
  'sign': {1: (0.57, 2.04, 0.56), 50: (3.11, 2.88, 2.95)},
}
"""For each canary and coordinate, by the number of vectors projected at once."""

# Passes per inserted canary, for families of orthogonal canaries.
_PASSES_TO_PUT_IN = 0.73
# Vectors of d numbers next to the buffer, and copies of the buffer at its peak.
_VECTORS, _COPIES_OF_BUFFER = 5, 3


class Costs(NamedTuple):
  """What an audit costs on top of the training.

  Attributes:
    memory: key of what is held -> peak bytes.
    disk: bytes of the record.
    rounds_together: rounds whose vectors are scored at once.
    passes: number of passes over the d parameters in the whole run.
    seconds: their time on the machine where kernels were measured.
    measured_family: the family of canaries whose time is used.
  """

  memory: dict[str, float]
  disk: float
  rounds_together: int
  passes: float
  seconds: float
  measured_family: str


def count_costs(run: PlannedRun, *, memory: float = 2e9) -> Costs:
  """Counts what the observers, buffers and the record of an audit take.

  Args:
    run: the run to audit, with the cosines of all rounds.
    memory: bytes for rounds that are not scored yet, > 0; `audit.memory` of a config.

  >>> run = PlannedRun(
  ...   dim=4_050_748, rounds=61, clients_per_round=10, noise_multiplier=1.0,
  ...   delta=1e-5, family='hadamard')
  >>> round(sum(count_costs(run).memory.values()) / 1e6)
  82
  """
  measured = _find_measured(run.family)
  views, k, d, rounds = 2, run.num_canaries, run.dim, run.rounds
  together = 1
  if registry.find_family(run.family).one_by_one:
    together = audit_step.choose_buffer(
      memory, rounds=rounds, views=views, dim=d
    )
  buffer = views * together * 4 * d if together > 1 else 0
  held = {
    'model_vectors': float(_VECTORS * 4 * d),
    'buffered_rounds': float(_COPIES_OF_BUFFER * buffer),
    'cosines': float(views * 4 * (rounds + together - 1) * k),
    'participation': float(2 * rounds * k),
  }
  seconds = _time_projections(run, rounds, together, views)
  return Costs(
    memory=held,
    disk=float((views * 4 + 2) * rounds * k + 12 * k),
    rounds_together=together,
    passes=seconds / (SECONDS_PER_COORDINATE * d),
    seconds=seconds,
    measured_family=measured,
  )


def _find_measured(family: str) -> str:
  """The family whose time is used: for a new one, the slowest of its kind."""
  if family in PASSES or family in NANOSECONDS:
    return family
  return 'sphere' if registry.find_family(family).one_by_one else 'hadamard2'


def _time_projections(
  run: PlannedRun, rounds: int, together: int, views: int
) -> float:
  """Seconds of the projections of all rounds and of two vectors of the final model,
  and of putting canaries in."""
  k, d = run.num_canaries, run.dim
  put_in = run.num_inside * run.repetitions
  interpolate = lambda values: float(
    np.exp(np.interp(np.log(k), np.log(CANARIES), np.log(values)))
  )
  family = _find_measured(run.family)
  if family in PASSES:
    vectors = rounds * views + 2
    passes = vectors * interpolate(PASSES[family])
    passes += _PASSES_TO_PUT_IN * put_in
    return passes * SECONDS_PER_COORDINATE * d
  projections = -(-rounds // together) + 1
  alone, fifty = (interpolate(x) for x in NANOSECONDS[family].values())
  each = (
    alone + (fifty - alone) * (min(together * views, rounds * views) - 1) / 49
  )
  return 1e-9 * d * (each * projections * k + alone * put_in)
