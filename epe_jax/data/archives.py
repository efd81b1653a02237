"""Compressed files and tar archives, unpacked in bounded memory."""

from collections.abc import Iterator
import contextlib
import lzma
import os
import pathlib
import shutil
import tarfile
from typing import Any
import zlib

from tqdm.utils import CallbackIOWrapper

from epe_jax import io, progress

# What reading a damaged file ends in.
_DAMAGE = (EOFError, OSError, lzma.LZMAError, tarfile.TarError, zlib.error)


def decompress(path: str | os.PathLike, target: str | os.PathLike) -> None:
  """Writes the contents of a file that LZMA compressed (.lzma or .xz).

  Raises:
    ValueError: the file is truncated or not of this format.
    OSError: the disk has no room for the contents.
  """
  with (
    _open(path, target) as raw,
    lzma.open(raw) as plain,
    open(target, 'xb') as out,
  ):
    shutil.copyfileobj(plain, out)


def extract(
  path: str | os.PathLike, folder: str | os.PathLike, *, suffix: str
) -> dict[str, pathlib.Path]:
  """Writes the files with a suffix in a compressed tar archive into a folder.

  Other members, links, devices and hidden files (macOS adds a `._name` to each `name`)
  are skipped. No name leads out of the folder.

  Args:
    path: the archive, such as .tar.bz2, .tar.gz or .tgz.
    folder: an existing, temporary folder: after an error it contains the files
      written so far.
    suffix: of the files to take, e.g. '.word_count'.

  Returns:
    name in the archive -> the file.

  Raises:
    ValueError: the archive is damaged or truncated, or has no such file.
    OSError: the disk has no room for a file.
  """
  files = {}
  with _open(path, folder) as raw, tarfile.open(fileobj=raw) as archive:
    for info in archive:
      hidden = pathlib.PurePosixPath(info.name).name.startswith('.')
      if info.isreg() and info.name.endswith(suffix) and not hidden:
        archive.extract(info, folder, filter='data')
        files[info.name] = pathlib.Path(folder, info.name.lstrip('/'))
    # To the checksum, which is at the end.
    while archive.fileobj and archive.fileobj.read(1 << 20):
      pass
  if not files:
    raise ValueError(f'{path} has no file *{suffix}. Give another archive.')
  return files


@contextlib.contextmanager
def _open(path: str | os.PathLike, target: str | os.PathLike) -> Iterator[Any]:
  """The bytes of a file, with a progress bar; explains errors."""
  size, name = os.path.getsize(path), os.path.basename(path)
  with (
    io.name_disk_errors(target),
    open(path, 'rb') as raw,
    progress.bar(
      total=size, desc=f'unpacking {name}', unit='B', unit_scale=True
    ) as bar,
  ):
    try:
      yield CallbackIOWrapper(bar.update, raw, 'read')
    except _DAMAGE as error:
      # Errors of the system have a number, those of bz2 and gzip do not.
      if isinstance(error, OSError) and error.errno is not None:
        raise
      raise ValueError(
        f'{path} is damaged or truncated: {error}. Get it again, or, if you trust '
        'it, unpack it yourself and give the contents.'
      ) from error
