"""Finished runs as the rows of tables: what their files say, with intervals."""

from collections.abc import Mapping, Sequence
import functools
import os
from typing import Any, NamedTuple

import numpy as np

from epe_jax import (
  effective_noise,
  estimates,
  metrics,
  publication,
  results,
  workdirs,
)
from epe_jax.epsilon import bootstrap, gaussian
from epe_jax.epsilon.types import Estimate

CHANGE = 'cosine with the change of the model'
FINAL = 'cosine with the final model'
MAXIMUM = 'maximum over rounds'
OWN = 'own round'
REMOVED = 'own round, others removed'


class Finished(NamedTuple):
  """What is left of a run.

  Attributes:
    result: what its result.json holds.
    recorded: what its scores.npz holds, as far as it may be published; None if
      there were no canaries.
    history: the lines of its metrics.jsonl, from round 1, likewise.
  """

  result: dict[str, Any]
  recorded: results.Recorded | None
  history: Sequence[Mapping[str, float]]


def read(workdir: str | os.PathLike) -> Finished:
  """Reads a finished run.

  Raises:
    FileNotFoundError: a file is missing.
    ValueError: a file is damaged or of another version.
  """
  files = workdirs.of(workdir)
  result = results.read_json(files.result)
  results.check_schema(files.result, result['schema'])
  recorded = None
  if result['estimates']:
    recorded = results.read_scores(files.scores)
  lines = [line for line in metrics.read(files.metrics) if line['round']]
  # Tables may be published, as results may.
  return Finished(result, *publication.shown(result, recorded, lines))


def calibrated(run: Finished, statistic: str) -> Estimate | None:
  """Two Gaussians with the std of the null, with a 90 % bootstrap interval.

  A point estimate; the interval is its scatter over canaries. None if the run
  has no such reading.
  """
  if run.recorded is None:
    return None
  estimator = functools.partial(gaussian.two_gaussian, std='null')
  for reading in estimates.ladder(run.recorded):
    if reading.statistic == statistic:
      if estimates.resampled(reading.scores):
        estimator = functools.partial(
          bootstrap.bootstrap, np.random.default_rng(0), estimator
        )
      return estimator(reading.scores, delta=run.recorded.delta)
  return None


def expected_of_own_round(run: Finished) -> float | None:
  """ε that norms alone let one expect of the own-round reading.

  None if canaries took part more than once, or where the trace is not of
  aggregates.
  """
  recorded = run.recorded
  if recorded is None or recorded.rounds is None or recorded.expected is None:
    return None
  if np.count_nonzero(recorded.participation, axis=0).max() != 1:
    return None
  return effective_noise.epsilon(
    recorded.rounds,
    recorded.participation,
    dim=recorded.dim,
    delta=recorded.delta,
  )
