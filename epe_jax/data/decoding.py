"""Decodes the clients of a source into the columns of a store, in one or more processes.

One process reads; others decode and return columns, in order. Few clients are in flight
at a time.
"""

import collections
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent import futures
from concurrent.futures import process
import functools
import multiprocessing
import os
import threading
from typing import Any, NamedTuple

import numpy as np

from epe_jax import python_path
from epe_jax.data import sources


class Recipe(NamedTuple):
  """Which features become which columns.

  Attributes:
    features: the features that are read.
    transform: name -> array [n, ...] of a client to columns; a module-level
      function, so that other processes can run it. A ValueError names the row.
    meta: a description in JSON types; recipes with equal meta do the same.
  """

  features: sources.Features
  transform: Callable[[sources.Columns], Any]
  meta: Mapping[str, Any]


ChooseRecipe = Callable[[str], Recipe]
"""split -> recipe."""


def decode_clients(
  clients: Iterable[tuple[str, Any]],
  source: sources.Source,
  split: str,
  recipe: Recipe,
  *,
  workers: int = 0,
) -> Iterator[tuple[str, Any]]:
  """Decodes clients by a recipe.

  Args:
    clients: (client id, raw), as `source.read` gives them.
    source: their source.
    split: their split, for messages.
    recipe: features and columns.
    workers: processes that decode, next to this one that reads; 0: this one does
      both. They start like a new interpreter, so the calling program needs an
      `if __name__ == '__main__'`.

  Yields:
    (client id, what recipe.transform returns), in order.

  Raises:
    ValueError: the data are not as the recipe needs them; names the source,
      split, client and row.
    RuntimeError: a process died.
  """
  if workers < 0:
    raise ValueError(f'workers={workers} is negative. Use 0 or more.')
  place = f'{source.name}, split {split!r}'
  work = functools.partial(_decode_client, place, source.decode, recipe)
  if not workers:
    return map(work, clients)
  return _decode_in_processes(clients, work, workers)


def _decode_client(
  place: str,
  decode: Callable[[Any, sources.Features], sources.Columns],
  recipe: Recipe,
  client: tuple[str, Any],
) -> tuple[str, Any]:
  client_id, raw = client
  try:
    columns = decode(raw, recipe.features)
    _check_finite(columns)
    return client_id, recipe.transform(columns)
  except ValueError as error:
    raise ValueError(f'{place}, client {client_id!r}, {error}') from error


def _check_finite(columns: sources.Columns) -> None:
  """Refuses numbers that no model can be trained on."""
  for name, column in columns.items():
    if column.dtype.kind == 'f' and not np.isfinite(column).all():
      index = np.argwhere(~np.isfinite(column))[0]
      raise ValueError(
        f'row {index[0]}: feature {name!r} is {column[tuple(index)]}, which is not '
        'finite. Correct it in the source, or leave the row out.'
      )


def _decode_in_processes(
  clients: Iterable[tuple[str, Any]],
  work: Callable[[tuple[str, Any]], tuple[str, Any]],
  workers: int,
) -> Iterator[tuple[str, Any]]:
  with python_path.start_safely():
    pool = futures.ProcessPoolExecutor(
      workers,
      # Not a fork: JAX may have threads, which a fork would lack.
      mp_context=multiprocessing.get_context('spawn'),
      initializer=_start,
      initargs=(work,),
    )
  pending: collections.deque[futures.Future] = collections.deque()
  try:
    for client in clients:
      with python_path.start_safely():
        pending.append(pool.submit(_decode_one, client))
      if len(pending) > 4 * workers:
        yield pending.popleft().result()
    while pending:
      yield pending.popleft().result()
  except process.BrokenProcessPool as error:
    raise RuntimeError(
      'a decoding process died, perhaps for lack of memory. Run it again to '
      'resume; workers=0 uses a single process.'
    ) from error
  finally:
    pool.shutdown(cancel_futures=True)


# The rest runs in the other processes. The work is sent once, because a vocabulary is
# larger than a client.
_work: Callable[[tuple[str, Any]], tuple[str, Any]]


def _start(work: Callable[[tuple[str, Any]], tuple[str, Any]]) -> None:
  global _work
  _work = work
  threading.Thread(target=_follow, daemon=True).start()


def _follow() -> None:
  """Ends this process when its parent ends, even if that is killed."""
  parent = multiprocessing.parent_process()
  if parent is not None:
    parent.join()
    os._exit(1)


def _decode_one(client: tuple[str, Any]) -> tuple[str, Any]:
  return _work(client)
