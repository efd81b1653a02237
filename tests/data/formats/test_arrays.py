"""Files of arrays: rows go to their clients, in whatever order they come."""

import numpy as np
import pytest

from epe_jax.data.formats import arrays


def _write(path, **columns):
  np.savez(path, **columns)
  return path


def _rows(path, split='train'):
  with arrays.open_source(path) as source:
    clients = source.read(split)
    return {i: source.decode(raw, source.features) for i, raw in clients}


def test_rows_are_grouped_by_split_and_client(tmp_path):
  path = _write(
    tmp_path / 'f.npz',
    client_id=np.array(['b', 'a', 'b', 'a', 'é']),
    split=np.array(['train', 'train', 'train', 'test', 'test']),
    x=np.arange(10.0).reshape(5, 2),
    word=np.array(['v', 'w', 'x', 'y', 'zz']),
  )
  with arrays.open_source(path) as source:
    assert source.splits == {'test': (2, 2), 'train': (2, 3)}
    assert source.features['x'] == (np.float64, (2,))
  found = _rows(path)
  assert [*found] == ['a', 'b']
  assert found['b']['x'].tolist() == [[0, 1], [4, 5]]
  assert found['b']['word'].tolist() == [b'v', b'x']
  assert [*_rows(path, 'test')] == ['a', 'é']
  with pytest.raises(ValueError, match=r"no split 'x', only \['test', 'train"):
    _rows(path, 'x')


def test_numbers_of_clients_become_strings(tmp_path):
  path = _write(
    tmp_path / 'f.npz', client_id=np.array([10, 9, 10]), x=np.ones(3)
  )
  assert [*_rows(path)] == ['10', '9']


@pytest.mark.parametrize(
  ('columns', 'message'),
  [
    ({'x': np.ones(3)}, "array 'client_id' is missing"),
    ({'client_id': np.ones(3), 'x': np.ones(3)}, "'client_id' is float64"),
    ({'client_id': np.array([1, 2]), 'x': np.ones(3)}, "lengths .*'x': 3"),
    ({'client_id': np.array([], int), 'x': np.ones(0)}, 'lengths'),
    ({'client_id': np.array([1]), 'x': np.array([{}])}, 'Object arrays'),
  ],
)
def test_other_arrays_are_refused_with_a_cure(tmp_path, columns, message):
  path = _write(tmp_path / 'f.npz', **columns)
  with pytest.raises(ValueError, match=rf'{path}.*{message}.*np\.savez'):
    _rows(path)
