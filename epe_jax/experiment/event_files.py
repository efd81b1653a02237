"""Event files of a run for TensorBoard, without TensorFlow.

They show what metrics.jsonl has, so they too are for the auditor alone.
"""

from collections.abc import Callable, Iterator, Mapping
import contextlib
import os
import pathlib
from typing import Any

from epe_jax import extras


@contextlib.contextmanager
def open_event_files(
  folder: str | os.PathLike, *, start: int
) -> Iterator[Callable[[Mapping[str, float | int]], None]]:
  """Opens a folder for the event files of a run, by tensorboardX.

  Nothing is written before the first line. TensorBoard drops the rounds that a
  resumed run repeats.

  Args:
    folder: the folder; it need not exist.
    start: the number of finished rounds, >= 0.

  Yields:
    A function that writes the numbers of a line of metrics.jsonl.

  Raises:
    ModuleNotFoundError: tensorboardX is missing; it is in the extra 'tensorboard'.
  """
  with extras.explain_missing():
    import tensorboardX  # pyright: ignore[reportMissingImports]

  writer: Any = None

  def add_line(line: Mapping[str, float | int]) -> None:
    nonlocal writer
    if writer is None:
      os.makedirs(folder, mode=0o700, exist_ok=True)
      writer = tensorboardX.SummaryWriter(str(folder), purge_step=start + 1)
      for path in pathlib.Path(folder).iterdir():
        path.chmod(0o600)
    for name, value in line.items():
      if name != 'round':
        writer.add_scalar(name, value, line['round'])

  try:
    yield add_line
  finally:
    if writer is not None:
      writer.close()
