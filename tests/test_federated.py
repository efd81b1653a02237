"""The columnar store: rows come back as they went in, or an error says why."""

import json
import tracemalloc

import numpy as np
import pytest

from epe_jax.data import federated


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
  assert data.client_ids.tolist() == sorted(clients)
  assert data.sizes.tolist() == [
    len(clients[i]['label']) for i in sorted(clients)
  ]
  for client_id, columns in data.clients():
    assert columns.keys() == clients[client_id].keys()
    for name, column in columns.items():
      expected = clients[client_id][name]
      assert column.dtype == expected.dtype
      np.testing.assert_array_equal(column, expected)


def _store(path, clients=None):
  clients = _clients() if clients is None else clients
  return federated.write(path, sorted(clients.items()), source='a test')


def test_every_builder_gives_back_the_rows_of_every_client(tmp_path):
  clients = _clients()
  rows = [(i, r) for i in clients for r in range(len(clients[i]['label']))]
  columns = {
    name: np.stack([clients[i][name][r] for i, r in rows])
    for name in ('pixels', 'label')
  }
  owners = np.array([i for i, _ in rows])
  _assert_equal(federated.from_clients(clients), clients)
  _assert_equal(federated.from_arrays(columns, owners), clients)
  _assert_equal(_store(tmp_path / 's', clients), clients)
  _assert_equal(federated.load(tmp_path / 's'), clients)


def test_the_order_of_dictionaries_does_not_matter():
  clients = _clients()
  backwards = {
    i: dict(reversed(columns.items()))
    for i, columns in reversed(clients.items())
  }
  a = federated.from_clients(clients)
  b = federated.from_clients(backwards)
  assert list(a.columns) == list(b.columns)
  np.testing.assert_array_equal(a.offsets, b.offsets)
  for name in a.columns:
    np.testing.assert_array_equal(a.columns[name], b.columns[name])


def test_rows_of_a_client_keep_their_order_when_clients_are_interleaved():
  rng = np.random.default_rng(1)
  owners = rng.choice(np.array(['a', 'b', 'c']), 300)
  data = federated.from_arrays({'row': np.arange(300)}, owners)
  for client_id, columns in data.clients():
    np.testing.assert_array_equal(
      columns['row'], np.flatnonzero(owners == client_id)
    )


def test_a_client_is_a_view_and_a_stored_column_a_read_only_map(tmp_path):
  data = federated.from_clients(_clients())
  assert np.shares_memory(data.client(2)['pixels'], data.columns['pixels'])
  stored = _store(tmp_path / 's')
  assert isinstance(stored.client(2)['pixels'], np.memmap)
  with pytest.raises(ValueError, match='read-only'):
    stored.columns['pixels'][0] = 0


@pytest.mark.parametrize('i', [-1, 7])
def test_a_client_number_out_of_range_is_refused(i):
  with pytest.raises(IndexError, match='7 clients'):
    federated.from_clients(_clients()).client(i)


@pytest.mark.parametrize(
  ('columns', 'offsets', 'ids', 'message'),
  [
    ({'x': [1, 2]}, [0, 1, 1, 2], 'abc', "client 'b' has no examples. Leave"),
    ({'x': [1, 2]}, [0, 2, 1], 'ab', "fall from 2 to 1 at client 'b'"),
    ({'x': [1, 2]}, [1, 2], 'a', 'start at 1'),
    ({'x': [1, 2]}, [0, 1], 'a', r"column 'x' has shape \(2,\)"),
    ({'x': [1, 2]}, [0, 1, 3], 'ab', 'offsets end at 3'),
    ({'x': [1, 2], 'y': [1]}, [0, 2], 'a', "column 'y'"),
    ({'x': 1}, [0, 1], 'a', r"column 'x' has shape \(\)"),
    ({'x': [1, 2]}, [0, 1, 2], 'aa', "client 'a' occurs twice"),
    ({'x': [1, 2]}, [0, 1, 2], 'ba', "client 'a' comes after 'b'. Sort"),
    ({'x': [1, 2]}, [0, 2], 'ab', 'offsets has 2 entries for 2 clients'),
    ({}, [0, 1], 'a', 'columns is empty'),
    ({'x': []}, [0], '', 'client_ids is empty'),
  ],
)
def test_contradictions_are_refused(columns, offsets, ids, message):
  columns = {name: np.array(column) for name, column in columns.items()}
  with pytest.raises(ValueError, match=message):
    federated.FederatedData(columns, np.array(offsets), np.array(list(ids)))


def test_ids_that_are_not_strings_are_refused():
  with pytest.raises(ValueError, match=r'dtype int64\. Use strings'):
    federated.from_arrays({'x': np.arange(3)}, np.arange(3))


def test_a_column_without_an_id_for_each_row_is_refused():
  with pytest.raises(ValueError, match='names 2 rows'):
    federated.from_arrays({'x': np.arange(3)}, np.array(['a', 'b']))


_X = np.arange(3.0)


