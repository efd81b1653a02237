"""TFF's files: whole ones are read in full, and all others are refused."""

import contextlib
import lzma
import sqlite3
import tempfile

import numpy as np
import pytest

from epe_jax.data import decoding, tff
from tests import tff_files

_PIXELS = {'pixels': (np.float32, (28, 28)), 'label': (np.int32, ())}


def _read(path, split='all_train', after=None):
  recipe = decoding.Recipe(_PIXELS, dict, {})
  with tff.open_source(path) as source:
    return list(decoding.decode_clients(source, split, recipe, after))


def _splits(path):
  with tff.open_source(path) as source:
    return source.splits


_ROWS = [
  ('all_train', 'b', tff_files.image(3, 0.25)),
  ('all_test', 'a', tff_files.image(60)),
  ('all_train', 'a', tff_files.image(61, 0.5)),
  ('all_train', 'b', tff_files.image(1)),
]


def test_clients_come_in_order_of_id_and_rows_in_order_of_the_file(tmp_path):
  path = tff_files.write(tmp_path / 'f.sqlite', _ROWS)
  assert _splits(path) == {'all_test': (1, 1), 'all_train': (2, 3)}
  (a, a_rows), (b, b_rows) = _read(path)
  assert (a, b) == ('a', 'b')
  assert a_rows['label'].tolist() == [61]
  assert b_rows['label'].tolist() == [3, 1]
  assert b_rows['label'].dtype == np.int32
  assert b_rows['pixels'].shape == (2, 28, 28)
  assert b_rows['pixels'].dtype == np.float32
  assert b_rows['pixels'][:, 0, 0].tolist() == [0.25, 1.0]


@pytest.mark.parametrize(
  'options', [{'format': lzma.FORMAT_ALONE}, {'format': lzma.FORMAT_XZ}]
)
def test_a_compressed_file_is_read_and_no_temporary_file_is_left(
  tmp_path, monkeypatch, options
):
  plain = tff_files.write(tmp_path / 'f.sqlite', _ROWS)
  path = tmp_path / 'f.sqlite.lzma'
  path.write_bytes(lzma.compress(plain.read_bytes(), **options))
  (tmp_path / 'temporary').mkdir()
  monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path / 'temporary'))
  with tff.open_source(path) as source:
    clients = source.read('all_train', _PIXELS, None)
    assert [client_id for client_id, _ in clients] == ['a', 'b']
    assert list((tmp_path / 'temporary').iterdir())
  assert not list((tmp_path / 'temporary').iterdir())


def test_a_compressed_name_on_a_plain_file_is_forgiven(tmp_path):
  path = tff_files.write(tmp_path / 'f.sqlite.lzma', _ROWS)
  assert len(_splits(path)) == 2


@pytest.mark.parametrize(
  ('blob', 'message'),
  [
    (tff_files.image(1)[:-1], 'row 1: not a tf.train.Example'),
    ('text', 'row 1: str where a BLOB should be'),
    (
      tff_files.image(2**40),
      "row 1: feature 'label' has the integer .*, beyond int32",
    ),
  ],
)
def test_a_wrong_example_is_named_with_its_place_and_a_cure(
  tmp_path, blob, message
):
  rows = [('all_train', 'a', tff_files.image(1)), ('all_train', 'a', blob)]
  path = tff_files.write(tmp_path / 'f.sqlite', rows)
  place = f"{path}, split 'all_train', client 'a'"
  with pytest.raises(ValueError, match=f'{place}, {message}.*tff-datasets-pub'):
    _read(path)


@pytest.mark.parametrize(
  ('metadata', 'message'),
  [
    ([('a', 'all_train', 1), ('b', 'all_train', 3)], "'b': 2 examples, .* 3"),
    ([('a', 'all_train', 1)], "client 'b': 1 or more examples, .* says 0"),
    (
      [('a', 'all_train', 1), ('b', 'all_train', 1)],
      "client 'b': 2 or more examples, .* says 1",
    ),
    (
      [('a', 'all_train', 1), ('b', 'all_train', 2), ('c', 'all_train', 4)],
      "client 'c': 0 examples, .* says 4",
    ),
  ],
)
def test_counts_that_differ_from_the_metadata_are_refused(
  tmp_path, metadata, message
):
  metadata = [*metadata, ('a', 'all_test', 1)]
  path = tff_files.write(tmp_path / 'f.sqlite', _ROWS, metadata)
  with pytest.raises(ValueError, match=message):
    _read(path)


