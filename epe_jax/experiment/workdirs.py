"""The folder of a run: where each file lies, who may have it, and whose it is.

What lies in the folder itself may be published once the run has ended. What
lies in private/ is for the auditor alone: of a run with fresh noise it has what
would undo that noise. docs/secrets.md says which is which, and why.
"""

from collections.abc import Iterator
import contextlib
import dataclasses
import os
import pathlib
import shutil
import socket
from typing import Any

from epe_jax import io, locks
from epe_jax.experiment import metrics

# An ml_collections ConfigDict, whose fields type checkers know nothing of.
Config = Any


@dataclasses.dataclass(frozen=True)
class Workdir:
  """Where the files of a run are.

  Attributes:
    folder: of the run alone.
  """

  folder: pathlib.Path

  @property
  def config(self) -> pathlib.Path:
    """Every field; written when all is checked and training may begin."""
    return self.folder / 'config.json'

  @property
  def result(self) -> pathlib.Path:
    """What the run found; where it is, the run has ended."""
    return self.folder / 'result.json'

  @property
  def model(self) -> pathlib.Path:
    """The final model."""
    return self.folder / 'model.npz'

  @property
  def report(self) -> pathlib.Path:
    """For people; its figures lie beside it."""
    return self.folder / 'report.md'

  @property
  def lock(self) -> pathlib.Path:
    """Of the process that trains, until it ends."""
    return self.folder / '.lock'

  @property
  def private(self) -> pathlib.Path:
    """What only the auditor may have."""
    return self.folder / 'private'

  @property
  def scores(self) -> pathlib.Path:
    """All that estimates need, without the model."""
    return self.private / 'scores.npz'

  @property
  def metrics(self) -> pathlib.Path:
    """A line for each round, for people."""
    return self.private / 'metrics.jsonl'

  @property
  def inputs(self) -> pathlib.Path:
    """Digests of what the run reads."""
    return self.private / 'inputs.json'

  @property
  def secret(self) -> pathlib.Path:
    """What noise and sampling follow from, until the run has ended."""
    return self.private / 'secret'

  @property
  def checkpoints(self) -> pathlib.Path:
    """To go on from, until the run has ended."""
    return self.private / 'checkpoints'


def workdir_at(folder: str | os.PathLike) -> Workdir:
  """The workdir at a path, which need not exist."""
  return Workdir(pathlib.Path(folder))


def claim(folder: str | os.PathLike, config: Config) -> None:
  """Makes a folder, or checks that this config may have it.

  A run has begun with its first round; until then another config may have its
  place, as that which mends what made it fail.

  Raises:
    ValueError: it holds the run of another config, or something else.
  """
  this = workdir_at(folder)
  this.folder.mkdir(parents=True, exist_ok=True)
  if this.config.exists():
    if differ := _differ(this, config):
      raise ValueError(
        f'workdir={folder} holds a run of another config: '
        f'{"; ".join(differ)}. Give another --workdir, or remove this one.'
      )
  elif not _untouched(this):
    raise ValueError(
      f'workdir={folder} has files in it but no config.json, so it is no run '
      'of ours. Give an empty or a new folder.'
    )


@contextlib.contextmanager
def lock(this: Workdir) -> Iterator[None]:
  """Has the folder for this process alone; makes private/.

  However the process ends, the lock ends with it.

  Raises:
    ValueError: another process has it; the message says which.
  """
  with contextlib.ExitStack() as stack:
    try:
      file = stack.enter_context(locks.hold(this.lock, wait=False))
    except locks.Busy as busy:
      raise ValueError(
        f'workdir={this.folder} is in use by {busy}. Wait until that has ended, '
        'or give another --workdir.'
      ) from busy
    file.write(f'process {os.getpid()} on {socket.gethostname()}'.encode())
    file.flush()
    this.private.mkdir(mode=0o700, exist_ok=True)
    this.private.chmod(0o700)
    yield


def remove_secrets(this: Workdir) -> None:
  """Removes what a run that has ended needs no more, and nobody should have."""
  this.secret.unlink(missing_ok=True)
  if this.checkpoints.exists():
    shutil.rmtree(this.checkpoints)


def clear_failed_start(this: Workdir, config: Config) -> None:
  """Removes what a run of another config wrote that failed to start.

  Only for the process that has the folder: its first round may be under way.
  """
  if this.config.exists() and _other_fields(this, config):
    # The config last: what is left by one killed here is still a failed start.
    remove_secrets(this)
    this.inputs.unlink(missing_ok=True)
    this.metrics.unlink(missing_ok=True)
    this.config.unlink()


def _differ(this: Workdir, config: Config) -> list[str]:
  """In which fields the run that has begun in a folder is another one."""
  differ = _other_fields(this, config)
  return [] if differ and _failed_to_start(this) else differ


def _other_fields(this: Workdir, config: Config) -> list[str]:
  before = io.flatten(io.read_json(this.config))
  now = io.flatten(config.to_dict())
  return [
    f'{name} was {before.get(name)!r} and is {now.get(name)!r}'
    for name in sorted(before.keys() | now.keys())
    if before.get(name) != now.get(name)
  ]


def _failed_to_start(this: Workdir) -> bool:
  """Whether all there is was written before the first round of a run."""
  log = this.metrics
  record = log.exists() and any(
    line['round'] for line in metrics.read_lines(log)
  )
  return not record and _holds_only(
    this,
    this.config,
    this.private,
    this.secret,
    this.inputs,
    this.metrics,
    this.checkpoints,
  )


def _untouched(this: Workdir) -> bool:
  """Whether there is nothing but what is written before config.json."""
  return _holds_only(this, this.private, this.secret, this.inputs)


def _holds_only(this: Workdir, *paths: pathlib.Path) -> bool:
  """Whether a folder holds none but these paths, and hidden ones."""
  return all(
    path in paths or path.name.startswith('.')
    for path in this.folder.rglob('*')
  )
