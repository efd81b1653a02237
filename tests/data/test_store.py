"""The store: rows survive the disk as they were, or an error says why."""

from concurrent import futures
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import tracemalloc

import numpy as np
import pytest

from epe_jax import io
from epe_jax.data import column_files, federated, store


def _clients(num_clients=7, seed=0):
  rng = np.random.default_rng(seed)
  return {
    f'c{i}': {
      'pixels': rng.normal(size=(n, 2, 3)).astype(np.float32),
      'label': rng.integers(10, size=n, dtype=np.int32),
    }
    for i, n in enumerate(rng.integers(1, 9, num_clients))
  }


def _assert_equal(data, clients):
  expected = federated.from_clients(clients)
  np.testing.assert_array_equal(data.client_ids, expected.client_ids)
  np.testing.assert_array_equal(data.offsets, expected.offsets)
  assert data.columns.keys() == expected.columns.keys()
  for name, column in expected.columns.items():
    assert data.columns[name].dtype == column.dtype
    np.testing.assert_array_equal(data.columns[name], column)


def _after(clients):
  """The clients after an id, as `store.write` asks for them."""

  def stream(after):
    for client_id, columns in sorted(clients.items()):
      if after is None or client_id > after:
        yield client_id, columns

  return stream


def _store(path, clients=None, **kwargs):
  clients = _clients() if clients is None else clients
  return store.write(path, _after(clients), source='a test', **kwargs)


def _files(path):
  return {file.name: file.read_bytes() for file in path.iterdir()}


def test_a_store_gives_back_the_rows_of_every_client(tmp_path):
  _assert_equal(_store(tmp_path / 's'), _clients())
  _assert_equal(store.load(tmp_path / 's'), _clients())


def test_a_stored_column_is_a_read_only_map(tmp_path):
  stored = _store(tmp_path / 's')
  assert isinstance(stored.client(2)['pixels'], np.memmap)
  with pytest.raises(ValueError, match='read-only'):
    stored.columns['pixels'][0] = 0


_X = np.arange(3.0)


@pytest.mark.parametrize(
  ('clients', 'message'),
  [
    ([], 'clients is empty'),
    ([('a', {'x': _X}), ('b', {'y': _X})], "client 'b' has columns"),
    ([('b', {'x': _X}), ('a', {'x': _X})], "'a' comes after 'b'"),
    ([('a', {'x': np.array([{}])})], 'dtype object. Use numbers'),
    ([('a', {'offsets': _X})], "column name 'offsets' cannot be"),
    ([('a', {'../x': _X})], "column name '../x' cannot be"),
  ],
)
def test_what_cannot_be_stored_is_refused_and_leaves_nothing(
  tmp_path, clients, message
):
  with pytest.raises(ValueError, match=message):
    store.write(tmp_path / 's', lambda after: clients, source='a test')
  assert not list(tmp_path.iterdir())


def test_a_store_is_not_there_before_it_is_complete(tmp_path):
  def clients(after):
    yield 'a', {'x': _X}
    assert {path.name for path in tmp_path.iterdir()} == {'.s.draft', '.s.lock'}
    yield 'b', {'x': _X}

  store.write(tmp_path / 's', clients, source='a test')
  assert [path.name for path in tmp_path.iterdir()] == ['s']


class _Killed(BaseException):
  """Nothing can catch it to clean up, as with a kill."""


def _killed_at(clients, number):
  """A stream that ends the process, so to speak, before a client."""

  def stream(after):
    for client_id, columns in _after(clients)(after):
      if client_id == sorted(clients)[number]:
        raise _Killed
      yield client_id, columns

  return stream


@pytest.mark.parametrize('save_every', [1, 200, 1 << 20])
def test_a_store_that_was_killed_again_and_again_is_the_same_to_the_byte(
  tmp_path, monkeypatch, save_every
):
  clients = _clients(12)
  _store(tmp_path / 'whole', clients, meta={'a': (1, 'x')})
  monkeypatch.setattr(column_files, 'SAVE_EVERY', save_every)
  for number in (0, 1, 5, 5, 11):
    with pytest.raises(_Killed):
      store.write(
        tmp_path / 's',
        _killed_at(clients, number),
        source='a test',
        meta={'a': (1, 'x')},
      )
    assert not (tmp_path / 's').exists()
  data = _store(tmp_path / 's', clients, meta={'a': (1, 'x')})
  _assert_equal(data, clients)
  assert _files(tmp_path / 's') == _files(tmp_path / 'whole')
  assert sorted(path.name for path in tmp_path.iterdir()) == ['s', 'whole']


