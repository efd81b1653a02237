"""Chooses the module that reads a file, by its contents and not by its name."""

import contextlib
import importlib
import os
import pathlib

from epe_jax import python_path
from epe_jax.data import sources

UNDERSTOOD = """Give one of these:
  emnist_all.sqlite or stackoverflow.sqlite of TensorFlow Federated, plain or \
as .lzma or .xz, and any file of that schema;
  its older fed_emnist*.h5 and stackoverflow*.h5, a folder of them, or their \
.tar.bz2;
  the folder of a version of a TFDS data set of array_record files, whose \
examples have a client_id;
  an .npz file of arrays with a client_id for each row;
  package.module:function, which gives (client id, name -> rows) in any order, \
or split -> such a stream; examples/stack_exchange.py is one for Posts.xml."""
"""Ends every message about a file that nothing can read."""

# First bytes of a file -> module.
_HEADS = {
  b'SQLite format 3\0': 'tff',
  b'\xfd7zXZ\0': 'tff',
  b']\0\0': 'tff',
  b'\x89HDF\r\n\x1a\n': 'hdf5',
  b'BZh': 'hdf5',
  b'PK\3\4': 'arrays',
}


def open_source(
  path: str | os.PathLike | sources.Source,
) -> contextlib.AbstractContextManager[sources.Source]:
  """Opens data in any supported format.

  Args:
    path: a file, a folder, or 'package.module:function' for a Python function
      without arguments, whose streams `group_by.open_function` groups; or a
      source, which is open already.

  Raises:
    FileNotFoundError, ValueError: there is nothing, or the format is unknown; on
      entering, the errors of the format's module.
  """
  if isinstance(path, sources.Source):
    return contextlib.nullcontext(path)
  if python_path.is_function(path):
    from epe_jax.data import group_by

    return group_by.open_function(
      python_path.import_function(str(path)), str(path)
    )
  path = check_exists(path)
  name = _choose_module(path)
  if name is None:
    raise ValueError(f'{path} has no known format. {UNDERSTOOD}')
  # Imported here, because some need more packages.
  return importlib.import_module(f'epe_jax.data.{name}').open_source(path)


def check_exists(path: str | os.PathLike) -> pathlib.Path:
  """Gives the path; raises a FileNotFoundError with a cure if nothing is there."""
  path = pathlib.Path(path)
  if not path.exists():
    raise FileNotFoundError(f'{path} does not exist. {UNDERSTOOD}')
  return path


def _choose_module(path: pathlib.Path) -> str | None:
  if path.is_dir():
    if (path / 'dataset_info.json').is_file():
      return 'tfds'
    return 'hdf5' if any(path.glob('*.h5')) else None
  with open(path, 'rb') as file:
    head = file.read(100)
  for start, name in _HEADS.items():
    if head.startswith(start):
      return name
  return None
