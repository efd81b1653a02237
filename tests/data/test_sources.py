"""Columns keep their values, or a message says which row would not."""

import numpy as np
import pytest

from epe_jax.data import sources


def _texts(*values):
  column = np.empty(len(values), object)
  column[:] = values
  return column


@pytest.mark.parametrize(
  ('stored', 'dtype'),
  [
    (np.array([1, -2], np.int64), np.int8),
    (np.array([1, 2**63], np.uint64), np.uint64),
    (np.array([0.5, np.nan, np.inf]), np.float32),
    (np.array([0.5], '>f4'), np.float32),
    (np.array([True, False]), np.bool_),
    (np.array(['a', 'bc']), np.dtype('U5')),
  ],
)
def test_a_column_that_fits_keeps_its_values(stored, dtype):
  columns = sources.decode_columns({'x': stored}, {'x': (dtype, ())})
  assert columns['x'].dtype == np.dtype(dtype)
  np.testing.assert_array_equal(columns['x'], stored)


@pytest.mark.parametrize(
  ('stored', 'dtype', 'message'),
  [
    (np.array([1, 128]), np.int8, "row 1: feature 'x' is .*128.* of int8"),
    (np.array([-1]), np.uint64, 'row 0: .*-1.* not a number of uint64'),
    (np.array([2**64 - 1], np.uint64), np.int64, 'row 0'),
    (np.array([0.5, 0.1]), np.float32, 'row 1: .*0.1.* not a number of float'),
    (np.array([1e300]), np.float32, 'row 0'),
    (np.array([1]), np.float32, 'int64, which does not become float32'),
    (np.array([1.0]), np.int32, 'float64, which does not become int32'),
    (np.array([1.0]), bytes, 'float64, not byte strings'),
    (np.array(['abc']), np.dtype('U2'), 'row 0'),
    (_texts(b'a', 3), bytes, "row 1: feature 'x' is of type int, not bytes"),
    (_texts(b'a', '\ud800'), bytes, 'row 1: .*surrogates'),
  ],
)
def test_a_value_that_would_change_is_refused(stored, dtype, message):
  with pytest.raises(ValueError, match=message):
    sources.decode_columns({'x': stored}, {'x': (dtype, ())})


@pytest.mark.parametrize(
  'stored',
  [np.array([b'a', 'é'.encode()]), np.array(['a', 'é']), _texts('a', 'é')],
)
def test_texts_become_byte_strings(stored):
  columns = sources.decode_columns({'x': stored}, {'x': (bytes, ())})
  assert columns['x'].tolist() == [b'a', 'é'.encode()]


def test_a_row_takes_the_shape_asked_for_if_its_size_is_the_same():
  flat = np.arange(12.0).reshape(2, 6)
  features = {'x': (np.float64, (2, 3))}
  columns = sources.decode_columns({'x': flat, 'other': flat}, features)
  np.testing.assert_array_equal(columns['x'], flat.reshape(2, 2, 3))
  assert columns.keys() == {'x'}
  with pytest.raises(ValueError, match=r"'x' has shape \(2, 5\), not"):
    sources.decode_columns({'x': flat[:, :5]}, features)
  with pytest.raises(ValueError, match=r"'x' has shape \(\), not"):
    sources.decode_columns({'x': np.array(1.0)}, features)


def test_missing_features_and_unequal_lengths_are_refused():
  features = {'x': (np.float64, ()), 'y': (np.float64, ())}
  with pytest.raises(ValueError, match=r"no feature 'y' among \['x'\]"):
    sources.decode_columns({'x': np.ones(2)}, features)
  with pytest.raises(ValueError, match=r"rows, \{'x': 2, 'y': 3\}"):
    sources.decode_columns({'x': np.ones(2), 'y': np.ones(3)}, features)