def test_what_was_saved_is_not_asked_for_again(tmp_path, monkeypatch):
  monkeypatch.setattr(column_files, 'SAVE_EVERY', 1)
  clients, asked, told = _clients(), [], []
  with pytest.raises(_Killed):
    store.write(tmp_path / 's', _killed_at(clients, 4), source='a test')

  def stream(after):
    asked.append(after)
    return _after(clients)(after)

  data = store.write(tmp_path / 's', stream, source='a test', wrote=told.append)
  assert asked == ['c3']
  # First what was there, then client by client.
  assert told == [data.offsets[4], *data.sizes[4:]]


@pytest.mark.parametrize(
  ('owner', 'name', 'there'),
  [
    (store, '_seal', False),
    (pathlib.Path, 'rename', False),
    (io, 'sync_folder', True),
    (shutil, 'rmtree', True),
  ],
)
def test_a_kill_while_a_store_is_finished_loses_nothing(
  tmp_path, monkeypatch, owner, name, there
):
  monkeypatch.setattr(column_files, 'SAVE_EVERY', 1)
  _store(tmp_path / 'whole')
  whole = getattr(owner, name)

  def killed(*args, **kwargs):
    if (tmp_path / 's').exists() == there:
      raise _Killed
    return whole(*args, **kwargs)

  with monkeypatch.context() as patch:
    patch.setattr(owner, name, killed)
    with pytest.raises(_Killed):
      _store(tmp_path / 's')
  _store(tmp_path / 's', exist_ok=True)
  assert _files(tmp_path / 's') == _files(tmp_path / 'whole')
  assert sorted(path.name for path in tmp_path.iterdir()) == ['s', 'whole']


def test_a_process_that_is_killed_leaves_a_draft_that_another_finishes(
  tmp_path,
):
  program = """
import os, signal, sys
import numpy as np
from epe_jax.data import column_files, store
column_files.SAVE_EVERY = 1000

def clients(after):
  for i in range(100):
    if f'{i:03}' == sys.argv[2]:
      os.kill(os.getpid(), signal.SIGKILL)
    if after is None or f'{i:03}' > after:
      yield f'{i:03}', {'x': np.arange(i + 1)}

store.write(sys.argv[1], clients, source='a test')
"""

  def run(name, last):
    command = [sys.executable, '-c', program, tmp_path / name, last]
    return subprocess.run(command, check=False).returncode

  assert run('whole', 'none') == 0
  assert run('s', '070') == -signal.SIGKILL
  assert run('s', 'none') == 0
  assert _files(tmp_path / 's') == _files(tmp_path / 'whole')


@pytest.mark.parametrize(
  'change', [{'source': 'another test'}, {'meta': {'max_words': 3}}]
)
def test_a_draft_of_something_else_is_neither_continued_nor_deleted(
  tmp_path, monkeypatch, change
):
  monkeypatch.setattr(column_files, 'SAVE_EVERY', 1)
  clients = _clients()
  same = {'source': 'a test', 'meta': {}}
  with pytest.raises(_Killed):
    store.write(tmp_path / 's', _killed_at(clients, 3), **same)
  (name,) = change
  message = f'draft is the beginning of something else: its {name}.*delete the'
  with pytest.raises(ValueError, match=message):
    store.write(tmp_path / 's', _after(clients), **(same | change))
  _assert_equal(store.write(tmp_path / 's', _after(clients), **same), clients)


@pytest.mark.parametrize(
  ('rest', 'message'),
  [
    ([('c2', {'x': _X})], "client 'c2' with .* does not follow client 'c2'"),
    ([('c4', {'x': _X.astype('i4')})], "client 'c4' with .* does not follow"),
    ([('c4', {'x': _X}), ('c3', {'x': _X})], "'c3' comes after 'c4'"),
  ],
)
def test_clients_that_do_not_follow_those_of_a_draft_are_refused(
  tmp_path, monkeypatch, rest, message
):
  monkeypatch.setattr(column_files, 'SAVE_EVERY', 1)
  clients = {f'c{i}': {'x': _X} for i in range(5)}
  with pytest.raises(_Killed):
    store.write(tmp_path / 's', _killed_at(clients, 3), source='a test')
  with pytest.raises(ValueError, match=message):
    store.write(tmp_path / 's', lambda after: rest, source='a test')


