"""Evaluates a recorded audit: one line for each attacker.

  epe-jax audit auditor.npz
  epe-jax audit runs/digits
  epe-jax audit auditor.npz --claim=3
  epe-jax audit runs/digits/private/scores.npz --delta=1e-6 --format=json

The argument is a file written by `Auditor.save`, as in audits of other frameworks; the
workdir of a finished run; or its private/scores.npz. All attackers are evaluated again
from the record, without training; but of a workdir, without --delta and --simultaneous,
what the run itself found is printed, from its result.json. `epe-jax estimate` prints
every estimator and also reads scores of other systems. `epe-jax report` draws figures.

With --claim=EPS the exit status is 1 if the headline bound exceeds EPS.
"""

from collections.abc import Sequence
import pathlib
from typing import Any

from absl import app, flags

from epe_jax.cli import claims, command_flags, score_input


def define_flags(values: flags.FlagValues) -> None:
  """Defines the flags of `audit`."""
  command_flags.define(
    values,
    command_flags.CLAIM_OF_SEVERAL,
    command_flags.DELTA._replace(
      help='δ, in (0, 1). Without it, that of the file.'
    ),
    command_flags.SIMULTANEOUS,
    command_flags.FORMAT,
  )


def execute(values: flags.FlagValues, argv: Sequence[str]) -> int:
  """Runs the command, as `program` does."""
  paths = values(list(argv))[1:]
  if len(paths) != 1:
    raise app.UsageError(
      f'{len(paths)} files were given; give one: what Auditor.save wrote, or the '
      'workdir of a run.'
    )
  claims.check_claim(values.claim)
  if values.delta is not None and not 0 < values.delta < 1:
    raise ValueError(f'--delta={values.delta}; give a number in (0, 1).')
  from epe_jax import io
  from epe_jax.report import first_page

  score_input.warn_of_delta(values.delta or 0)
  as_json = values.format == 'json'
  audited, text = _audit(pathlib.Path(paths[0]), values, as_json)
  if as_json:
    text = io.format_json(first_page.describe_in_json(audited))
  print(text)
  bounds = claims.choose_bounds(audited)
  return claims.report_claim(values.claim, bounds, to_stderr=as_json)


def _audit(
  path: pathlib.Path, values: flags.FlagValues, as_json: bool
) -> tuple[Any, str]:
  """The audit of what is at a path, and its text; JSON needs none."""
  from epe_jax.audit import evaluation, load_record
  from epe_jax.auditor.auditor import Auditor, format_report
  from epe_jax.experiment import finished_runs, workdirs
  from epe_jax.report import loop_report, provenance, report

  as_recorded = values.delta is None and not values.simultaneous
  if path.is_dir():
    finished_runs.check_audited(path)
    if as_recorded:
      result = finished_runs.load_result(path)
      belongs_to = provenance.identify_workdir(path, result)
      return result.audit, report.format_summary(result, belongs_to)
    finished_runs.check_record(path)
    path = workdirs.workdir_at(path).scores
  kind = _find_kind(path)
  auditor = Auditor.load(path) if kind == 'auditor' else None
  options = {'delta': values.delta, 'simultaneous': values.simultaneous}
  if auditor is None:
    record = load_record(path)
    audited = evaluation.evaluate(record, **options)
  else:
    record, audited = auditor.record(), auditor.evaluate(**options)
  if as_json:
    return audited, ''
  if auditor is None or values.simultaneous:
    return audited, loop_report.format_record(path.name, record, audited)
  # As loops print it.
  return audited, format_report(auditor, record, audited)


def _find_kind(path: pathlib.Path) -> str:
  """Says whether a file is of an 'auditor' or the 'record' of a run."""
  from epe_jax import io

  if not path.is_file():
    raise FileNotFoundError(
      f'{path} does not exist; give a file that Auditor.save wrote, or the '
      'workdir of a finished run.'
    )
  names = io.list_arrays(path) if path.suffix == '.npz' else set()
  if {'key', 'config', 'schema'} <= names:
    return 'auditor'
  if 'schema' in names:
    return 'record'
  raise ValueError(
    f'{path} is neither of an Auditor nor of a run; `epe-jax estimate '
    f'{path.name}` reads scores of other systems.'
  )
