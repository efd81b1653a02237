"""A stream in any order comes back sorted by client, and nothing is lost."""

import collections
import contextlib
import sqlite3
import sys
import tempfile
import tracemalloc

import numpy as np
import pytest

from epe_jax.data.formats import group_by


def _read(stream, **options):
  # An iterator: the tests' type checker looks into a list.
  with group_by.group_by_client(iter(stream), **options) as groups:
    return list(groups.read())


def _ids(stream):
  return [client_id for client_id, _ in _read(stream)]


def _pieces(rng, clients, pieces):
  """Rows of every kind, in pieces of random size, numbered as they come."""
  at = 0
  for _ in range(pieces):
    n = int(rng.integers(1, 4))
    number = np.arange(at, at + n)
    at += n
    yield (
      f'c{rng.integers(clients)}',
      {
        'number': number,
        'pixels': (number[:, None, None] / np.ones((2, 3))).astype(np.float32),
        'even': number % 2 == 0,
        'text': np.array([b'\0' * (i % 3) for i in number], object),
        'pair': np.array([[b'%d' % i, b'\xff\0'] for i in number], object),
      },
    )


def test_clients_come_in_order_of_id_with_their_rows_in_order_of_arrival():
  pieces = list(_pieces(np.random.default_rng(0), clients=5, pieces=40))
  expected = collections.defaultdict(lambda: collections.defaultdict(list))
  for client_id, columns in pieces:
    for name, rows in columns.items():
      expected[client_id][name] += list(rows)
  found = _read(pieces)
  assert [client_id for client_id, _ in found] == sorted(expected)
  for client_id, columns in found:
    for name, rows in expected[client_id].items():
      first = pieces[0][1][name]
      assert columns[name].dtype == first.dtype
      assert columns[name].shape == (len(rows), *first.shape[1:])
      for found_row, row in zip(columns[name], rows, strict=True):
        assert np.array_equal(found_row, row)
    assert all(type(item) is bytes for item in columns['text'])


def test_clients_and_examples_are_counted():
  with group_by.group_by_client(
    _pieces(np.random.default_rng(1), 7, 30)
  ) as groups:
    sizes = [len(columns['number']) for _, columns in groups.read()]
    assert (groups.clients, groups.examples) == (len(sizes), sum(sizes))


# The last two: a character beyond 16 bits is two of U+D800 to U+DFFF in
# UTF-16, and so sorts there before those from U+E000, and here behind them.
_HARD_IDS = ['b', 'a', 'B', '', 'ä', 'a\x01', 'aa', '10', '9', '\ud7ff']
_HARD_IDS += ['\uffff', '\ue000', '\U00010000', '\U0010ffff']


def test_ids_have_the_order_of_pythons_strings():
  stream = [(client_id, {'x': [0]}) for client_id in _HARD_IDS]
  assert _ids(stream) == sorted(_HARD_IDS)


def test_groups_are_read_as_often_as_wanted_also_at_once():
  with group_by.group_by_client(
    _pieces(np.random.default_rng(2), 5, 20)
  ) as groups:
    for (a, _), (b, _) in zip(groups.read(), groups.read()):
      assert a == b
    assert len(list(groups.read())) == groups.clients


def test_lists_and_text_are_taken_for_what_they_are():
  stream = [
    (np.str_('a'), {'x': [1, 2], 's': ['ä', 'b\0']}),
    ('a', {'x': [3], 's': [b'c\0\0']}),
    ('a', {'x': [4], 's': np.array(['d\0e'])}),
  ]
  ((client_id, columns),) = _read(stream)
  assert type(client_id) is str
  assert columns['x'].tolist() == [1, 2, 3, 4]
  assert columns['s'].tolist() == ['ä'.encode(), b'b\0', b'c\0\0', b'd\0e']


@pytest.mark.parametrize(
  ('piece', 'message'),
  [
    ((5, {'x': [1]}), 'client 5: the id is of type int. Use text'),
    (('b\0', {'x': [1]}), r"client 'b\\x00': the id contains a NUL"),
    (('b', [1, 2]), "client 'b': list of no columns"),
    (('b', {'x': []}), "client 'b': no examples"),
    (('b', {'x': [1.0]}), "client 'b': .*float64.*others have .*int64"),
    (('b', {'x': [[], []]}), r"client 'b': rows of shape \(0,\)"),
    (('b', {'x': [b'a', b'b', None]}), "client 'b': row 2: .*NoneType, not by"),
    (('b', {'x': [1j]}), "client 'b': dtype complex128"),
    (7, 'piece 1: int that is not a pair'),
  ],
)
def test_what_cannot_be_grouped_is_refused_by_name(piece, message):
  with pytest.raises(ValueError, match=f'generator f, {message}'):
    _read([('a', {'x': [1]}), piece], name='generator f')


