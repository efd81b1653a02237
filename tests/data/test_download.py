"""Public files: fetched whole or not at all, and nothing else taken for them."""

import hashlib
import io
import socket
import tarfile
import time
from types import SimpleNamespace

import numpy as np
import pytest

from epe_jax.data import data_sets, download, emnist
from tests import http_files

FILE = 'emnist_all.sqlite.lzma'
BYTES = np.random.default_rng(0).bytes(300_000)


@pytest.fixture(autouse=True)
def hurry(monkeypatch):
  """pooch waits some seconds before it tries again."""
  monkeypatch.setattr(time, 'sleep', lambda seconds: None)


def fetch(server, folder, name='emnist'):
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(data_sets, 'TFF_BUCKET', f'{server.url}/')
    return download.fetch(name, folder)


def names(folder):
  return sorted(p.name for p in folder.iterdir())


def test_a_file_is_fetched_once_and_nothing_else_is_left(tmp_path):
  with http_files.served({FILE: BYTES}) as server:
    folder = tmp_path / 'new' / 'folder'
    assert fetch(server, folder) == [folder / FILE]
    assert (folder / FILE).read_bytes() == BYTES
    assert names(folder) == [FILE]
    assert fetch(server, folder) == [folder / FILE]
    assert server.asked == [FILE]


def test_a_cut_connection_is_begun_again(tmp_path):
  with http_files.served({FILE: BYTES}, cuts=[100_000, 50_000]) as server:
    (path,) = fetch(server, tmp_path)
  assert path.read_bytes() == BYTES
  assert server.asked == 3 * [FILE]
  assert names(tmp_path) == [FILE]


def public(monkeypatch, data, sha256):
  file = data_sets.PublicFile('x.tar.bz2', sha256)
  monkeypatch.setitem(
    emnist.DATA_SET.downloads, 'x', data_sets.Download((file,), {})
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


CURE = (
  r'Without a network.*: download it elsewhere.* put it into '
  r'.*`epe-jax data .*emnist_all\.sqlite\.lzma --out DIR`.*'
  r'--config\.data\.synthetic=True'
)


@pytest.mark.parametrize(
  ('faults', 'message'),
  [
    ({'status': 404}, '404 Client Error'),
    ({'status': 500}, '500 Server Error'),
    ({'cuts': [100_000] * 4}, 'Connection broken'),
    ({'headers': {'Content-Length': '300001'}}, 'Connection broken'),
  ],
)
def test_an_error_of_the_server_is_explained_with_a_cure(
  tmp_path, faults, message
):
  with (
    http_files.served({FILE: BYTES}, **faults) as server,
    pytest.raises(ConnectionError, match=f'{message}.*{CURE}'),
  ):
    fetch(server, tmp_path)
  assert names(tmp_path) == []


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


def test_unknown_names_are_refused(tmp_path):
  with pytest.raises(ValueError, match=r"'mnist'. Use one of .*'emnist'"):
    download.fetch('mnist', tmp_path)


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
