"""Event files of a run for TensorBoard, without TensorFlow.

What they show is what metrics.jsonl has, so they too are for the auditor alone.
"""

from collections.abc import Callable, Mapping
import os
import pathlib
from typing import Any, NamedTuple

from epe_jax import extras


class EventFiles(NamedTuple):
  """The event files of a run.

  Attributes:
    add_line: writes the numbers of a line of metrics.jsonl.
    close: writes what is not on the disk yet.
  """

  add_line: Callable[[Mapping[str, float | int]], None]
  close: Callable[[], None]


def open_event_files(folder: str | os.PathLike, *, start: int) -> EventFiles:
  """Opens a folder for the event files of a run, by tensorboardX.

  Nothing is written before the first line. TensorBoard forgets the rounds that a run
  which is resumed makes anew.

  Args:
    folder: the folder; it need not exist.
    start: the rounds that are done, >= 0.

  Raises:
    ModuleNotFoundError: tensorboardX is missing, which the extra 'tensorboard' has.
  """
  with extras.explain_missing():
    import tensorboardX  # pyright: ignore[reportMissingImports]

  writers: list[Any] = []

  def add_line(line: Mapping[str, float | int]) -> None:
    if not writers:
      os.makedirs(folder, mode=0o700, exist_ok=True)
      writers.append(
        tensorboardX.SummaryWriter(str(folder), purge_step=start + 1)
      )
      for path in pathlib.Path(folder).iterdir():
        path.chmod(0o600)
    for name, value in line.items():
      if name != 'round':
        writers[0].add_scalar(name, value, line['round'])

  def close() -> None:
    for writer in writers:
      writer.close()

  return EventFiles(add_line, close)


def no_event_files() -> EventFiles:
  """Makes event files that are not written."""
  return EventFiles(lambda line: None, lambda: None)
