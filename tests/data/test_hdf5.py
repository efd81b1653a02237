"""HDF5 archives: whole ones are read in full, and all others are refused."""

import io
import re
import sys
import tarfile
import tempfile

import h5py
import numpy as np
import pytest

from epe_jax.data import decoding, hdf5, sources

IMAGES = {'pixels': (np.float32, (28, 28)), 'label': (np.int32, ())}
TEXT = {'tokens': (bytes, ())}


def images(*labels):
  pixels = np.zeros((len(labels), 28, 28), np.float32)
  pixels[:, 0, 1] = np.arange(len(labels))
  return {'pixels': pixels, 'label': np.array(labels, np.int32)}


CLIENTS = {'f9': images(3, 1), 'f10': images(61), 'é': images(0, 0, 5)}


def write(path, clients=CLIENTS):
  """A file of client -> feature -> rows."""
  with h5py.File(path, 'w') as file:
    examples = file.create_group('examples')
    for client_id, columns in clients.items():
      client = examples.create_group(client_id)
      for feature, rows in columns.items():
        client[feature] = rows
  return path


def same(columns):
  return columns


def read(path, split='all_train', features=IMAGES, after=None):
  with hdf5.open_source(path) as source:
    recipe = decoding.Recipe(features, same, {})
    return list(decoding.decode_clients(source, split, recipe, after))


def archive(path, files):
  with tarfile.open(path, 'w:bz2') as tar:
    for name, file in files.items():
      raw = file.read_bytes()
      info = tarfile.TarInfo(name)
      info.size = len(raw)
      tar.addfile(info, io.BytesIO(raw))
  return path


def test_clients_come_in_order_of_id_with_the_rows_of_the_file(tmp_path):
  path = write(tmp_path / 'fed_emnist_train.h5')
  with hdf5.open_source(path) as source:
    assert source.splits == {'all_train': sources.Split(3, None)}
    assert source.name == str(path)
    assert source.decode is sources.decode_columns
  clients = read(path)
  assert [client_id for client_id, _ in clients] == ['f10', 'f9', 'é']
  for client_id, columns in clients:
    for feature, rows in CLIENTS[client_id].items():
      np.testing.assert_array_equal(columns[feature], rows)
      assert columns[feature].dtype == rows.dtype


def test_decoded_clients_have_the_dtypes_asked_for(tmp_path):
  path = write(tmp_path / 'fed_emnist_train.h5')
  for client_id, columns in read(
    path, features=IMAGES | {'label': (np.int64, ())}
  ):
    assert columns['label'].dtype == np.int64
    assert columns['label'].tolist() == CLIENTS[client_id]['label'].tolist()
    assert columns['pixels'].shape[1:] == (28, 28)


@pytest.mark.parametrize(
  ('after', 'left'),
  [
    ('', ['f10', 'f9', 'é']),
    ('f10', ['f9', 'é']),
    ('f5', ['f9', 'é']),
    ('é', []),
  ],
)
def test_reading_goes_on_after_a_client(tmp_path, after, left):
  path = write(tmp_path / 'fed_emnist_train.h5')
  assert [c for c, _ in read(path, after=after)] == left


def test_flat_images_have_the_shape_asked_for(tmp_path):
  clients = {'a': images(3, 1)}
  flat = {'a': clients['a'] | {'pixels': clients['a']['pixels'].reshape(2, -1)}}
  ((_, columns),) = read(write(tmp_path / 'fed_emnist_train.h5', flat))
  np.testing.assert_array_equal(columns['pixels'], clients['a']['pixels'])


@pytest.mark.parametrize(
  'dtype', [h5py.string_dtype(), h5py.string_dtype('ascii'), 'S20']
)
def test_texts_are_byte_strings_however_they_are_stored(tmp_path, dtype):
  rows = np.array([b'how to brew', 'ä ?'.encode(), b''], object)
  path = tmp_path / 'stackoverflow_held_out.h5'
  write(path, {'1': {'tokens': rows.astype(dtype), 'score': np.zeros(3)}})
  ((_, columns),) = read(path, 'heldout', TEXT)
  assert columns.keys() == {'tokens'}
  assert columns['tokens'].dtype == object
  assert columns['tokens'].tolist() == rows.tolist()


