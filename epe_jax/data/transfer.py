"""One file over HTTP, continued where a connection broke.

What is fetched of a file lies in a `.part` file, named after the size and the
version that the server gives: the rest of another version is never appended.
"""

import base64
from collections.abc import Callable
import glob
import hashlib
import http.client
import os
import pathlib
import re
import shutil
from typing import Any
import urllib.error
import urllib.request

import tqdm

from epe_jax import io

_TIMEOUT = 60  # seconds without a byte
_ATTEMPTS = 5
_CHUNK = 1 << 20


class _Broken(Exception):
  """The connection ended before the file did."""


def transferred(
  url: str, path: pathlib.Path, opener: Callable[..., Any]
) -> pathlib.Path:
  """Fetches a file, or what is missing of it, with a progress bar.

  A broken connection is opened again a few times, and by the next call. The
  rest alone is asked for; a server that gives all of the file is heard from
  the beginning.

  Args:
    url: http or https.
    path: what the file is to be called; it is not written.
    opener: (urllib Request, timeout=seconds) -> response.

  Returns:
    The whole file, under a name of its own beside `path`: path.*.part.

  Raises:
    ConnectionError: if there is no connection, the server refuses or gives
      something else, or the connection keeps breaking.
    ValueError: if the bytes are not those whose MD5 the server gives.
    OSError: if the disk has no room.
  """
  broken = None
  with tqdm.tqdm(
    desc=path.name, unit='B', unit_scale=True, disable=None
  ) as bar:
    for _ in range(_ATTEMPTS):
      try:
        return _attempt(url, path, opener, bar)
      except _Broken as error:
        broken = error
  raise ConnectionError(
    f'{url}: {broken}, {_ATTEMPTS} times. Run it again to fetch the rest.'
  ) from broken


def check_hash(
  path: pathlib.Path, algorithm: str, expected: str, authority: str
) -> None:
  """Compares the hash of a file with the hexadecimal one of an authority."""
  with open(path, 'rb') as f:
    digest = hashlib.file_digest(
      f, lambda: hashlib.new(algorithm, usedforsecurity=algorithm != 'md5')
    )
  if digest.hexdigest() != expected:
    raise ValueError(
      f'{path} has the {algorithm} {digest.hexdigest()}, {authority} '
      f'{expected}. Delete it and fetch it again.'
    )


def _attempt(
  url: str, path: pathlib.Path, opener: Callable[..., Any], bar: tqdm.tqdm
) -> pathlib.Path:
  """One request for what is missing; raises _Broken if some still is."""
  parts = sorted(path.parent.glob(f'{glob.escape(path.name)}.*.part'))
  # The last byte is fetched again: a request for none would be refused.
  start = max(0, parts[0].stat().st_size - 1) if parts else 0
  request = urllib.request.Request(url)
  if start:
    request.add_header('Range', f'bytes={start}-')
  try:
    response = opener(request, timeout=_TIMEOUT)
  except urllib.error.HTTPError as error:
    error.close()
    if start and error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
      parts[0].unlink()
      raise _Broken('the file became shorter than what was fetched') from error
    raise ConnectionError(f'{url} cannot be fetched ({error}).') from error
  except (OSError, http.client.HTTPException) as error:
    raise ConnectionError(f'{url} cannot be fetched ({error}).') from error
  with response:
    first, total = _range(response, start, url)
    part = path.with_name(f'{path.name}.{_version(response, total)}.part')
    for stale in set(parts) - {part}:
      stale.unlink()
    if first and part not in parts:
      raise _Broken('the file is another than what was fetched')
    _append(response, part, first, total, bar)
    found = re.search(r'md5=([\w+/]+=*)', response.headers['x-goog-hash'] or '')
  if found:
    md5 = base64.b64decode(found[1]).hex()
    check_hash(part, 'md5', md5, 'but the server says')
  return part


def _version(response: Any, total: int) -> str:
  headers = response.headers
  version = (headers['ETag'] or headers['Last-Modified'], total)
  return hashlib.sha256(repr(version).encode()).hexdigest()[:16]


def _range(response: Any, start: int, url: str) -> tuple[int, int]:
  """(where the response starts, bytes of the whole file)."""
  length = response.headers['Content-Length'] or ''
  given = response.headers['Content-Range'] or ''
  span = re.fullmatch(r'bytes (\d{1,18})-(\d{1,18})/(\d{1,18})', given)
  if response.status == http.HTTPStatus.PARTIAL_CONTENT and span:
    first, last, total = map(int, span.groups())
    if start and first == start and last == total - 1:
      return first, total
  if response.status == http.HTTPStatus.OK and re.fullmatch(
    r'\d{1,18}', length
  ):
    return 0, int(length)
  raise ConnectionError(
    f'{url}: asked for the bytes from {start} on, the server answered with '
    f'status {response.status}, length {length!r} and range {given!r}.'
  )


def _append(
  response: Any, part: pathlib.Path, first: int, total: int, bar: tqdm.tqdm
) -> None:
  free = shutil.disk_usage(part.parent).free
  if total - first > free:
    raise OSError(
      f'no room for {part}: {total - first} more bytes, but {free} are free. '
      'Make room or choose another folder.'
    )
  bar.total, bar.n = total, first
  bar.refresh()
  with (
    io.explain_disk_errors(part),
    open(part, 'r+b' if first else 'wb') as out,
  ):
    out.seek(first)
    while block := _received(response):
      out.write(block)
      bar.update(len(block))
    if out.tell() != total:
      raise _Broken(f'the connection ended at byte {out.tell()} of {total}')
    out.flush()
    os.fsync(out.fileno())


def _received(response: Any) -> bytes:
  try:
    return response.read(_CHUNK)
  except (OSError, http.client.HTTPException) as error:
    raise _Broken(f'the connection broke ({error!r})') from error
