"""Audits training with jax_privacy: injects canaries before the noise of a plan.

plan = jax_privacy.audit(plan, delta=...)             # A line more,
...
noise = plan.noise_addition_transform
print(noise.collect(noise_state).report())            # and another at the end.
"""

from collections.abc import Mapping
import dataclasses
from typing import Any

import dp_accounting
import numpy as np

from epe_jax import extras
from epe_jax.auditor.adapters import base, optax
from epe_jax.auditor.auditor import Auditor
from epe_jax.parallel import sharding

with extras.explain_missing():
  try:
    from jax_privacy.experimental import execution_plan
  except ImportError:
    # Where releases after 2.0 have it.
    from jax_privacy import execution_plan  # pyright: ignore


def audit(
  plan: execution_plan.DPExecutionPlan,
  *,
  steps: int | None = None,
  mesh: sharding.Mesh | None = None,
  auditor: Auditor | None = None,
  seed: int | None = None,
  **settings: Any,
) -> execution_plan.DPExecutionPlan:
  """Wraps a plan so that its noise addition is audited.

  The clip norm is read from the plan: it is `compute_sensitivity`. So are the noise
  multiplier, which is the standard deviation of independent noise over that, the
  number of steps, and the probability of Poisson sampling.

  If noise is correlated over steps, in a plan with more than one band, so is the
  matrix by which it is, and canaries take part as often as an example may, in steps
  that its cycles allow, unless settings have other `repetitions`.

  Args:
    plan: of `execution_plan.BandMFExecutionPlanConfig` or of your own.
    steps: that will be made; None for those of the plan.
    mesh: devices that share the work of the canaries; None for one.

  Returns:
    The plan with an `optax.AuditedTransformation`, which has the auditor, as its
    `noise_addition_transform`.
  """
  known = base.Settings(
    {**settings, 'steps': steps}, auditor=auditor, seed=seed, rounds='steps'
  )
  known.refuse_other_views("sums are observed; set 'aggregate'")
  sensitivity = compute_sensitivity(plan)
  known.read('plan', clip_norm=sensitivity)
  constants = optax.read_constants(plan.noise_addition_transform)
  if 'stddev' in constants:
    noise_multiplier = float(constants['stddev']) / sensitivity
    known.read('plan', noise_multiplier=noise_multiplier)
  iterations = getattr(plan.batch_selection_strategy, 'iterations', None)
  if iterations is not None and known.find('rounds') is None:
    known.read('plan', rounds=int(iterations))
  _read_strategy(plan, known, constants)
  batches = plan.batch_selection_strategy
  rate = getattr(batches, 'sampling_prob', None)
  is_poisson = getattr(batches, 'cycle_length', 1) == 1
  is_whole = getattr(batches, 'truncated_batch_size', None) is None
  if rate and is_poisson and is_whole and known.find('strategy') is None:
    known.read('plan', sampling_probability=float(rate))
  audited = optax.wrap_transformation(
    plan.noise_addition_transform, known, mesh=mesh
  )
  return dataclasses.replace(plan, noise_addition_transform=audited)


def _read_strategy(
  plan: execution_plan.DPExecutionPlan,
  known: base.Settings,
  constants: Mapping[str, Any],
) -> None:
  """Reads the matrix of a plan and the steps that it allows an example."""
  noising, rounds = constants.get('noising_matrix'), known.find('rounds')
  if noising is None or rounds is None or known.find('strategy') is not None:
    return
  if hasattr(noising, 'materialize'):
    noising = noising.materialize(rounds)
  noising = np.asarray(noising, np.float64)
  if np.array_equal(noising, np.diag(np.diagonal(noising))):
    return
  strategy = np.tril(np.linalg.inv(noising))
  # What float32 has made of zeros.
  strategy[np.abs(strategy) < 1e-5 * np.abs(strategy).max()] = 0
  cycle = getattr(plan.batch_selection_strategy, 'cycle_length', None)
  known.read_strategy('plan', strategy, min_separation=cycle)


def compute_sensitivity(plan: execution_plan.DPExecutionPlan) -> float:
  """Returns how far adding or removing one example moves a clipped sum.

  A canary is added. For a plan that accounts for an example replaced by another,
  whose sensitivity is twice as large, the noise multiplier of an auditor is twice
  that of the plan.
  """
  relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
  return float(plan.clipped_grad(lambda: None).sensitivity(relation))
