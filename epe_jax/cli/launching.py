"""The flags that say where the runs of a sweep are started."""

from collections.abc import Callable
import functools
import os

from absl import flags

from epe_jax.cli import config_flags
from epe_jax.cli.command_flags import Flag
from epe_jax.experiment.sweeps import launch

JOBS = Flag(
  'jobs',
  'Number of runs in parallel, each on GPUs or cores of its own; default: one '
  'for each GPU, one on a CPU, and all on a cluster.',
  int,
)
DEVICES_PER_JOB = Flag(
  'devices_per_job',
  'Number of GPUs, or cores, of each run; default: equal shares, and on a '
  'cluster what its options say.',
  int,
)
LAUNCHER = Flag(
  'launcher',
  'Where runs are started: on this machine, or on a Slurm or Ray cluster all of whose '
  'machines see the workdir.',
  tuple(launch.ENGINES),
  'local',
)
LAUNCHER_OPTION = Flag(
  'launcher_option',
  'NAME=VALUE: a parameter of a job of submitit, such as slurm_partition=gpu or '
  'timeout_min=600, or of a task of Ray, such as num_cpus=4. May be repeated.',
  set,
  [],
)
FLAGS = (JOBS, DEVICES_PER_JOB, LAUNCHER, LAUNCHER_OPTION)


def make_launch(
  values: flags.FlagValues, folder: str | os.PathLike[str]
) -> Callable[[], launch.Launcher]:
  """Makes the function that makes a launcher, once there are runs for it.

  Raises:
    ValueError: a number is out of range.
    app.UsageError: an option is not a NAME=VALUE.
  """
  numbers = {'jobs': values.jobs, 'devices_per_job': values.devices_per_job}
  launch.check_counts(**numbers)
  return functools.partial(
    launch.make_launcher,
    values.launcher,
    **numbers,
    options=config_flags.parse_assignments(
      'launcher_option', values.launcher_option
    ),
    folder=folder,
  )
