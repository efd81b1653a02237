"""Public files: fetched whole or not at all, and nothing else taken for them."""

import base64
import hashlib
import io
import re
import shutil
import socket
import tarfile
from types import SimpleNamespace

import numpy as np
import pytest

from epe_jax.data import data_set, download, emnist, registry, sources
from tests import http_files

FILE = 'emnist_all.sqlite.lzma'
BYTES = np.random.default_rng(0).bytes(300_000)


def fetch(server, folder, name='emnist'):
  return download.fetch(name, folder, base_url=server.url)


def names(folder):
  return sorted(p.name for p in folder.iterdir())


def test_a_file_is_fetched_once_and_nothing_else_is_left(tmp_path):
  with http_files.served({FILE: BYTES}) as server:
    folder = tmp_path / 'new' / 'folder'
    assert fetch(server, folder) == [folder / FILE]
    assert (folder / FILE).read_bytes() == BYTES
    assert names(folder) == [FILE]
    assert fetch(server, folder) == [folder / FILE]
    assert server.asked == [(FILE, None)]


def test_a_cut_connection_is_continued_within_a_call(tmp_path):
  with http_files.served({FILE: BYTES}, cuts=[100_000, 50_000]) as server:
    (path,) = fetch(server, tmp_path)
  assert path.read_bytes() == BYTES
  # One byte overlaps, so that a request for nothing is never made; what came
  # of the last block of 2^15 bytes is lost.
  ranges = [None, 'bytes=98303-', 'bytes=131070-']
  assert [asked for _, asked in server.asked] == ranges


def test_a_connection_that_keeps_breaking_is_continued_by_the_next_call(
  tmp_path,
):
  with http_files.served({FILE: BYTES}, cuts=[40_000] * 5) as server:
    with pytest.raises(
      ConnectionError, match=r'connection broke .*Run it again'
    ):
      fetch(server, tmp_path)
    (part,) = tmp_path.iterdir()
    assert re.fullmatch(rf'{FILE}\.\w+\.part', part.name)
    size = 1 + 5 * (2**15 - 1)
    assert part.read_bytes() == BYTES[:size]
    (path,) = fetch(server, tmp_path)
    assert server.asked[-1] == (FILE, f'bytes={size - 1}-')
  assert path.read_bytes() == BYTES
  assert names(tmp_path) == [FILE]


def test_a_server_that_ignores_ranges_is_heard_from_the_beginning(tmp_path):
  with http_files.served({FILE: BYTES}, cuts=[100_000], ranges=False) as server:
    (path,) = fetch(server, tmp_path)
    assert len(server.asked) == 2
  assert path.read_bytes() == BYTES


@pytest.mark.parametrize('length', [300_000, 200_000, 50_000])
@pytest.mark.parametrize('ranges', [True, False])
def test_parts_of_two_versions_are_never_joined(tmp_path, length, ranges):
  with http_files.served({FILE: BYTES}, cuts=[100_000] + [0] * 4) as server:
    with pytest.raises(ConnectionError):
      fetch(server, tmp_path)
    other = np.random.default_rng(1).bytes(length)
    server.files[FILE], server.etag, server.ranges = other, '"2"', ranges
    (path,) = fetch(server, tmp_path)
  assert path.read_bytes() == other
  assert names(tmp_path) == [FILE]


def test_a_file_that_was_whole_but_not_yet_in_place_is_put_there(tmp_path):
  with http_files.served({FILE: BYTES}) as server:
    (path,) = fetch(server, tmp_path / 'a')
    server.cuts = [10, 0, 0, 0, 0]
    with pytest.raises(ConnectionError):
      fetch(server, tmp_path / 'b')
    (part,) = (tmp_path / 'b').iterdir()
    path.rename(part)
    (path,) = fetch(server, tmp_path / 'b')
    assert server.asked[-1] == (FILE, f'bytes={len(BYTES) - 1}-')
  assert path.read_bytes() == BYTES


def public(monkeypatch, data, sha256):
  file = data_set.PublicFile('x.tar.bz2', sha256)
  monkeypatch.setitem(
    emnist.DATA_SET.downloads, 'x', data_set.Download((file,), {})
  )
  return {'x.tar.bz2': data}


