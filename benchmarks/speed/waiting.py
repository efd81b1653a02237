"""How long a user waits for the default job and for other commands.

  python -m benchmarks.speed.waiting

The job is run twice as a user runs it, with an empty cache of compiled programs and
with the cache that the first run left; it is then called once more, its report is drawn
again, and ε is estimated from a file of 1000 + 1000 scores. All of that is repeated, and
medians are recorded. CPU seconds are recorded too, since other work on the machine
changes them less. --quick takes the smoke config.
"""

from collections.abc import Sequence
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from absl import flags
import numpy as np

from benchmarks import harness
from epe_jax.experiment import workdirs

_REPEATS = flags.DEFINE_integer(
  'repeats', 3, 'Repetitions of everything; medians are recorded.', 1
)
_PROGRAM = (sys.executable, '-m', 'epe_jax')
# Seconds between two reads of the log of a run.
_INTERVAL = 0.02


def time_all(config: str, folder: pathlib.Path) -> dict[str, dict[str, float]]:
  """Times each command once, beginning with an empty cache of programs."""
  environment = {**os.environ, 'XDG_CACHE_HOME': str(folder)}
  environment.pop('JAX_COMPILATION_CACHE_DIR', None)
  scores = folder / 'scores.csv'
  normals = np.random.default_rng(0).normal((1.0, 0.0), size=(1000, 2))
  np.savetxt(scores, normals, '%.6f', ',', header='in,out', comments='')

  def call(*arguments: str, workdir: pathlib.Path | None = None):
    return time_command((*_PROGRAM, *arguments), environment, workdir)

  def run(name: str) -> dict[str, float]:
    workdir = folder / name
    return call('run', config, f'--workdir={workdir}', workdir=workdir)

  return {
    'run, nothing compiled': run('first'),
    'run, programs kept': run('second'),
    'run that is finished': run('second'),
    'report': call('report', str(folder / 'second')),
    'estimate': call('estimate', str(scores), '--delta=1e-5'),
  }


def time_command(
  command: Sequence[str],
  environment: dict[str, str],
  workdir: pathlib.Path | None = None,
) -> dict[str, float]:
  """Times a command, and the first round of the run in a new workdir."""
  log = workdir and workdirs.workdir_at(workdir).metrics
  watched = log if log and not log.exists() else None
  begun, first_round = time.monotonic(), {}
  with harness.time_program(
    command,
    cwd=harness.HERE.parent,
    env=environment,
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
  ) as (process, times):
    while process.poll() is None:
      # The first line of a log is the evaluation before the first round.
      if watched and watched.exists() and watched.read_bytes().count(b'\n') > 1:
        first_round = {'seconds_to_first_round': time.monotonic() - begun}
        watched = None
      time.sleep(_INTERVAL)
  return times | first_round


def measure(quick: bool) -> dict:
  config = 'digits' + (':smoke' if quick else '')
  repeats = []
  for _ in range(_REPEATS.value):
    with tempfile.TemporaryDirectory() as folder:
      repeats.append(time_all(config, pathlib.Path(folder)))
  return {
    'config': config,
    'repeats': _REPEATS.value,
    'programs': {
      name: {
        kind: round(statistics.median(x[name][kind] for x in repeats), 2)
        for kind in kinds
      }
      for name, kinds in repeats[0].items()
    },
  }


if __name__ == '__main__':
  harness.run(measure, 'jax', 'numpy', 'scipy', 'matplotlib')