@pytest.mark.parametrize(
  ('name', 'split'),
  [
    ('fed_emnist_test', 'all_test'),
    ('fed_emnist_digitsonly_train', 'digits_only_train'),
    ('fed_emnist_digitsonly_test', 'digits_only_test'),
    ('stackoverflow_train', 'train'),
    ('stackoverflow_held_out', 'heldout'),
    ('stackoverflow_test', 'test'),
    ('shakespeare_train', 'shakespeare_train'),
  ],
)
def test_a_file_is_a_split(tmp_path, name, split):
  with hdf5.open_source(write(tmp_path / f'{name}.h5')) as source:
    assert set(source.splits) == {split}


def test_a_folder_and_an_archive_have_a_split_for_each_file(
  tmp_path, monkeypatch
):
  folder = tmp_path / 'folder'
  folder.mkdir()
  train = write(folder / 'fed_emnist_train.h5')
  test = write(folder / 'fed_emnist_test.h5', {'a': images(1)})
  (folder / 'README').write_text('not data')
  (folder / '._fed_emnist_test.h5').write_text('not data')
  packed = archive(
    tmp_path / 'fed_emnist.tar.bz2',
    {'datasets/' + train.name: train, test.name: test},
  )
  (tmp_path / 'temporary').mkdir()
  monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path / 'temporary'))
  for path in (folder, packed):
    with hdf5.open_source(path) as source:
      assert source.splits == {
        'all_test': sources.Split(1, None),
        'all_train': sources.Split(3, None),
      }
      (test_client,) = source.read('all_test', IMAGES, None)
      assert test_client[1]['label'].tolist() == [1]
    assert [c for c, _ in read(path)] == ['f10', 'f9', 'é']
    assert not list((tmp_path / 'temporary').iterdir())


def test_errors_in_an_archive_name_it_and_its_file(tmp_path):
  bad = write(tmp_path / 'b.h5', {'a': {'label': np.zeros(1)}})
  path = archive(tmp_path / 'f.tar.bz2', {'d/b.h5': bad})
  with pytest.raises(ValueError, match=rf"{path}/d/b\.h5, split 'b', client"):
    read(path, 'b')
  path.write_bytes(path.read_bytes()[:-5])
  with pytest.raises(ValueError, match=rf'{path} is damaged, truncated'):
    read(path, 'b')


def test_two_files_of_one_split_are_refused(tmp_path):
  write(tmp_path / 'stackoverflow_heldout.h5')
  write(tmp_path / 'stackoverflow_held_out.h5')
  with pytest.raises(
    ValueError, match=r'heldout\.h5 and .*held_out\.h5 are both'
  ):
    read(tmp_path)


@pytest.mark.parametrize('name', ['a b', '-', 'a\\b'])
def test_a_file_whose_name_is_no_name_of_a_split_is_refused(tmp_path, name):
  path = archive(tmp_path / 'f.tar.bz2', {f'{name}.h5': write(tmp_path / 'x')})
  with pytest.raises(ValueError, match='Rename it to letters'):
    read(path)


