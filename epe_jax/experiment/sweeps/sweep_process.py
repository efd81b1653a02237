"""The processes that a sweep starts: one checks all points, the others run one each.

A point that fails, or is killed for lack of memory, takes no other with it. Each
process takes its work from the first line of stdin, and ends when that pipe does.
"""

from collections.abc import Mapping
import functools
import json
import signal
import sys
import time
from typing import Any

from absl import logging
from ml_collections import config_dict

from epe_jax.experiment import audited_run, programs, stopping, workdirs
from epe_jax.experiment.setup import build, workloads
from epe_jax.experiment.setup import config as config_lib
from epe_jax.experiment.setup.config import Config
from epe_jax.experiment.sweeps import launch, seed_sweep, sweep_points
from epe_jax.parallel import hosts

# Fields that decide which data and which model are loaded.
_LOADED_BY = (
  'data',
  'model',
  'task',
  'seed',
  'evaluate_examples',
  'simulation',
)

# Seconds between two attempts to get a point that another process has.
_INTERVAL = 1.0


def find_faults(configs: Mapping[str, Config]) -> dict[str, str]:
  """Finds what would keep points from starting: in fields, data or participation.

  Nothing is trained and no workdir is touched.

  Returns:
    The reasons, by the names of the points that cannot be run.
  """
  faults, loaded = {}, None
  for name, config in configs.items():
    config, _ = sweep_points.split_seeds(config)
    key = {field: config.to_dict().get(field) for field in _LOADED_BY}
    try:
      # Consecutive points mostly share their data.
      if loaded is None or loaded[0] != key:
        checked = config_lib.check_config(config)
        loaded = key, workloads.load_workload(checked)
      build.check(config, loaded[1])
    except (ValueError, OSError) as error:
      faults[name] = str(error)
    # What an import of a user's own may raise.
    except (ImportError, TypeError, KeyError) as error:
      faults[name] = repr(error)
  return faults


def _check(work: Mapping[str, Any]) -> None:
  logging.set_verbosity(logging.ERROR)
  configs = {name: config_dict.ConfigDict(x) for name, x in work.items()}
  print(f'\n{json.dumps(find_faults(configs))}', flush=True)


def _explain_resuming() -> str:
  # The command of this process would wait for a config on stdin.
  return f'To resume, repeat the sweep, which was started by: {sys.argv[3]}'


@functools.partial(stopping.exit_on_signal, explain_resuming=_explain_resuming)
def _run(work: Mapping[str, Any], workdir: str, is_distributed: bool) -> None:
  """Runs a point, once no other process does, such as one of a previous sweep."""
  config: Config = config_dict.ConfigDict(work)
  _, num_seeds = sweep_points.split_seeds(config)
  programs.keep_programs()
  if is_distributed:
    hosts.initialize_distributed()
  elif num_seeds is None:
    hosts.use_cores(config.clients_per_round)
  is_announced = False
  while True:
    try:
      if num_seeds is None:
        audited_run.run(config, workdir)
      else:
        stopping.wait_for(lambda: seed_sweep.run_seeds(config, workdir))
      return
    except workdirs.WorkdirLocked as busy:
      if is_distributed:
        # The others are in the middle of the run already.
        print(busy, file=sys.stderr, flush=True)
        raise SystemExit(launch.EXIT_BUSY) from busy
      if not is_announced:
        print(f'Waiting: {busy}', file=sys.stderr, flush=True)
      is_announced = True
    except (ValueError, FileNotFoundError, FloatingPointError) as error:
      raise SystemExit(f'{type(error).__name__}: {error}') from error
    time.sleep(_INTERVAL)


def main() -> None:
  """Does the work on the first line of stdin.

  The arguments are `check`; or `run`, the workdir of a point, and the command that
  started the sweep; or `run_distributed` and the same, in one of several processes
  of a cluster that JAX recognises.
  """
  if hasattr(signal, 'SIGUSR2'):
    # By which Slurm tells submitit, and some clusters all processes, of the end of a job.
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
  work = json.loads(sys.stdin.readline())
  stopping.end_with_parent()
  if sys.argv[1] == 'check':
    _check(work)
  else:
    _run(work, sys.argv[2], sys.argv[1] == 'run_distributed')
