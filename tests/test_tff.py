"""TFF's files: what was encoded is read, and everything else is refused.

The encoder here is written from the protocol buffers wire format alone and
shares nothing with the decoder under test.
"""

import contextlib
import lzma
import os
import pathlib
import sqlite3
import struct
import subprocess
import sys
import tempfile

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

from epe_jax.data import federated, tff

_TOOL = pathlib.Path(__file__).parents[2] / 'shared/tools/make_tff_files.py'
_PIXELS = {'pixels': (np.float32, (28, 28)), 'label': (np.int32, ())}


# A small encoder: varints, length-delimited fields, and three kinds of lists.
def _varint(n):
  n %= 1 << 64
  digits = [n >> shift & 127 for shift in range(0, 70, 7)]
  while len(digits) > 1 and not digits[-1]:
    digits.pop()
  return bytes([d | 128 for d in digits[:-1]] + digits[-1:])


def _field(number, payload):
  return _varint(number * 8 + 2) + _varint(len(payload)) + payload


def _floats(values, packed=True):
  raw = [struct.pack('<f', x) for x in values]
  if packed:
    return _field(2, _field(1, b''.join(raw)))
  return _field(2, b''.join(_varint(8 + 5) + x for x in raw))


def _ints(values, packed=True):
  if packed:
    return _field(3, _field(1, b''.join(map(_varint, values))))
  return _field(3, b''.join(_varint(8) + _varint(n) for n in values))


def _strings(values):
  return _field(1, b''.join(_field(1, x) for x in values))


def _entry(key, feature):
  return _field(1, _field(1, key.encode()) + _field(2, feature))


def _example(**features):
  return _field(1, b''.join(_entry(k, v) for k, v in features.items()))


def _image(label, value=1.0, length=784):
  return _example(pixels=_floats([value] * length), label=_ints([label]))


def _decoded(blob):
  """The decoder's answer with plain lists, and the type of every array."""
  answer = {}
  for name, value in tff.decode_example(blob).items():
    if isinstance(value, list):
      answer[name] = ('bytes', value)
    else:
      answer[name] = (value.dtype.name, value.tolist())
  return answer


def test_all_kinds_of_features_are_decoded():
  blob = _example(
    x=_floats([1.0, -0.5]), n=_ints([-1, 0, 2**63 - 1]), s=_strings([b'', b'a'])
  )
  assert _decoded(blob) == {
    'x': ('float32', [1.0, -0.5]),
    'n': ('int64', [-1, 0, 2**63 - 1]),
    's': ('bytes', [b'', b'a']),
  }


@pytest.mark.parametrize(
  'feature',
  [
    _ints([1, 2, 300], packed=False),
    _ints([1]) + _ints([2, 300], packed=False),
    _field(3, _field(1, _varint(1) + _varint(2)) + _varint(8) + _varint(300)),
    _floats([5.0]) + _ints([1, 2, 300]),
    _ints([1, 2, 300]) + _field(9, b'unknown') + _varint(10 * 8) + _varint(7),
    # 300 in five bytes: longer than needed, but legal.
    _field(3, _field(1, b'\x01\x02\xac\x82\x80\x80\x00')),
  ],
)
def test_every_legal_spelling_of_a_list_is_read_alike(feature):
  assert _decoded(_example(n=feature)) == {'n': ('int64', [1, 2, 300])}


def test_the_last_entry_of_a_map_wins_and_parts_of_a_message_are_joined():
  first, second = _entry('a', _ints([1])), _entry('a', _floats([2.0]))
  expected = {'a': ('float32', [2.0])}
  assert _decoded(_field(1, first + second)) == expected
  assert _decoded(_field(1, first) + _field(1, second)) == expected
  assert _decoded(_field(1, second + first)) == {'a': ('int64', [1])}
  reordered = _field(1, _field(2, _ints([1])) + _field(1, b'a'))
  assert _decoded(_field(1, reordered)) == {'a': ('int64', [1])}


def test_a_feature_of_no_kind_is_left_out_and_hides_an_earlier_one():
  assert _decoded(_example(a=b'')) == {}
  assert _decoded(_field(1, _entry('a', _ints([1])) + _entry('a', b''))) == {}
  assert _decoded(_example(a=_ints([]))) == {'a': ('int64', [])}
  assert _decoded(b'') == {}


