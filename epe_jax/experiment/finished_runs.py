"""Finished runs as the rows of tables: what their files say, with intervals."""

from collections.abc import Mapping, Sequence
import os
from typing import Any, NamedTuple

from epe_jax.audit import estimates, publication, record, threat_models
from epe_jax.epsilon import location_mixture
from epe_jax.epsilon.types import Estimate
from epe_jax.experiment import metrics, result_file, workdirs


class Finished(NamedTuple):
  """What is left of a run.

  Attributes:
    result: what its result.json holds.
    recorded: what its scores.npz holds, as far as it may be published; None if
      there were no canaries.
    history: the lines of its metrics.jsonl, from round 1, likewise.
  """

  result: dict[str, Any]
  recorded: record.Record | None
  history: Sequence[Mapping[str, float]]


def read(workdir: str | os.PathLike) -> Finished:
  """Reads a finished run.

  Raises:
    FileNotFoundError: a file is missing.
    ValueError: a file is damaged or of another version.
  """
  files = workdirs.of(workdir)
  result = result_file.load_result(files.result)
  recorded = None
  if result['estimates']:
    recorded = record.load_record(files.scores)
  lines = [line for line in metrics.read(files.metrics) if line['round']]
  # Tables may be published, as results may.
  return Finished(result, *publication.shown(result, recorded, lines))


def estimate(run: Finished, statistic: str) -> Estimate | None:
  """The first point estimate of an attacker, with a 90 % interval.

  None if the run has no such reading. Its method ends in '_rejected' where the
  scores say that it is not calibrated.
  """
  if run.recorded is None:
    return None
  for reading in threat_models.of_run(run.recorded):
    if reading.statistic == statistic:
      return estimates.with_interval(reading, delta=run.recorded.delta)
  return None


def expected_of_own_round(run: Finished) -> float | None:
  """ε that norms alone let one expect of the own-round reading.

  None where the trace is not of aggregates. The shift of a canary is √d S/(m |ρ̄|):
  the other clients and canaries of the round are part of |ρ̄|, and so of the noise.
  """
  if run.recorded is None:
    return None
  for reading in threat_models.of_run(run.recorded):
    if reading.statistic == threat_models.OWN and reading.is_expected:
      assert reading.scores.shift is not None
      return location_mixture.mixture_epsilon(
        reading.scores.shift, run.recorded.delta
      )
  return None


def check_audited(path: str | os.PathLike) -> None:
  """Raises a ValueError if this is the workdir of a run without canaries."""
  file = workdirs.of(path).result
  if file.is_file() and result_file.load_result(file)['num_observed'] == 0:
    raise ValueError(
      f'{path} was not audited: no canaries took part, so there are no scores '
      'to estimate from. Train with canaries.observed of 2 or more.'
    )
