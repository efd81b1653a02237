"""How long one waits for the default job, and for which of its parts.

  python benchmarks/waiting.py

The job is run twice as a user runs it, with an empty cache of compiled programs and
with the one that the first run left, and then shown once more. Seconds of the
processor are beside those of the clock, since other work on the machine changes the
first less. --quick takes the smoke config.
"""

from collections.abc import Callable, Sequence
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

from absl import app, flags
import record

from epe_jax.audit import estimates
from epe_jax.audit.record import load_record
from epe_jax.experiment import metrics, workdirs
from epe_jax.report import report

_QUICK = flags.DEFINE_bool('quick', False, 'The smoke config.')
_OUT = flags.DEFINE_string(
  'out', str(record.FOLDER / 'waiting.json'), 'File of the result.'
)

_ROOT = pathlib.Path(__file__).parents[1]
_IMPORTS = (
  'from epe_jax.experiment import audited_run; import epe_jax.report.report'
)
# Seconds between two looks at the log of a run.
_INTERVAL = 0.05


def main(argv: list[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'{argv[1]!r} is no flag; see --help.')
  load = os.getloadavg()[0]
  config = 'configs/digits.py' + (':smoke' if _QUICK.value else '')
  with tempfile.TemporaryDirectory() as folder:
    runs = {
      name: pathlib.Path(folder, name) for name in ('first run', 'second run')
    }
    environment = {**os.environ, 'XDG_CACHE_HOME': folder}
    environment.pop('JAX_COMPILATION_CACHE_DIR', None)
    train = [sys.executable, 'scripts/train.py', f'--config={config}']

    def run(workdir: pathlib.Path) -> dict[str, float]:
      return _time_program(
        [*train, f'--workdir={workdir}'], environment, workdir
      )

    programs = {
      'imports': _time_program([sys.executable, '-c', _IMPORTS], environment),
      **{name: run(workdir) for name, workdir in runs.items()},
    }
    shown = runs['second run']
    programs['showing a finished run'] = run(shown)
    files = workdirs.workdir_at(shown)
    scores = load_record(files.scores)
    parts = {
      'estimates without floors': _time_call(
        lambda: estimates.evaluate(scores, floors=False)
      ),
      'estimates with floors': _time_call(lambda: estimates.evaluate(scores)),
      'report and figures': _time_call(lambda: report.write_report(shown)),
      'rounds': {
        'seconds': round(
          sum(
            line.get('seconds', 0) for line in metrics.read_lines(files.metrics)
          ),
          2,
        )
      },
    }
  result = {
    'config': config,
    'quick': _QUICK.value,
    'programs': programs,
    'parts': parts,
    'load_before': round(load, 2),
  }
  record.write(_OUT.value, result, 'jax', 'numpy', 'scipy', 'matplotlib')


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
  times = {'seconds': round(seconds, 2), 'cpu_seconds': round(busy, 2)}
  if first_round is not None:
    times['seconds_to_first_round'] = round(first_round, 2)
  return times


def _time_call(function: Callable[[], object]) -> dict[str, float]:
  start, busy = time.monotonic(), time.process_time()
  function()
  return {
    'seconds': round(time.monotonic() - start, 2),
    'cpu_seconds': round(time.process_time() - busy, 2),
  }


if __name__ == '__main__':
  app.run(main)