@pytest.mark.parametrize(
  ('blob', 'message'),
  [
    (b'\x0a', 'end within a number'),
    (b'\x0a\x05ab', 'field of 5 bytes where 2 are left'),
    (_varint(10) + _varint(2**63), 'field of 9223372036854775808 bytes'),
    (b'\x80' * 11, 'longer than 10 bytes'),
    (b'\x00\x01', 'field number 0'),
    (_varint(2**40) + b'\0', 'field number 137438953472'),
    (b'\x0b\x0c', 'wire type 3'),
    (_example(x=_field(2, _field(1, b'12345'))), 'floats ends within one'),
    (_example(n=_field(3, _field(1, b'\x80'))), 'end within a number'),
    (_field(1, _field(1, _field(1, b'\xff'))), 'utf-8'),
  ],
)
def test_damaged_messages_are_refused(blob, message):
  with pytest.raises(ValueError, match=f'not a tf.train.Example.*{message}'):
    tff.decode_example(blob)


def test_no_proper_prefix_of_an_example_is_an_example():
  blob = _example(x=_floats([1.0, 2.0]), n=_ints([3, -4]), s=_strings([b'abc']))
  for stop in range(1, len(blob)):
    with pytest.raises(ValueError, match=r'not a tf\.train\.Example'):
      tff.decode_example(blob[:stop])


_FLOAT32 = st.floats(width=32, allow_nan=False)
_INT64 = st.integers(-(2**63), 2**63 - 1)
_LISTS = st.one_of(
  st.tuples(st.just('float32'), st.lists(_FLOAT32, max_size=5)),
  st.tuples(st.just('int64'), st.lists(_INT64, max_size=5)),
  st.tuples(st.just('bytes'), st.lists(st.binary(max_size=5), max_size=5)),
)
_NAMES = st.text(st.characters(codec='utf-8'), max_size=4)
_UNKNOWN = st.one_of(
  st.just(b''),
  st.builds(_field, st.integers(4, 2**29 - 1), st.binary(max_size=9)),
  st.builds(lambda n: _varint(15 * 8) + _varint(n), _INT64),
  st.just(_varint(15 * 8 + 1) + b'8 bytes.'),
  st.just(_varint(15 * 8 + 5) + b'four'),
)


@st.composite
def _spellings(draw):
  """(features, one of the many legal encodings of them)."""
  features = draw(st.dictionaries(_NAMES, _LISTS, max_size=4))
  entries = []
  for name, (kind, values) in features.items():
    cut = draw(st.integers(0, len(values)))
    feature = b''
    for part in (values[:cut], values[cut:]):
      encode = {'float32': _floats, 'int64': _ints, 'bytes': _strings}[kind]
      packed = {} if kind == 'bytes' else {'packed': draw(st.booleans())}
      feature += draw(_UNKNOWN) + encode(part, **packed)
    if draw(st.booleans()):
      entries.append(_entry(name, _ints([1, 2, 3])))
    entries.append(_entry(name, feature) + draw(_UNKNOWN))
  cut = draw(st.integers(0, len(entries)))
  parts = [_field(1, b''.join(part)) for part in (entries[:cut], entries[cut:])]
  return features, draw(_UNKNOWN).join(parts)


_FUZZ = hypothesis.settings(max_examples=200, derandomize=True, deadline=None)


@_FUZZ
@hypothesis.given(_spellings())
def test_every_legal_encoding_round_trips(spelling):
  features, blob = spelling
  assert _decoded(blob) == features


@_FUZZ
@hypothesis.given(st.binary(max_size=60))
def test_any_bytes_give_a_dictionary_or_a_value_error(blob):
  with contextlib.suppress(ValueError):
    assert isinstance(tff.decode_example(blob), dict)


@_FUZZ
@hypothesis.given(_spellings(), st.data())
def test_a_damaged_example_gives_a_dictionary_or_a_value_error(spelling, data):
  blob = bytearray(spelling[1])
  hypothesis.assume(blob)
  for _ in range(data.draw(st.integers(1, 3))):
    at = data.draw(st.integers(0, len(blob) - 1))
    blob[at] = data.draw(st.integers(0, 255))
  with contextlib.suppress(ValueError):
    assert isinstance(tff.decode_example(bytes(blob)), dict)


