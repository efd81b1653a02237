"""A training with the white-box game in every step, once it is finished."""

from typing import NamedTuple

import numpy as np

from epe_jax.dpsgd import estimates
from epe_jax.dpsgd import scores as scores_lib


class PlayedGame(NamedTuple):
  """A training that is finished, and what the attacker saw of it.

  Attributes:
    title: of the workload.
    kind: of the canary, or name of the bug.
    epsilon: the ε at which the noise was set.
    analytic: ε of the run by dp_accounting at this noise, if it does what it
      claims.
    observations: of all steps; their noise multiplier is the one that is claimed.
    mechanism: of a step and of the run, for `estimates.estimate_run`.
    delta: δ.
    accuracy: of the final model on test examples.
    majority: share of the most frequent class of the test examples.
    source: of the data, a sentence.
    dim: number of parameters.
  """

  title: str
  kind: str
  epsilon: float
  analytic: float
  observations: scores_lib.StepScores
  mechanism: estimates.StepMechanism
  delta: float
  accuracy: float
  majority: float
  source: str
  dim: int


def estimate_epsilon(
  game: PlayedGame,
  estimator: str,
  thresholds: estimates.Thresholds,
  *,
  first: int | None = None,
) -> float:
  """The lower limit of ε of a run.

  Args:
    game: that was played.
    estimator: a key of `estimates.ESTIMATORS`.
    thresholds: as for `estimates.estimate_run`.
    first: steps to read; None for all.
  """
  scores = game.observations.select(first=first)
  estimate = estimates.estimate_run(
    scores,
    estimator,
    mechanism=game.mechanism,
    delta=game.delta,
    thresholds=thresholds,
  )
  return float(np.asarray(estimate.epsilon))
