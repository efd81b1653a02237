"""What a fault does to a command that is repeated, or to a file that is read."""

from collections.abc import Callable, Mapping, Sequence
import functools
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any, NamedTuple

import numpy as np

from epe_jax import io, python_path

# The files that the tests have; commands find the package of this checkout.
sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))
from tests import tff_files

SAME, CLOSE, REFUSED = 'same', 'close', 'refused'
"""All is as without the fault, to the last bit or to rounding; an error names what is
wrong."""
UNKNOWN, LOST = 'unknown', 'lost'
"""Another number is read from a file of others, which has no digest; anything else."""

MAX_ROUNDING = 1e-3
"""Relative error within which runs of other numbers of processes agree."""
MAX_SECONDS = 600.0
"""That a command may take, undisturbed. One that takes longer hangs."""

PROGRAM = python_path.make_command(
  'from epe_jax import cli; sys.exit(cli.main())'
)
"""`epe-jax` of this checkout."""

RUN = {'rounds': 12, 'checkpoint_every': 3}
"""The fields that runs set in the config `digits:smoke`."""

# What each run has of its own, however it went.
_TIMES = ('date', 'seconds', 'seconds_per_round', 'waited_share', 'sha256')
# What other numbers of processes change: the devices, and digests of rounded numbers.
_OF_DEVICES = ('versions', 'model_sha256', 'record_sha256')


class Trial(NamedTuple):
  """A fault, and what became of the work.

  Attributes:
    fault: its kind.
    subject: that it befell.
    detail: of the fault.
    outcome: `SAME`, `CLOSE`, `REFUSED`, `UNKNOWN` or `LOST`.
    reason: the last line of the error.
  """

  fault: str
  subject: str
  detail: str
  outcome: str
  reason: str = ''


class Undisturbed(NamedTuple):
  """What a command leaves if nothing happens, and the seconds that it takes."""

  contents: Mapping[str, Any]
  seconds: float


class Subject(NamedTuple):
  """A command that is repeated until it has ended.

  Attributes:
    arguments: of `epe-jax`, for a folder.
    read: what is in the folder in the end, for comparison.
  """

  arguments: Callable[[pathlib.Path], Sequence[str]]
  read: Callable[[pathlib.Path], Mapping[str, Any]]


def read_runs(folder: pathlib.Path) -> dict[str, Any]:
  """Scores, models, results and metrics of all runs below a folder."""
  contents: dict[str, Any] = {}
  for path in sorted(folder.rglob('*')):
    name = str(path.relative_to(folder))
    if path.suffix == '.npz':
      contents[name] = io.read_arrays(path)
    elif path.name == 'result.json':
      fields = io.read_sealed(path)
      contents[name] = {k: x for k, x in fields.items() if k not in _TIMES}
    elif path.name == 'metrics.jsonl':
      lines = path.read_text().splitlines()
      contents[name] = [
        {**json.loads(line), 'seconds': 0, 'waited': 0} for line in lines
      ]
    elif path.name in ('report.md', 'sweep.md', 'checkpoints', 'secret'):
      # Reports end in place; what a run needs no more is gone.
      contents[name] = path.is_file()
  return contents


def read_stores(folder: pathlib.Path) -> dict[str, Any]:
  """The bytes of all files of a folder of imported data."""
  return {
    str(path.relative_to(folder)): path.read_bytes()
    for path in sorted(folder.rglob('*'))
    if path.is_file()
  }


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


_RUN = [f'--config.{field}={value}' for field, value in RUN.items()]
SUBJECTS = {
  'run': Subject(
    lambda folder: ['run', 'digits:smoke', *_RUN, f'--workdir={folder}'],
    read_runs,
  ),
  'sweep': Subject(
    lambda folder: [
      *('sweep', 'digits:smoke', *_RUN, '--axis=noise_multiplier=0.1,0.2'),
      *('--jobs=2', f'--workdir={folder}'),
    ],
    read_runs,
  ),
  'import': Subject(
    lambda folder: ['data', str(make_source()), f'--out={folder}'],
    read_stores,
  ),
}


