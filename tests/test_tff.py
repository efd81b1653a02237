"""TFF's files: whole ones are read in full, and all others are refused."""

import contextlib
import lzma
import sqlite3
import tempfile

import numpy as np
import pytest

from epe_jax.data import tff
from tests import tff_files

_PIXELS = {'pixels': (np.float32, (28, 28)), 'label': (np.int32, ())}


def _read(path, split='all_train'):
  with tff.opened(path) as file:
    return list(tff.read(file, split, _PIXELS))


def _splits(path):
  with tff.opened(path) as file:
    return tff.splits(file)


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
  with tff.opened(path) as file:
    ids = [client_id for client_id, _ in tff.read(file, 'all_train', _PIXELS)]
    assert ids == ['a', 'b']
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
    (tff_files.image(2**40), "feature 'label' has integers beyond int32"),
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
    ([('a', 'all_train', 1)], "client 'b': 2 examples, .* says 0"),
    (
      [('a', 'all_train', 1), ('b', 'all_train', 2), ('c', 'all_train', 4)],
      "client 'c': 0 examples, .* says 4",
    ),
    ([('a', 'all_train', 'one')], "has 'one' examples for the client 'a'"),
  ],
)
def test_counts_that_differ_from_the_metadata_are_refused(
  tmp_path, metadata, message
):
  path = tff_files.write(tmp_path / 'f.sqlite', _ROWS, metadata)
  with pytest.raises(ValueError, match=message):
    _read(path)


def test_a_split_that_is_not_there_is_refused_with_those_that_are(tmp_path):
  path = tff_files.write(tmp_path / 'f.sqlite', _ROWS)
  with pytest.raises(ValueError, match=r"'train', only \['all_test', 'all_tr"):
    _read(path, 'train')


def _compressed(whole):
  return lzma.compress(whole, lzma.FORMAT_ALONE)


@pytest.mark.parametrize(
  ('name', 'damage', 'message'),
  [
    ('f.sqlite', lambda whole: whole[:-4096], 'truncated: SQLite counts'),
    ('f.sqlite', lambda whole: whole[:50], 'truncated'),
    ('f.sqlite', lambda whole: b'', 'is not an SQLite database'),
    ('f.sqlite', lambda whole: b'\x89HDF\r\n' * 99, 'not an SQLite database'),
    ('f.sqlite', _compressed, 'is not an SQLite database'),
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
    ('f.sqlite.lzma', lambda whole: b'no LZMA' * 99, 'truncated or not LZMA'),
    ('f.sqlite.lzma', lambda whole: lzma.compress(b'x' * 999), 'not an SQLite'),
    (
      'f.sqlite.lzma',
      lambda whole: _compressed(whole[:-4096]),
      'truncated: SQLite counts',
    ),
  ],
)
def test_a_damaged_or_foreign_file_is_refused_with_its_name_and_a_cure(
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
  with pytest.raises(ValueError, match='truncated or not LZMA'):
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


def test_a_missing_path_and_a_directory_are_refused_with_a_cure(tmp_path):
  with pytest.raises(FileNotFoundError, match=r'nowhere.*emnist_all\.sqlite'):
    _splits(tmp_path / 'nowhere')
  with pytest.raises(ValueError, match=r'is a directory.*emnist_all\.sqlite'):
    _splits(tmp_path)