@pytest.mark.parametrize(
  ('row', 'message'),
  [
    (('a', 'all_train', 'one'), "has 'one' examples for the client 'a'"),
    (('a', 'all_train', -1), "has -1 examples for the client 'a' of the split"),
    (('a', 'all_train', 2**62), 'has 4611686018427387904 examples for'),
    (('a', 'all_train', None), "has None examples for the client 'a'"),
    ((None, 'all_train', 1), 'has 1 examples for the client None'),
    (('a', None, 1), 'of the split None'),
    (('a', b'all_train', 1), "of the split b'all_train'"),
    (('b', 'all_train', 1), "not the first for the client 'b' of the split"),
  ],
)
def test_a_wrong_row_of_the_metadata_is_named(tmp_path, row, message):
  metadata = [('b', 'all_train', 2), ('a', 'all_train', 1), row]
  path = tff_files.write(tmp_path / 'f.sqlite', _ROWS, metadata)
  with pytest.raises(ValueError, match=f'{path}: row 3 of .*{message}.*Expec'):
    _splits(path)


@pytest.mark.parametrize('split', [None, b'all_train', 'spare', '\0'])
def test_examples_of_no_split_in_the_metadata_are_not_skipped(tmp_path, split):
  metadata = [
    ('b', 'all_train', 2),
    ('a', 'all_train', 1),
    ('a', 'all_test', 1),
  ]
  rows = [*_ROWS, (split, 'a', tff_files.image(1))]
  path = tff_files.write(tmp_path / 'f.sqlite', rows, metadata)
  with pytest.raises(ValueError, match='which client_metadata does not list'):
    _splits(path)


@pytest.mark.parametrize('client_id', [None, b'a'])
def test_a_client_id_that_is_no_text_is_named(tmp_path, client_id):
  metadata = [
    ('b', 'all_train', 2),
    ('a', 'all_train', 1),
    ('a', 'all_test', 1),
  ]
  rows = [*_ROWS, ('all_train', client_id, tff_files.image(1))]
  path = tff_files.write(tmp_path / 'f.sqlite', rows, metadata)
  with pytest.raises(ValueError, match=f'client {client_id!r}: the id is not'):
    _read(path)


def test_an_example_of_absurd_length_is_refused(tmp_path, monkeypatch):
  monkeypatch.setattr(tff, '_MAX_LENGTH', 2000)
  path = tff_files.write(tmp_path / 'f.sqlite', _ROWS)
  with pytest.raises(ValueError, match=f'{path} cannot be read.*too big'):
    _read(path)


def test_a_file_in_utf_16_is_refused(tmp_path):
  path = tmp_path / 'f.sqlite'
  with contextlib.closing(sqlite3.connect(path)) as db:
    db.executescript("PRAGMA encoding = 'UTF-16'; CREATE TABLE t (x);")
  tff_files.write(path, _ROWS)
  with pytest.raises(ValueError, match='is in UTF-16le, not in UTF-8'):
    _splits(path)


_IDS = ['', 'B', 'a', 'a\x01', 'b', 'é', '\uffff', '\U00010000']


@pytest.mark.parametrize('indexed', [True, False])
def test_clients_come_in_the_order_of_python_and_go_on_after_any(
  tmp_path, indexed
):
  rows = [('all_train', i, tff_files.image(n)) for n, i in enumerate(_IDS)]
  path = tff_files.write(tmp_path / 'f.sqlite', rows[::-1], indexed=indexed)
  everyone = [client_id for client_id, _ in _read(path)]
  assert everyone == sorted(_IDS)
  for n, client_id in enumerate(everyone):
    rest = [client_id for client_id, _ in _read(path, after=client_id)]
    assert rest == everyone[n + 1 :]


def test_other_order_of_clients_in_the_file_makes_no_difference(tmp_path):
  # Python sorts stably: the rows of a client keep their order.
  rows = [('all_train', f'c{n % 5}', tff_files.image(n)) for n in range(30)]
  first = _read(tff_files.write(tmp_path / 'a', rows))
  second = _read(
    tff_files.write(tmp_path / 'b', sorted(rows, key=lambda r: r[1]))
  )
  for (a, a_rows), (b, b_rows) in zip(first, second, strict=True):
    assert a == b
    assert a_rows['label'].tolist() == b_rows['label'].tolist()


def test_an_index_is_used_where_there_is_one(tmp_path):
  path = tff_files.write(tmp_path / 'f.sqlite', _ROWS, indexed=True)
  plans = []
  with (
    tff.open_source(path) as source,
    contextlib.closing(sqlite3.connect(path)) as db,
  ):
    (file,) = source.read.args
    file.db.set_trace_callback(plans.append)
    list(source.read('all_train', _PIXELS, None))
    list(source.read('all_train', _PIXELS, 'a'))
    queries = [q for q in plans if 'serialized' in q]
    assert len(queries) == 2
    for query in queries:
      plan = str(db.execute(f'EXPLAIN QUERY PLAN {query}').fetchall())
      assert 'USING INDEX' in plan
      assert 'TEMP B-TREE' not in plan


def test_the_features_of_the_file_are_known(tmp_path):
  path = tff_files.write(tmp_path / 'f.sqlite', _ROWS)
  with tff.open_source(path) as source:
    assert source.features == {
      'label': (np.int64, ()),
      'pixels': (np.float32, (784,)),
    }
  damaged = tff_files.write(tmp_path / 'g', [('s', 'a', b'\xff')])
  with tff.open_source(damaged) as source:
    assert source.features is None