def test_a_wrong_hash_is_refused_with_both_and_nothing_is_put_in_place(
  tmp_path, monkeypatch
):
  right = hashlib.sha256(BYTES).hexdigest()
  wrong = BYTES[:-1] + b'?'
  files = public(monkeypatch, wrong, right)
  found = hashlib.sha256(wrong).hexdigest()
  message = rf'x\.tar\.bz2.* expected {right} but got {found}'
  with http_files.served(files) as server:
    for _ in range(2):
      with pytest.raises(ValueError, match=message):
        fetch(server, tmp_path, 'x')
      assert not names(tmp_path)
    server.files['x.tar.bz2'] = BYTES
    (path,) = fetch(server, tmp_path, 'x')
    assert path.read_bytes() == BYTES
    # What lies there is compared too, and stays.
    path.write_bytes(wrong)
    with pytest.raises(
      ValueError, match=rf'x\.tar\.bz2 has the sha256 {found}'
    ):
      fetch(server, tmp_path, 'x')
    assert path.read_bytes() == wrong


def test_the_md5_of_the_server_is_compared_where_no_hash_was_published(
  tmp_path,
):
  md5 = base64.b64encode(hashlib.md5(BYTES).digest()).decode()
  headers = {'x-goog-hash': f'crc32c=AAAAAA==,md5={md5}'}
  with http_files.served({FILE: BYTES[::-1]}, headers=headers) as server:
    with pytest.raises(ValueError, match=r'md5 .* but the server says'):
      fetch(server, tmp_path / 'a')
    assert FILE not in names(tmp_path / 'a')
    server.files[FILE] = BYTES
    (path,) = fetch(server, tmp_path / 'b')
  assert path.read_bytes() == BYTES


CURE = (
  r'Without a network: download .*/emnist_all\.sqlite\.lzma elsewhere, put it into '
  r'.*`epe-jax data .*emnist_all\.sqlite\.lzma --out DIR`.*'
  r'--config\.data\.synthetic=True'
)


@pytest.mark.parametrize(
  ('faults', 'message'),
  [
    ({'status': 404}, '404 Client Error'),
    ({'status': 500}, '500 Server Error'),
    ({'headers': {'Content-Length': None}}, "status 200, length ''"),
    (
      {'headers': {'Content-Length': '300001'}},
      'connection broke .*5 times',
    ),
    ({'headers': {'Content-Length': '-1'}}, "length '-1'"),
    (
      {
        'cuts': [100_000],
        'headers': {'Content-Range': 'bytes 99998-299999/300000'},
      },
      "asked for the bytes from 98303 .* range 'bytes 99998",
    ),
    (
      {
        'cuts': [100_000],
        'headers': {'Content-Range': 'bytes 98303-200000/300000'},
      },
      'range',
    ),
    ({'cuts': [9, 0, 0, 0, 0]}, '5 times. Run it again to fetch the rest'),
  ],
)
def test_what_a_server_does_wrong_is_said_with_what_to_do(
  tmp_path, faults, message
):
  with (
    http_files.served({FILE: BYTES}, **faults) as server,
    pytest.raises(ConnectionError, match=f'{message}.*{CURE}'),
  ):
    fetch(server, tmp_path)
  assert FILE not in names(tmp_path)


def test_without_a_network_the_error_says_what_to_do(tmp_path):
  with socket.socket() as closed:
    closed.bind(('127.0.0.1', 0))
    url = f'http://127.0.0.1:{closed.getsockname()[1]}'
    server = SimpleNamespace(url=url)
    with (
      http_files.without_proxies(),
      pytest.raises(ConnectionError, match=f'refused.*{CURE}'),
    ):
      fetch(server, tmp_path)


