"""A long run and a long sweep: memory, descriptors, threads and disk stay as they are.

  python benchmarks/soak.py --out=docs/data

runs 20,000 rounds of digits with an evaluation and a checkpoint every 200, and a sweep of
20 points, and samples their processes once a second. Writes the samples and what they come
to, and draws them. Fails if what a process holds grows. It takes some ten minutes on 2 cores.
"""

from collections.abc import Mapping, Sequence
import pathlib
import statistics
import tempfile
import time
from typing import NamedTuple

from absl import app, flags
import harness
from matplotlib import figure
import pandas as pd
import psutil
from studies import trials

from epe_jax.experiment import metrics, workdirs
from epe_jax.report.figures import style

_ROUNDS = flags.DEFINE_integer('rounds', 20_000, 'Of the run.', lower_bound=400)
_POINTS = flags.DEFINE_integer('points', 20, 'Of the sweep.', lower_bound=2)
_OUT = flags.DEFINE_string('out', None, 'Folder of data files and the figure.')

_EVERY = 1.0
# Growth of the median from the second quarter to the last: of memory what the
# allocator may keep, of all else nothing but what comes and goes.
_ALLOWED = {'memory_mb': 0.05, 'descriptors': 0.1, 'threads': 0.1}
_NAMES = {
  'memory_mb': 'memory, MB',
  'descriptors': 'descriptors',
  'threads': 'threads',
  'disk_mb': 'disk, MB',
}


class Sample(NamedTuple):
  """What a process holds at an instant.

  Attributes:
    seconds: since its start.
    rounds: that are finished, of a run; points, of a sweep.
    memory_mb: resident.
    descriptors: that are open.
    threads: of the process.
    disk_mb: of its folder.
  """

  seconds: float
  rounds: int
  memory_mb: float
  descriptors: int
  threads: int
  disk_mb: float


def watch(arguments: Sequence[str], folder: pathlib.Path) -> list[Sample]:
  """Runs `epe-jax` in a folder, and samples it once a second.

  Raises:
    RuntimeError: it fails.
  """
  begun, samples = time.monotonic(), []
  command = [*trials.PROGRAM, *arguments, f'--workdir={folder / "work"}']
  environment = trials.make_environment(folder)
  with (
    (folder / 'log').open('wb') as log,
    harness.time_program(command, stdout=log, stderr=log, env=environment) as (
      process,
      _,
    ),
  ):
    while process.poll() is None:
      time.sleep(_EVERY)
      try:
        samples.append(
          sample_process(process.pid, folder / 'work', time.monotonic() - begun)
        )
      except (psutil.Error, FileNotFoundError):
        # It has just ended, or replaced a file.
        continue
  return samples


def sample_process(pid: int, workdir: pathlib.Path, seconds: float) -> Sample:
  """What a process holds after so many seconds.

  Raises:
    psutil.Error: it has ended.
    FileNotFoundError: it has just replaced a file.
  """
  process = psutil.Process(pid)
  sample = Sample(
    round(seconds, 1),
    _count(workdir),
    process.memory_info().rss / 1e6,
    process.num_fds(),
    process.num_threads(),
    sum(x.stat().st_size for x in workdir.rglob('*') if x.is_file()) / 1e6,
  )
  if process.status() == psutil.STATUS_ZOMBIE:
    # It has ended, and what it held reads as nothing.
    raise psutil.ZombieProcess(pid)
  return sample


def _count(workdir: pathlib.Path) -> int:
  """Finished rounds of a run, or finished points of a sweep."""
  path = workdirs.workdir_at(workdir).metrics
  if not path.exists():
    return len([*workdir.glob('*/result.json')])
  # The last line may be half written.
  lines = metrics.read_last_lines(path, 2)
  return int(lines[-1]['round']) if lines else 0


def summarize(
  samples: Mapping[str, Sequence[Sample]],
) -> tuple[pd.DataFrame, list[str]]:
  """Medians of the second and the last quarter, the largest of all, and what grows.

  Quarters are of the time from the first finished round, or point, to the last. Peaks
  come and go: when points are drawn, and behind the last round with its report.
  """
  body, grown = [], []
  for name, of_process in samples.items():
    last = of_process[-1].rounds
    # Of what ends at once, no sample may be between the first and the last.
    begun = [x for x in of_process if 0 < x.rounds < last] or of_process
    quarter = max(1, len(begun) // 4)
    early, late = begun[quarter : 2 * quarter] or begun, begun[-quarter:]
    for field, title in _NAMES.items():
      before, after = (
        statistics.median(getattr(x, field) for x in some)
        for some in (early, late)
      )
      largest = max(getattr(x, field) for x in of_process)
      body.append(
        [name, title, *(f'{x:,.4g}' for x in (before, after, largest))]
      )
      share = _ALLOWED.get(field)
      if share is not None and after > before * (1 + share):
        grown.append(f'{title} of {name}: {before:.4g} to {after:.4g}')
  head = ['process', 'what it holds', 'second quarter', 'last quarter']
  return pd.DataFrame(body, columns=[*head, 'largest']), grown


def draw(samples: Mapping[str, Sequence[Sample]]) -> figure.Figure:
  """Each of the four against the rounds, or points, that are finished."""
  fig, axes = style.make_panels(len(samples) * len(_NAMES), columns=len(_NAMES))
  for i, (name, of_process) in enumerate(samples.items()):
    for k, (field, title) in enumerate(_NAMES.items()):
      panel = axes[i * len(_NAMES) + k]
      panel.plot(
        [x.rounds for x in of_process],
        [getattr(x, field) for x in of_process],
        color=style.BLUE,
      )
      panel.set(title=title, xlabel=f'finished {name.split()[1]}')
      panel.set_ylim(bottom=0)
  return fig


def main(argv: list[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'{argv[1]!r} is not a flag; see --help.')
  seeds = ','.join(map(str, range(_POINTS.value)))
  commands = {
    f'{_ROUNDS.value:,} rounds': [
      *('run', 'digits:smoke', f'--config.rounds={_ROUNDS.value}'),
      *('--config.evaluate_every=200', '--config.checkpoint_every=200'),
    ],
    f'{_POINTS.value} points': [
      *('sweep', 'digits:smoke', f'--axis=seed={seeds}', '--jobs=2')
    ],
  }
  samples = {}
  for name, arguments in commands.items():
    with tempfile.TemporaryDirectory() as folder:
      samples[name] = watch(arguments, pathlib.Path(folder))
  table, grown = summarize(samples)
  print(table.to_string(index=False))
  if _OUT.value:
    folder = pathlib.Path(_OUT.value)
    table.to_csv(folder / 'soak.csv', index=False)
    frame = pd.DataFrame(
      {'process': name, **x._asdict()}
      for name, some in samples.items()
      for x in some
    )
    frame.to_csv(folder / 'soak_samples.csv', index=False, float_format='%.4g')
    draw(samples).savefig(folder / 'soak.svg', metadata={'Date': None})
  if grown:
    raise SystemExit('; '.join(grown))


if __name__ == '__main__':
  app.run(main)
