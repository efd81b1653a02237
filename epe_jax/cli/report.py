"""Rewrites the report of a finished run, or compares several runs, without training.

  epe-jax report runs/digits
  epe-jax report runs/digits --verbose
  epe-jax report runs/digits --claim=3
  epe-jax report runs/a runs/b runs/c --out=comparison

The argument is the --workdir of a finished run. Its reports and figures are replaced,
and the audit table is printed. With --claim=EPS the exit status is 1 if the headline
bound exceeds EPS.

With several runs, their estimates, bounds, and differences from the first run, with
intervals, are written to the folder --out.
"""

from collections.abc import Sequence

from absl import app, flags

from epe_jax.cli import claims, command_flags
from epe_jax.experiment import stopping


def define_flags(values: flags.FlagValues) -> None:
  """Defines the flags of `report`."""
  command_flags.define(
    values,
    command_flags.WORKDIR._replace(
      help='Directory of a finished run; may be given without the flag.'
    ),
    command_flags.OUT._replace(
      help='Folder for the comparison of several runs.', default='comparison'
    ),
    command_flags.VERBOSE,
    command_flags.CLAIM,
  )


@stopping.exit_on_signal
def execute(values: flags.FlagValues, argv: Sequence[str]) -> int:
  """Runs the command, as `program` does."""
  workdirs = values(list(argv))[1:]
  workdirs += [values.workdir] if values.workdir else []
  if not workdirs:
    raise app.UsageError(
      '0 directories were given. Give the directory of one finished run, or of '
      'several to compare.'
    )
  claim = values.claim
  claims.check_claim(claim)
  from epe_jax.experiment import finished_runs
  from epe_jax.report import provenance, report

  if len(workdirs) > 1:
    return _compare(workdirs, values)
  if values['out'].present:
    raise ValueError(
      f'--out={values.out} is of several runs; the report of one is in its workdir. '
      'Leave it out.'
    )
  path = report.write_report(workdirs[0])
  result = finished_runs.load_result(workdirs[0])
  is_verbose = values.verbose
  form = report.format_report if is_verbose else report.format_summary
  text = form(result, provenance.identify_workdir(workdirs[0], result))
  print(f'{text}\n\nWrote {path.with_suffix(".html")} and its figures.')
  bounds = claims.choose_bounds(result.audit)
  whom = claims.describe_whom(claim, result)
  return claims.report_claim(claim, bounds, whom=whom)


def _compare(workdirs: Sequence[str], values: flags.FlagValues) -> int:
  if values.claim is not None:
    raise ValueError(
      f'--claim={values.claim:g} is of one run, but {len(workdirs)} are given.'
    )
  from epe_jax import io
  from epe_jax.report.comparisons import comparison, labelled_runs

  io.check_folder('out', values.out)
  runs = labelled_runs.label_workdirs(workdirs)
  text = comparison.write_comparison(values.out, runs)
  print(f'{text}\n\nWrote {values.out}/comparison.html and its figure.')
  return 0