def test_a_server_that_says_nothing_is_waited_for_and_not_for_ever(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(download, '_TIMEOUT', 0.2)
  with socket.create_server(('127.0.0.1', 0)) as silent:
    server = SimpleNamespace(url=f'http://127.0.0.1:{silent.getsockname()[1]}')
    with (
      http_files.without_proxies(),
      pytest.raises(ConnectionError, match=f'timed out.*{CURE}'),
    ):
      fetch(server, tmp_path)


def test_a_file_without_an_etag_is_fetched_from_the_beginning(tmp_path):
  faults = {'cuts': [100_000], 'headers': {'ETag': None}}
  with http_files.served({FILE: BYTES}, **faults) as server:
    (path,) = fetch(server, tmp_path)
    assert [asked for _, asked in server.asked] == [None, None]
  assert path.read_bytes() == BYTES
  assert names(tmp_path) == [FILE]


def test_a_file_larger_than_the_disk_is_not_begun(tmp_path, monkeypatch):
  free = lambda folder: SimpleNamespace(free=299_999)
  monkeypatch.setattr(shutil, 'disk_usage', free)
  with (
    http_files.served({FILE: BYTES}) as server,
    pytest.raises(OSError, match=r'no room .* 300000 more .* 299999 are'),
  ):
    fetch(server, tmp_path)
  assert names(tmp_path) == []


def test_unknown_names_and_other_protocols_are_refused(tmp_path):
  with pytest.raises(ValueError, match=r"'mnist'. Use one of .*'emnist'"):
    download.fetch('mnist', tmp_path)
  with pytest.raises(ValueError, match='not http'):
    download.fetch('emnist', tmp_path, base_url='file:///etc/')


@pytest.mark.parametrize('name', registry.list_downloads())
def test_counts_are_accepted_when_equal_and_refused_when_one_differs(name):
  right = registry.list_downloads()[name].splits
  download.check_counts(name, right)
  for split, (clients, examples) in right.items():
    for wrong in (
      (clients - 1, examples),
      (clients, examples + 1),
      (clients, None),
    ):
      found = sources.Split(*wrong)
      both = re.escape(f'{split!r}: {found}, not {right[split]}')
      with pytest.raises(ValueError, match=both):
        download.check_counts(name, {**right, split: found})
    missing = {s: n for s, n in right.items() if s != split}
    with pytest.raises(ValueError, match=f"'{split}': None, not"):
      download.check_counts(name, missing)
  with pytest.raises(ValueError, match=r'more.* should not be there'):
    download.check_counts(name, {**right, 'more': sources.Split(1, 1)})


def test_the_table_is_of_hashes_and_plain_file_names():
  for public in registry.list_downloads().values():
    assert public.splits
    for file in public.files:
      assert re.fullmatch(r'[a-z_.0-9]+\.(tar\.bz2|lzma)', file.name)
      assert file.sha256 is None or re.fullmatch('[0-9a-f]{64}', file.sha256)


def word_count_archive(folder, *members):
  path = folder / 'stackoverflow.word_count.tar.bz2'
  with tarfile.open(path, 'w:bz2') as tar:
    for name, data in members:
      info = tarfile.TarInfo(name)
      info.size = len(data)
      tar.addfile(info, io.BytesIO(data))
  return path


def test_the_word_count_is_unpacked_beside_its_archive(tmp_path):
  path = word_count_archive(tmp_path, ('stackoverflow.word_count', b'the 9\n'))
  for _ in range(2):
    plain = download.unpack_word_count(path)
    assert plain == tmp_path / 'stackoverflow.word_count'
    assert plain.read_bytes() == b'the 9\n'
  assert names(tmp_path) == [plain.name, path.name]
  plain.write_bytes(b'mine 1\n')
  with pytest.raises(FileExistsError, match='is not what is in'):
    download.unpack_word_count(path)
  assert plain.read_bytes() == b'mine 1\n'
  with pytest.raises(ValueError, match='Give the archive'):
    download.unpack_word_count(plain)


def test_an_archive_of_two_word_counts_is_refused(tmp_path):
  path = word_count_archive(
    tmp_path, ('a.word_count', b''), ('b.word_count', b'')
  )
  with pytest.raises(ValueError, match='not one word count'):
    download.unpack_word_count(path)
  assert names(tmp_path) == [path.name]
