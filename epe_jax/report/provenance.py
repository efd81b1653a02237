"""What a report belongs to: a run, a model, a record, and a day."""

import hashlib
import json
import os
import pathlib
from typing import NamedTuple

import numpy as np

from epe_jax import io
from epe_jax.audit import release
from epe_jax.audit.record import Record, load_record
from epe_jax.experiment import workdirs
from epe_jax.experiment.run_result import RunResult

# Letters of a digest that a person compares.
_SHOWN = 12


class Provenance(NamedTuple):
  """What a report belongs to.

  Attributes:
    date: the day on which the run ended, such as '2026-11-24'; None of a run of
      before results had it.
    run_id: of config, model and record; a run that is repeated bit for bit has the
      same one. None where only the result is at hand.
    model: SHA-256 of the file model.npz; None if it is not there.
    record: SHA-256 as `hash_record` gives it; None without a record.
  """

  date: str | None = None
  run_id: str | None = None
  model: str | None = None
  record: str | None = None

  def __str__(self) -> str:
    parts = [
      self.date or 'date not recorded',
      *(
        f'{name} {digest[:_SHOWN]}'
        for name, digest in (
          ('run', self.run_id),
          ('model', self.model),
          ('record', self.record),
        )
        if digest
      ),
    ]
    return ', '.join(parts)


UNKNOWN = Provenance()
"""Of a result that is not known to be of any run."""


def identify_run(
  result: RunResult,
  *,
  record: Record | None = None,
  model: str | os.PathLike[str] | None = None,
) -> Provenance:
  """Identifies a finished run.

  Args:
    result: what result.json holds.
    record: what attackers saw; None leaves its digest out.
    model: the file of the final model, which need not be there; None likewise.
  """
  path = None if model is None else pathlib.Path(model)
  of_model = None
  if path is not None and path.is_file():
    with path.open('rb') as file:
      of_model = hashlib.file_digest(file, 'sha256').hexdigest()
  of_record = None if record is None else hash_record(record)
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

  Args:
    workdir: of a finished run.
    result: what its result.json holds.
  """
  files = workdirs.workdir_at(workdir)
  record = load_record(files.scores) if files.scores.is_file() else None
  return identify_run(result, record=record, model=files.model)


def hash_record(record: Record) -> str:
  """SHA-256 of the arrays of a record that may be published, in hexadecimal digits.

  It covers the name, dtype, shape and bytes of each array: the cosines of canaries
  with models and releases, and the rounds that canaries were assigned to and took
  part in.
  """
  # The file of a record is for the auditor alone. Its digest may be published: it is
  # of thousands of floats of which noise hides the digits, so that nobody can try all
  # that it may be of. What the noise does not hide is left out all the same.
  record = release.redact_record(record)
  arrays = {
    **{f'cosines.{name}': x for name, x in record.cosines.items()},
    'assigned': record.assigned,
    'included': record.included,
  }
  digest = hashlib.sha256()
  for name, array in sorted(arrays.items()):
    array = np.ascontiguousarray(array)
    # Little-endian on every machine.
    array = array.astype(array.dtype.newbyteorder('<'), copy=False)
    head = f'{name} {array.dtype.str} {array.shape}\n'
    digest.update(head.encode() + array.tobytes())
  return digest.hexdigest()
