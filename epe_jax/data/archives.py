"""Compressed files, unpacked in one pass and bounded memory.

What an archive says of itself is not trusted: its files are written under
names of our own, no name, link or device in it is followed, nothing is held
in memory but a block, and nothing is written that the disk has no room for.
"""

import bz2
from collections.abc import Iterator
import contextlib
import lzma
import os
import pathlib
import shutil
import tarfile
from typing import Any, BinaryIO, NamedTuple

import tqdm

_BLOCK = 512
_CHUNK = 1 << 20
_LONGEST_NAME = 1 << 16
_MOST_FILES = 1000
_SPARE = 64 << 20
# By the suffix of the file, in the way each module opens a stream.
_FORMATS = {'.bz2': bz2.open, '.lzma': lzma.open, '.xz': lzma.open}
_REGULAR = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)


class _Stream(NamedTuple):
  """A compressed file while it is read.

  Attributes:
    path: where it is, for messages.
    raw: the compressed bytes; how far they are read is the progress.
    file: what they are when decompressed.
    bar: of the compressed bytes.
  """

  path: pathlib.Path
  raw: BinaryIO
  file: Any
  bar: tqdm.tqdm


def decompressed(
  path: str | os.PathLike, target: str | os.PathLike
) -> pathlib.Path:
  """Writes what a compressed file is when decompressed.

  Args:
    path: a .lzma, .xz or .bz2 file.
    target: file to write; it must not exist. A half-written one is removed.

  Returns:
    The target.

  Raises:
    FileExistsError: if the target exists.
    ValueError: if the file is truncated or not of the format of its suffix.
    OSError: if the disk has no room for it.
  """
  target = pathlib.Path(target)
  with _opened(path) as stream, _new(target) as out:
    while block := _read(stream, _CHUNK):
      _write(stream, out, block, 'its contents')
  return target


def extracted(
  path: str | os.PathLike, folder: str | os.PathLike, *, suffix: str
) -> dict[str, pathlib.Path]:
  """Writes the files with a suffix in a .tar.bz2 archive into a folder.

  Directories are passed over, and so are regular files of another suffix, e.g.
  a README, and hidden ones (macOS adds `._name` beside `name`). Anything else
  that is not a regular file of a relative name is an error, wanted or not.

  Args:
    path: the archive.
    folder: an existing folder, best a temporary one: an error leaves in it
      what was written before.
    suffix: of the files to take, e.g. '.h5'.

  Returns:
    name in the archive -> the file. Its name in the folder is a number.

  Raises:
    ValueError: if the archive is damaged or truncated, has no such file, the
      same name twice, a link, a device, or an absolute or upward name.
    OSError: if the disk has no room for a file.
  """
  folder, found = pathlib.Path(folder), {}
  with _opened(path) as stream:
    for name, size in _regular_files(stream):
      hidden = name.rpartition('/')[2].startswith('.')
      if hidden or not name.endswith(suffix):
        for _ in _blocks(stream, size, name):
          pass
        continue
      if name in found:
        raise _refused(stream, f'{name!r} is there twice')
      if len(found) == _MOST_FILES:
        raise _refused(stream, f'it has over {_MOST_FILES} files *{suffix}')
      _check_room(stream, folder, size, repr(name))
      found[name] = folder / f'{len(found)}{suffix}'
      with _new(found[name]) as out:
        for block in _blocks(stream, size, name):
          _write(stream, out, block, repr(name))
  if not found:
    raise ValueError(f'{path} has no file *{suffix}. Give another archive.')
  return found


def _regular_files(stream: _Stream) -> Iterator[tuple[str, int]]:
  """(name, size) of each regular file; its data must be read before the next.

  `tarfile` reads one header here and not the archive: it would hold an
  extension header of any size in memory, and follow a negative size back.
  """
  extended: dict[str, str] = {}
  while any(header := _exactly(stream, _BLOCK, 'a header')):
    try:
      info = tarfile.TarInfo.frombuf(header, 'utf-8', 'surrogateescape')
      size = int(extended.get('size', info.size))
    except (tarfile.TarError, ValueError) as error:
      raise _refused(stream, f'a header is damaged ({error})') from error
    name = extended.get('path', info.name)
    if size < 0:
      raise _refused(stream, f'{name!r} has a size of {size} bytes')
    if info.type in (tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE):
      extended |= _extension(stream, info, size)
    elif info.type == tarfile.XGLTYPE:
      _extension(stream, info, size)
    else:
      extended = {}
      _check_member(stream, info, name)
      if not info.isdir():
        yield name, size
      elif size:
        raise _refused(stream, f'the directory {name!r} has {size} bytes')
    for _ in _blocks(stream, -size % _BLOCK, name):
      pass
  # To the end, where bz2 has its checksum. Tar pads with zeros, but not far.
  padding = _read(stream, _CHUNK)
  if any(padding) or _read(stream, 1):
    raise _refused(stream, 'there is something behind its end')


