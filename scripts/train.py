"""Trains and audits one run.

  python scripts/train.py --config=configs/digits.py --workdir=runs/digits

A run that was killed is resumed from its checkpoint; of a finished one the result is
printed. All devices of the machine share the work; without an accelerator, each
core is a device. So do several machines if each is given the same flags and
--distributed, or where JAX does not recognise the cluster

  --coordinator=HOST:PORT --num_processes=N --process_id=I

with a port of the first one that the others reach, and I from 0 to N - 1.
"""

from absl import app, flags, logging

from epe_jax import extras

with extras.explain_missing():
  from ml_collections import config_flags

  from epe_jax import progress
  from epe_jax.experiment import (
    audited_run,
    compiled_programs,
    config_fields,
    stopping,
    workdirs,
  )
  from epe_jax.parallel import sharding
  from epe_jax.report import report

_CONFIG = config_flags.DEFINE_config_file(
  'config', None, 'Config file, with :smoke behind it for a very short run.'
)
_WORKDIR = flags.DEFINE_string('workdir', None, 'Folder of the run.')
_DISTRIBUTED = flags.DEFINE_bool(
  'distributed', False, 'One of several processes of a cluster JAX recognises.'
)
_COORDINATOR = flags.DEFINE_string(
  'coordinator', None, 'HOST:PORT of the first of several processes.'
)
_NUM_PROCESSES = flags.DEFINE_integer(
  'num_processes', None, 'How many processes there are.', lower_bound=1
)
_PROCESS_ID = flags.DEFINE_integer(
  'process_id', None, 'Which of them this is, from 0.', lower_bound=0
)
_CLAIM = flags.DEFINE_float(
  'claim',
  None,
  'ε that the run claims to have: an alarm is raised, while it goes on, if its '
  'rounds contradict that. Short for --config.audit.claim.',
)
_VERBOSE = flags.DEFINE_bool(
  'verbose', False, 'Print every estimate, and what each means.'
)


@stopping.end_politely
def main(argv: list[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'{argv[1]!r} is no flag; see --help.')
  logging.set_verbosity(logging.WARNING)
  workdir = str(_WORKDIR.value)
  cluster = (_COORDINATOR.value, _NUM_PROCESSES.value, _PROCESS_ID.value)
  try:
    config = _CONFIG.value
    if _CLAIM.value is not None:
      config.audit.claim = _CLAIM.value
    config = config_fields.check_config(config)
    compiled_programs.keep_programs()
    sharding.use_cores(config.clients_per_round)
    if _DISTRIBUTED.value or cluster != (None, None, None):
      sharding.initialize_distributed(*cluster)
    result = audited_run.run(config, workdir)
  except (ValueError, OSError, FloatingPointError, ImportError) as error:
    raise SystemExit(f'error: {error}') from error
  if result is None:
    # The first of several processes has the result, and writes.
    return
  form = report.format_report if _VERBOSE.value else report.format_summary
  print(form(result))
  files = workdirs.workdir_at(workdir)
  try:
    if not workdirs.has_report(files):
      with progress.phase('drawing the report'):
        report.write_report(workdir)
  except (ValueError, OSError) as error:
    raise SystemExit(f'error: no report: {error}') from error
  print(f'\nReport: {files.report}, model: {files.model}')


if __name__ == '__main__':
  flags.mark_flags_as_required(['config', 'workdir'])
  app.run(main, flags_parser=config_fields.parse_flags)
