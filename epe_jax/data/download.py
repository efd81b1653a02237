"""Public files, fetched once and whole, and checked as far as they can be.

A file lies under its name only when all of it is there and its hash, if one was
published, is right. pooch begins again when a connection breaks, but public files have
gigabytes. So what has arrived of a file is kept in a `.part` file named after its ETag,
and the rest is requested on the condition that the ETag is still the same: the parts of
two versions are never joined.

References:
  RFC 9110, If-Range.
"""

import base64
from collections.abc import Mapping
import filecmp
import os
import pathlib
import re
import shutil
import tempfile
from typing import Any

import tqdm

from epe_jax import extras, io, progress
from epe_jax.data import archives, registry, sources
from epe_jax.data.data_set import Download

with extras.explain_missing():
  import pooch
  import requests

_TIMEOUT = 60  # seconds without a byte
_ATTEMPTS = 5
_CHUNK = 1 << 15


def fetch(
  name: str, folder: str | os.PathLike, *, base_url: str | None = None
) -> list[pathlib.Path]:
  """Fetches public files into a folder, or what is missing of them.

  A file that is there is not fetched again; its hash is compared if one is
  known. If the connection breaks, the rest is asked for, here and in the next
  call, of a server that can give a part of a file, and otherwise all of it.

  Args:
    name: of `registry.list_downloads`.
    folder: made if it is not there.
    base_url: where the files are, http or https; None: as the data set says.

  Returns:
    The files, in the order of the data set.

  Raises:
    ConnectionError: if a file cannot be fetched; says what to do without.
    ValueError: if the name is unknown or a hash is not the known one.
    OSError: if the disk has no room for a file.
  """
  files = _find_download(name).files
  base_url = base_url or _find_download(name).base_url
  if not base_url.startswith(('https://', 'http://')):
    raise ValueError(f'base_url={base_url!r} is not http or https.')
  folder = pathlib.Path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  # It would print the hash of each file for which none is known.
  pooch.get_logger().setLevel('WARNING')
  for public in files:
    path, url = folder / public.name, f'{base_url.rstrip("/")}/{public.name}'
    if not path.exists():
      try:
        # pooch documents the names (url, output_file, pooch), but its types
        # have others.
        downloader: Any = _download
        pooch.retrieve(
          url, public.sha256, path.name, folder, downloader=downloader
        )
      except ConnectionError as error:
        raise ConnectionError(
          f'{error} {_explain_offline(url, folder / files[0].name)}'
        ) from error
    elif public.sha256 and (digest := pooch.file_hash(path)) != public.sha256:
      raise ValueError(
        f'{path} has the sha256 {digest}, but was published as {public.sha256}. '
        'Delete it and fetch it again.'
      )
  return [folder / public.name for public in files]


def check_counts(name: str, splits: Mapping[str, sources.Split]) -> None:
  """Compares the splits of a file with those that it was published with.

  It stands in for the hash that the SQLite files lack.

  Args:
    name: of `registry.list_downloads`.
    splits: all splits of the file that holds the examples, as counted.

  Raises:
    ValueError: if a split is missing, is not known, or has another number of
      clients or examples; names both numbers.
  """
  expected = _find_download(name).splits
  if wrong := [s for s in sorted(expected) if splits.get(s) != expected[s]]:
    wrong = '; '.join(
      f'{s!r}: {splits.get(s)}, not {expected[s]}' for s in wrong
    )
  elif extra := sorted(splits.keys() - expected.keys()):
    wrong = f'the splits {extra} should not be there'
  if wrong:
    raise ValueError(
      f'{name}: this is not the public file {_find_download(name).files[0].name}. {wrong}. '
      'Delete it and fetch it again, or import it as a file of your own, '
      'without --download.'
    )


def unpack_word_count(path: str | os.PathLike) -> pathlib.Path:
  """Unpacks stackoverflow.word_count.tar.bz2 beside itself.

  Args:
    path: the archive.

  Returns:
    The plain file, of one `word count` a line, the most frequent first.

  Raises:
    ValueError: as `archives.extract`, or if there is not one such file.
    FileExistsError: if another file has its name.
  """
  path = pathlib.Path(path)
  target = path.with_name(path.name.removesuffix('.tar.bz2'))
  if target == path:
    raise ValueError(f'{path} is not a .tar.bz2. Give the archive.')
  with tempfile.TemporaryDirectory(prefix='.', dir=path.parent) as folder:
    files = archives.extract(path, folder, suffix='.word_count')
    if len(files) != 1:
      raise ValueError(f'{path} has {sorted(files)}, not one word count.')
    (plain,) = files.values()
    if target.exists() and not filecmp.cmp(plain, target, shallow=False):
      raise FileExistsError(
        f'{target} is not what is in {path}. Give it directly, or move it.'
      )
    os.replace(plain, target)
  return target


def _find_download(name: str) -> Download:
  downloads = registry.list_downloads()
  if name not in downloads:
    raise ValueError(
      f'no public files {name!r}. Use one of {sorted(downloads)}.'
    )
  return downloads[name]


def _explain_offline(url: str, first: pathlib.Path) -> str:
  return (
    f'Without a network: download {url} elsewhere, put it into {first.parent} '
    'under the same name, and run the same command again, or continue with '
    f'`epe-jax data {first} --out DIR`. Or train on synthetic data of the same '
    'size: --config.data.synthetic=True.'
  )


class _Broken(Exception):
  """The connection ended before the file did."""


def _download(url: str, output_file: str, pooch_: Any) -> None:
  """Downloads a file, or what is missing of it; a downloader of pooch.

  A broken connection is opened again a few times, and by the next call. The
  MD5 is compared if the server sends one (`x-goog-hash`).

  Raises:
    ConnectionError: there is no connection, it keeps breaking, or the server
      refuses or answers something else.
    ValueError: the MD5 differs.
    OSError: the disk has no room.
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
