"""The workdir of a run: the paths of its files, and which run it belongs to.

The files in the folder itself may be published once the run has ended. Those in
private/ are for the auditor alone: of a run with fresh noise they would undo
that noise. docs/secrets.md says which is which, and why.
"""

from collections.abc import Iterator
import contextlib
import os
import pathlib
import shlex
import shutil
from typing import NamedTuple

from epe_jax import io, locks
from epe_jax.experiment.setup import config as config_lib
from epe_jax.experiment.setup.config import Config


class Workdir(NamedTuple):
  """The paths of the files of a run."""

  folder: pathlib.Path  # The folder, which belongs to this run alone.
  # Every field of the config, written when training may begin.
  config: pathlib.Path
  result: pathlib.Path  # The results. A run that has this file has ended.
  model: pathlib.Path  # The final model.
  # The report, written after its figures and its HTML page.
  report: pathlib.Path
  lock: pathlib.Path  # The lock of the process that trains, until it ends.
  private: pathlib.Path  # The folder of all that only the auditor may have.
  # The record, which has all that estimates need, and scores of own attackers.
  scores: pathlib.Path
  # The estimates of each seed, of a point that has many. It has ended then.
  rows: pathlib.Path
  metrics: pathlib.Path  # One line of numbers for each round, for people.
  # The event files for TensorBoard, with the numbers of `metrics`.
  events: pathlib.Path
  inputs: pathlib.Path  # The digests of what the run reads.
  # The secret of noise and sampling, until the run has ended.
  secret: pathlib.Path
  # The checkpoints to resume from, until the run has ended.
  checkpoints: pathlib.Path


class WorkdirLocked(ValueError):
  """Another process has a workdir. The message names it."""


def workdir_at(folder: str | os.PathLike) -> Workdir:
  """Gives the workdir at a path, which need not exist."""
  folder = pathlib.Path(folder)
  private = folder / 'private'
  return Workdir(
    folder,
    config=folder / 'config.json',
    result=folder / 'result.json',
    model=folder / 'model.npz',
    report=folder / 'report.md',
    lock=folder / '.lock',
    private=private,
    scores=private / 'scores.npz',
    rows=folder / 'rows.json',
    metrics=private / 'metrics.jsonl',
    events=private / 'tensorboard',
    inputs=private / 'inputs.json',
    secret=private / 'secret',
    checkpoints=private / 'checkpoints',
  )


def reserve(folder: str | os.PathLike, config: Config) -> None:
  """Makes a folder for the run of a config, or checks that it is the run's.

  Until a run has saved a round, one of another config may take its place, such as
  one that corrects what made the first one fail.

  Raises:
    ValueError: the folder holds the run of another config, or something else, or
      it is a file.
  """
  files = workdir_at(folder)
  if not files.folder.is_dir():
    io.check_folder('workdir', folder)
  files.folder.mkdir(parents=True, exist_ok=True)
  if files.config.exists():
    differences = _list_differences(files, config)
    if differences and has_begun(files):
      cure = 'Give another --workdir, or remove this one.'
      if [*differences] == ['audit.claim']:
        cure = (
          'Training need not be repeated: once the run has ended, run epe-jax report '
          f'{shlex.quote(str(folder))} --claim=EPS.'
        )
      raise ValueError(
        f'workdir={folder} holds a run of another config: '
        f'{"; ".join(differences.values())}. {cure}'
      )
  elif any(
    path != files.private and not path.name.startswith('.')
    for path in files.folder.iterdir()
  ):
    raise ValueError(
      f'workdir={folder} has files in it but no config.json, so it does '
      'not hold a run. Give an empty or a new folder.'
    )


@contextlib.contextmanager
def lock(files: Workdir) -> Iterator[None]:
  """Keeps other processes out of a workdir, and makes its private/.

  However the process ends, the lock ends with it.

  Raises:
    WorkdirLocked: another process has it.
  """
  with contextlib.ExitStack() as stack:
    try:
      stack.enter_context(locks.hold(files.lock, max_wait=0))
    except locks.LockHeld as holder:
      raise WorkdirLocked(
        f'workdir={files.folder} is in use by {holder}. Wait until that has '
        'ended, or give another --workdir.'
      ) from holder
    files.private.mkdir(mode=0o700, exist_ok=True)
    files.private.chmod(0o700)
    yield


def remove_secrets(files: Workdir) -> None:
  """Removes the secret and the checkpoints, which no ended run needs."""
  # Also where nothing can be written.
  if files.secret.exists():
    files.secret.unlink(missing_ok=True)
  if files.checkpoints.exists():
    shutil.rmtree(files.checkpoints)


def clear_other_run(files: Workdir, config: Config) -> bool:
  """Removes the files of a run of another config, after `reserve` and within `lock`.

  Returns:
    Whether there was such a run.
  """
  if not files.config.exists() or not _list_differences(files, config):
    return False
  # The config last, as this process may be killed here.
  remove_secrets(files)
  files.inputs.unlink(missing_ok=True)
  files.metrics.unlink(missing_ok=True)
  files.config.unlink()
  return True


def has_report(files: Workdir) -> bool:
  """Says whether a finished run has a report that was made from its result."""
  return (
    files.report.exists()
    and files.report.stat().st_mtime >= files.result.stat().st_mtime
  )


def is_run_of(files: Workdir, config: Config) -> bool:
  """Says whether a workdir has a run of a config, finished or not."""
  return files.config.is_file() and not _list_differences(files, config)


def check_ended(folder: str | os.PathLike) -> None:
  """Refuses the workdir of a run that has a config.json but no result.json."""
  files = workdir_at(folder)
  if files.config.is_file() and not files.result.is_file():
    raise FileNotFoundError(
      f'{folder}: the run has not ended. If it was interrupted, repeat its '
      '`epe-jax run` command, which resumes it.'
    )


def has_saved_rounds(files: Workdir) -> bool:
  """Says whether a run that has not ended has a checkpoint to resume from."""
  return any(files.checkpoints.glob('[0-9]*.npz'))


def has_begun(files: Workdir) -> bool:
  """Says whether a run, or the runs of a point's seeds, left more than a start."""
  rows = files.rows, files.private / files.rows.name
  return any(file.exists() for file in (files.result, *rows)) or (
    has_saved_rounds(files)
  )


def _list_differences(files: Workdir, config: Config) -> dict[str, str]:
  """Lists the fields in which config.json differs, each with both values."""
  before, now = (
    config_lib.complete_fields(io.flatten(fields))
    for fields in (io.read_fields(files.config), config.to_dict())
  )
  return {
    name: f'{name} was {before.get(name)!r} and is {now.get(name)!r}'
    for name in sorted(before.keys() | now.keys())
    if before.get(name) != now.get(name)
  }
