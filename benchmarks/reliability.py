"""What becomes of commands that are killed or fill a disk, and of long runs.

  python -m benchmarks.reliability --out=docs/data

Kills `epe-jax run`, `sweep` and `data` at random instants by random signals and repeats
them, and fills the disk below them. Then 20,000 rounds with an evaluation and a checkpoint
every 200, and a sweep of 20 points, are sampled once a second. Fails if work is lost, or if
what a process holds grows. It takes about an hour on 2 cores; --quick tries everything once.
"""

from collections.abc import Callable, Mapping, Sequence
import functools
import itertools
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
from typing import Any, NamedTuple

from absl import app, flags
import numpy as np
import pandas as pd
import psutil

from benchmarks import study
from epe_jax import io, python_path
from epe_jax.experiment import metrics, workdirs
from tests import tff_files

_OUT = flags.DEFINE_string('out', None, 'Folder of the data files.')
_QUICK = flags.DEFINE_bool('quick', False, 'Everything once: does it run?')

# Of those that end a process, twice the one that nothing can defer.
_SIGNALS = ('SIGKILL', 'SIGKILL', 'SIGTERM', 'SIGINT', 'SIGHUP', 'SIGQUIT')
# What a terminal sends to all processes in it.
_OF_TERMINAL = ('SIGINT', 'SIGHUP', 'SIGQUIT')
# Kills in a row, before the command may end; and seconds after which it hangs.
_IN_A_ROW, _MAX_SECONDS = 3, 600.0
_PROGRAM = python_path.make_command(
  'from epe_jax import cli; sys.exit(cli.main())'
)
# What each run has of its own, however it went.
_TIMES = ('date', 'seconds', 'seconds_per_round', 'waited_share', 'sha256')
_SAME = 'same result, to the last bit'
_REFUSED, _LOST = 'an error names what is wrong', 'data lost, or no error'
# The disk is of this process alone, and gone with it.
_SCRIPT = """
mount -t tmpfs -o size=$SIZE none "$DISK" || exit 77
"$@" > "$LOG" 2>&1
echo $? > "$LOG.status"
cp "$LOG" "$LOG.first"
mount -o remount,size=1g "$DISK" && "$@" > "$LOG" 2>&1
echo $? > "$LOG.status.again"
cp -r "$DISK/work" "$OUT/work"
"""
# Growth of the median from the second quarter to the last: of memory what the
# allocator may keep, of all else only what comes and goes.
_ALLOWED = {'memory, MB': 0.05, 'descriptors': 0.1, 'threads': 0.1}


class Trial(NamedTuple):
  """A fault of a kind, the command that it befell, and what became of the work."""

  fault: str
  subject: str
  outcome: str
  detail: str


@functools.cache
def make_source() -> pathlib.Path:
  """A file to import, in the format of federated EMNIST, of 400 clients."""
  path = pathlib.Path(tempfile.mkdtemp()) / 'emnist_all.sqlite'
  rows = [
    (split, f'c{client:03}', tff_files.image(i % 10, value=client / 400))
    for split, num in (('train', 12), ('test', 2))
    for client in range(400)
    for i in range(num)
  ]
  tff_files.write(path, rows)
  return path


_RUN = ('--config.rounds=12', '--config.checkpoint_every=3')
_SWEEP = ('--axis=noise_multiplier=0.1,0.2', '--jobs=2')
SUBJECTS: dict[str, Callable[[pathlib.Path], Sequence[str]]] = {
  'run': lambda work: ['run', 'digits:smoke', *_RUN, f'--workdir={work}'],
  'sweep': lambda work: [
    *('sweep', 'digits:smoke', *_RUN, *_SWEEP, f'--workdir={work}')
  ],
  'import': lambda work: ['data', str(make_source()), f'--out={work}'],
}
"""Commands of `epe-jax` that are repeated until they have ended, for a folder."""


def read(subject: str, work: pathlib.Path) -> dict[str, Any]:
  """What a command has left, for comparison, without how long it took.

  Reports end in place, and what a run needs no more is gone.
  """
  contents: dict[str, Any] = {}
  for path in sorted(work.rglob('*')):
    found: Any = None
    if subject == 'import':
      found = path.is_file() and path.read_bytes()
    elif path.suffix == '.npz':
      arrays = io.read_arrays(path)
      found = {
        k: (str(x.dtype), x.shape, x.tobytes()) for k, x in arrays.items()
      }
    elif path.name == 'result.json':
      fields = io.read_sealed(path)
      found = {k: x for k, x in fields.items() if k not in _TIMES}
    elif path.name == 'metrics.jsonl':
      lines = map(json.loads, path.read_text().splitlines())
      found = [{**line, 'seconds': 0, 'waited': 0} for line in lines]
    elif path.name in ('report.md', 'sweep.md', 'checkpoints', 'secret'):
      found = path.is_file()
    if found is not None:
      contents[str(path.relative_to(work))] = found
  return contents


