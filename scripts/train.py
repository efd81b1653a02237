"""Trains and audits one run.

  python scripts/train.py --config=configs/digits.py --workdir=runs/digits

A run that was killed goes on from its checkpoint; a finished one is shown.
"""

from absl import app, flags, logging
from ml_collections import config_flags

from epe_jax import experiment, report

_CONFIG = config_flags.DEFINE_config_file(
  'config', None, 'Config file, with :smoke behind it for a very short run.'
)
_WORKDIR = flags.DEFINE_string('workdir', None, 'Folder of the run.')


def main(argv: list[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'{argv[1]!r} is no flag; see --help.')
  logging.set_verbosity(logging.WARNING)
  workdir = str(_WORKDIR.value)
  try:
    result = experiment.run(_CONFIG.value, workdir)
  except (ValueError, FileNotFoundError, FloatingPointError) as error:
    raise SystemExit(f'error: {error}') from error
  print(report.table(result))
  print(f'\nReport, figures and files: {report.write(workdir)}')


if __name__ == '__main__':
  flags.mark_flags_as_required(['config', 'workdir'])
  app.run(main)
