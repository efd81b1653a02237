"""How long one waits for the default job, and for what else a user calls.

  python benchmarks/waiting.py

The job is run twice as a user runs it, with an empty cache of compiled programs and
with the one that the first run left; it is shown once more, its report is drawn
again, and ε is estimated from a file of 1000 + 1000 scores. All of that is repeated,
and medians are kept. Seconds of the processor are beside those of the clock, since
other work on the machine changes the first less. --quick takes the smoke config.
"""

from collections.abc import Sequence
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

from absl import app, flags
import numpy as np
import record

from epe_jax.experiment import workdirs

_QUICK = flags.DEFINE_bool('quick', False, 'The smoke config.')
_REPEATS = flags.DEFINE_integer(
  'repeats', 3, 'How often all is done anew; medians are recorded.', 1
)
_OUT = flags.DEFINE_string(
  'out', str(record.FOLDER / 'waiting.json'), 'File of the result.'
)

_ROOT = pathlib.Path(__file__).parents[1]
_PROGRAM = (sys.executable, '-m', 'epe_jax')
# Seconds between two looks at the log of a run.
_INTERVAL = 0.02


def main(argv: list[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'{argv[1]!r} is not a flag; see --help.')
  load = os.getloadavg()[0]
  config = 'digits' + (':smoke' if _QUICK.value else '')
  repeats = []
  for _ in range(_REPEATS.value):
    with tempfile.TemporaryDirectory() as folder:
      repeats.append(_time_all(config, pathlib.Path(folder)))
  programs = {
    name: {
      kind: round(statistics.median(times[name][kind] for times in repeats), 2)
      for kind in repeats[0][name]
    }
    for name in repeats[0]
  }
  result = {
    'config': config,
    'quick': _QUICK.value,
    'repeats': _REPEATS.value,
    'programs': programs,
    'load_before': round(load, 2),
  }
  record.write(_OUT.value, result, 'jax', 'numpy', 'scipy', 'matplotlib')


def _time_all(config: str, folder: pathlib.Path) -> dict[str, dict[str, float]]:
  """Times each program once, beginning without any compiled one."""
  environment = {**os.environ, 'XDG_CACHE_HOME': str(folder)}
  environment.pop('JAX_COMPILATION_CACHE_DIR', None)
  scores = folder / 'scores.csv'
  normals = np.random.default_rng(0).normal((1.0, 0.0), size=(1000, 2))
  np.savetxt(scores, normals, '%.6f', ',', header='in,out', comments='')

  def run(name: str) -> dict[str, float]:
    workdir = folder / name
    command = (*_PROGRAM, 'run', config, f'--workdir={workdir}')
    return _time_program(command, environment, workdir)

  return {
    'run, nothing compiled': run('first'),
    'run, programs kept': run('second'),
    'run that is finished': run('second'),
    'report': _time_program(
      (*_PROGRAM, 'report', str(folder / 'second')), environment
    ),
    'estimate': _time_program(
      (*_PROGRAM, 'estimate', str(scores), '--delta=1e-5'), environment
    ),
  }


def _time_program(
  command: Sequence[str],
  environment: dict[str, str],
  workdir: pathlib.Path | None = None,
) -> dict[str, float]:
  """Times a program, and when the run in a workdir had made its first round."""
  log = workdir and workdirs.workdir_at(workdir).metrics
  had_rounds = log is not None and log.exists()
  before = resource.getrusage(resource.RUSAGE_CHILDREN)
  start, first_round = time.monotonic(), None
  with subprocess.Popen(
    command,
    cwd=_ROOT,
    env=environment,
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
  ) as process:
    while process.poll() is None:
      # The first line of a log is the evaluation before the first round.
      if (
        log is not None
        and not had_rounds
        and first_round is None
        and log.exists()
        and log.read_bytes().count(b'\n') > 1
      ):
        first_round = time.monotonic() - start
      time.sleep(_INTERVAL)
  seconds = time.monotonic() - start
  if process.returncode:
    raise RuntimeError(f'{command} ended with {process.returncode}')
  after = resource.getrusage(resource.RUSAGE_CHILDREN)
  busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
  times = {'seconds': seconds, 'cpu_seconds': busy}
  if first_round is not None:
    times['seconds_to_first_round'] = first_round
  return times


if __name__ == '__main__':
  app.run(main)
