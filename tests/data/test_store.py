"""The store: rows survive the disk as they were, or an error says why."""

from concurrent import futures
import os
import pathlib
import shutil
import threading
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest

from epe_jax import io
from epe_jax.data import federated, store
from tests.helpers import named_clients


def _assert_equal(data, clients):
  expected = federated.from_clients(clients)
  np.testing.assert_array_equal(data.client_ids, expected.client_ids)
  np.testing.assert_array_equal(data.offsets, expected.offsets)
  assert data.columns.keys() == expected.columns.keys()
  for name, column in expected.columns.items():
    assert data.columns[name].dtype == column.dtype
    np.testing.assert_array_equal(data.columns[name], column)


def _store(path, clients=None, source='a test', **kwargs):
  clients = named_clients() if clients is None else clients
  return store.write(path, sorted(clients.items()), source=source, **kwargs)


def test_a_store_gives_back_the_rows_of_every_client(tmp_path):
  _assert_equal(_store(tmp_path / 's'), named_clients())
  _assert_equal(store.load(tmp_path / 's'), named_clients())


def test_a_stored_column_is_a_read_only_map(tmp_path):
  stored = _store(tmp_path / 's')
  pixels = stored.columns['pixels']
  assert np.shares_memory(stored.client(2)['pixels'], pixels)
  mapped = pathlib.Path('/proc/self/maps').read_text()
  if mapped:
    address = pixels.__array_interface__['data'][0]
    (line,) = (
      line
      for line in mapped.splitlines()
      for start, end in [(int(x, 16) for x in line.split()[0].split('-'))]
      if start <= address < end
    )
    assert line.endswith('/s')
  with pytest.raises(ValueError, match='read-only'):
    stored.columns['pixels'][0] = 0


_X = np.arange(3.0)


@pytest.mark.parametrize(
  ('clients', 'message'),
  [
    ([], 'clients is empty'),
    ([('a', {'x': _X}), ('b', {'y': _X})], "client 'b' has columns"),
    ([('b', {'x': _X}), ('a', {'x': _X})], "'a' comes after 'b'"),
    ([('a', {'x': np.array([{}])})], "column 'x' has .*byte strings"),
    ([('a', {'x': _X.astype('c8')})], "'x' has dtype complex64 and shape"),
    ([('a', {'x': _X.astype('U2')})], "'x' has dtype <U2 and .*encode them"),
    ([('a', {'x': _X.astype('>f8')})], "'x' has dtype >f8 and shape"),
    (
      [('a', {'x': np.zeros((3, 0))})],
      r"'x' has dtype .* shape \(0,\) of a row",
    ),
    ([('a', {'client_id': _X})], "no column can be called 'client_id'"),
  ],
)
def test_what_cannot_be_stored_is_refused_and_leaves_nothing(
  tmp_path, clients, message
):
  with pytest.raises(ValueError, match=message):
    store.write(tmp_path / 's', clients, source='a test')
  assert not list(tmp_path.iterdir())


def test_a_store_is_not_there_before_it_is_complete(tmp_path):
  def clients():
    yield 'a', {'x': _X}
    assert {path.name for path in tmp_path.iterdir()} == {
      '.s.staging',
      '.s.lock',
    }
    yield 'b', {'x': _X}

  store.write(tmp_path / 's', clients(), source='a test')
  assert [path.name for path in tmp_path.iterdir()] == ['s']


class _Killed(BaseException):
  """Nothing can catch it to clean up, as with a kill."""


def _killed_at(clients, number):
  """A stream that ends the process, so to speak, before a client."""

  for client_id, columns in sorted(clients.items()):
    if client_id == sorted(clients)[number]:
      raise _Killed
    yield client_id, columns


@pytest.mark.parametrize('save_every', [1, 200, 1 << 20])
def test_a_store_that_was_killed_again_and_again_is_the_same_to_the_byte(
  tmp_path, monkeypatch, save_every
):
  clients = named_clients(12)
  _store(tmp_path / 'whole', clients, meta={'a': (1, 'x')})
  monkeypatch.setattr(store, 'PART_BYTES', save_every)
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
  assert pathlib.Path.read_bytes(tmp_path / 's') == pathlib.Path.read_bytes(
    tmp_path / 'whole'
  )
  assert sorted(path.name for path in tmp_path.iterdir()) == ['s', 'whole']