def test_a_draft_that_lost_bytes_is_not_continued(tmp_path, monkeypatch):
  monkeypatch.setattr(column_files, 'SAVE_EVERY', 1)
  with pytest.raises(_Killed):
    store.write(tmp_path / 's', _killed_at(_clients(), 3), source='a test')
  os.truncate(tmp_path / '.s.draft' / 'store' / 'label.npy', 5)
  with pytest.raises(ValueError, match=r'label\.npy is shorter than the'):
    _store(tmp_path / 's')
  shutil.rmtree(tmp_path / '.s.draft')
  _assert_equal(_store(tmp_path / 's'), _clients())


def test_an_error_in_the_rows_leaves_what_was_saved_before(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(column_files, 'SAVE_EVERY', 1)
  clients, asked = _clients(), []
  wrong = [*sorted(clients.items())[:4], ('c4', {})]
  with pytest.raises(ValueError, match="client 'c4' has no columns"):
    store.write(tmp_path / 's', lambda after: wrong, source='a test')

  def stream(after):
    asked.append(after)
    return _after(clients)(after)

  data = store.write(tmp_path / 's', stream, source='a test')
  assert asked == ['c3']
  _assert_equal(data, clients)


def test_an_id_of_absurd_length_is_refused(tmp_path):
  with pytest.raises(ValueError, match='has an id of 1001 characters'):
    _store(tmp_path / 's', {'a' * 1001: {'x': _X}})


def test_a_store_is_not_overwritten(tmp_path):
  _store(tmp_path / 's')
  with pytest.raises(FileExistsError, match=r'exists\. Load it, delete'):
    _store(tmp_path / 's', _clients(2))
  _assert_equal(store.load(tmp_path / 's'), _clients())
  _assert_equal(_store(tmp_path / 's', _clients(2), exist_ok=True), _clients())


@pytest.mark.parametrize('exist_ok', [False, True])
def test_of_two_writers_the_second_waits_and_is_told(tmp_path, exist_ok):
  begun, go_on = threading.Event(), threading.Event()

  def slow_clients(after):
    for client in sorted(_clients().items()):
      begun.set()
      go_on.wait()
      yield client

  def second():
    try:
      return _store(tmp_path / 's', _clients(seed=2), exist_ok=exist_ok)
    except FileExistsError as error:
      return error

  with futures.ThreadPoolExecutor() as pool:
    first = pool.submit(
      store.write, tmp_path / 's', slow_clients, source='a test'
    )
    begun.wait()
    late = pool.submit(second)
    with pytest.raises(futures.TimeoutError):
      late.result(timeout=0.2)
    go_on.set()
    _assert_equal(first.result(), _clients())
    if exist_ok:
      _assert_equal(late.result(), _clients())
    else:
      assert 'exists' in str(late.result())
  assert [path.name for path in tmp_path.iterdir()] == ['s']


def test_a_second_writer_goes_on_where_the_first_gave_up(tmp_path):
  begun, go_on = threading.Event(), threading.Event()

  def broken_clients(after):
    yield 'a', {'x': _X}
    begun.set()
    go_on.wait()
    raise ValueError('broken')

  with futures.ThreadPoolExecutor() as pool:
    first = pool.submit(
      store.write, tmp_path / 's', broken_clients, source='a test'
    )
    begun.wait()
    late = pool.submit(_store, tmp_path / 's')
    go_on.set()
    with pytest.raises(ValueError, match='broken'):
      first.result()
    _assert_equal(late.result(), _clients())
  assert [path.name for path in tmp_path.iterdir()] == ['s']


def test_many_writers_of_many_stores_at_once_all_have_them(tmp_path):
  writers, stores = 6, 40
  together = threading.Barrier(writers)

  def write_all(_):
    together.wait()
    return [
      _store(tmp_path / f's{i}', {'a': {'x': _X}}, exist_ok=True).num_clients
      for i in range(stores)
    ]

  with futures.ThreadPoolExecutor(writers) as pool:
    assert list(pool.map(write_all, range(writers))) == [[1] * stores] * writers
  names = sorted(path.name for path in tmp_path.iterdir())
  assert names == sorted(f's{i}' for i in range(stores))


def test_a_parent_that_is_a_file_is_not_taken_for_a_lost_race(tmp_path):
  (tmp_path / 'file').touch()
  with pytest.raises(FileExistsError):
    _store(tmp_path / 'file' / 's', exist_ok=True)


def test_writing_holds_one_client_and_not_the_data(tmp_path):
  # 64 clients of 1 MiB: a writer that kept them would hold 64 MiB. It needs
  # a client and the copy of its bytes.
  size = 1 << 20

  def clients(after):
    for i in range(64):
      yield f'{i:02}', {'x': np.full(size, i, np.uint8)}

  tracemalloc.start()
  try:
    data = store.write(tmp_path / 's', clients, source='a test')
    _, peak = tracemalloc.get_traced_memory()
  finally:
    tracemalloc.stop()
  assert data.num_examples == 64 * size
  assert peak < 6 * size


@pytest.mark.parametrize(
  'dtype', ['bool', 'int8', '>i4', 'uint64', 'float16', '<f8', 'S3', '<U2']
)
def test_every_plain_dtype_survives_the_disk(tmp_path, dtype):
  column = np.array([0, 1, 1, 0]).astype(dtype)
  _store(tmp_path / 's', {'z': {'x': column[:1]}, 'é': {'x': column[1:]}})
  data = store.load(tmp_path / 's')
  assert data.columns['x'].dtype == np.dtype(dtype)
  np.testing.assert_array_equal(data.columns['x'], column)
  assert data.client_ids.tolist() == ['z', 'é']


def test_rows_of_any_memory_layout_are_stored_alike(tmp_path):
  column = np.arange(24.0).reshape(4, 3, 2)
  strided = np.asfortranarray(column)
  data = _store(tmp_path / 's', {'a': {'x': strided}, 'b': {'x': column[::2]}})
  np.testing.assert_array_equal(data.client(0)['x'], column)
  np.testing.assert_array_equal(data.client(1)['x'], column[::2])


def test_a_store_can_be_copied_client_by_client(tmp_path):
  data = _store(tmp_path / 'a')
  store.write(tmp_path / 'b', lambda after: data.clients(), source='a test')
  for name in ('pixels.npy', 'label.npy', 'offsets.npy', 'manifest.json'):
    a, b = (tmp_path / s / name for s in 'ab')
    assert a.read_bytes() == b.read_bytes()


def test_the_columns_are_ordinary_npy_files_and_the_manifest_counts(tmp_path):
  data = _store(tmp_path / 's')
  np.testing.assert_array_equal(
    np.load(tmp_path / 's' / 'pixels.npy'), data.columns['pixels']
  )
  manifest = store.manifest(tmp_path / 's')
  assert manifest == json.loads(
    (tmp_path / 's' / 'manifest.json').read_text(encoding='utf-8')
  )
  assert manifest['num_clients'] == data.num_clients
  assert manifest['num_examples'] == data.num_examples
  assert manifest['source'] == 'a test'
  assert manifest['columns']['pixels'] == {'dtype': '<f4', 'shape': [2, 3]}


@pytest.mark.parametrize(
  'name', ['pixels.npy', 'offsets.npy', 'client_ids.npy', 'manifest.json']
)
def test_a_store_that_lacks_a_file_or_a_byte_is_not_opened(tmp_path, name):
  _store(tmp_path / 's')
  file = tmp_path / 's' / name
  file.write_bytes(file.read_bytes()[:-3])
  with pytest.raises(ValueError, match=f'{tmp_path}.*{name}.*Delete it and'):
    store.load(tmp_path / 's')
  file.unlink()
  with pytest.raises(ValueError, match=name):
    store.load(tmp_path / 's')


def test_a_store_of_another_layout_than_its_manifest_is_not_opened(tmp_path):
  _store(tmp_path / 's')
  file = tmp_path / 's' / 'pixels.npy'
  file.write_bytes(file.read_bytes().replace(b'<f4', b'<i4'))
  with pytest.raises(ValueError, match='whole store: columns'):
    store.load(tmp_path / 's')
  file.write_bytes(b'x' * file.stat().st_size)
  with pytest.raises(ValueError, match='whole store'):
    store.load(tmp_path / 's')


def test_another_version_is_not_opened(tmp_path):
  _store(tmp_path / 's')
  file = tmp_path / 's' / 'manifest.json'
  file.write_text(file.read_text().replace('"version": 2', '"version": 9'))
  with pytest.raises(ValueError, match='has version 9; this library reads'):
    store.load(tmp_path / 's')


def test_a_path_that_is_no_store_is_refused(tmp_path):
  with pytest.raises(FileNotFoundError, match='nowhere does not exist'):
    store.load(tmp_path / 'nowhere')
  with pytest.raises(ValueError, match=r'has no manifest\.json'):
    store.load(tmp_path)


def test_verify_finds_the_flipped_bit_that_load_does_not_read(tmp_path):
  _store(tmp_path / 's')
  store.verify(tmp_path / 's')
  file = tmp_path / 's' / 'label.npy'
  raw = bytearray(file.read_bytes())
  raw[-1] ^= 1
  file.write_bytes(raw)
  store.load(tmp_path / 's')
  with pytest.raises(ValueError, match=r'SHA-256 of label\.npy differs'):
    store.verify(tmp_path / 's')