def start(
  command: Sequence[str], folder: pathlib.Path
) -> subprocess.Popen[bytes]:
  """Starts a command in a process group of its own, with its cache and log there."""
  with (folder / 'log').open('wb') as file:
    return subprocess.Popen(
      [*_PROGRAM, *command],
      env=make_environment(folder),
      stdout=file,
      stderr=subprocess.STDOUT,
      start_new_session=True,
    )


def make_environment(folder: pathlib.Path, **variables: str) -> dict[str, str]:
  """The environment of a command, with its cache in a folder."""
  cache = str(folder / 'cache')
  return {**os.environ, 'XDG_CACHE_HOME': cache, **variables}


@functools.cache
def make_undisturbed(subject: str) -> tuple[Mapping[str, Any], float]:
  """What a command leaves to which nothing happens, and its seconds."""
  with tempfile.TemporaryDirectory() as name:
    folder, begun = pathlib.Path(name), time.monotonic()
    work = folder / 'work'
    if start(SUBJECTS[subject](work), folder).wait(_MAX_SECONDS):
      raise RuntimeError((folder / 'log').read_text())
    return read(subject, work), time.monotonic() - begun


def judge(subject: str, folder: pathlib.Path, code: int, log: str) -> str:
  """What became of a command that was repeated after a fault."""
  if code:
    return _REFUSED if is_explained(log) else _LOST
  left, expected = read(subject, folder / 'work'), make_undisturbed(subject)[0]
  return _SAME if left == expected else _LOST


def is_explained(log: str) -> bool:
  """Whether a command says why it fails. Threads of libraries may have tracebacks."""
  return 'Traceback' not in log or any(
    line.startswith('error: ') for line in log.splitlines()
  )


def kill_in_a_row(subject: str, seed: int) -> list[Trial]:
  """Kills a command at random instants, three times; then it may end.

  Returns:
    A trial for each kill, with one outcome. A command that ends before it is killed
    has none.
  """
  rng = np.random.default_rng([seed, sum(map(ord, subject))])
  longest = make_undisturbed(subject)[1]
  killed = []
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    command = SUBJECTS[subject](folder / 'work')
    for _ in range(_IN_A_ROW):
      signum, after = str(rng.choice(_SIGNALS)), float(rng.uniform(0, longest))
      process = start(command, folder)
      try:
        process.wait(after)
        break
      except subprocess.TimeoutExpired:
        killed.append(f'{signum} after {after:.2f} s, seed {seed}')
      if signum in _OF_TERMINAL:
        os.killpg(process.pid, signal.Signals[signum])
      else:
        process.send_signal(signal.Signals[signum])
      process.wait(_MAX_SECONDS)
    else:
      process = start(command, folder)
      process.wait(_MAX_SECONDS)
    log = (folder / 'log').read_text()
    outcome = judge(subject, folder, process.returncode, log)
  return [Trial('kill', subject, outcome, detail) for detail in killed]


def fill_disk(subject: str, kilobytes: int) -> list[Trial]:
  """Runs a command on a small disk, and again on the same when it is large."""
  make_undisturbed(subject)
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    disk, log = folder / 'disk', folder / 'log'
    disk.mkdir()
    variables = dict(SIZE=f'{kilobytes}k', DISK=disk, LOG=log, OUT=folder)
    command = [*_PROGRAM, *SUBJECTS[subject](disk / 'work')]
    subprocess.run(
      ['unshare', '-rm', 'sh', '-c', _SCRIPT, 'sh', *command],
      env=make_environment(disk, **{k: str(x) for k, x in variables.items()}),
      timeout=2 * _MAX_SECONDS,
      check=True,
    )
    first = (folder / 'log.first').read_text()
    code, again = (
      int((folder / f'log.status{x}').read_text()) for x in ('', '.again')
    )
    outcome = judge(subject, folder, again, log.read_text())
    if code and not is_explained(first):
      outcome = _LOST
    return [Trial('full disk', subject, outcome, f'{kilobytes:,} kB')]


def can_mount() -> bool:
  """Whether a small disk can be made here."""
  if shutil.which('unshare') is None:
    return False
  command = 'mount -t tmpfs -o size=4k none /tmp'
  return not subprocess.run(['unshare', '-rm', 'sh', '-c', command]).returncode


def tabulate(trials: Sequence[Trial]) -> pd.DataFrame:
  """Outcomes by fault and by command."""
  rows = pd.DataFrame(trials)
  counts: Any = pd.get_dummies(rows.outcome, dtype=int).reindex(
    columns=[_SAME, _REFUSED, _LOST], fill_value=0
  )
  counts.insert(0, 'trials', 1)
  kinds = [rows.fault, rows.subject.rename('command')]
  return counts.groupby(kinds, sort=False).sum().reset_index()