@pytest.mark.parametrize(
  ('damage', 'message'),
  [
    (lambda whole: b'', 'file signature not found'),
    (lambda whole: b'SQLite format 3\0' * 99, 'file signature not found'),
    (lambda whole: whole[:100], 'truncated file'),
    (lambda whole: whole[: len(whole) // 2], 'truncated file'),
    (lambda whole: whole[:-1], 'truncated file'),
  ],
)
def test_a_damaged_or_unrelated_file_is_refused_with_its_name_and_a_cure(
  tmp_path, damage, message
):
  path = write(tmp_path / 'fed_emnist_train.h5')
  path.write_bytes(damage(path.read_bytes()))
  with pytest.raises(
    ValueError, match=rf'{path}: .*{message}.*fed_emnist\.tar'
  ):
    read(path)


def test_files_and_splits_that_are_not_there_are_refused_with_a_cure(tmp_path):
  with pytest.raises(FileNotFoundError, match=r'nowhere.*fed_emnist_train\.h5'):
    read(tmp_path / 'nowhere')
  with pytest.raises(ValueError, match=r'has no file \*\.h5'):
    read(tmp_path)
  path = write(tmp_path / 'fed_emnist_train.h5')
  with pytest.raises(ValueError, match=r"no split 'train', only \['all_train"):
    read(path, 'train')


def test_a_file_of_another_schema_is_refused(tmp_path):
  path = tmp_path / 'fed_emnist_train.h5'
  with h5py.File(path, 'w') as file:
    file['data'] = np.zeros(3)
  with pytest.raises(ValueError, match=r"no 'examples' among \['data'\]"):
    read(path)
  with h5py.File(path, 'w') as file:
    file['examples'] = np.zeros(3)
  with pytest.raises(ValueError, match="'examples' is a Dataset, not a Group"):
    read(path)


def test_a_missing_h5py_is_an_error_with_the_cure(tmp_path, monkeypatch):
  path = write(tmp_path / 'fed_emnist_train.h5')
  monkeypatch.setitem(sys.modules, 'h5py', None)
  monkeypatch.delitem(sys.modules, hdf5.__name__)
  with pytest.raises(ImportError, match=r"pip install '\.\[hdf5\]'"):
    sources.open_source(path)


def read_changed(tmp_path, change, features=IMAGES):
  """The error of reading the client 'bad' after a change, without its place."""
  path = write(
    tmp_path / 'fed_emnist_train.h5', {'a': images(1, 2), 'bad': images(1, 2)}
  )
  with h5py.File(path, 'r+') as file:
    change(file['examples/bad'])
  with hdf5.open_source(path) as source:
    recipe = decoding.Recipe(features, same, {})
    clients = decoding.decode_clients(source, 'all_train', recipe)
    assert next(clients)[0] == 'a'
    with pytest.raises(ValueError, match="client 'bad'") as refused:
      next(clients)
  place, _, message = str(refused.value).partition("client 'bad'")
  assert f"{path}, split 'all_train', " in place
  return message


def replaced(feature, **created):
  """A change: the feature is created anew."""

  def change(client):
    del client[feature]
    client.create_dataset(feature, **created)

  return change


def regrouped(client):
  del client['label']
  client.create_group('label')


def removed(client):
  del client['pixels']


def half_written(client):
  replaced('pixels', shape=(4, 784), chunks=(1, 784), dtype='f4')(client)
  client['pixels'][:3] = 1.0
  replaced('label', data=np.zeros(4, int))(client)


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    (removed, r"feature 'pixels': no 'pixels' among \['label'\]"),
    (regrouped, "feature 'label': 'label' is a Group, not a Dataset"),
    (
      replaced('label', data=np.zeros(3, int)),
      r"features have different numbers of rows, \{'pixels': 2, 'label': 3\}",
    ),
    (
      replaced('label', data=np.zeros(2)),
      "feature 'label' is of type float64, which does not become int32",
    ),
    (
      replaced('label', data=np.array([b'1', b'2'])),
      r"feature 'label' is of type \|S1, which does not become int32",
    ),
    (
      replaced('label', data=np.array([True, False])),
      "feature 'label' is of type bool, which does not become int32",
    ),
    (
      replaced('label', data=np.zeros(2, [('a', 'i4')])),
      "feature 'label' is of type .*does not become int32",
    ),
    (
      replaced('label', shape=(2,), dtype=h5py.vlen_dtype(np.int32)),
      "feature 'label': some of its 2 rows were never written",
    ),
    (
      replaced('pixels', data=np.zeros((2, 28, 28), int)),
      "feature 'pixels' is of type int64, which does not become float32",
    ),
    (
      replaced('pixels', data=np.zeros((2, 783))),
      r"feature 'pixels' has shape \(2, 783\), not",
    ),
    (replaced('label', data=5), r"feature 'label': it has shape \(\)"),
    (
      replaced('label', data=h5py.Empty('i4')),
      r"feature 'label': it has shape None",
    ),
    (
      replaced('label', shape=(2**60,), dtype='i1', chunks=(1024,)),
      f"feature 'label': it has {2**60} bytes, over",
    ),
    (
      replaced(
        'label', shape=(2,), dtype='i4', maxshape=(None,), chunks=(2**29,)
      ),
      f"feature 'label': it has {2**31} bytes a chunk, over",
    ),
    (
      replaced('label', shape=(2**24,), dtype='i4'),
      "feature 'label': some of its 16777216 rows were never written",
    ),
    (half_written, "feature 'pixels': some of its 4 rows were never written"),
  ],
)
def test_a_feature_that_is_not_as_it_should_be_is_named_with_its_client(
  tmp_path, change, message
):
  assert re.search(message, read_changed(tmp_path, change))


