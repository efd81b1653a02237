"""metrics.jsonl: one JSON object per line, one line per round, for people.

Nothing that a run computes depends on it.
"""

from collections.abc import Mapping
import json
import os
import pathlib

from absl import logging

from epe_jax import io


def append_line(
  path: str | os.PathLike, record: Mapping[str, float | int]
) -> None:
  """Adds a line, for its auditor."""
  with open(path, 'a', opener=io.open_private) as f:
    f.write(json.dumps(record) + '\n')


def read_lines(path: str | os.PathLike) -> list[dict[str, float]]:
  """All lines that are whole, as a killed run or a full disk may cut some.

  Raises:
    FileNotFoundError: there is no such file.
  """
  lines = pathlib.Path(path).read_text(errors='replace').splitlines()
  records = []
  for number, line in enumerate(lines, 1):
    try:
      record = json.loads(line)
    except json.JSONDecodeError:
      record = None
    if isinstance(record, dict) and isinstance(record.get('round'), int):
      records.append(record)
    else:
      logging.warning('%s, line %d is damaged and left out.', path, number)
  return records


def rewind_to(path: str | os.PathLike, rounds: int) -> None:
  """Keeps the lines of the first `rounds` rounds, for a run that continues."""
  kept = []
  if pathlib.Path(path).exists():
    kept = [r for r in read_lines(path) if r['round'] <= rounds]
  text = ''.join(json.dumps(r) + '\n' for r in kept)
  io.write_text(path, text, private=True)