def watch(
  arguments: Sequence[str], folder: pathlib.Path, every: float = 1.0
) -> pd.DataFrame:
  """What the process of a command holds, sampled until it ends.

  Raises:
    RuntimeError: it fails.
  """
  work, samples = folder / 'work', []
  process = start([*arguments, f'--workdir={work}'], folder)
  while process.poll() is None:
    time.sleep(every)
    try:
      samples.append(sample_process(process.pid, work))
    except (psutil.Error, FileNotFoundError):
      # It has just ended, or replaced a file.
      continue
  if process.returncode:
    raise RuntimeError((folder / 'log').read_text())
  return pd.DataFrame(samples)


def sample_process(pid: int, work: pathlib.Path) -> dict[str, float]:
  """Finished rounds of a run, or points of a sweep, and what its process holds.

  Raises:
    psutil.Error: it has ended.
    FileNotFoundError: it has just replaced a file.
  """
  process, log = psutil.Process(pid), workdirs.workdir_at(work).metrics
  done = len([*work.glob('*/result.json')])
  if log.exists():
    # The last line may be half written.
    lines = metrics.read_last_lines(log, 2)
    done = int(lines[-1]['round']) if lines else 0
  sample = {
    'finished': done,
    'memory, MB': process.memory_info().rss / 1e6,
    'descriptors': process.num_fds(),
    'threads': process.num_threads(),
    'disk, MB': sum(x.stat().st_size for x in work.rglob('*') if x.is_file())
    / 1e6,
  }
  if process.status() == psutil.STATUS_ZOMBIE:
    # It has ended, and what it held reads as nothing.
    raise psutil.ZombieProcess(pid)
  return sample


def summarize(samples: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
  """Medians of the second and the last quarter, the largest of all, and what grows.

  Quarters are of the time from the first finished round, or point, to the last. Peaks
  come and go: when points are drawn, and behind the last round with its report.
  """
  rows = []
  for name, sampled in samples.items():
    done: Any = sampled.pop('finished')
    # Of what ends at once, no sample may be between the first and the last.
    begun: Any = sampled[(done > 0) & (done < done.iloc[-1])]
    begun = sampled if begun.empty else begun
    quarter = max(1, len(begun) // 4)
    early, late = begun[quarter : 2 * quarter], begun[-quarter:]
    before = (begun if early.empty else early).median()
    after, largest = late.median(), sampled.max()
    for held in sampled:
      grown = after[held] > before[held] * (1 + _ALLOWED.get(held, np.inf))
      values = before[held], after[held], largest[held]
      rows.append([name, held, *(f'{x:,.4g}' for x in values), grown])
  head = 'process,what it holds,second quarter,last quarter,largest,grown'
  return pd.DataFrame(rows, columns=head.split(','))


def main(argv: list[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'{argv[1]!r} is not a flag; see --help.')
  if _OUT.value:
    # Before hours of work, not after them.
    pathlib.Path(_OUT.value).mkdir(parents=True, exist_ok=True)
  start = time.monotonic()
  seeds, sizes, rounds, points = (
    range(25),
    np.geomspace(4, 6000, 12),
    20_000,
    20,
  )
  if _QUICK.value:
    seeds, sizes, rounds, points = range(1), [4], 400, 2
  trials = []

  def add(made: Sequence[Trial]) -> None:
    trials.extend(made)
    print(*made, sep='\n', flush=True)

  for subject, seed in itertools.product(SUBJECTS, seeds):
    add(kill_in_a_row(subject, seed))
  if can_mount():
    for subject, size in itertools.product(SUBJECTS, sizes):
      add(fill_disk(subject, round(size)))
  counts, lost = tabulate(trials), [x for x in trials if x.outcome == _LOST]
  print(counts.to_string(index=False), flush=True)
  config = 'digits:smoke'
  commands = {
    f'{rounds:,} rounds': [
      *('run', config, f'--config.rounds={rounds}'),
      *('--config.evaluate_every=200', '--config.checkpoint_every=200'),
    ],
    f'{points} points': [
      *('sweep', config, '--jobs=2'),
      f'--axis=seed={",".join(map(str, range(points)))}',
    ],
  }
  samples = {}
  for name, arguments in commands.items():
    with tempfile.TemporaryDirectory() as folder:
      samples[name] = watch(arguments, pathlib.Path(folder))
  held = summarize(samples)
  print(held.to_string(index=False))
  if _OUT.value:
    made = {'fault_counts': counts, 'soak': held.drop(columns='grown')}
    study.write_data(pathlib.Path(_OUT.value), made, start)
  if lost or (held.grown.any() and not _QUICK.value):
    raise SystemExit('Work is lost, or what a process holds grows.')


if __name__ == '__main__':
  app.run(main)
