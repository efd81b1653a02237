"""The numbers of each round, for people: metrics.jsonl, and TensorBoard if asked for.

Nothing that a run computes depends on them. All are for the auditor alone.
"""

from collections.abc import Callable, Iterator, Mapping
import contextlib
import json
import os
import pathlib
from typing import Any

from absl import logging

from epe_jax import extras, io


def append_line(
  path: str | os.PathLike, record: Mapping[str, float | int]
) -> None:
  """Appends the numbers of a round by name; 'round' counts those that are done.

  In place, and not by `io.write_atomically`: `read_lines` skips a line that a killed
  process cut short.
  """
  with open(path, 'a', opener=io.open_private) as f:
    f.write(json.dumps(record) + '\n')


def read_lines(path: str | os.PathLike) -> list[dict[str, float]]:
  """Reads all lines that are complete.

  A killed run or a full disk may have cut some lines short. These are left out
  with a warning.

  Raises:
    FileNotFoundError: there is no such file.
  """
  lines = pathlib.Path(path).read_text(errors='replace').splitlines()
  records = []
  for number, line in enumerate(lines, 1):
    record = _parse_line(line)
    if record is not None:
      records.append(record)
    else:
      logging.warning('%s, line %d is damaged and left out.', path, number)
  return records


def read_last_lines(
  path: str | os.PathLike, count: int
) -> list[dict[str, float]]:
  """Reads the last complete lines; the run may be writing another."""
  lines = map(_parse_line, io.read_last_lines(path, count))
  return [line for line in lines if line is not None]


def _parse_line(line: str) -> dict[str, float] | None:
  """The record of a line; None if it is damaged or not complete."""
  try:
    record = json.loads(line)
  except (ValueError, RecursionError):
    return None
  is_record = isinstance(record, dict) and isinstance(record.get('round'), int)
  return record if is_record else None


def rewind_to(path: str | os.PathLike, rounds: int) -> None:
  """Removes the lines of later rounds, for a run that is resumed."""
  records = read_lines(path) if pathlib.Path(path).exists() else []
  text = ''.join(json.dumps(r) + '\n' for r in records if r['round'] <= rounds)
  io.write_text(path, text, private=True)


@contextlib.contextmanager
def open_event_files(
  folder: str | os.PathLike, *, start: int
) -> Iterator[Callable[[Mapping[str, float | int]], None]]:
  """Opens a folder for the event files of a run, by tensorboardX without TensorFlow.

  Nothing is written before the first line. TensorBoard drops the rounds after `start`,
  which a resumed run repeats.

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