def test_numbers_where_text_should_be_are_refused(tmp_path):
  path = write(tmp_path / 'stackoverflow_test.h5', {'a': images(1)})
  with pytest.raises(ValueError, match='is of type int32, not byte strings'):
    read(path, 'test', {'label': (bytes, ())})


def test_links_out_of_a_client_are_refused(tmp_path):
  secret = write(tmp_path / 'secret.h5')

  def linked(link):
    def change(client):
      del client['label']
      client['label'] = link

    return change

  for link, kind in (
    (h5py.SoftLink('/examples/a/label'), 'SoftLink'),
    (h5py.SoftLink('/nowhere'), 'SoftLink'),
    (h5py.ExternalLink(secret, '/examples/f9/label'), 'ExternalLink'),
  ):
    message = read_changed(tmp_path, linked(link))
    assert f"feature 'label': 'label' is a link ({kind})" in message


def test_linked_clients_and_linked_examples_are_refused(tmp_path):
  secret = write(tmp_path / 'secret.h5')
  path = write(tmp_path / 'fed_emnist_train.h5', {'a': images(1)})
  with h5py.File(path, 'r+') as file:
    file['examples/b'] = h5py.ExternalLink(secret, '/examples/f9')
  with pytest.raises(ValueError, match=r"client 'b': 'b' is a link \(External"):
    read(path)
  with h5py.File(path, 'w') as file:
    file['examples'] = h5py.ExternalLink(secret, '/examples')
  with pytest.raises(ValueError, match=r"'examples' is a link \(ExternalLink"):
    read(path)


def test_data_in_other_files_are_refused(tmp_path):
  raw = tmp_path / 'secret.raw'
  raw.write_bytes(bytes(range(8)))
  external = replaced(
    'label', shape=(2,), dtype='i4', external=[(raw, 0, h5py.h5f.UNLIMITED)]
  )
  message = "feature 'label': its data are in another file"
  assert message in read_changed(tmp_path, external)
  secret = write(tmp_path / 'secret.h5')

  def virtual(client):
    layout = h5py.VirtualLayout((2,), 'i4')
    layout[:] = h5py.VirtualSource(secret, '/examples/f9/label', (2,))
    del client['label']
    client.create_virtual_dataset('label', layout)

  assert message in read_changed(tmp_path, virtual)


def texts(path, *rows, userblock=0, **created):
  """A file of a client's texts, behind so many bytes of something else."""
  with h5py.File(path, 'w', userblock_size=userblock) as file:
    client = file.create_group('examples').create_group('a')
    data = np.array(rows, object)
    dtype = h5py.string_dtype()
    client.create_dataset('tokens', data=data, dtype=dtype, **created)
  return path


@pytest.mark.parametrize(
  'created',
  [
    {},
    {'userblock': 1024},
    {'chunks': (100,)},
    {'compression': 'gzip'},
  ],
)
def test_long_and_many_texts_come_back_however_they_lie(tmp_path, created):
  rng = np.random.default_rng(0)
  rows = [b'x' * int(n) for n in rng.geometric(0.02, 2000) - 1] + [b'y' * 10**5]
  path = texts(tmp_path / 'stackoverflow_train.h5', *rows, **created)
  ((_, columns),) = read(path, 'train', TEXT)
  assert columns['tokens'].tolist() == rows


