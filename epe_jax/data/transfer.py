"""Downloads over HTTP that resume, for pooch.

pooch begins anew when a connection breaks, but public files have gigabytes.
What has arrived of a file is kept in a `.part` file named after its ETag, and
the rest is requested on the condition that the ETag is still the same, so the
parts of two versions are never joined.

Reference: RFC 9110, If-Range.
"""

import base64
import os
import pathlib
import re
import shutil
from typing import Any

import pooch
import requests
import tqdm

from epe_jax import io, progress

_TIMEOUT = 60  # seconds without a byte
_ATTEMPTS = 5
_CHUNK = 1 << 15


class _Broken(Exception):
  """The connection ended before the file did."""


def download(url: str, output_file: str, pooch_: Any) -> None:
  """Downloads a file, or what is missing of it, with a progress bar.

  A broken connection is opened again a few times, and by the next call. The
  MD5 is compared if the server sends one (`x-goog-hash`).

  Args:
    url: http or https.
    output_file: where to write it. The `.part` file is kept beside it.
    pooch_: unused; pooch calls its downloaders with it.

  Raises:
    ConnectionError: if there is no connection, it keeps breaking, or the
      server refuses or answers something else.
    ValueError: if the MD5 differs.
    OSError: if the disk has no room.
  """
  del pooch_
  folder, name = pathlib.Path(output_file).parent, url.rpartition('/')[2]
  broken = None
  with (
    io.explain_disk_errors(folder),
    progress.bar(desc=name, unit='B', unit_scale=True) as bar,
  ):
    for _ in range(_ATTEMPTS):
      try:
        os.replace(_resume(url, folder, name, bar), output_file)
        return
      except _Broken as error:
        broken = error
      except requests.RequestException as error:
        raise ConnectionError(f'{url} cannot be fetched ({error}).') from error
  raise ConnectionError(
    f'{url}: {broken}, {_ATTEMPTS} times. Run it again to fetch the rest.'
  ) from broken


def _resume(
  url: str, folder: pathlib.Path, name: str, bar: tqdm.tqdm
) -> pathlib.Path:
  """The whole file; raises _Broken if some of it is still missing."""
  start, headers = 0, {'Accept-Encoding': 'identity'}
  parts = sorted(folder.glob(f'{name}.*.part'))
  for part in parts[:1]:
    # The last byte is fetched again: a request for none would be refused.
    start = max(0, part.stat().st_size - 1)
    etag = bytes.fromhex(part.suffixes[-2][1:]).decode()
    headers |= {'Range': f'bytes={start}-', 'If-Range': etag}
  with requests.get(
    url, headers=headers, stream=True, timeout=_TIMEOUT
  ) as response:
    response.raise_for_status()
    start, total = _parse_span(url, response, start)
    etag = response.headers.get('ETag', '').encode().hex()
    # What has no ETag is not resumed: nothing says which version it is.
    part = folder / (f'{name}.{etag}.part' if etag else f'{name}.part')
    for stale in {*parts} - {part}:
      stale.unlink()
    free = shutil.disk_usage(folder).free
    if total - start > free:
      raise OSError(
        f'no room for {part}: {total - start} more bytes, but {free} are free. '
        'Make room or choose another folder.'
      )
    bar.reset(total)
    bar.update(start)
    with open(part, 'r+b' if start else 'wb') as out:
      out.seek(start)
      try:
        for block in response.iter_content(_CHUNK):
          out.write(block)
          bar.update(len(block))
      except requests.RequestException as error:
        raise _Broken(f'the connection broke ({error})') from error
      if out.tell() != total:
        raise _Broken(f'the connection ended at byte {out.tell()} of {total}')
      os.fsync(out.fileno())
    _check_md5(part, response.headers.get('x-goog-hash', ''))
  return part


def _parse_span(
  url: str, response: requests.Response, start: int
) -> tuple[int, int]:
  """(where the response starts, bytes of the whole file)."""
  length = response.headers.get('Content-Length', '')
  given = response.headers.get('Content-Range', '')
  span = re.fullmatch(rf'bytes {start}-(\d{{1,18}})/(\d{{1,18}})', given)
  if response.status_code == 206 and span and int(span[1]) + 1 == int(span[2]):
    return start, int(span[2])
  if response.status_code == 200 and re.fullmatch(r'\d{1,18}', length):
    return 0, int(length)
  raise ConnectionError(
    f'{url}: asked for the bytes from {start} on, the server answered with '
    f'status {response.status_code}, length {length!r} and range {given!r}.'
  )


def _check_md5(part: pathlib.Path, header: str) -> None:
  """Compares the MD5 that Google's storage sends, as base64."""
  sent = re.search(r'md5=([\w+/]+=*)', header)
  if sent and (md5 := base64.b64decode(sent[1]).hex()) != (
    digest := pooch.file_hash(str(part), alg='md5')
  ):
    part.unlink()
    raise ValueError(
      f'{part.name} has the md5 {digest}, but the server says {md5}. It is '
      'deleted; fetch it again.'
    )
