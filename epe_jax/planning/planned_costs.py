"""What an audit costs a run: memory and disk."""

from typing import NamedTuple

from epe_jax.audit import audit_step
from epe_jax.canaries import registry
from epe_jax.planning.planned_run import PlannedRun

# Bytes of programs and of what they need whatever d is; vectors of d numbers next to the
# buffer, and copies of the buffer at its peak: fitted to d = 55,210 and 4,050,748.
_PROGRAMS, _VECTORS, _COPIES_OF_BUFFER = 24e6, 3.5, 3


class Costs(NamedTuple):
  """What an audit costs on top of the training.

  Attributes:
    memory: key of what is held -> peak bytes.
    disk: bytes of the record.
    rounds_together: rounds whose vectors are scored at once.
  """

  memory: dict[str, float]
  disk: float
  rounds_together: int


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
  return Costs(
    memory=held,
    disk=float((views * 4 + 2) * rounds * k + 12 * k),
    rounds_together=together,
  )