def _write(path, rows, metadata=None):
  """An SQLite file of (split, client, blob) rows and their true counts."""
  if metadata is None:
    keys = [(client, split) for split, client, _ in rows]
    metadata = [(*key, keys.count(key)) for key in sorted(set(keys))]
  with contextlib.closing(sqlite3.connect(path)) as db:
    db.executescript(
      'CREATE TABLE examples (split_name TEXT, client_id TEXT, '
      'serialized_example_proto BLOB); CREATE TABLE client_metadata '
      '(client_id TEXT, split_name TEXT, num_examples INTEGER);'
    )
    db.executemany('INSERT INTO examples VALUES (?, ?, ?)', rows)
    db.executemany('INSERT INTO client_metadata VALUES (?, ?, ?)', metadata)
    db.commit()
  return path


_ROWS = [
  ('all_train', 'b', _image(3, 0.25)),
  ('all_test', 'a', _image(60)),
  ('all_train', 'a', _image(61, 0.5)),
  ('all_train', 'b', _image(1)),
]


def test_clients_come_in_order_of_id_and_rows_in_order_of_the_file(tmp_path):
  path = _write(tmp_path / 'f.sqlite', _ROWS)
  assert tff.splits(path) == {'all_test': (1, 1), 'all_train': (2, 3)}
  (a, a_rows), (b, b_rows) = tff.read(path, 'all_train', _PIXELS)
  assert (a, b) == ('a', 'b')
  assert a_rows['label'].tolist() == [61]
  assert b_rows['label'].tolist() == [3, 1]
  assert b_rows['label'].dtype == np.int32
  assert b_rows['pixels'].shape == (2, 28, 28)
  assert b_rows['pixels'].dtype == np.float32
  assert b_rows['pixels'][:, 0, 0].tolist() == [0.25, 1.0]


def test_pixels_are_laid_out_row_by_row_as_stored(tmp_path):
  values = np.linspace(0, 1, 784, dtype=np.float32)
  blob = _example(pixels=_floats(values), label=_ints([0]))
  path = _write(tmp_path / 'f.sqlite', [('all_train', 'a', blob)])
  ((_, rows),) = tff.read(path, 'all_train', _PIXELS)
  np.testing.assert_array_equal(rows['pixels'], values.reshape(1, 28, 28))


def test_byte_strings_and_longer_integers_are_read(tmp_path):
  blob = _example(tokens=_strings([b'a b\0']), ids=_ints([1, -2]))
  path = _write(tmp_path / 'f.sqlite', [('train', 'a', blob)] * 2)
  features = {'tokens': (bytes, ()), 'ids': (np.int64, (2,))}
  ((_, rows),) = tff.read(path, 'train', features)
  assert rows['tokens'].tolist() == [b'a b\0'] * 2
  assert rows['ids'].tolist() == [[1, -2]] * 2


@pytest.mark.parametrize(
  'options', [{'format': lzma.FORMAT_ALONE}, {'format': lzma.FORMAT_XZ}]
)
def test_a_compressed_file_is_read_and_no_temporary_file_is_left(
  tmp_path, monkeypatch, options
):
  plain = _write(tmp_path / 'f.sqlite', _ROWS)
  path = tmp_path / 'f.sqlite.lzma'
  path.write_bytes(lzma.compress(plain.read_bytes(), **options))
  (tmp_path / 'temporary').mkdir()
  monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path / 'temporary'))
  ids = [client_id for client_id, _ in tff.read(path, 'all_train', _PIXELS)]
  assert ids == ['a', 'b']
  abandoned = tff.read(path, 'all_train', _PIXELS)
  next(abandoned)
  assert list((tmp_path / 'temporary').iterdir())
  abandoned.close()
  assert not list((tmp_path / 'temporary').iterdir())


def test_a_compressed_name_on_a_plain_file_is_forgiven(tmp_path):
  path = _write(tmp_path / 'f.sqlite.lzma', _ROWS)
  assert len(tff.splits(path)) == 2


