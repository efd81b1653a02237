"""The cohorts of a real system, from its log."""

from collections.abc import Iterator, Sequence
import os
import pathlib
from typing import NamedTuple

import numpy as np

from epe_jax import columns
from epe_jax.sampling.client_schedules import ClientSchedule

# Empty rounds beyond this are a number of something else.
_MAX_ROUNDS = 10**7
_CURE = 'Give a table, lines of JSON or Parquet with a round and a client in each entry.'


class LogForm(NamedTuple):
  """What a log calls its columns, and what a gap in it means.

  Attributes:
    round: the column of rounds.
    client: that of the ids of clients.
    only: COLUMN=VALUE of the entries that count, such as phase=train; None for all.
    has_empty_rounds: a round without an entry took place and nobody came back.
      Otherwise it is missing, and the log is refused.
  """

  round: str = 'round'
  client: str = 'client_id'
  only: str | None = None
  has_empty_rounds: bool = False


PLAIN = LogForm()


def replay_log(
  path: str | os.PathLike[str],
  client_ids: Sequence[str],
  form: LogForm = PLAIN,
) -> tuple[ClientSchedule, int]:
  """Reads the schedule of the cohorts that a log of a real system lists.

  Args:
    path: a file that `columns.read` takes, with an entry for each client of each
      round, in any order. Rounds are numbered from 0 or 1. An entry without a client
      is a round of which nobody came back.
    client_ids: the ids of the clients of the data, in order.
    form: of the log.

  Returns:
    The schedule, and T, the number of rounds of the log.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: a column is missing, a round is not a number or is left out, or a
      client is unknown or twice in a round; the message names the entry.
  """
  index = {str(client_id): i for i, client_id in enumerate(client_ids)}
  cohorts: dict[int, dict[int, None]] = {}
  for where, text, client_id in _read_log(pathlib.Path(path), form):
    if not (columns.is_number(text) and float(text).is_integer()):
      raise ValueError(
        f'{where}: {form.round}={text!r} is not the number of a round.'
      )
    t = int(float(text))
    members = cohorts.setdefault(t, {})
    if not client_id:
      continue
    if client_id not in index:
      # As pandas writes integers next to rounds without a client.
      client_id = client_id.removesuffix('.0')
    if client_id not in index:
      raise ValueError(
        f'{where}: {form.client}={client_id!r} is not in the data. Give the log of '
        'these clients, or import the data of all of them.'
      )
    if index[client_id] in members:
      raise ValueError(
        f'{where}: {form.client}={client_id!r} is in round {t} twice. A client takes '
        'part in a round once; where a log has evaluation too, set '
        "participation.log_only to the entries of training, as 'phase=train'."
      )
    members[index[client_id]] = None
  first, last = min(cohorts, default=-1), max(cohorts, default=-1)
  if first not in (0, 1):
    raise ValueError(
      f'{path} has no round 0 or 1 to start with; number its rounds from there.'
    )
  if last - first >= _MAX_ROUNDS:
    raise ValueError(
      f'{path} has a round {last:,}; give the numbers of rounds, from 0 or 1 on.'
    )
  for t in range(first, last):
    if t not in cohorts and not form.has_empty_rounds:
      after = min(x for x in cohorts if x > t)
      raise ValueError(
        f'{path} has no client in round {t}, but some in round {after}. If '
        'nobody came back, set participation.log_empty_rounds=True; otherwise number '
        'the rounds without a gap.'
      )
  plan = [
    np.array([*cohorts.get(t, ())], np.intp) for t in range(first, last + 1)
  ]
  return plan.__getitem__, len(plan)


def _read_log(
  path: pathlib.Path, form: LogForm
) -> Iterator[tuple[str, str, str]]:
  """Where an entry is, its round and its client, of the entries that count."""
  if not path.is_file():
    raise FileNotFoundError(
      f'{path} does not exist; give a CSV, JSON or Parquet log.'
    )
  table = columns.read(path, cure=_CURE)
  option, _, value = (form.only or '').partition('=')
  fields = {
    'log_round': form.round,
    'log_client': form.client,
    **({'log_only': option} if form.only else {}),
  }
  found = {name: table.find(column) for name, column in fields.items()}
  for name, column in found.items():
    if column is None:
      raise ValueError(
        f'{path} has the columns {table.names}, but not {fields[name]!r}. Set '
        f'participation.{name} to the one that is meant.'
      )
  taken = [table.take(column) for column in found.values() if column]
  if form.only and all(cell[1] != value for cell in taken[-1]):
    values = sorted({text for _, text in taken[-1]})[:10]
    raise ValueError(
      f'{path} has no entry with participation.log_only={form.only!r}, but '
      f'{option} in {values}.'
    )
  for (number, text), (_, client_id), *rest in zip(*taken):
    if not rest or rest[0][1] == value:
      yield table.describe_place(number), text, client_id
