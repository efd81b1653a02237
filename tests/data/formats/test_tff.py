"""TFF's files: whole ones are read in full, and all others are refused."""

import contextlib
import lzma
import sqlite3
import tempfile

import numpy as np
import pytest

from epe_jax.data import decoding
from epe_jax.data.formats import tff
from tests import tff_files

_PIXELS = {'pixels': (np.float32, (28, 28)), 'label': (np.int32, ())}


def _read(path, split='all_train'):
  recipe = decoding.Recipe(_PIXELS, dict, {})
  with tff.open_source(path) as source:
    clients = source.read(split)
    return list(decoding.decode_clients(clients, source, split, recipe))


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
    clients = source.read('all_train')
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
      "row 1: feature 'label' is 1099511627776, which is not a number of int3",
    ),
  ],
)
def test_a_wrong_example_is_named_with_its_place(tmp_path, blob, message):
  rows = [('all_train', 'a', tff_files.image(1)), ('all_train', 'a', blob)]
  path = tff_files.write(tmp_path / 'f.sqlite', rows)
  place = f"{path}, split 'all_train', client 'a'"
  with pytest.raises(ValueError, match=f'{place}, {message}'):
    _read(path)


@pytest.mark.parametrize(
  ('sizes', 'message'),
  [
    ({'a': 1, 'b': 3}, "client 'b': 2 examples, .* says 3"),
    ({'a': 1}, "client 'b': 2 examples, .* says 0"),
    ({'a': 1, 'b': 2, 'c': 4}, "client 'c': 0 examples, .* says 4"),
  ],
)
def test_counts_that_differ_from_the_metadata_are_refused(
  tmp_path, sizes, message
):
  metadata = [(client, 'all_train', n) for client, n in sizes.items()]
  path = tff_files.write(tmp_path / 'f.sqlite', _ROWS, metadata)
  with pytest.raises(ValueError, match=message):
    _read(path)


_IDS = ['', 'B', 'a', 'a\x01', 'b', 'é', '\uffff', '\U00010000']


@pytest.mark.parametrize('indexed', [True, False])
def test_clients_come_in_the_order_of_python(tmp_path, indexed):
  rows = [('all_train', i, tff_files.image(n)) for n, i in enumerate(_IDS)]
  path = tff_files.write(tmp_path / 'f.sqlite', rows[::-1], indexed=indexed)
  assert [client_id for client_id, _ in _read(path)] == sorted(_IDS)


def test_an_index_is_used_where_there_is_one(tmp_path):
  path = tff_files.write(tmp_path / 'f.sqlite', _ROWS, indexed=True)
  plans = []
  with (
    tff.open_source(path) as source,
    contextlib.closing(sqlite3.connect(path)) as db,
  ):
    source.read.args[1].set_trace_callback(plans.append)
    list(source.read('all_train'))
    (query,) = [q for q in plans if 'serialized' in q]
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


@pytest.mark.parametrize(
  ('name', 'damage', 'message'),
  [
    ('f.sqlite', lambda whole: whole[:-4096], 'image is malformed.*tff-data'),
    ('f.sqlite', lambda whole: b'', 'no such table: client_metadata.*tff-data'),
    ('f.sqlite', lzma.compress, 'file is not a database.*tff-datasets-pub'),
    ('f.sqlite.xz', lambda whole: lzma.compress(whole)[:-9], 'or truncated'),
    ('f.sqlite.xz', lambda whole: lzma.compress(b'x' * 999), 'is not a data'),
  ],
)
def test_a_damaged_or_unrelated_file_is_refused_with_its_name(
  tmp_path, name, damage, message
):
  whole = tff_files.write(tmp_path / 'whole', _ROWS).read_bytes()
  path = tmp_path / name
  path.write_bytes(damage(whole))
  with pytest.raises(ValueError, match=f'{path}.*{message}'):
    _splits(path)
