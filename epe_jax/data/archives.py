"""Compressed files and tar archives, unpacked in bounded memory.

Only the bytes of regular files are extracted, under names chosen here, so names, links
and devices in an archive reach nothing else.
"""

import bz2
from collections.abc import Iterator
import contextlib
import gzip
import lzma
import os
import pathlib
import shutil
import tarfile
from typing import Any
import zlib

from tqdm.utils import CallbackIOWrapper

from epe_jax import io, progress

_BLOCK = 1 << 20
# By the suffix of the file, in the way each module opens a stream.
_FORMATS = {
  '.bz2': bz2.open,
  '.gz': gzip.open,
  '.lzma': lzma.open,
  '.tgz': gzip.open,
  '.xz': lzma.open,
}
# What reading a damaged file ends in.
_DAMAGE = (EOFError, OSError, lzma.LZMAError, tarfile.TarError, zlib.error)


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
  with _open(path, target) as file:
    return _write(file, pathlib.Path(target))


def extract(
  path: str | os.PathLike, folder: str | os.PathLike, *, suffix: str
) -> dict[str, pathlib.Path]:
  """Writes the files with a suffix in a compressed tar archive into a folder.

  Other members and hidden files (macOS adds a `._name` to each `name`) are skipped.

  Args:
    path: the archive, such as .tar.bz2, .tar.gz or .tgz.
    folder: an existing, temporary folder: after an error it contains the files
      written so far.
    suffix: of the files to take, e.g. '.word_count'.

  Returns:
    name in the archive -> the file. Its name in the folder is a number.

  Raises:
    ValueError: if the archive is damaged or truncated, has no such file, the
      same name twice, or a link or device of such a name.
    OSError: if the disk has no room for a file.
  """
  files, passed = {}, 0
  with _open(path, folder) as compressed:
    file: Any = _Remembering(compressed)
    with tarfile.open(fileobj=file, mode='r|') as archive:
      for info in archive:
        passed = archive.offset
        hidden = pathlib.PurePosixPath(info.name).name.startswith('.')
        if hidden or info.isdir() or not info.name.endswith(suffix):
          continue
        is_plain = info.isreg() and info.size >= 0
        data = archive.extractfile(info) if is_plain else None
        if data is None or info.name in files:
          what = 'is not a regular file' if data is None else 'occurs twice'
          raise tarfile.TarError(f'{info.name!r} {what}')
        target = pathlib.Path(folder, f'{len(files)}{suffix}')
        files[info.name] = _write(data, target)
    # To the checksum, which is at the end.
    while file.read(_BLOCK):
      pass
    # At a header that it cannot read, tarfile ends as if the archive did.
    if file.end > passed:
      raise tarfile.TarError(f'no member begins at byte {passed}')
  if not files:
    raise ValueError(f'{path} has no file *{suffix}. Give another archive.')
  return files


class _Remembering:
  """A stream that knows where the last byte is that is not 0."""

  def __init__(self, file: Any):
    self._file, self._position, self.end = file, 0, 0

  def read(self, size: int) -> bytes:
    data = self._file.read(size)
    if used := data.rstrip(b'\0'):
      self.end = self._position + len(used)
    self._position += len(data)
    return data


@contextlib.contextmanager
def _open(path: str | os.PathLike, target: str | os.PathLike) -> Iterator[Any]:
  """The decompressed bytes of a file, with a progress bar; explains errors."""
  path = pathlib.Path(path)
  if path.suffix not in _FORMATS:
    raise ValueError(
      f'{path} ends in {path.suffix!r}. Use one of {sorted(_FORMATS)}.'
    )
  size, name = path.stat().st_size, f'unpacking {path.name}'
  with (
    io.explain_disk_errors(target),
    open(path, 'rb') as raw,
    progress.bar(total=size, desc=name, unit='B', unit_scale=True) as bar,
    _FORMATS[path.suffix](CallbackIOWrapper(bar.update, raw, 'read')) as file,
  ):
    try:
      yield file
    except _DAMAGE as error:
      # Errors of the system have a number, those of bz2 and gzip do not.
      if isinstance(error, OSError) and error.errno is not None:
        raise
      raise ValueError(
        f'{path} is damaged, truncated or not {path.suffix[1:]}: {error}. Get it '
        'again, or, if you trust it, unpack it yourself and give the contents.'
      ) from error


def _write(data: Any, target: pathlib.Path) -> pathlib.Path:
  """Copies a stream into a new file, which is removed if that fails."""
  with open(target, 'xb') as out:
    try:
      shutil.copyfileobj(data, out, _BLOCK)
    except BaseException:
      target.unlink()
      raise
  return target
