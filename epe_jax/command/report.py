"""Draws the report of a finished run again, without training.

  epe-jax report runs/digits
  epe-jax report runs/digits --verbose
  epe-jax report runs/digits --claim=3

The argument is the --workdir of a run that has finished. Its report.md and figures
are replaced, and the audit table is printed. With --claim=EPS the exit status is 1 if
the lower bound to report exceeds EPS.
"""

from collections.abc import Sequence
from typing import Any

from absl import app, flags

from epe_jax.command import claims


def define_flags(values: flags.FlagValues) -> None:
  """Defines the flags of `report`."""
  own: Any = {'flag_values': values}
  flags.DEFINE_string(
    'workdir',
    None,
    'Directory of a finished run; may be given without the flag.',
    **own,
  )
  flags.DEFINE_bool(
    'verbose', False, 'Print every estimate, and what each means.', **own
  )
  claims.define_claim(values)


def execute(values: flags.FlagValues, argv: Sequence[str]) -> int:
  """Runs the command, as `program` does."""
  workdirs = values(list(argv))[1:]
  workdirs += [values.workdir] if values.workdir else []
  if len(workdirs) != 1:
    raise app.UsageError(
      f'{len(workdirs)} directories were given. Give the directory of one '
      'finished run.'
    )
  claim = values.claim
  claims.check_claim(claim)
  from epe_jax.experiment import finished_runs
  from epe_jax.report import report

  path = report.write_report(workdirs[0])
  result = finished_runs.load_result(workdirs[0])
  is_verbose = values.verbose
  form = report.format_report if is_verbose else report.format_summary
  print(f'{form(result)}\n\nWrote {path} and its figures.')
  bounds = claims.choose_bounds(result.audit)
  return claims.report_claim(claim, bounds)
