"""What the estimators of an audit report when nothing leaks."""

from collections.abc import Hashable, Mapping, Sequence
from concurrent import futures
import dataclasses

from jaxtyping import Float
import numpy as np

from epe_jax.audit.threat_models import AttackScores
from epe_jax.epsilon import noise_floor, registry
from epe_jax.epsilon.registry import Estimator
from epe_jax.epsilon.types import Estimate

Floors = Mapping[Hashable, Float[np.ndarray, ' simulations']]
"""ε of simulated audits without a leak, by the law of scores and the estimator."""


def simulate_floors(
  all_scores: Sequence[AttackScores],
  all_points: Sequence[Sequence[Estimator]],
  delta: float,
) -> Floors:
  """Simulates audits in which nothing leaks, once for attackers of equal laws.

  In threads, because drawing audits and estimating from them is work of NumPy, which
  lets other threads run. Each has a generator of its own.

  Args:
    all_scores: of each attacker.
    all_points: the point estimators of each attacker.
    delta: δ, in (0, 1).
  """
  jobs: list[tuple[noise_floor.Draw, dict[Hashable, Estimator]]] = []
  keys = set()
  for attack_scores, points in zip(all_scores, all_points):
    if attack_scores.draw is None:
      continue
    missing = {
      key: estimator
      for estimator in points
      if (key := _make_key(attack_scores, estimator)) not in keys
    }
    keys |= missing.keys()
    if missing:
      jobs.append((attack_scores.draw, missing))

  def simulate(
    draw: noise_floor.Draw, missing: Mapping[Hashable, Estimator]
  ) -> Floors:
    simulated = noise_floor.simulate(
      np.random.default_rng(0), list(missing.values()), draw, delta=delta
    )
    return dict(zip(missing, simulated))

  with futures.ThreadPoolExecutor(thread_name_prefix='floors') as pool:
    return dict(
      item
      for floors in pool.map(simulate, *zip(*jobs))
      for item in floors.items()
    )


def add_floor(
  estimate: Estimate,
  floors: Floors,
  attack_scores: AttackScores,
  estimator: Estimator,
) -> Estimate:
  """The estimate with its floor and p-value, if audits without a leak were simulated.

  Args:
    estimate: of one attacker.
    floors: what `simulate_floors` returned; empty if nothing was simulated.
    attack_scores: of the attacker.
    estimator: that made the estimate.
  """
  null = floors.get(_make_key(attack_scores, estimator))
  if null is None:
    return estimate
  return dataclasses.replace(
    estimate,
    floor=noise_floor.summarize(null),
    p_value=noise_floor.p_value(float(estimate.epsilon), null),
  )


def _make_key(attack_scores: AttackScores, estimator: Estimator) -> Hashable:
  shift = attack_scores.scores.shift
  if shift is not None and registry.uses_shift(estimator):
    return attack_scores.law, estimator, shift.tobytes()
  return attack_scores.law, estimator