@pytest.mark.parametrize(
  ('blob', 'message'),
  [
    (_example(label=_ints([1])), "no feature 'pixels' among .'label'."),
    (
      _example(pixels=_ints([1] * 784), label=_ints([1])),
      "'pixels' is of type int64, not float",
    ),
    (
      _example(pixels=_floats([1.0] * 784), label=_strings([b'1'])),
      "'label' is of type bytes, not int64",
    ),
    (_image(1, length=783), "'pixels' has 783 values, not 784"),
    (_image(1)[:-1], 'not a tf.train.Example'),
    ('text', 'str where a BLOB should be'),
    (_image(2**40), "'label' has integers beyond int32"),
  ],
)
def test_a_wrong_example_is_named_with_its_place_and_a_cure(
  tmp_path, blob, message
):
  rows = [('all_train', 'a', _image(1)), ('all_train', 'a', blob)]
  path = _write(tmp_path / 'f.sqlite', rows)
  place = f"{path}, split 'all_train', client 'a'"
  with pytest.raises(ValueError, match=f'{place}.*{message}.*tff-datasets-pub'):
    list(tff.read(path, 'all_train', _PIXELS))


def test_the_row_of_a_wrong_example_is_named(tmp_path):
  rows = [('all_train', 'a', _image(1)), ('all_train', 'a', b'\x0a')]
  path = _write(tmp_path / 'f.sqlite', rows)
  with pytest.raises(ValueError, match="client 'a', row 1: not a tf"):
    list(tff.read(path, 'all_train', _PIXELS))


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
  path = _write(tmp_path / 'f.sqlite', _ROWS, metadata)
  with pytest.raises(ValueError, match=message):
    list(tff.read(path, 'all_train', _PIXELS))


def test_a_split_that_is_not_there_is_refused_with_those_that_are(tmp_path):
  path = _write(tmp_path / 'f.sqlite', _ROWS)
  with pytest.raises(ValueError, match=r"'train', only \['all_test', 'all_tr"):
    list(tff.read(path, 'train', _PIXELS))


def test_a_dtype_that_no_example_holds_is_refused(tmp_path):
  path = _write(tmp_path / 'f.sqlite', _ROWS)
  with pytest.raises(ValueError, match='use a float, an integer, or bytes'):
    list(tff.read(path, 'all_train', {'label': (np.bool_, ())}))


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
  whole = _write(tmp_path / 'whole', _ROWS).read_bytes()
  path = tmp_path / name
  path.write_bytes(damage(whole))
  with pytest.raises(ValueError, match=f'{path}.*{message}.*tff-datasets-pub'):
    tff.emnist(path, only_digits=False, cache=tmp_path / 'cache')


def test_a_flipped_bit_in_a_compressed_file_is_never_an_empty_data_set(
  tmp_path,
):
  # LZMA_ALONE has no checksum, so a flip may pass; xz has one.
  whole = _write(tmp_path / 'whole', _ROWS).read_bytes()
  raw = bytearray(lzma.compress(whole))
  raw[len(raw) // 2] ^= 4
  path = tmp_path / 'f.sqlite.xz'
  path.write_bytes(raw)
  with pytest.raises(ValueError, match='truncated or not LZMA'):
    tff.splits(path)


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
    tff.splits(path)


def test_a_missing_path_and_a_directory_are_refused_with_a_cure(tmp_path):
  for call in (tff.splits, lambda path: tff.emnist(path, only_digits=True)):
    with pytest.raises(FileNotFoundError, match=r'nowhere.*emnist_all\.sqlite'):
      call(tmp_path / 'nowhere')
    with pytest.raises(ValueError, match=r'is a directory.*emnist_all\.sqlite'):
      call(tmp_path)


def test_emnist_is_imported_once_and_then_mapped(tmp_path, monkeypatch):
  path = _write(tmp_path / 'f.sqlite', _ROWS)
  cache = tmp_path / 'cache'
  train, test = tff.emnist(path, only_digits=False, cache=cache)
  assert train.client_ids.tolist() == ['a', 'b']
  assert test.client_ids.tolist() == ['a']
  assert train.columns['label'].tolist() == [61, 3, 1]
  assert train.columns['pixels'].shape == (3, 28, 28)

  with monkeypatch.context() as patch:
    patch.setattr(sqlite3, 'connect', None)
    again, _ = tff.emnist(path, only_digits=False, cache=cache)
  assert isinstance(again.columns['pixels'], np.memmap)
  np.testing.assert_array_equal(
    again.columns['pixels'], train.columns['pixels']
  )


def test_a_changed_file_is_imported_anew(tmp_path):
  path = _write(tmp_path / 'f.sqlite', _ROWS)
  tff.emnist(path, only_digits=False, cache=tmp_path)
  path.unlink()
  rows = [*_ROWS, ('all_train', 'c', _image(7))]
  _write(path, rows)
  os.utime(path, ns=(1, 1))
  train, _ = tff.emnist(path, only_digits=False, cache=tmp_path)
  assert train.num_clients == 3


def test_the_cache_is_in_the_place_of_the_environment(tmp_path, monkeypatch):
  path = _write(tmp_path / 'f.sqlite', _ROWS)
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'xdg'))
  tff.emnist(path, only_digits=False)
  stores = sorted((tmp_path / 'xdg' / 'epe_jax').iterdir())
  assert [store.name.rsplit('-', 1)[0] for store in stores] == [
    'f-all_test',
    'f-all_train',
  ]
  federated.verify(stores[0])
  monkeypatch.delenv('XDG_CACHE_HOME')
  monkeypatch.setenv('HOME', str(tmp_path))
  tff.emnist(path, only_digits=False)
  assert len(list((tmp_path / '.cache' / 'epe_jax').iterdir())) == 2


