"""Arrays in .npz and .npy, which are read without pickle from files of others."""

from collections.abc import Iterator, Mapping
import contextlib
import math
import os
import struct
import tokenize
from typing import Any
import zipfile
import zlib

from jaxtyping import Shaped
import numpy as np

from epe_jax.io import files

# The largest number of bytes that one byte of a .zip can become.
_MAX_INFLATION = 1032
# The errors of damaged .npz and .npy files, from zipfile, zlib and NumPy.
_DAMAGE = (
  ValueError,
  EOFError,
  OSError,
  AttributeError,
  KeyError,
  OverflowError,
  RuntimeError,
  TypeError,
  MemoryError,
  SyntaxError,
  struct.error,
  zipfile.BadZipFile,
  zlib.error,
  tokenize.TokenError,
)


def write_arrays(
  path: str | os.PathLike, arrays: Mapping[str, Any], *, private: bool = False
) -> None:
  """Writes arrays and numbers to a compressed .npz with `files.write_atomically`."""
  files.write_atomically(
    path, lambda f: np.savez_compressed(f, **arrays), private=private
  )


def read_arrays(
  path: str | os.PathLike,
) -> dict[str, Shaped[np.ndarray, '...']]:
  """Reads all arrays of an .npz, by name.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: the file is damaged, would need pickle, or declares more bytes than it
      has or than this machine's memory.
  """
  with _open_arrays(path) as archive:
    return {
      _name_array(member): _read_member(archive, member)
      for member in archive.infolist()
    }


def list_arrays(path: str | os.PathLike) -> set[str]:
  """Lists the names of the arrays of an .npz without reading them.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: the file is not an .npz.
  """
  with _open_arrays(path) as archive:
    return {_name_array(member) for member in archive.infolist()}


def read_array(path: str | os.PathLike) -> Shaped[np.ndarray, '...']:
  """Reads the array of an .npy.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: the file is damaged, would need pickle, or does not have the size that
      it declares.
  """
  with open(path, 'rb') as file, _explain_damage(path, '.npy'):
    _check_header('it', file, os.fstat(file.fileno()).st_size)
    file.seek(0)
    return np.lib.format.read_array(file, allow_pickle=False)


@contextlib.contextmanager
def _open_arrays(path: str | os.PathLike) -> Iterator[zipfile.ZipFile]:
  """Opens an .npz, and checks that its members have the sizes that they declare."""
  with (
    open(path, 'rb') as file,
    _explain_damage(path, '.npz'),
    zipfile.ZipFile(file) as archive,
  ):
    _check_members(archive, os.fstat(file.fileno()).st_size)
    yield archive


@contextlib.contextmanager
def _explain_damage(path: str | os.PathLike, kind: str) -> Iterator[None]:
  """Names the file that could not be read, and a cure."""
  try:
    yield
  except _DAMAGE as error:
    raise ValueError(
      f'{path} is not a readable {kind} file ({error}); restore it, or make it '
      'again.'
    ) from error


def _name_array(member: zipfile.ZipInfo) -> str:
  return member.filename.removesuffix('.npy')


def _read_member(
  archive: zipfile.ZipFile, member: zipfile.ZipInfo
) -> np.ndarray:
  with archive.open(member) as raw:
    array = np.lib.format.read_array(raw, allow_pickle=False)
    # Its checksum is compared at the end.
    raw.read()
    return array


def _check_members(archive: zipfile.ZipFile, size: int) -> None:
  memory = machine_memory()
  total, names = 0, set()
  for member in archive.infolist():
    if member.filename in names:
      raise ValueError(f'{member.filename!r} is in it twice')
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
      raise ValueError(f'{member.filename!r} is compressed as by no NumPy')
    names.add(member.filename)
    compressed = min(member.compress_size, size)
    if member.file_size > _MAX_INFLATION * (compressed + 1):
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
      _check_header(repr(member.filename), raw, member.file_size)


def _check_header(name: str, raw: Any, size: int) -> None:
  """Raises a ValueError unless an array has the size that its header declares."""
  version = np.lib.format.read_magic(raw)
  if version == (1, 0):
    shape, _, dtype = np.lib.format.read_array_header_1_0(raw)
  else:
    shape, _, dtype = np.lib.format.read_array_header_2_0(raw)
  if dtype.hasobject:
    raise ValueError(f'{name} has Python objects, which are not read')
  announced, size = math.prod(shape) * dtype.itemsize, size - raw.tell()
  # Any number of empty items has the declared size.
  if announced != size or (shape and min(shape) < 0) or not dtype.itemsize:
    raise ValueError(
      f'{name} announces an array of {announced} bytes, but has {size}'
    )


def machine_memory() -> float:
  """Gives the memory of this machine in bytes; infinite where the system does not tell."""
  if not hasattr(os, 'sysconf'):
    return math.inf  # Windows.
  return os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
