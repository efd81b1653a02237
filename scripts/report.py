"""Draws the report of a finished run again, without training.

  python scripts/report.py WORKDIR

WORKDIR is the --workdir of a run that has finished. Its report.md and figures
are replaced, and the audit table is printed.
"""

from collections.abc import Sequence

from absl import app, flags

from epe_jax.experiment import finished_runs
from epe_jax.report import report

_WORKDIR = flags.DEFINE_string(
  'workdir', None, 'Directory of a finished run; may be given without the flag.'
)
_VERBOSE = flags.DEFINE_bool(
  'verbose', False, 'Print every estimate, and what each means.'
)


def main(argv: Sequence[str]) -> None:
  workdirs = [*argv[1:], *([_WORKDIR.value] if _WORKDIR.value else [])]
  if len(workdirs) != 1:
    raise app.UsageError(
      f'{len(workdirs)} directories were given. Give the directory of one '
      'finished run.'
    )
  try:
    path = report.write_report(workdirs[0])
    form = report.format_report if _VERBOSE.value else report.format_summary
    text = form(finished_runs.load_result(workdirs[0]))
  except (ImportError, FileNotFoundError, ValueError) as error:
    raise SystemExit(f'error: {error}') from error
  print(f'{text}\n\nWrote {path} and its figures.')


if __name__ == '__main__':
  app.run(main)