def test_texts_that_were_never_set_are_empty(tmp_path):
  path = texts(tmp_path / 'stackoverflow_train.h5', b'a', b'')
  with h5py.File(path, 'r+') as file:
    client = file['examples/a']
    del client['tokens']
    tokens = client.create_dataset('tokens', (3,), h5py.string_dtype())
    tokens[1] = b'b'
  ((_, columns),) = read(path, 'train', TEXT)
  assert columns['tokens'].tolist() == [b'', b'b', b'']


def test_a_text_that_is_not_where_it_should_be_is_refused_by_hdf5(tmp_path):
  whole = texts(tmp_path / 'whole.h5', b'a b', b'quux', b'abc')
  with h5py.File(whole) as file:
    start = file['examples/a/tokens'].id.get_offset()
  path = tmp_path / 'stackoverflow_train.h5'
  place = f"{path}, split 'train', client 'a': feature 'tokens'"
  for at, value in [(16, 5), (28, 9), (20, 8), (20, 2**31), (24, 2**31)]:
    raw = bytearray(whole.read_bytes())
    raw[start + at : start + at + 4] = value.to_bytes(4, 'little')
    path.write_bytes(raw)
    with pytest.raises(ValueError, match=f'{place}: .*fed_emnist'):
      read(path, 'train', TEXT)


def test_a_damaged_collection_of_texts_is_refused_by_hdf5(tmp_path):
  whole = texts(tmp_path / 'whole.h5', b'a b', b'quux').read_bytes()
  path = tmp_path / 'stackoverflow_train.h5'
  start = whole.index(b'GCOL')
  for size in (2**40, 2**64 - 8, 4097):
    # Its own size is in its head of 16 bytes; that of the first object follows.
    for at in (start + 8, start + 24):
      path.write_bytes(
        whole[:at] + size.to_bytes(8, 'little') + whole[at + 8 :]
      )
      with pytest.raises(ValueError, match="feature 'tokens': "):
        read(path, 'train', TEXT)


def test_many_splits_are_read_at_once(tmp_path):
  write(tmp_path / 'fed_emnist_train.h5')
  write(tmp_path / 'fed_emnist_test.h5')
  with hdf5.open_source(tmp_path) as source:
    train, test = (
      source.read(split, IMAGES, None) for split in ('all_train', 'all_test')
    )
    for (a, rows), (b, other_rows) in zip(train, test, strict=True):
      assert a == b
      for feature in IMAGES:
        np.testing.assert_array_equal(rows[feature], CLIENTS[a][feature])
        np.testing.assert_array_equal(rows[feature], other_rows[feature])
  with pytest.raises(ValueError, match=r"'all_train', client 'f10': .*'x'"):
    read(tmp_path, features={'x': (np.int32, ())})


def _outcome(path):
  """What is read, or the message of the refusal."""
  try:
    return [c['label'].tolist() for _, c in read(path)]
  except ValueError as error:
    return str(error)


def test_a_flipped_bit_is_refused_or_reads_as_other_data(tmp_path):
  # HDF5 has no checksum of data, so that nothing else happens is all there is.
  whole = write(tmp_path / 'whole.h5', {'a': images(3, 1)}).read_bytes()
  path = tmp_path / 'fed_emnist_train.h5'
  outcomes = []
  for at in np.linspace(0, len(whole) - 1, 300).astype(int):
    damaged = bytearray(whole)
    damaged[at] ^= 0x80
    path.write_bytes(damaged)
    outcomes.append(_outcome(path))
  refused = [o for o in outcomes if isinstance(o, str)]
  assert all(str(path) in o for o in refused)
  assert 0 < len(refused) < len(outcomes)


def test_a_name_that_is_not_utf_8_is_refused(tmp_path):
  path = tmp_path / 'fed_emnist_train.h5'
  with h5py.File(path, 'w') as file:
    client = file.create_group('examples').create_group(b'\xff')
    for feature, rows in images(1).items():
      client[feature] = rows
  with pytest.raises(ValueError, match=r"client b'\\xff' is not UTF-8"):
    read(path)