def make_environment(folder: pathlib.Path, **variables: str) -> dict[str, str]:
  """The environment of `PROGRAM`, with its cache in a folder.

  Args:
    folder: of the cache.
    **variables: to set besides.
  """
  cache = str(folder / 'cache')
  return {**os.environ, 'XDG_CACHE_HOME': cache, **variables}


def start(
  subject: str, folder: pathlib.Path, log: pathlib.Path, *more: str
) -> subprocess.Popen[bytes]:
  """Starts the command of a subject, in a process group of its own.

  Args:
    subject: a key of `SUBJECTS`.
    folder: in which its workdir and its cache are.
    log: file of its output.
    *more: arguments.
  """
  command = SUBJECTS[subject].arguments(folder / 'work')
  with log.open('wb') as file:
    return subprocess.Popen(
      [*PROGRAM, *command, *more],
      env=make_environment(folder),
      stdout=file,
      stderr=subprocess.STDOUT,
      start_new_session=True,
    )


def read(subject: str, folder: pathlib.Path) -> Mapping[str, Any]:
  """What the command of a subject has left in a folder."""
  return SUBJECTS[subject].read(folder / 'work')


@functools.cache
def make_undisturbed(subject: str) -> Undisturbed:
  """Runs the command of a subject, to which nothing happens.

  Raises:
    RuntimeError: it fails.
  """
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    log, begun = folder / 'log', time.monotonic()
    if start(subject, folder, log).wait(MAX_SECONDS):
      raise RuntimeError(log.read_text())
    return Undisturbed(read(subject, folder), time.monotonic() - begun)


def judge(subject: str, folder: pathlib.Path, code: int, log: str) -> str:
  """What became of a command that was repeated after a fault.

  Args:
    subject: a key of `SUBJECTS`.
    folder: as for `start`.
    code: its exit status.
    log: its output.
  """
  if code:
    return REFUSED if is_explained(log) else LOST
  left, expected = read(subject, folder), make_undisturbed(subject).contents
  if is_equal(left, expected):
    return SAME
  return CLOSE if is_equal(left, expected, rel=MAX_ROUNDING) else LOST


def is_equal(a: Any, b: Any, *, rel: float = 0.0) -> bool:
  """Whether what was read is equal, to the last bit or to a relative error."""
  if isinstance(a, Mapping) and isinstance(b, Mapping):
    return a.keys() == b.keys() and all(
      is_equal(a[k], b[k], rel=rel) for k in a if not (rel and k in _OF_DEVICES)
    )
  if isinstance(a, list) and isinstance(b, list):
    return len(a) == len(b) and all(
      is_equal(x, y, rel=rel) for x, y in zip(a, b)
    )
  if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
    if (a.shape, a.dtype) != (b.shape, b.dtype):
      return False
    if not rel or a.dtype.kind != 'f':
      return a.tobytes() == b.tobytes()
    # Of numbers of one kind small ones have the errors of large ones.
    largest = float(np.max(np.abs(b), initial=0.0, where=np.isfinite(b)))
    return np.allclose(a, b, rtol=rel, atol=rel * largest, equal_nan=True)
  if rel and isinstance(a, float) and isinstance(b, float):
    return math.isclose(a, b, rel_tol=rel) or (math.isnan(a) and math.isnan(b))
  return bool(a == b)


def is_explained(log: str) -> bool:
  """Whether a command says why it fails. Threads of libraries may have tracebacks."""
  return 'Traceback' not in log or bool(_list_errors(log))


def find_reason(log: str) -> str:
  """The error of an output, or its last line, without folders of this machine."""
  lines = [line.strip() for line in log.splitlines() if line.strip()]
  lines = _list_errors(log) or lines
  return str(io.hide_paths(lines[-1]))[:200] if lines else ''


def _list_errors(log: str) -> list[str]:
  return [line for line in log.splitlines() if line.startswith('error: ')]
