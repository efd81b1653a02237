"""HDF5 files: clients of groups, with arrays of any name."""

import sys

import h5py
import numpy as np
import pytest

from epe_jax.data import emnist, imports, sources, store
from epe_jax.data.formats import hdf5

CLIENTS = {
  'f9': {
    'x': np.arange(6, dtype=np.int16).reshape(3, 2),
    'w': [b'a', b'', b'c'],
  },
  'f10': {'x': np.array([[7, 8]], np.int16), 'w': ['é']},
}


def write(path, splits):
  """A file of split -> client -> array -> rows."""
  with h5py.File(path, 'w') as file:
    for split, clients in splits.items():
      for client_id, arrays in clients.items():
        for name, rows in arrays.items():
          file[f'{split}/{client_id}/{name}'] = rows
  return path


def test_clients_of_every_split_come_in_order_with_all_their_arrays(tmp_path):
  one = {'a': CLIENTS['f9']}
  path = write(tmp_path / 'f.h5', {'train': CLIENTS, 'test': one})
  with sources.open_source(path) as source:
    assert source.splits == {'test': (1, 3), 'train': (2, 4)}
    assert source.features == {'w': (bytes, ()), 'x': (np.int16, (2,))}
    read = list(source.read('train'))
    assert [client_id for client_id, _ in read] == ['f10', 'f9']
    assert read[0][1]['w'].tolist() == ['é'.encode()]
    assert read[1][1]['w'].tolist() == CLIENTS['f9']['w']
    np.testing.assert_array_equal(read[1][1]['x'], CLIENTS['f9']['x'])


def test_a_file_is_imported_like_any_other(tmp_path):
  image = {'pixels': np.ones((2, 28, 28), np.float32), 'label': [3, 61]}
  splits = {'all_train': {'b': image, 'a': image}, 'all_test': {'a': image}}
  path = write(tmp_path / 'f.h5', splits)
  written = list(imports.import_(path, tmp_path / 'out'))
  assert [w[:3] for w in written] == [('all_test', 1, 2), ('all_train', 2, 4)]
  header = store.read_header(tmp_path / 'out' / 'all_train.arrow')
  assert header.meta['recipe'] == 'emnist'
  for where in (path, tmp_path / 'out'):
    train, _ = emnist.load(where, only_digits=False, cache=tmp_path)
    assert train.columns['label'].tolist() == [3, 61, 3, 61]


@pytest.mark.parametrize(
  ('splits', 'message'),
  [
    ({'train': {'a': {'x': [1, 2], 'y': [1]}}}, "client 'a'"),
    ({'train': {'a': {'x': 1}}}, "client 'a'"),
    ({'train': {'a': {'x': [1]}, 'b': {'y': [1]}}}, "client 'b'"),
    ({'train': {'a': {'x/y': [1]}}}, 'Expected an HDF5 file'),
    ({}, 'returns no splits'),
  ],
)
def test_a_file_of_another_form_is_refused_by_name(tmp_path, splits, message):
  path = write(tmp_path / 'f.h5', splits)
  with pytest.raises(ValueError, match=f'{path}.*{message}'):
    sources.open_source(path).__enter__()


def test_a_missing_h5py_is_an_error_with_the_cure(tmp_path, monkeypatch):
  path = write(tmp_path / 'f.h5', {'train': CLIENTS})
  monkeypatch.setitem(sys.modules, 'h5py', None)
  monkeypatch.delitem(sys.modules, hdf5.__name__)
  with pytest.raises(ImportError, match=r"pip install '\.\[hdf5\]'"):
    sources.open_source(path)
