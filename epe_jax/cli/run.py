"""Trains a model with canaries, audits the run, and writes its report.

  epe-jax run digits
  epe-jax run emnist:smoke --config.data.synthetic=True
  epe-jax run digits --config.rounds=10 --workdir=runs/short
  epe-jax run my_config.py --claim=3

A config is digits, emnist or stackoverflow, or the path of your own file. Append :MODE,
such as :smoke, to select one of its modes. --config.FIELD=VALUE sets a field.

An interrupted run resumes from its checkpoint. For a finished run, the result is
printed. All devices of the machine share the work; without an accelerator, each core
is a device. To use several machines, start the same command on each with
--distributed. If JAX does not recognise the cluster, use

  --coordinator=HOST:PORT --num_processes=N --process_id=I

instead, with a port of the first machine that the others can reach, and I from 0 to
N - 1.

With --claim=EPS the exit status is 1 if the headline bound exceeds EPS, or if the
rounds reject it. At most 5 % of true claims fail each test.

With --mlflow or --wandb a finished run is logged there, as often as it is called.

Exit status: 130 after Ctrl-C, 143 after SIGTERM. What is finished is kept, and the same
command goes on from there.
"""

import argparse
from collections.abc import Sequence
import pathlib
import re
import sys

from absl import flags, logging

from epe_jax.cli import claims, command_flags, config_flags
from epe_jax.cli.command_flags import Flag
from epe_jax.experiment import stopping

_TRACKERS = {'mlflow': 'MLflow', 'wandb': 'Weights & Biases'}


def define_flags(values: flags.FlagValues) -> None:
  """Defines the flags of `run`."""
  command_flags.define(
    values,
    command_flags.CONFIG,
    command_flags.WORKDIR._replace(
      help='Folder of the run. Default: runs/CONFIG.'
    ),
    Flag(
      'distributed',
      'This is one of several processes on a cluster that JAX recognises.',
      bool,
      False,
    ),
    Flag('coordinator', 'HOST:PORT of the first of several processes.'),
    Flag('num_processes', 'Number of processes.', int, smallest=1),
    Flag('process_id', 'Index of this process, from 0.', int, smallest=0),
    command_flags.CLAIM._replace(
      help='Claimed ε of the run. Training warns if its rounds reject the claim. '
      'Short for --config.audit.claim.'
    ),
    *(
      Flag(name, f'Logs ε and result.json to {title} at the end.', bool, False)
      for name, title in _TRACKERS.items()
    ),
    command_flags.VERBOSE,
  )


@stopping.exit_on_signal
def execute(values: flags.FlagValues, argv: Sequence[str]) -> int:
  """Runs the command, as `program` does."""
  parsed = config_flags.parse(values, argv)
  name, config = config_flags.require_config(parsed)
  from epe_jax import progress

  with progress.phase('importing'):
    from epe_jax.cli import trackers
    from epe_jax.experiment import finished_runs, workdirs
    from epe_jax.experiment.setup import config as config_lib
    from epe_jax.report import provenance, report

  logging.set_verbosity(logging.WARNING)
  tracked = [name for name in _TRACKERS if getattr(values, name)]
  # An error of these would come after training.
  trackers.check([*tracked, 'matplotlib', 'markdown_it'])
  workdir = values.workdir
  if workdir is None:
    workdir = str(pathlib.Path('runs', config_lib.name_run(name)))
  names = ('coordinator', 'num_processes', 'process_id')
  cluster = tuple(getattr(values, name) for name in names)
  is_distributed = values.distributed or cluster != (None, None, None)
  if values.claim is not None:
    config.audit.claim = values.claim
  result = None
  if not is_distributed:
    # It is shown without JAX, whose import takes most of the time.
    result = finished_runs.find_result(workdir, config)
    if result is not None:
      print(f'{workdir} is finished: nothing is trained.', file=sys.stderr)
  if result is None:
    with progress.phase('importing JAX'):
      from epe_jax.experiment import audited_run, programs
      from epe_jax.experiment.setup import config as config_lib
      from epe_jax.parallel import hosts

    config = config_lib.check_config(config)
    programs.keep_programs()
    hosts.use_cores(config.clients_per_round)
    if is_distributed:
      hosts.initialize_distributed(*cluster)
    result = audited_run.run(config, workdir, argv=_leave_out_places(argv[1:]))
  if result is None:
    # Only the first of several processes has the result.
    return 0
  form = report.format_report if values.verbose else report.format_summary
  print(form(result, provenance.identify_workdir(workdir, result)))
  files = workdirs.workdir_at(workdir)
  try:
    if not workdirs.has_report(files):
      with progress.phase('drawing the report'):
        report.write_report(workdir)
  except (ValueError, OSError) as error:
    raise ValueError(f'no report: {error}') from error
  trackers.log(tracked, result, files.result)
  page = files.report.with_suffix('.html')
  print(f'\nReport: {page}, model: {files.model}')
  claim = config.audit.claim
  return claims.report_claim(
    claim,
    claims.choose_bounds(result.audit),
    test=result.claim,
    whom=claims.describe_whom(claim, result),
  )


def _leave_out_places(argv: Sequence[str]) -> list[str]:
  """The words of a command line but the folder, machines and trackers of its run."""
  places = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
  for name in ('workdir', 'coordinator', 'num_processes', 'process_id'):
    places.add_argument(f'--{name}', f'-{name}')
  is_switch = re.compile(
    rf'--?(no)?({"|".join(_TRACKERS)}|distributed)(=.*)?'
  ).fullmatch
  return [x for x in places.parse_known_args(argv)[1] if not is_switch(x)]