def test_what_was_saved_is_not_decoded_again(tmp_path, monkeypatch):
  monkeypatch.setattr(store, 'PART_BYTES', 1)
  clients, decoded, told = named_clients(), [], []
  with pytest.raises(_Killed):
    store.write(tmp_path / 's', _killed_at(clients, 4), source='a test')

  def decode(rest):
    for client in rest:
      decoded.append(client[0])
      yield client

  data = _store(tmp_path / 's', decode=decode, report_progress=told.append)
  assert decoded == ['c4', 'c5', 'c6']
  # First what was there, then client by client.
  assert told == [data.offsets[4], *data.sizes[4:]]
  _assert_equal(data, clients)


@pytest.mark.parametrize(
  ('owner', 'name', 'there'),
  [
    (store, '_write_file', False),
    (pathlib.Path, 'rename', False),
    (io, 'sync_folder', True),
    (shutil, 'rmtree', True),
  ],
)
def test_a_kill_while_a_store_is_finished_loses_nothing(
  tmp_path, monkeypatch, owner, name, there
):
  monkeypatch.setattr(store, 'PART_BYTES', 1)
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
  _store(tmp_path / 's')
  assert pathlib.Path.read_bytes(tmp_path / 's') == pathlib.Path.read_bytes(
    tmp_path / 'whole'
  )
  assert sorted(path.name for path in tmp_path.iterdir()) == ['s', 'whole']


@pytest.mark.parametrize(
  'change', [{'source': 'another test'}, {'meta': {'max_words': 3}}]
)
def test_a_beginning_of_something_else_is_neither_continued_nor_deleted(
  tmp_path, monkeypatch, change
):
  monkeypatch.setattr(store, 'PART_BYTES', 1)
  clients = named_clients()
  with pytest.raises(_Killed):
    store.write(tmp_path / 's', _killed_at(clients, 3), source='a test')
  (name,) = change
  message = (
    f'staging is the beginning of something else: its {name}.*delete the'
  )
  with pytest.raises(ValueError, match=message):
    _store(tmp_path / 's', clients, **change)
  _assert_equal(_store(tmp_path / 's', clients), clients)


@pytest.mark.parametrize(
  ('rest', 'message'),
  [
    ([('c4', {'x': _X.astype('i4')})], "client 'c4' has .*but others have"),
    ([('c4', {'x': _X}), ('c3', {'x': _X})], "'c3' comes after 'c4'"),
  ],
)
def test_clients_that_do_not_follow_those_before_are_refused(
  tmp_path, monkeypatch, rest, message
):
  monkeypatch.setattr(store, 'PART_BYTES', 1)
  clients = {f'c{i}': {'x': _X} for i in range(5)}
  with pytest.raises(_Killed):
    store.write(tmp_path / 's', _killed_at(clients, 3), source='a test')
  with pytest.raises(ValueError, match=message):
    store.write(tmp_path / 's', rest, source='a test')


def test_a_beginning_that_lost_bytes_is_not_continued(tmp_path, monkeypatch):
  monkeypatch.setattr(store, 'PART_BYTES', 1)
  with pytest.raises(_Killed):
    store.write(tmp_path / 's', _killed_at(named_clients(), 3), source='a test')
  os.truncate(tmp_path / '.s.staging' / '0.values', 7)
  with pytest.raises(ValueError, match=r'0\.values is damaged.*Delete'):
    _store(tmp_path / 's')
  shutil.rmtree(tmp_path / '.s.staging')
  _assert_equal(_store(tmp_path / 's'), named_clients())


