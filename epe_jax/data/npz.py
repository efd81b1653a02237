"""Arrays of .npz files, whose sizes are checked before room is made for them.

The header of an array can announce any size, and NumPy makes room for that
before it reads the first byte.
"""

import math
import os
from typing import BinaryIO
import zipfile

import numpy as np

from epe_jax import costs

# What one byte of the method of .zip can become, at most.
_DEFLATED = 1032


def read(file: BinaryIO) -> dict[str, np.ndarray]:
  """All arrays of an open .npz file, by name.

  Args:
    file: opened for reading; not closed, whatever happens.

  Raises:
    ValueError: an array is not as large as its header says, would need
      pickle, or all of them need more than the memory of this machine.
    EOFError, OSError, zipfile.BadZipFile: it is damaged, or no .npz file.
  """
  with zipfile.ZipFile(file) as archive:
    _check_members(archive, os.fstat(file.fileno()).st_size)
  file.seek(0)
  with np.load(file, allow_pickle=False) as arrays:
    return {name: arrays[name] for name in arrays.files}


def _check_members(archive: zipfile.ZipFile, size: int) -> None:
  memory = costs.machine_memory()
  total = 0
  for member in archive.infolist():
    most = _DEFLATED * min(member.compress_size, size) + _DEFLATED
    if member.file_size > most:
      raise ValueError(
        f'{member.filename!r} announces {member.file_size} bytes, which are '
        f'not in the {size} of the file'
      )
    total += member.file_size
    if total > memory:
      raise ValueError(
        f'its arrays have over {total} bytes, but this machine has {memory} of '
        'memory'
      )
    with archive.open(member) as raw:
      _check_header(member, raw)


def _check_header(member: zipfile.ZipInfo, raw) -> None:
  """Whether the header of an array announces what lies behind it."""
  if raw.read(len(np.lib.format.MAGIC_PREFIX)) != np.lib.format.MAGIC_PREFIX:
    return  # Bytes, of which np.load makes no array.
  raw.seek(0)
  version = np.lib.format.read_magic(raw)
  if version == (1, 0):
    shape, _, dtype = np.lib.format.read_array_header_1_0(raw)
  else:
    shape, _, dtype = np.lib.format.read_array_header_2_0(raw)
  announced = math.prod(shape) * dtype.itemsize
  found = member.file_size - raw.tell()
  # Pickled objects have any size; they are refused as such.
  if announced != found and not dtype.hasobject:
    raise ValueError(
      f'{member.filename!r} announces an array of {announced} bytes, but has '
      f'{found}'
    )
