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
    ValueError: the file is damaged, or would need pickle.
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
    ValueError: the file is damaged, or would need pickle.
  """
  with open(path, 'rb') as file, _explain_damage(path, '.npy'):
    return np.lib.format.read_array(file, allow_pickle=False)


@contextlib.contextmanager
def _open_arrays(path: str | os.PathLike) -> Iterator[zipfile.ZipFile]:
  """Opens an .npz; what is wrong with it names the file."""
  with (
    open(path, 'rb') as file,
    _explain_damage(path, '.npz'),
    zipfile.ZipFile(file) as archive,
  ):
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


def machine_memory() -> float:
  """Gives the memory of this machine in bytes; infinite where the system does not tell."""
  if not hasattr(os, 'sysconf'):
    return math.inf  # Windows.
  return os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
