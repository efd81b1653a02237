"""What a report belongs to: a run, a model, a record, and a day."""

import hashlib
import json
import os
import pathlib
from typing import NamedTuple

from epe_jax import io
from epe_jax.experiment import finished_runs, workdirs
from epe_jax.experiment.run_result import RunResult

# Letters of a digest that a person compares.
_SHOWN = 12


class Provenance(NamedTuple):
  """What a report belongs to: a day, and digests of what there is.

  That of the run is of config, model and record; a run that is repeated bit for bit has
  the same one.
  """

  date: str | None = None
  run: str | None = None
  model: str | None = None
  record: str | None = None

  def __str__(self) -> str:
    date, *digests = zip(self._fields, self)
    shown = [f'{name} {digest[:_SHOWN]}' for name, digest in digests if digest]
    return ', '.join([date[1] or 'date not recorded', *shown])


def identify_run(
  result: RunResult, *, model: str | os.PathLike[str] | None = None
) -> Provenance:
  """Identifies a finished run, by the file of its final model if that is there.

  Raises:
    ValueError: the file is not that of the model that the run wrote.
  """
  of_model, of_record = result.model_sha256, result.record_sha256
  if model is not None and pathlib.Path(model).is_file():
    finished_runs.check_hash(model, io.hash_file(model), of_model)
  config = json.dumps(
    io.spell_non_finite(io.hide_paths(result.config)), sort_keys=True
  )
  digest = hashlib.sha256(f'{config}\n{of_model}\n{of_record}'.encode())
  return Provenance(
    result.date, digest.hexdigest()[:_SHOWN], of_model, of_record
  )


def identify_workdir(
  workdir: str | os.PathLike[str], result: RunResult
) -> Provenance:
  """Identifies the run of a workdir from its files, as its report does.

  Raises:
    ValueError: its record or model is damaged, or of another run.
  """
  files = workdirs.workdir_at(workdir)
  if files.scores.is_file():
    finished_runs.load_record_of(result, files.scores)
  return identify_run(result, model=files.model)