def _check_member(stream: _Stream, info: tarfile.TarInfo, name: str) -> None:
  parts = name.replace('\\', '/').split('/')
  if not name or '' in parts[:1] or '..' in parts or '\0' in name:
    raise _refused(stream, f'{name!r} leads out of it')
  if info.type not in _REGULAR and not info.isdir():
    links = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.GNUTYPE_LONGLINK)
    kind = 'a link' if info.type in links else 'no regular file'
    raise _refused(stream, f'{name!r} is {kind} (type {info.type!r})')


def _extension(
  stream: _Stream, info: tarfile.TarInfo, size: int
) -> dict[str, str]:
  """What a header says of the next member: its long name, or its size."""
  if size > _LONGEST_NAME:
    raise _refused(stream, f'a header has {size} bytes')
  raw = _exactly(stream, size, 'a header')
  if info.type == tarfile.GNUTYPE_LONGNAME:
    return {'path': raw.rstrip(b'\0').decode('utf-8', 'surrogateescape')}
  records = {}
  while raw:
    # A record is b'LENGTH KEY=VALUE\n', and the length is its own.
    digits = raw.partition(b' ')[0]
    length = int(digits) if digits.isdigit() and len(digits) < 6 else 0
    key, equals, value = raw[len(digits) + 1 : length - 1].partition(b'=')
    if not equals or raw[length - 1 : length] != b'\n':
      raise _refused(stream, 'a header is damaged')
    raw = raw[length:]
    records[key] = value.decode('utf-8', 'surrogateescape')
  if any(key.startswith(b'GNU.sparse') for key in records):
    raise _refused(stream, 'it has a sparse file')
  wanted = {'path': b'path', 'size': b'size'}
  found = {name: records[key] for name, key in wanted.items() if key in records}
  if found and info.type == tarfile.XGLTYPE:
    raise _refused(stream, f'all its files are said to have {found}')
  return found


@contextlib.contextmanager
def _opened(path: str | os.PathLike) -> Iterator[_Stream]:
  path = pathlib.Path(path)
  if path.suffix not in _FORMATS:
    raise ValueError(
      f'{path} ends in {path.suffix!r}. Use one of {sorted(_FORMATS)}.'
    )
  with contextlib.ExitStack() as stack:
    raw = stack.enter_context(open(path, 'rb'))
    file = stack.enter_context(_FORMATS[path.suffix](raw))
    # disable=None: no bar where stderr is not a terminal.
    bar = tqdm.tqdm(
      total=path.stat().st_size,
      desc=f'unpacking {path.name}',
      unit='B',
      unit_scale=True,
      disable=None,
    )
    yield _Stream(path, raw, file, stack.enter_context(bar))


def _read(stream: _Stream, most: int) -> bytes:
  """At most so many decompressed bytes; none at the end."""
  try:
    block = stream.file.read(most)
  except (EOFError, OSError, ValueError, lzma.LZMAError) as error:
    raise ValueError(
      f'{stream.path} is truncated or not {stream.path.suffix[1:]} ({error}). '
      'Get it again.'
    ) from error
  stream.bar.update(stream.raw.tell() - stream.bar.n)
  return block


def _blocks(stream: _Stream, size: int, name: str) -> Iterator[bytes]:
  """The next bytes of an archive, in pieces."""
  while size:
    block = _exactly(stream, min(size, _CHUNK), repr(name))
    size -= len(block)
    yield block


def _exactly(stream: _Stream, size: int, what: str) -> bytes:
  block = _read(stream, size)
  if len(block) != size:
    raise ValueError(
      f'{stream.path} is truncated: it ends within {what}. Get it again.'
    )
  return block


@contextlib.contextmanager
def _new(path: pathlib.Path) -> Iterator[BinaryIO]:
  """A new file, removed if it is not finished."""
  with open(path, 'xb') as out:
    try:
      yield out
    except BaseException:
      path.unlink()
      raise


def _write(stream: _Stream, out: BinaryIO, block: bytes, what: str) -> None:
  # What a few bytes decompress to has no bound but the disk.
  _check_room(stream, pathlib.Path(out.name).parent, len(block), what)
  out.write(block)


def _check_room(
  stream: _Stream, folder: pathlib.Path, size: int, what: str
) -> None:
  free = shutil.disk_usage(folder).free
  if size + _SPARE > free:
    raise OSError(
      f'{stream.path}: no room for {what}: {size} more bytes, but {folder} has '
      f'{free} left, of which {_SPARE} are kept. Make room, or have TMPDIR '
      'name a folder on another disk.'
    )


def _refused(stream: _Stream, what: str) -> ValueError:
  return ValueError(
    f'{stream.path}: {what}. Get it again, or, if you trust it, unpack it '
    'yourself and give what was in it.'
  )
