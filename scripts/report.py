"""Draws the report of a finished run again, or compares several, without training.

  python scripts/report.py WORKDIR
  python scripts/report.py WORKDIR WORKDIR2 WORKDIR3 --out=FOLDER

WORKDIR is the --workdir of a run that has finished. Its report.md and figures
are replaced, and the audit table is printed. Several runs are compared: their
estimates, bounds, and differences from the first, with intervals, go to FOLDER.
"""

from collections.abc import Sequence

from absl import app, flags

from epe_jax.experiment import finished_runs
from epe_jax.report import comparison, report

_WORKDIR = flags.DEFINE_string(
  'workdir', None, 'Directory of a finished run; may be given without the flag.'
)
_OUT = flags.DEFINE_string(
  'out', 'comparison', 'Folder for the comparison of several runs.'
)
_VERBOSE = flags.DEFINE_bool(
  'verbose', False, 'Print every estimate, and what each means.'
)


def main(argv: Sequence[str]) -> None:
  workdirs = [*argv[1:], *([_WORKDIR.value] if _WORKDIR.value else [])]
  if not workdirs:
    raise app.UsageError(
      '0 directories were given. Give the directory of one finished run, or of '
      'several to compare.'
    )
  try:
    if len(workdirs) > 1:
      runs = comparison.compare_workdirs(workdirs)
      text = comparison.write_comparison(_OUT.value, runs, name='comparison')
      print(f'{text}\n\nWrote {_OUT.value}/comparison.html and its figure.')
      return
    path = report.write_report(workdirs[0])
    form = report.format_report if _VERBOSE.value else report.format_summary
    text = form(finished_runs.load_result(workdirs[0]))
  except (ImportError, FileNotFoundError, ValueError) as error:
    raise SystemExit(f'error: {error}') from error
  print(f'{text}\n\nWrote {path} and its figures.')


if __name__ == '__main__':
  app.run(main)