def test_an_empty_stream_is_refused():
  with pytest.raises(ValueError, match='generator f has no examples'):
    _read([], name='generator f')


def test_a_piece_too_large_for_the_file_is_refused(monkeypatch):
  monkeypatch.setattr(group_by, '_MAX_BYTES', 25)
  assert _read([('a', {'x': [1]})])
  with pytest.raises(ValueError, match="client 'a': 26 bytes at once"):
    _read([('a', {'x': [1, 2]})])


def test_a_full_disk_is_reported_with_a_cure(monkeypatch):
  connect = sqlite3.connect

  def small(*args, **options):
    db = connect(*args, **options)
    db.execute('PRAGMA max_page_count=20')
    return db

  monkeypatch.setattr(sqlite3, 'connect', small)
  stream = (('a', {'x': np.zeros(1000)}) for _ in range(100))
  with pytest.raises(OSError, match=r'SQLite says .*full.*TMPDIR'):
    _read(stream)


def _failing(error):
  yield 'a', {'x': [1]}
  raise error


@pytest.mark.parametrize('error', [KeyError('x'), sqlite3.Error('not ours')])
def test_an_error_of_the_stream_is_passed_on_and_no_file_is_left(
  tmp_path, monkeypatch, error
):
  monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))
  with pytest.raises(type(error), match=str(error.args[0])):
    _read(_failing(error))
  assert not list(tmp_path.iterdir())


def test_the_file_lasts_as_long_as_the_context(tmp_path, monkeypatch):
  monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))
  with group_by.group_by_client([('a', {'x': [1]})]) as groups:
    assert list(tmp_path.rglob('*.sqlite'))
    reading = groups.read()
    next(reading)
  assert not list(tmp_path.iterdir())
  with (
    pytest.raises(RuntimeError, match='of the user'),
    group_by.group_by_client([('a', {'x': [1]})]),
  ):
    raise RuntimeError('of the user')
  assert not list(tmp_path.iterdir())


def test_a_stream_larger_than_the_memory_it_takes_is_grouped():
  piece = {'x': np.zeros(2**17)}  # 1 MiB

  def stream():
    for i in range(100):
      yield f'{i:02d}', piece

  tracemalloc.start()
  with contextlib.closing(contextlib.ExitStack()) as stack:
    groups = stack.enter_context(group_by.group_by_client(stream()))
    for _ in groups.read():
      pass
  _, peak = tracemalloc.get_traced_memory()
  tracemalloc.stop()
  assert peak < 10 * sys.getsizeof(piece['x'])


def test_a_stream_is_a_source_with_one_split():
  features = {'x': (np.int32, ())}
  stream = lambda: iter(
    [('b', {'x': [2], 's': [['t']]}), ('a', {'x': [1], 's': [['']]})]
  )
  with group_by.open_function(stream, 'generator f') as source:
    assert source.name == 'generator f'
    assert source.splits == {'train': (2, 2)}
    assert source.features == {'s': (bytes, (1,)), 'x': (np.int64, ())}
    found = [
      (client_id, source.decode(raw, features)['x'].tolist())
      for client_id, raw in source.read('train')
    ]
    assert found == [('a', [1]), ('b', [2])]
    with pytest.raises(ValueError, match="generator f has no split 'test'"):
      source.read('test')


def test_a_mapping_of_streams_is_a_source_with_its_splits():
  streams = {'a': [('x', {'n': [1]})], 'b': [('y', {'n': [2, 3]})]}
  with group_by.open_function(lambda: streams, 'f') as source:
    assert source.splits == {'a': (1, 1), 'b': (1, 2)}
    for split, client_id in (('a', 'x'), ('b', 'y')):
      ((found, raw),) = source.read(split)
      assert found == client_id
      assert raw['n'].tolist() == streams[split][0][1]['n']
    with pytest.raises(ValueError, match=r"'c', only \['a', 'b'\]"):
      source.read('c')


@pytest.mark.parametrize(
  ('streams', 'message'),
  [({}, 'f returns no splits'), ({'a': []}, "f, split 'a' has no examples")],
)
def test_a_mapping_without_clients_is_refused(streams, message):
  with (
    pytest.raises(ValueError, match=message),
    group_by.open_function(lambda: streams, 'f'),
  ):
    pass