@pytest.mark.parametrize(
  ('clients', 'message'),
  [
    ([], 'clients is empty'),
    ([('a', {})], "client 'a' has no columns"),
    ([('a', {'x': _X[:0]})], "client 'a' has no examples"),
    ([('a', {'x': _X}), ('b', {'x': _X[:0]})], "client 'b' has no examples"),
    ([('a', {'x': _X}), ('b', {'y': _X})], "client 'b' has columns"),
    ([('a', {'x': _X}), ('b', {'x': _X.astype('f4')})], 'same names, dtypes'),
    ([('a', {'x': _X}), ('b', {'x': _X[:, None]})], 'names, dtypes and shapes'),
    ([('a', {'x': _X, 'y': _X[:2]})], 'same number of rows'),
    ([('a', {'x': np.array(1.0)})], 'same number of rows'),
    ([('a', {'x': np.array([{}])})], 'dtype object. Use numbers'),
    ([('a', {'offsets': _X})], "column name 'offsets' cannot be"),
    ([('a', {'../x': _X})], "column name '../x' cannot be"),
    ([('a\0', {'x': _X})], 'NUL'),
  ],
)
def test_unequal_clients_are_refused_and_leave_nothing_on_disk(
  tmp_path, clients, message
):
  with pytest.raises(ValueError, match=message):
    federated.from_clients(dict(clients))
  with pytest.raises(ValueError, match=message):
    federated.write(tmp_path / 's', clients, source='a test')
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
  ('ids', 'message'),
  [('aba', "'a' comes after 'b'"), ('aa', "client 'a' occurs twice")],
)
def test_a_stream_of_clients_out_of_order_is_refused(tmp_path, ids, message):
  clients = [(i, {'x': _X}) for i in ids]
  with pytest.raises(ValueError, match=message):
    federated.write(tmp_path / 's', clients, source='a test')
  assert not list(tmp_path.iterdir())


def test_a_stream_that_breaks_leaves_nothing(tmp_path):
  def clients():
    yield 'a', {'x': _X}
    assert len(list(tmp_path.iterdir())) == 1
    raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    federated.write(tmp_path / 's', clients(), source='a test')
  assert not list(tmp_path.iterdir())


def test_a_store_is_not_overwritten(tmp_path):
  _store(tmp_path / 's')
  with pytest.raises(FileExistsError, match=r'exists\. Load it, delete'):
    _store(tmp_path / 's', _clients(2))
  _assert_equal(federated.load(tmp_path / 's'), _clients())


def test_of_two_writers_the_first_wins_and_the_other_is_told(tmp_path):
  late = _clients(seed=2)

  def slow_clients():
    for client in sorted(late.items()):
      if not (tmp_path / 's').exists():
        _store(tmp_path / 's')
      yield client

  with pytest.raises(FileExistsError, match='exists'):
    federated.write(tmp_path / 's', slow_clients(), source='a test')
  _assert_equal(federated.load(tmp_path / 's'), _clients())
  assert [path.name for path in tmp_path.iterdir()] == ['s']


def test_writing_holds_one_client_and_not_the_data(tmp_path):
  # 64 clients of 1 MiB: a writer that kept them would hold 64 MiB. It needs
  # a client and the copy of its bytes.
  size = 1 << 20

  def clients():
    for i in range(64):
      yield f'{i:02}', {'x': np.full(size, i, np.uint8)}

  tracemalloc.start()
  try:
    data = federated.write(tmp_path / 's', clients(), source='a test')
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
  data = federated.load(tmp_path / 's')
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
  federated.write(tmp_path / 'b', data.clients(), source='a test')
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
    federated.load(tmp_path / 's')
  file.unlink()
  with pytest.raises(ValueError, match=name):
    federated.load(tmp_path / 's')


def test_a_store_of_another_layout_than_its_manifest_is_not_opened(tmp_path):
  _store(tmp_path / 's')
  file = tmp_path / 's' / 'pixels.npy'
  file.write_bytes(file.read_bytes().replace(b'<f4', b'<i4'))
  with pytest.raises(ValueError, match='whole store: columns'):
    federated.load(tmp_path / 's')
  file.write_bytes(b'x' * file.stat().st_size)
  with pytest.raises(ValueError, match='whole store'):
    federated.load(tmp_path / 's')


def test_another_version_is_not_opened(tmp_path):
  _store(tmp_path / 's')
  file = tmp_path / 's' / 'manifest.json'
  file.write_text(file.read_text().replace('"version": 1', '"version": 2'))
  with pytest.raises(ValueError, match='has version 2; this library reads'):
    federated.load(tmp_path / 's')


def test_a_path_that_is_no_store_is_refused(tmp_path):
  with pytest.raises(FileNotFoundError, match='nowhere does not exist'):
    federated.load(tmp_path / 'nowhere')
  with pytest.raises(ValueError, match=r'has no manifest\.json'):
    federated.load(tmp_path)


def test_verify_finds_the_flipped_bit_that_load_does_not_read(tmp_path):
  _store(tmp_path / 's')
  federated.verify(tmp_path / 's')
  file = tmp_path / 's' / 'label.npy'
  raw = bytearray(file.read_bytes())
  raw[-1] ^= 1
  file.write_bytes(raw)
  federated.load(tmp_path / 's')
  with pytest.raises(ValueError, match=r'SHA-256 of label\.npy differs'):
    federated.verify(tmp_path / 's')
