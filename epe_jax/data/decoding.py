"""Decodes the clients of a source into the columns of a store, in one or more processes.

One process reads; others decode and return columns, in order. Few batches are in flight
at a time.
"""

import collections
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from concurrent.futures import process
import functools
import multiprocessing
import os
import pickle
import threading
from typing import Any, NamedTuple

import numpy as np

from epe_jax import python_path
from epe_jax.data import sources

# Bytes of raw data that are sent to a process at a time.
_BATCH = 1 << 20


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


def decode_clients(
  source: sources.Source,
  split: str,
  recipe: Recipe,
  after: str | None = None,
  *,
  workers: int = 0,
) -> Iterator[tuple[str, Any]]:
  """Decodes the clients of a split, in order, by a recipe.

  Args:
    source: where to read.
    split: one of its splits.
    recipe: features and columns.
    after: id of a client; only later ones are read. None: all.
    workers: processes that decode, next to this one that reads; 0: this one does
      both. They start like a new interpreter, so the calling program needs an
      `if __name__ == '__main__'`.

  Yields:
    (client id, what recipe.transform returns).

  Raises:
    ValueError: the data are not as the recipe needs them; names the source,
      split, client and row.
    RuntimeError: a process died.
  """
  if workers < 0:
    raise ValueError(f'workers={workers} is negative. Use 0 or more.')
  raws = source.read(split, recipe.features, after)
  work = functools.partial(_decode_client, source.decode, recipe)
  try:
    if not workers:
      yield from (work(client_id, raw) for client_id, raw in raws)
    else:
      yield from _decode_in_processes(raws, work, workers)
  except _UndecodableClient as error:
    raise ValueError(f'{source.name}, split {split!r}, {error}') from error


class _UndecodableClient(ValueError):
  """A client that cannot be decoded."""


def _decode_client(
  decode: Callable[[Any, sources.Features], sources.Columns],
  recipe: Recipe,
  client_id: str,
  raw: Any,
) -> tuple[str, Any]:
  try:
    columns = decode(raw, recipe.features)
    _check_finite(columns)
    return client_id, recipe.transform(columns)
  except ValueError as error:
    raise _UndecodableClient(f'client {client_id!r}, {error}') from error


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
  raws: Iterator[tuple[str, Any]],
  work: Callable[[str, Any], tuple[str, Any]],
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
    for batch in _pickle_batches(raws):
      with python_path.start_safely():
        pending.append(pool.submit(_decode_batch, batch))
      if len(pending) > 2 * workers:
        yield from pending.popleft().result()
    while pending:
      yield from pending.popleft().result()
  except process.BrokenProcessPool as error:
    raise RuntimeError(
      'a decoding process died, perhaps for lack of memory. Run it again to '
      'resume; workers=0 uses a single process.'
    ) from error
  finally:
    pool.shutdown(cancel_futures=True)


def _pickle_batches(raws: Iterator[tuple[str, Any]]) -> Iterator[list[bytes]]:
  """Batches of clients, each pickled, so that their sizes are known."""
  batch, size = [], 0
  for client in raws:
    batch.append(pickle.dumps(client, pickle.HIGHEST_PROTOCOL))
    size += len(batch[-1])
    if size >= _BATCH:
      yield batch
      batch, size = [], 0
  if batch:
    yield batch


# The rest runs in the other processes. The work is sent once, because a vocabulary is
# larger than a batch.
_work: Callable[[str, Any], tuple[str, Any]]


def _start(work: Callable[[str, Any], tuple[str, Any]]) -> None:
  global _work
  _work = work
  threading.Thread(target=_follow, daemon=True).start()


def _follow() -> None:
  """Ends this process when its parent ends, even if that is killed."""
  parent = multiprocessing.parent_process()
  if parent is not None:
    parent.join()
    os._exit(1)


def _decode_batch(batch: list[bytes]) -> list[tuple[str, Any]]:
  return [_work(*pickle.loads(client)) for client in batch]
