"""HDF5 files of clients: `/split/client/array`, with arrays of any name.

Row i of each array is the client's i-th example. The older archives of TensorFlow
Federated have files of this form, with one split, `examples`.
"""

from collections.abc import Iterator
import contextlib
import os
from typing import Any

from epe_jax import extras
from epe_jax.data import sources
from epe_jax.data.formats import group_by

with extras.explain_missing():
  import h5py

_DAMAGE = AttributeError, KeyError, OSError, RuntimeError, TypeError


@contextlib.contextmanager
def open_source(path: str | os.PathLike) -> Iterator[sources.Source]:
  """Opens a file, whose clients are grouped like the stream of a function.

  Raises:
    ValueError, OSError: it is not of this form, or as `group_by.open_function`.
  """
  with contextlib.ExitStack() as stack:
    with _explain_damage(str(path)):
      file: Any = stack.enter_context(h5py.File(path, 'r'))
    streams = {split: _read_clients(file, split) for split in file}
    yield stack.enter_context(
      group_by.open_function(lambda: streams, str(path))
    )


def _read_clients(file: Any, split: str) -> group_by.Stream:
  with _explain_damage(f'{file.filename}, split {split!r}'):
    for client_id, client in file[split].items():
      yield client_id, {name: rows[()] for name, rows in client.items()}


@contextlib.contextmanager
def _explain_damage(where: str) -> Iterator[None]:
  try:
    yield
  except _DAMAGE as error:
    raise ValueError(
      f'{where}: {error}. Expected an HDF5 file /split/client/array.'
    ) from error