def test_an_error_in_the_rows_leaves_what_was_saved_before(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(store, 'PART_BYTES', 1)
  clients = named_clients()
  wrong = [*sorted(clients.items())[:4], ('c4', {})]
  with pytest.raises(ValueError, match="client 'c4' has no columns"):
    store.write(tmp_path / 's', wrong, source='a test')
  rest = sorted(clients.items())[4:]
  _assert_equal(store.write(tmp_path / 's', rest, source='a test'), clients)


def test_a_store_is_not_overwritten(tmp_path):
  _store(tmp_path / 's')
  _assert_equal(_store(tmp_path / 's', named_clients(2)), named_clients())


def test_of_two_writers_the_second_waits_and_has_what_the_first_wrote(tmp_path):
  begun, go_on = threading.Event(), threading.Event()

  def slow_clients():
    for client in sorted(named_clients().items()):
      begun.set()
      go_on.wait()
      yield client

  with futures.ThreadPoolExecutor() as pool:
    first = pool.submit(
      store.write, tmp_path / 's', slow_clients(), source='a test'
    )
    begun.wait()
    late = pool.submit(_store, tmp_path / 's', named_clients(seed=2))
    with pytest.raises(futures.TimeoutError):
      late.result(timeout=0.2)
    go_on.set()
    _assert_equal(first.result(), named_clients())
    _assert_equal(late.result(), named_clients())
  assert [path.name for path in tmp_path.iterdir()] == ['s']


def test_a_second_writer_goes_on_where_the_first_gave_up(tmp_path):
  begun, go_on = threading.Event(), threading.Event()

  def broken_clients():
    yield 'a', {'x': _X}
    begun.set()
    go_on.wait()
    raise ValueError('broken')

  with futures.ThreadPoolExecutor() as pool:
    first = pool.submit(
      store.write, tmp_path / 's', broken_clients(), source='a test'
    )
    begun.wait()
    late = pool.submit(_store, tmp_path / 's')
    go_on.set()
    with pytest.raises(ValueError, match='broken'):
      first.result()
    _assert_equal(late.result(), named_clients())
  assert [path.name for path in tmp_path.iterdir()] == ['s']


def test_many_writers_of_many_stores_at_once_all_have_them(tmp_path):
  writers, stores = 6, 40
  together = threading.Barrier(writers)

  def write_all(_):
    together.wait()
    return [
      _store(tmp_path / f's{i}', {'a': {'x': _X}}).num_clients
      for i in range(stores)
    ]

  with futures.ThreadPoolExecutor(writers) as pool:
    assert list(pool.map(write_all, range(writers))) == [[1] * stores] * writers
  names = sorted(path.name for path in tmp_path.iterdir())
  assert names == sorted(f's{i}' for i in range(stores))


def test_a_parent_that_is_a_file_is_not_taken_for_a_lost_race(tmp_path):
  (tmp_path / 'file').touch()
  with pytest.raises(FileExistsError):
    _store(tmp_path / 'file' / 's')


def test_writing_holds_one_client_and_not_the_data(tmp_path):
  # pyarrow imports pandas when it is first used.
  _store(tmp_path / 'first')
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


def test_every_plain_dtype_survives_the_disk(tmp_path):
  dtypes = ['bool', 'i1', 'u2', '<i4', 'uint64', 'float16', 'f4', '<f8']
  values = np.array([0, 1, 1, 0])
  columns = {dtype: values.astype(dtype) for dtype in dtypes}
  columns |= {f'2 x {n}': np.stack([x, x], 1) for n, x in columns.items()}
  first, last = (
    {n: x[i] for n, x in columns.items()} for i in ([0], [1, 2, 3])
  )
  _assert_equal(
    _store(tmp_path / 's', {'z': first, 'é': last}), {'z': first, 'é': last}
  )


def test_byte_strings_of_any_length_survive_a_kill_and_the_disk(
  tmp_path, monkeypatch
):
  rng = np.random.default_rng(0)

  def texts(shape):
    column = np.empty(shape, object)
    column.flat = [
      bytes(rng.integers(3, size=n)) for n in rng.integers(9, size=column.size)
    ]
    return column

  clients = {
    f'c{i}': {'x': texts((i + 1,)), 'pair': texts((i + 1, 2))} for i in range(6)
  }
  _store(tmp_path / 'whole', clients)
  monkeypatch.setattr(store, 'PART_BYTES', 40)
  with pytest.raises(_Killed):
    store.write(tmp_path / 's', _killed_at(clients, 4), source='a test')
  _assert_equal(_store(tmp_path / 's', clients), clients)
  assert (tmp_path / 's').read_bytes() == (tmp_path / 'whole').read_bytes()
  store.verify(tmp_path / 's')
  empty = {'a': {'x': np.array([b'', b''], object)}}
  _assert_equal(_store(tmp_path / 'empty', empty), empty)


def test_rows_of_any_memory_layout_are_stored_alike(tmp_path):
  column = np.arange(24.0).reshape(4, 3, 2)
  strided = np.asfortranarray(column)
  data = _store(tmp_path / 's', {'a': {'x': strided}, 'b': {'x': column[::2]}})
  np.testing.assert_array_equal(data.client(0)['x'], column)
  np.testing.assert_array_equal(data.client(1)['x'], column[::2])


def test_a_store_can_be_copied_client_by_client(tmp_path):
  data = _store(tmp_path / 'a')
  store.write(tmp_path / 'b', data.clients(), source='a test')
  assert (tmp_path / 'a').read_bytes() == (tmp_path / 'b').read_bytes()


def test_a_column_may_have_any_name_but_that_of_the_ids(tmp_path):
  clients = {'a': {name: _X for name in ('offsets', 'a b', '../x', 'é')}}
  _assert_equal(_store(tmp_path / 's', clients), clients)
  store.verify(tmp_path / 's')


def test_the_digest_is_that_of_the_contents_wherever_they_are(tmp_path):
  clients = named_clients()
  data = _store(tmp_path / 's', clients, meta={'a': 1})
  assert data.digest == federated.hash_contents(federated.from_clients(clients))
  assert data.digest == store.read_header(tmp_path / 's').digest
  clients['c3']['label'] = clients['c3']['label'] + 1
  assert _store(tmp_path / 't', clients).digest != data.digest


def test_any_reader_of_arrow_finds_a_row_for_each_client(tmp_path):
  data = _store(tmp_path / 's')
  table = pa.ipc.open_file(str(tmp_path / 's')).read_all()
  rows = table.to_pylist()
  assert [row['client_id'] for row in rows] == data.client_ids.tolist()
  for i, row in enumerate(rows):
    np.testing.assert_array_equal(
      np.array(row['pixels'], np.float32), data.client(i)['pixels']
    )
    assert row['label'] == data.client(i)['label'].tolist()
  header = store.read_header(tmp_path / 's')
  assert header[:2] == (store.VERSION, 'a test')
  assert header[3:5] == (data.num_clients, data.num_examples)


def _refusal(path):
  """Why a store is not opened or not verified; None if it is."""
  try:
    store.verify(path)
  except ValueError as error:
    return str(error)


def test_a_flipped_bit_is_found_or_is_in_no_number_of_a_client(tmp_path):
  clients = named_clients(2)
  _store(tmp_path / 'whole', clients)
  raw = (tmp_path / 'whole').read_bytes()
  path, opened = tmp_path / 's', 0
  for at in range(0, len(raw), 3):
    damaged = bytearray(raw)
    damaged[at] ^= 1 << at % 8
    path.unlink(missing_ok=True)
    path.write_bytes(damaged)
    refusal = _refusal(path)
    if refusal is None:
      # A bit of padding, of the first of two schemas, or of the source's name.
      _assert_equal(store.load(path), clients)
      opened += 1
    else:
      assert str(path) in refusal
  assert 0 < opened < len(raw) / 6


def test_an_offset_beyond_the_bytes_is_refused_before_it_is_followed(tmp_path):
  clients = {'ab': {'x': np.array([b'cd'], object)}}
  _store(tmp_path / 's', clients)
  raw = (tmp_path / 's').read_bytes()
  ends = np.array([0, 2]).tobytes()  # Of the ids, then of the byte strings.
  assert raw.count(ends) == 2
  far = np.array([0, 2**40]).tobytes()
  for at in (raw.index(ends), raw.rindex(ends)):
    (tmp_path / 's').unlink()
    (tmp_path / 's').write_bytes(raw[:at] + far + raw[at + 16 :])
    with pytest.raises(ValueError, match='s is not a whole store'):
      store.load(tmp_path / 's')


def test_verify_finds_the_flipped_bit_that_load_does_not_read(tmp_path):
  data = _store(tmp_path / 's')
  store.verify(tmp_path / 's')
  raw = (tmp_path / 's').read_bytes()
  at = raw.index(data.columns['pixels'].tobytes())
  (tmp_path / 's').write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
  store.load(tmp_path / 's')
  with pytest.raises(ValueError, match='the SHA-256 of its contents differs'):
    store.verify(tmp_path / 's')


def test_another_version_is_not_opened(tmp_path, monkeypatch):
  with monkeypatch.context() as patch:
    patch.setattr(store, 'VERSION', 9)
    _store(tmp_path / 's')
  with pytest.raises(ValueError, match='has version 9; this library reads'):
    store.load(tmp_path / 's')


def test_a_path_that_is_no_store_is_refused(tmp_path):
  with pytest.raises(FileNotFoundError, match='nowhere does not exist'):
    store.load(tmp_path / 'nowhere')
  _store(tmp_path / 's')
  for content in (b'text', (tmp_path / 's').read_bytes()[:-7]):
    (tmp_path / 'x').write_bytes(content)
    with pytest.raises(ValueError, match=r'x is not a whole store.*Delete it'):
      store.load(tmp_path / 'x')
  with pa.ipc.new_file(str(tmp_path / 'y'), pa.schema([])):
    pass
  with pytest.raises(ValueError, match='y is not a whole store'):
    store.load(tmp_path / 'y')
