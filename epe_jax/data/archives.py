"""Compressed files and archives, unpacked in bounded memory.

Archives are not trusted. Only the bytes of regular files are extracted, under names
chosen here, so names, links and devices in an archive reach nothing else. The disk is
never filled completely.
"""

import bz2
from collections.abc import Iterator
import contextlib
import errno
import gzip
import lzma
import os
import pathlib
import shutil
import tarfile
from typing import Any
import zlib

from tqdm.utils import CallbackIOWrapper

from epe_jax import progress

_BLOCK = 1 << 20
_MAX_MEMBERS = 10_000
_SPARE = 64 << 20
# By the suffix of the file, in the way each module opens a stream.
_FORMATS = {
  '.bz2': bz2.open,
  '.gz': gzip.open,
  '.lzma': lzma.open,
  '.tgz': gzip.open,
  '.xz': lzma.open,
}


def decompress(
  path: str | os.PathLike, target: str | os.PathLike
) -> pathlib.Path:
  """Writes the contents of a compressed file.

  Args:
    path: a .gz, .lzma, .xz or .bz2 file.
    target: file to write; it must not exist. A half-written one is removed.

  Returns:
    The target.

  Raises:
    FileExistsError: if the target exists.
    ValueError: if the file is truncated or not of the format of its suffix.
    OSError: if the disk has no room for it.
  """
  with _open(path) as stream:
    return _write(stream.file, pathlib.Path(target))


def extract(
  path: str | os.PathLike, folder: str | os.PathLike, *, suffix: str
) -> dict[str, pathlib.Path]:
  """Writes the files with a suffix in a compressed tar archive into a folder.

  Other members and hidden files (macOS adds a `._name` to each `name`) are skipped.

  Args:
    path: the archive, such as .tar.bz2, .tar.gz or .tgz.
    folder: an existing, temporary folder: after an error it contains the files
      written so far.
    suffix: of the files to take, e.g. '.h5'.

  Returns:
    name in the archive -> the file. Its name in the folder is a number.

  Raises:
    ValueError: if the archive is damaged or truncated, has no such file, the
      same name twice, or a link or device of such a name.
    OSError: if the disk has no room for a file.
  """
  files = {}
  with _open(path) as stream:
    with tarfile.open(fileobj=stream, mode='r:') as archive:  # pyright: ignore
      for info in archive:
        name = info.name
        # tarfile keeps all members in memory.
        if len(archive.members) > _MAX_MEMBERS:
          raise ValueError(f'it has over {_MAX_MEMBERS} members')
        hidden = pathlib.PurePosixPath(name).name.startswith('.')
        if hidden or info.isdir() or not name.endswith(suffix):
          continue
        data = archive.extractfile(info) if info.isreg() else None
        if data is None or info.size < 0:
          raise ValueError(f'{name!r} is not a regular file')
        if name in files:
          raise ValueError(f'{name!r} occurs twice')
        files[name] = _write(
          data, pathlib.Path(folder, f'{len(files)}{suffix}')
        )
    # tarfile mistakes a damaged or missing header for the end.
    if stream.last != bytes(tarfile.BLOCKSIZE):
      raise ValueError('it ends without the zeros that end a tar archive')
    # Read to the checksum at the end; only short padding precedes it.
    if any(stream.file.read(_BLOCK)) or stream.file.read(1):
      raise ValueError('something follows its end')
  if not files:
    raise ValueError(f'{path} has no file *{suffix}. Give another archive.')
  return files


class _Stream:
  """A decompressed file whose reads are limited, and complete or an error.

  tarfile would read an extended header of any size at once, and for a negative size
  the rest of the file.
  """

  def __init__(self, file: Any):
    self.file, self.last = file, b''
    self.seek, self.tell = file.seek, file.tell

  def read(self, size: int) -> bytes:
    if not 0 <= size <= _BLOCK:
      raise ValueError(f'it has a header of {size} bytes')
    self.last = self.file.read(size)
    if len(self.last) < size:
      raise EOFError('it ends within a header or a file')
    return self.last


@contextlib.contextmanager
def _open(path: str | os.PathLike) -> Iterator[_Stream]:
  """The decompressed bytes of a file, with a progress bar."""
  path = pathlib.Path(path)
  if path.suffix not in _FORMATS:
    raise ValueError(
      f'{path} ends in {path.suffix!r}. Use one of {sorted(_FORMATS)}.'
    )
  size, name = path.stat().st_size, f'unpacking {path.name}'
  with (
    open(path, 'rb') as raw,
    progress.bar(total=size, desc=name, unit='B', unit_scale=True) as bar,
    _FORMATS[path.suffix](CallbackIOWrapper(bar.update, raw, 'read')) as file,
  ):
    try:
      yield _Stream(file)
    except (
      EOFError,
      OSError,
      ValueError,
      lzma.LZMAError,
      tarfile.TarError,
      zlib.error,
    ) as e:
      # Errors of the system have a number, those of bz2 and gzip do not.
      if isinstance(e, OSError) and e.errno is not None:
        raise
      raise ValueError(
        f'{path} is damaged, truncated or not {path.suffix[1:]}: {e}. Get it '
        'again, or, if you trust it, unpack it yourself and give the contents.'
      ) from e


def _write(data: Any, target: pathlib.Path) -> pathlib.Path:
  """Copies a stream into a new file, which is removed if that fails."""
  with open(target, 'xb') as out:
    try:
      # A few bytes can decompress to any number of bytes.
      while block := data.read(_BLOCK):
        free = shutil.disk_usage(target.parent).free
        if len(block) + _SPARE > free:
          raise OSError(
            errno.ENOSPC,
            f'no room for {target}: only {free} bytes are left. Make room, or '
            'set TMPDIR to a folder on another disk',
          )
        out.write(block)
    except BaseException:
      target.unlink()
      raise
  return target
