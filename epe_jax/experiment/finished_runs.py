"""Finished runs: what their files say, as far as it may be published."""

from collections.abc import Mapping, Sequence
import dataclasses
import os
import pathlib
from typing import NamedTuple

import numpy as np

from epe_jax.audit import release
from epe_jax.audit.record import Record
from epe_jax.audit.record_file import load_record
from epe_jax.experiment import (
  metrics,
  own_attacker_scores,
  run_result,
  workdirs,
)
from epe_jax.experiment.run_result import RunResult
from epe_jax.experiment.setup.config import Config

_NOT_OF_RUN = 'damaged or of another run; restore it, or make the run again.'


class FinishedRun(NamedTuple):
  """A finished run, as far as it may be published."""

  # What its result.json says, with the scores of its attackers.
  result: RunResult
  # Without what may not be published; None if there were no canaries.
  record: Record | None
  # The lines of its metrics.jsonl, likewise.
  history: Sequence[Mapping[str, float]]


def load_finished_run(workdir: str | os.PathLike) -> FinishedRun:
  """Loads a finished run.

  Raises:
    FileNotFoundError: a file is missing.
    ValueError: a file is damaged, of another version or of another run.
  """
  files = workdirs.workdir_at(workdir)
  result, record = load_result(workdir), None
  if result.is_audited:
    record = load_record_of(result, _require_file(files.scores))
  history = metrics.read_lines(_require_file(files.metrics))
  # Tables and figures may be published, as results may.
  if not result.is_simulation:
    record = record and release.redact_record(record)
    history = release.redact_history(history)
  if record is not None:
    audit = own_attacker_scores.attach_scores(
      result.audit, record, files.scores
    )
    result = dataclasses.replace(result, audit=audit)
  return FinishedRun(result, record, history)


def load_record_of(result: RunResult, path: pathlib.Path) -> Record:
  """Reads the record of a finished run.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: it is damaged, of another version or of another run.
  """
  record = load_record(path)
  num_observed = np.count_nonzero(record.observed)
  for name, found in {
    'rounds': record.num_rounds,
    'dim': record.dim,
    'delta': record.delta,
    'num_observed': num_observed,
    'num_unobserved': record.observed.size - num_observed,
    'noise_multiplier': record.noise_multiplier,
  }.items():
    if found not in (None, expected := getattr(result, name)):
      raise ValueError(
        f'{path} has {name}={found}, but result.json of its run has '
        f'{name}={expected}: one of them is {_NOT_OF_RUN}'
      )
  check_hash(path, release.hash_record(record), result.record_sha256)
  return record


def check_hash(
  path: str | os.PathLike, found: str, expected: str | None
) -> None:
  """Refuses a file that is not the one that a run wrote, by their hashes."""
  if found != expected:
    raise ValueError(
      f'{path} has SHA-256 {found}, but result.json of its run says {expected}: '
      f'it is {_NOT_OF_RUN}'
    )


def load_result(workdir: str | os.PathLike[str]) -> RunResult:
  """Loads the result.json of a finished run; raises as `load_finished_run`."""
  workdirs.check_ended(workdir)
  path = workdirs.workdir_at(workdir).result
  return run_result.load_result(_require_file(path))


def find_result(
  workdir: str | os.PathLike[str], config: Config
) -> RunResult | None:
  """Finds what a finished run of a config has found, without JAX.

  Returns:
    None if the folder has no finished run, or one of another config.

  Raises:
    FileNotFoundError: the model or the record of the run was removed.
    ValueError: the result is damaged, or of another version of this library.
  """
  files = workdirs.workdir_at(workdir)
  if not files.result.is_file() or not workdirs.is_run_of(files, config):
    return None
  workdirs.remove_secrets(files)
  result = run_result.load_result(files.result)
  _require_file(files.model)
  if result.is_audited:
    _require_file(files.scores)
  return result


def _require_file(path: pathlib.Path) -> pathlib.Path:
  if not path.is_file():
    raise FileNotFoundError(
      f'{path} does not exist. Give the workdir of a finished run. If the file '
      'was removed, restore it, or repeat the run in a new workdir.'
    )
  return path


def check_record(path: str | os.PathLike) -> None:
  """Refuses the workdir of a finished run without canaries, or another's record."""
  files = workdirs.workdir_at(path)
  if not files.result.is_file():
    return
  result = run_result.load_result(files.result)
  if not result.is_audited:
    raise ValueError(
      f'{path} was not audited: no canaries took part, so there are no scores '
      'to estimate from. Train with canaries.observed of 2 or more.'
    )
  if files.scores.is_file():
    load_record_of(result, files.scores)
