"""The cohorts of a real system, from its log."""

from collections.abc import Sequence
import csv
import itertools
import os
import pathlib

import numpy as np

from epe_jax import extras
from epe_jax.sampling.client_schedules import ClientSchedule


def replay_log(
  path: str | os.PathLike[str], client_ids: Sequence[str]
) -> tuple[ClientSchedule, int]:
  """Reads the schedule of the cohorts that a log of a real system lists.

  Args:
    path: CSV or Parquet with the columns round and client_id, a line for each
      client of each round, in any order. Rounds are numbered from 0 or 1
      without a gap.
    client_ids: the ids of the clients of the data, in order.

  Returns:
    The schedule, and T, the number of rounds of the log.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: a column is missing, a round is not a number or is left out, or a
      client is unknown or twice in a round; the message names the entry.
  """
  index = {str(client_id): i for i, client_id in enumerate(client_ids)}
  cohorts: dict[int, dict[int, None]] = {}
  for line, (number, client_id) in enumerate(_read_log(pathlib.Path(path)), 1):
    where = f'{path}, entry {line}'
    try:
      t = int(number)
    except ValueError:
      raise ValueError(f'{where}: round={number!r} is not a number.') from None
    if str(client_id) not in index:
      raise ValueError(
        f'{where}: client_id={client_id!r} is not in the data. Give the log of '
        'these clients, or import the data of all of them.'
      )
    members = cohorts.setdefault(t, {})
    if index[str(client_id)] in members:
      raise ValueError(
        f'{where}: client_id={client_id!r} is in round {t} twice. A client '
        'takes part in a round once.'
      )
    members[index[str(client_id)]] = None
  numbers = sorted(cohorts)
  if not numbers or numbers[0] not in (0, 1):
    raise ValueError(f'{path} has no round 0 or 1 to start with.')
  for t, after in itertools.pairwise(numbers):
    if after != t + 1:
      raise ValueError(
        f'{path} has no client in round {t + 1}, but some in round {after}. '
        'Number the rounds without a gap.'
      )
  plan = [np.array(list(cohorts[t])) for t in numbers]
  return plan.__getitem__, len(plan)


def _read_log(path: pathlib.Path) -> list[tuple[str, str]]:
  """Reads (round, client id) of each entry, as text."""
  if not path.is_file():
    raise FileNotFoundError(
      f'{path} does not exist; give a CSV or Parquet log.'
    )
  if path.suffix == '.parquet':
    with extras.explain_missing():
      from pyarrow import parquet

    table = parquet.read_table(path)
    names, columns = table.column_names, table.to_pydict()
  else:
    with open(path, newline='', encoding='utf-8') as f:
      reader = csv.DictReader(f)
      rows = list(reader)
    names = list(reader.fieldnames or ())
    columns = {name: [row[name] for row in rows] for name in names}
  missing = {'round', 'client_id'} - set(names)
  if missing:
    raise ValueError(
      f'{path} has the columns {names}, but not {sorted(missing)}. Name them '
      'round and client_id.'
    )
  return [
    (str(t), str(c)) for t, c in zip(columns['round'], columns['client_id'])
  ]
