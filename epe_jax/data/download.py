"""The public files, fetched once, whole, and checked as far as they can be.

A file lies under its name only when all of it is there and its hash, if one was
published, is right.
"""

from collections.abc import Mapping
import filecmp
import os
import pathlib
import tempfile
from typing import Any, NamedTuple

from epe_jax.data import archives, sources

BUCKET = 'https://storage.googleapis.com/tff-datasets-public/'


class Public(NamedTuple):
  """A public file.

  Attributes:
    file: its name, in the bucket and here.
    sha256: where it is known; the SQLite files are published without.
    splits: how many clients and examples it has; none if it has no examples.
  """

  file: str
  sha256: str | None
  splits: Mapping[str, sources.Split]


_CHARACTERS = {
  'all_train': sources.Split(3400, 671585),
  'all_test': sources.Split(3400, 77483),
}
_DIGITS = {
  'digits_only_train': sources.Split(3383, 341873),
  'digits_only_test': sources.Split(3383, 40832),
}
_SENTENCES = {
  'train': sources.Split(342477, 135818730),
  'heldout': sources.Split(38758, 16491230),
  'test': sources.Split(204088, 16586035),
}
_WORD_COUNT = Public(
  'stackoverflow.word_count.tar.bz2',
  '1dc00256d6e527c54b9756d968118378ae14e6692c0b3b6cad470cdd3f0c519c',
  {},
)
PUBLIC = {
  'emnist': (Public('emnist_all.sqlite.lzma', None, _CHARACTERS | _DIGITS),),
  'stackoverflow': (
    Public('stackoverflow.sqlite.lzma', None, _SENTENCES),
    _WORD_COUNT,
  ),
  'fed_emnist': (
    Public(
      'fed_emnist.tar.bz2',
      'fe1ed5a502cea3a952eb105920bff8cffb32836b5173cb18a57a32c3606f3ea0',
      _CHARACTERS,
    ),
  ),
  'fed_emnist_digitsonly': (
    Public(
      'fed_emnist_digitsonly.tar.bz2',
      '55333deb8546765427c385710ca5e7301e16f4ed8b60c1dc5ae224b42bd5b14b',
      _DIGITS,
    ),
  ),
  'stackoverflow_hdf5': (
    Public(
      'stackoverflow.tar.bz2',
      '99eca2f8b8327a09e5fc123979df2d237acbc5e52322f6d86bf523ee47b961a2',
      _SENTENCES,
    ),
    _WORD_COUNT,
  ),
}
"""name -> its files, that with the examples first.

Reference: Caldas et al. 2018, LEAF; Authors of TensorFlow Federated 2019, TFF Stack
Overflow dataset; counts and hashes as published with them.
"""


def fetch(
  name: str,
  folder: str | os.PathLike,
  *,
  base_url: str = BUCKET,
) -> list[pathlib.Path]:
  """Fetches public files into a folder, or what is missing of them.

  A file that is there is not fetched again; its hash is compared if one is
  known. If the connection breaks, the rest is asked for, here and in the next
  call, of a server that can give a part of a file, and otherwise all of it.

  Args:
    name: of `PUBLIC`.
    folder: made if it is not there.
    base_url: where the files are, http or https.

  Returns:
    The files, in the order of `PUBLIC`.

  Raises:
    ConnectionError: if a file cannot be fetched; says what to do without.
    ValueError: if the name is unknown or a hash is not the known one.
    OSError: if the disk has no room for a file.
  """
  # Only here: nothing else needs a network, or takes the time to load it.
  import pooch

  from epe_jax.data import transfer

  files = _find_public(name)
  if not base_url.startswith(('https://', 'http://')):
    raise ValueError(f'base_url={base_url!r} is not http or https.')
  folder = pathlib.Path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  # It would print the hash of each file for which none is known.
  pooch.get_logger().setLevel('WARNING')
  for public in files:
    path, url = folder / public.file, f'{base_url.rstrip("/")}/{public.file}'
    if not path.exists():
      try:
        # pooch documents the names (url, output_file, pooch), but its types
        # have others.
        downloader: Any = transfer.download
        pooch.retrieve(
          url, public.sha256, path.name, folder, downloader=downloader
        )
      except ConnectionError as error:
        raise ConnectionError(
          f'{error} {_explain_offline(url, folder / files[0].file)}'
        ) from error
    elif public.sha256 and (digest := pooch.file_hash(path)) != public.sha256:
      raise ValueError(
        f'{path} has the sha256 {digest}, but was published as {public.sha256}. '
        'Delete it and fetch it again.'
      )
  return [folder / public.file for public in files]


def is_published(split: str, *, num_clients: int, num_examples: int) -> bool:
  """Whether a split has the clients and examples of the public file.

  >>> is_published('digits_only_train', num_clients=3383, num_examples=341_873)
  True
  """
  counted = sources.Split(num_clients, num_examples)
  return (_CHARACTERS | _DIGITS | _SENTENCES).get(split) == counted


def check_counts(name: str, splits: Mapping[str, sources.Split]) -> None:
  """Compares the splits of a file with those that it was published with.

  It stands in for the hash that the SQLite files lack.

  Args:
    name: of `PUBLIC`.
    splits: all splits of the file that holds the examples, as counted.

  Raises:
    ValueError: if a split is missing, is not known, or has another number of
      clients or examples; names both numbers.
  """
  expected = _find_public(name)[0].splits
  if wrong := [s for s in sorted(expected) if splits.get(s) != expected[s]]:
    wrong = '; '.join(
      f'{s!r}: {splits.get(s)}, not {expected[s]}' for s in wrong
    )
  elif extra := sorted(splits.keys() - expected.keys()):
    wrong = f'the splits {extra} should not be there'
  if wrong:
    raise ValueError(
      f'{name}: this is not the public file {_find_public(name)[0].file}. {wrong}. '
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


def _find_public(name: str) -> tuple[Public, ...]:
  if name not in PUBLIC:
    raise ValueError(f'no public files {name!r}. Use one of {sorted(PUBLIC)}.')
  return PUBLIC[name]


def _explain_offline(url: str, first: pathlib.Path) -> str:
  return (
    f'Without a network: download {url} elsewhere, put it into {first.parent} '
    'under the same name, and run the same command again, or continue with '
    f'`epe-jax data {first} --out DIR`. Or train on synthetic data of the same '
    'size: --config.data.synthetic=True.'
  )
