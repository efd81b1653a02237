"""The store: rows survive the disk as they were, or an error says why."""

import json
import os
import tracemalloc

import numpy as np
import pytest

from epe_jax.data import federated, store


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


def _store(path, clients=None, **kwargs):
  clients = _clients() if clients is None else clients
  return store.write(path, sorted(clients.items()), source='a test', **kwargs)


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
    store.write(tmp_path / 's', clients, source='a test')
  assert not list(tmp_path.iterdir())


def test_a_stream_that_breaks_leaves_nothing(tmp_path):
  def clients():
    yield 'a', {'x': _X}
    assert len(list(tmp_path.iterdir())) == 1
    raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    store.write(tmp_path / 's', clients(), source='a test')
  assert not list(tmp_path.iterdir())


def test_a_store_is_not_overwritten(tmp_path):
  _store(tmp_path / 's')
  with pytest.raises(FileExistsError, match=r'exists\. Load it, delete'):
    _store(tmp_path / 's', _clients(2))
  _assert_equal(store.load(tmp_path / 's'), _clients())
  _assert_equal(_store(tmp_path / 's', _clients(2), exist_ok=True), _clients())


@pytest.mark.parametrize('exist_ok', [False, True])
def test_of_two_writers_the_first_wins_and_the_other_is_told(
  tmp_path, exist_ok
):
  late = _clients(seed=2)

  def slow_clients():
    for client in sorted(late.items()):
      if not (tmp_path / 's').exists():
        _store(tmp_path / 's')
      yield client

  def write():
    return store.write(
      tmp_path / 's', slow_clients(), source='a test', exist_ok=exist_ok
    )

  if exist_ok:
    _assert_equal(write(), _clients())
  else:
    with pytest.raises(FileExistsError, match='exists'):
      write()
  _assert_equal(store.load(tmp_path / 's'), _clients())
  assert [path.name for path in tmp_path.iterdir()] == ['s']


def test_a_parent_that_is_a_file_is_not_taken_for_a_lost_race(tmp_path):
  (tmp_path / 'file').touch()
  with pytest.raises(FileExistsError):
    _store(tmp_path / 'file' / 's', exist_ok=True)


def test_an_import_has_its_place_by_file_part_and_version(
  tmp_path, monkeypatch
):
  file = tmp_path / 'f.sqlite'
  file.write_bytes(b'x')

  def place(part='train', version=1, cache='c'):
    return store.place_of_import(file, part, version=version, cache=cache)

  first = place()
  assert first == place()
  assert str(first.parent) == 'c'
  assert first.name.startswith('f-train-')
  places = {first, place(part='test'), place(version=2)}
  os.utime(file, ns=(1, 1))
  places.add(place())
  file.write_bytes(b'xy')
  os.utime(file, ns=(1, 1))
  places.add(place())
  assert len(places) == 5
  monkeypatch.setenv('XDG_CACHE_HOME', '/xdg')
  assert str(place(cache=None).parent) == '/xdg/epe_jax'
  monkeypatch.delenv('XDG_CACHE_HOME')
  monkeypatch.setenv('HOME', '/home')
  assert str(place(cache=None).parent) == '/home/.cache/epe_jax'


def test_writing_holds_one_client_and_not_the_data(tmp_path):
  # 64 clients of 1 MiB: a writer that kept them would hold 64 MiB. It needs
  # a client and the copy of its bytes.
  size = 1 << 20

  def clients():
    for i in range(64):
      yield f'{i:02}', {'x': np.full(size, i, np.uint8)}

  tracemalloc.start()
  try:
    data = store.write(tmp_path / 's', clients(), source='a test')
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
  store.write(tmp_path / 'b', data.clients(), source='a test')
  for name in ('pixels.npy', 'label.npy', 'offsets.npy', 'manifest.json'):
    a, b = (tmp_path / s / name for s in 'ab')
    assert a.read_bytes() == b.read_bytes()


def test_the_columns_are_ordinary_npy_files_and_the_manifest_counts(tmp_path):
  data = _store(tmp_path / 's')
  np.testing.assert_array_equal(
    np.load(tmp_path / 's' / 'pixels.npy'), data.columns['pixels']
  )
  manifest = json.loads((tmp_path / 's' / 'manifest.json').read_text())
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
  file.write_text(file.read_text().replace('"version": 1', '"version": 2'))
  with pytest.raises(ValueError, match='has version 2; this library reads'):
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
