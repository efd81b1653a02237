"""What an audit costs a run: memory, disk, and passes over the model."""

from typing import NamedTuple

import numpy as np

from epe_jax.audit import audit_step
from epe_jax.canaries import registry
from epe_jax.planning import measurements
from epe_jax.planning.planned_run import PlannedRun

# Passes per inserted canary, for families of orthogonal canaries.
_PASSES_TO_PUT_IN = 0.73
# Bytes of programs and of what they need whatever d is; vectors of d numbers next to the
# buffer, and copies of the buffer at its peak: fitted to d = 55,210 and 4,050,748.
_PROGRAMS, _VECTORS, _COPIES_OF_BUFFER = 24e6, 3.5, 3


class Costs(NamedTuple):
  """What an audit costs on top of the training.

  Attributes:
    memory: key of what is held -> peak bytes.
    disk: bytes of the record.
    rounds_together: rounds whose vectors are scored at once.
    passes: number of passes over the d parameters that take as long, |x|².
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
    'programs': _PROGRAMS,
    'model_vectors': float(_VECTORS * 4 * d),
    'buffered_rounds': float(_COPIES_OF_BUFFER * buffer),
    'cosines': float(views * 4 * (rounds + together - 1) * k),
    'participation': float(2 * rounds * k),
  }
  seconds = _time_projections(run, rounds, together, views)
  projections = measurements.load_measurements().projections
  return Costs(
    memory=held,
    disk=float((views * 4 + 2) * rounds * k + 12 * k),
    rounds_together=together,
    passes=seconds / (projections.norm / projections.dim * d),
    seconds=seconds,
    measured_family=measured,
  )


def _find_measured(family: str) -> str:
  """The family whose time is used: for a new one, the slowest of its kind."""
  if family in measurements.load_measurements().projections.seconds:
    return family
  return 'sphere' if registry.find_family(family).one_by_one else 'hadamard2'


def _time_projections(
  run: PlannedRun, rounds: int, together: int, views: int
) -> float:
  """Seconds of the projections of all rounds and of two vectors of the final model,
  and of putting canaries in."""
  k, d = run.num_canaries, run.dim
  put_in = run.num_inside * run.repetitions
  measured = measurements.load_measurements().projections
  family = _find_measured(run.family)
  nums = np.array(measured.canaries)
  one_by_one = registry.find_family(family).one_by_one

  def interpolate(vectors: str) -> float:
    """Seconds for each coordinate, and for each canary if it is generated alone."""
    seconds = np.array(measured.seconds[family][vectors]) / measured.dim
    if one_by_one:
      seconds /= nums
    return float(np.exp(np.interp(np.log(k), np.log(nums), np.log(seconds))))

  if not one_by_one:
    vectors = rounds * views + 2
    passes = _PASSES_TO_PUT_IN * put_in * measured.norm / measured.dim
    return d * (vectors * interpolate('1') + passes)
  projections = -(-rounds // together) + 1
  alone, fifty = interpolate('1'), interpolate('50')
  each = (
    alone + (fifty - alone) * (min(together * views, rounds * views) - 1) / 49
  )
  return d * (each * projections * k + alone * put_in)