@pytest.mark.parametrize(
  ('only_digits', 'label', 'bound'),
  [(True, 10, 10), (True, -1, 10), (False, 62, 62)],
)
def test_a_label_out_of_range_is_refused(tmp_path, only_digits, label, bound):
  kind = 'digits_only' if only_digits else 'all'
  rows = [(f'{kind}_train', 'a', _image(label))]
  path = _write(tmp_path / 'f.sqlite', rows)
  message = rf"client 'a', row 0: label {label} is not in \[0, {bound}\)"
  with pytest.raises(ValueError, match=message):
    tff.emnist(path, only_digits=only_digits, cache=tmp_path / 'cache')
  assert not list((tmp_path / 'cache').iterdir())


def test_a_cache_that_cannot_be_made_is_not_taken_for_a_lost_race(tmp_path):
  path = _write(tmp_path / 'f.sqlite', _ROWS)
  with pytest.raises(FileExistsError):
    tff.emnist(path, only_digits=False, cache=path)


def test_processes_that_import_at_once_agree(tmp_path):
  rows = [
    (f'all_{part}', f'c{i:03}', _image(i % 62, i / 400))
    for part in ('train', 'test')
    for i in range(400)
  ]
  path = _write(tmp_path / 'f.sqlite', rows)
  program = (
    'import sys; from epe_jax.data import tff; sys.stdin.readline(); '
    'a, b = tff.emnist(sys.argv[1], only_digits=False, cache=sys.argv[2]); '
    'print(a.num_examples, b.num_examples)'
  )
  command = [sys.executable, '-c', program, path, tmp_path / 'cache']
  processes = [
    subprocess.Popen(
      command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    for _ in range(3)
  ]
  answers = [process.communicate('go\n')[0] for process in processes]
  assert answers == ['400 400\n'] * 3
  stores = list((tmp_path / 'cache').iterdir())
  assert len(stores) == 2
  for store in stores:
    federated.verify(store)


@pytest.fixture(scope='session')
def made_file(tmp_path_factory):
  """A file of the public schema, with real images."""
  if not _TOOL.exists():
    pytest.skip(f'{_TOOL}, which writes such files, is not here')
  pytest.importorskip('PIL', reason='the tool needs pillow')
  folder = tmp_path_factory.mktemp('tff')
  command = [sys.executable, _TOOL, '--out', folder, '--max_images', '300']
  subprocess.run(command, check=True, capture_output=True)
  return folder / 'emnist_all.sqlite'


@pytest.mark.parametrize('only_digits', [True, False])
def test_a_file_of_another_writer_is_read_in_full(
  made_file, tmp_path, only_digits
):
  train, test = tff.emnist(made_file, only_digits=only_digits, cache=tmp_path)
  kind, classes = ('digits_only', 10) if only_digits else ('all', 62)
  counts = tff.splits(made_file)
  assert (train.num_clients, train.num_examples) == counts[f'{kind}_train']
  assert (test.num_clients, test.num_examples) == counts[f'{kind}_test']
  assert set(np.unique(train.columns['label'])) <= set(range(classes))
  pixels = train.columns['pixels']
  assert pixels.min() >= 0
  # The background is 1, and it is most of an image's border.
  assert pixels.max() == 1
  assert np.median(pixels[:, 0]) == 1
