"""Public files, fetched once and whole, and checked as far as they can be.

pooch puts a file under its name only when all of it has arrived and its hash, if one was
published, is right.
"""

import os
import pathlib
import tempfile
from typing import Any

from epe_jax import extras, io, progress
from epe_jax.data import archives, data_sets

with extras.explain_missing():
  import pooch
  import requests

_TIMEOUT = 60  # seconds without a byte
_RETRIES = 3
_CHUNK = 1 << 20


def fetch(name: str, folder: str | os.PathLike) -> list[pathlib.Path]:
  """Fetches public files into a folder, or what is missing of them.

  A file that is there is not fetched again; its hash is compared if one is known. A
  broken download is begun again a few times.

  Args:
    name: of `data_sets.list_downloads`.
    folder: made if it is not there.

  Returns:
    The files, in the order of the data set.

  Raises:
    ConnectionError: if a file cannot be fetched; says what to do without.
    ValueError: if the name is unknown or a hash is not the known one.
    OSError: if the disk has no room for a file.
  """
  files = data_sets.find_download(name).files
  folder = pathlib.Path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  # It would print what it downloads next to the progress bar.
  pooch.get_logger().setLevel('WARNING')
  for public in files:
    path, url = folder / public.name, data_sets.TFF_BUCKET + public.name
    if not path.exists():
      _download(url, path, public.sha256, folder / files[0].name)
    elif public.sha256 and (digest := pooch.file_hash(path)) != public.sha256:
      raise ValueError(
        f'{path} has the sha256 {digest}, but was published as {public.sha256}. '
        'Delete it and fetch it again.'
      )
  return [folder / public.name for public in files]


def unpack_word_count(path: pathlib.Path) -> pathlib.Path:
  """Unpacks stackoverflow.word_count.tar.bz2 next to itself.

  Returns:
    The plain file, of one `word count` a line, the most frequent first.

  Raises:
    ValueError: as `archives.extract`, or if there is not one such file.
  """
  target = path.with_name(path.name.removesuffix('.tar.bz2'))
  with tempfile.TemporaryDirectory(prefix='.', dir=path.parent) as folder:
    files = archives.extract(path, folder, suffix='.word_count')
    if len(files) != 1:
      raise ValueError(f'{path} has {sorted(files)}, not one word count.')
    (plain,) = files.values()
    os.replace(plain, target)
  return target


def _download(
  url: str, path: pathlib.Path, sha256: str | None, first: pathlib.Path
) -> None:
  fetcher = pooch.create(
    path.parent,
    base_url='',
    registry={path.name: sha256},
    urls={path.name: url},
    retry_if_failed=_RETRIES,
  )
  try:
    with (
      io.name_disk_errors(path.parent),
      # pooch sets the total; tqdm has no truth value without one.
      progress.bar(total=1, desc=path.name, unit='B', unit_scale=True) as bar,
    ):
      # pooch's types know neither other bars nor the names of its own arguments.
      make_downloader: Any = pooch.HTTPDownloader
      downloader = make_downloader(
        bar,
        chunk_size=_CHUNK,
        timeout=_TIMEOUT,
        # Files are compressed already.
        headers={'Accept-Encoding': 'identity'},
      )
      fetcher.fetch(path.name, downloader=downloader)
  except requests.RequestException as error:
    raise ConnectionError(
      f'{url} cannot be fetched ({error}). Without a network, or if it keeps '
      f'breaking: download it elsewhere, e.g. by `curl -C - -O {url}`, which goes '
      f'on where it stopped; put it into {path.parent} under the same name, and run '
      f'the same command again, or continue with `epe-jax data {first} --out DIR`. '
      'Or train on synthetic data of the same size: '
      '--config.data.synthetic=True.'
    ) from error
