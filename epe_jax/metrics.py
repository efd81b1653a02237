"""metrics.jsonl: one JSON object per line, one line per round."""

from collections.abc import Mapping
import json
import os
import pathlib

from epe_jax import results


def append(path: str | os.PathLike, record: Mapping[str, float | int]) -> None:
  """Adds a line."""
  with open(path, 'a') as f:
    f.write(json.dumps(record) + '\n')


def read(path: str | os.PathLike) -> list[dict[str, float]]:
  """All complete lines; a last line that a killed run cut short is left out.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: a line other than the last is not JSON.
  """
  lines = pathlib.Path(path).read_text().splitlines()
  records = []
  for number, line in enumerate(lines, 1):
    try:
      records.append(json.loads(line))
    except json.JSONDecodeError as error:
      if number < len(lines):
        raise ValueError(
          f'{path}, line {number} is not JSON: {error}'
        ) from error
  return records


def rewind(path: str | os.PathLike, rounds: int) -> None:
  """Keeps the lines of the first `rounds` rounds, for a run that continues."""
  kept = []
  if pathlib.Path(path).exists():
    kept = [r for r in read(path) if r['round'] <= rounds]
  text = ''.join(json.dumps(r) + '\n' for r in kept)
  results.write_atomically(path, lambda f: f.write(text.encode()))
