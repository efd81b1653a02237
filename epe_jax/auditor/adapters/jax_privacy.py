"""Audits training with jax_privacy: injects canaries before the noise of a plan.

plan = audited_plan(plan, auditor)                    # A line more,
...
collect_scores(auditor, noise_state)                  # and another at the end.
print(auditor.report())
"""

import dataclasses

import dp_accounting
from jax_privacy.experimental import execution_plan

from epe_jax.auditor.adapters import optax, versions
from epe_jax.auditor.auditor import Auditor
from epe_jax.parallel import sharding

versions.check_version('jax-privacy', first='2.0', last='2.0')

collect_scores = optax.collect_scores


def audited_plan(
  plan: execution_plan.DPExecutionPlan,
  auditor: Auditor,
  *,
  mesh: sharding.Mesh | None = None,
) -> execution_plan.DPExecutionPlan:
  """Wraps a plan so that its noise addition is audited.

  Steps are scored one by one. If noise is correlated over steps, in a plan with more
  than one band, the attacker of `audit.combining_rounds` is stronger.

  Args:
    plan: of `execution_plan.BandMFExecutionPlanConfig` or of your own.
    auditor: its clip norm is `compute_sensitivity(plan)`, and its noise multiplier is
      the standard deviation of the noise divided by that.
    mesh: devices that share the work of the canaries; None for one.

  Raises:
    ValueError: the clip norm is not the sensitivity of the plan.
  """
  sensitivity = compute_sensitivity(plan)
  if abs(auditor.config.clip_norm / sensitivity - 1) > 1e-6:
    raise ValueError(
      f'clip_norm={auditor.config.clip_norm}, but one example moves a sum of the '
      f'plan by {sensitivity:g}; set clip_norm={sensitivity:g}.'
    )
  return dataclasses.replace(
    plan,
    noise_addition_transform=optax.audited(
      plan.noise_addition_transform, auditor, mesh=mesh
    ),
  )


def compute_sensitivity(plan: execution_plan.DPExecutionPlan) -> float:
  """Returns how far adding or removing one example moves a clipped sum.

  A canary is added. For a plan that accounts for an example replaced by another,
  whose sensitivity is twice as large, the noise multiplier of an auditor is twice
  that of the plan.
  """
  relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
  return float(plan.clipped_grad(lambda: None).sensitivity(relation))