def test_a_split_that_is_not_there_is_refused_with_those_that_are(tmp_path):
  path = tff_files.write(tmp_path / 'f.sqlite', _ROWS)
  with pytest.raises(ValueError, match=r"'train', only \['all_test', 'all_tr"):
    _read(path, 'train')


def _compressed(whole):
  return lzma.compress(whole, lzma.FORMAT_ALONE)


@pytest.mark.parametrize(
  ('name', 'damage', 'message'),
  [
    ('f.sqlite', lambda whole: whole[:-4096], 'image is malformed'),
    ('f.sqlite', lambda whole: whole[:50], 'image is malformed'),
    ('f.sqlite', lambda whole: b'', r'should have the columns .*has \[\]'),
    ('f.sqlite', lambda whole: b'\x89HDF\r\n' * 99, 'file is not a database'),
    ('f.sqlite', _compressed, 'file is not a database'),
    (
      'f.sqlite',
      lambda whole: whole[:100] + b'\xff' * (len(whole) - 100),
      'SQLite says',
    ),
    (
      'f.sqlite.lzma',
      lambda whole: _compressed(whole)[:-9],
      'truncated or not',
    ),
    ('f.sqlite.lzma', lambda whole: b'no LZMA' * 99, 'truncated or not'),
    ('f.sqlite.lzma', lambda whole: lzma.compress(b'x' * 999), 'is not a data'),
    (
      'f.sqlite.lzma',
      lambda whole: _compressed(whole[:-4096]),
      'image is malformed',
    ),
  ],
)
def test_a_damaged_or_unrelated_file_is_refused_with_its_name_and_a_cure(
  tmp_path, name, damage, message
):
  whole = tff_files.write(tmp_path / 'whole', _ROWS).read_bytes()
  path = tmp_path / name
  path.write_bytes(damage(whole))
  with pytest.raises(ValueError, match=f'{path}.*{message}.*tff-datasets-pub'):
    _splits(path)


def test_a_flipped_bit_in_a_compressed_file_is_never_an_empty_data_set(
  tmp_path,
):
  # LZMA_ALONE has no checksum, so a flip may pass; xz has one.
  whole = tff_files.write(tmp_path / 'whole', _ROWS).read_bytes()
  raw = bytearray(lzma.compress(whole))
  raw[len(raw) // 2] ^= 4
  path = tmp_path / 'f.sqlite.xz'
  path.write_bytes(raw)
  with pytest.raises(ValueError, match='truncated or not'):
    _splits(path)


@pytest.mark.parametrize(
  ('script', 'message'),
  [
    ('CREATE TABLE t (x)', r"table 'examples' .* has \[\]"),
    (
      'CREATE TABLE examples (split_name, client_id, proto)',
      "serialized_example_proto.* and has .'client_id', 'proto', 'split_name'",
    ),
    (
      'CREATE TABLE examples (split_name, client_id, serialized_example_proto)',
      r"table 'client_metadata' .* has \[\]",
    ),
  ],
)
def test_another_schema_is_refused_with_what_was_expected_and_found(
  tmp_path, script, message
):
  path = tmp_path / 'f.sqlite'
  with contextlib.closing(sqlite3.connect(path)) as db:
    db.executescript(script)
  with pytest.raises(ValueError, match=message):
    _splits(path)


@pytest.mark.parametrize('blob', [None, 'text', 7])
@pytest.mark.parametrize('before', [0, 1])
def test_what_is_no_blob_is_named_with_its_place(tmp_path, blob, before):
  good = [('all_train', 'a', tff_files.image(1))]
  rows = good * before + [('all_train', 'a', blob)]
  path = tff_files.write(tmp_path / 'f.sqlite', rows)
  place = f"{path}, split 'all_train', client 'a', row {before}: "
  with pytest.raises(ValueError, match=f'{place}.* where a BLOB should be'):
    _read(path)


# Without its end it would go on for ever.
_VIEW = (
  'CREATE VIEW {name} AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL '
  'SELECT i + 1 FROM n WHERE i < 100) SELECT t.*, i AS rowid FROM t, n'
)


@pytest.mark.parametrize('name', ['examples', 'client_metadata'])
def test_a_view_is_refused_before_it_is_followed(tmp_path, name):
  path = tff_files.write(tmp_path / 'f.sqlite', _ROWS)
  with contextlib.closing(sqlite3.connect(path)) as db:
    db.execute(f'ALTER TABLE {name} RENAME TO t')
    db.execute(_VIEW.format(name=name.upper()))
    db.commit()
  with pytest.raises(ValueError, match=rf"{path}: '{name}' is a view"):
    _read(path)


def test_a_missing_path_and_a_directory_are_refused_with_a_cure(tmp_path):
  with pytest.raises(FileNotFoundError, match=r'nowhere.*emnist_all\.sqlite'):
    _splits(tmp_path / 'nowhere')
  with pytest.raises(ValueError, match=r'is a directory.*emnist_all\.sqlite'):
    _splits(tmp_path)
