"""Pickles are read without running what they say."""

import io
import os
import pickle
import struct
from typing import ClassVar

import numpy as np
import pytest

from epe_jax.data import pickled_arrays

PIXELS = np.random.default_rng(0).integers(0, 256, (4, 6), np.uint8)
BATCH = {b'data': PIXELS, b'labels': [3, 1, 0, 9], b'batch_label': b'one'}


class Python2(pickle._Pickler):
  """Writes bytes as Python 2 wrote its texts, in which CIFAR-10 is published."""

  dispatch: ClassVar = dict(pickle._Pickler.dispatch)

  def save_bytes(self, text):
    self.write(pickle.BINSTRING + struct.pack('<i', len(text)) + text)
    self.memoize(text)

  dispatch[bytes] = save_bytes


def dump_as_python2(value):
  file = io.BytesIO()
  Python2(file, 2).dump(value)
  # As NumPy 1 named it.
  return file.getvalue().replace(b'numpy._core', b'numpy.core')


@pytest.mark.parametrize(
  'dump',
  [dump_as_python2, *(lambda x, p=p: pickle.dumps(x, p) for p in (3, 4))],
  ids=['python 2', 'protocol 3', 'protocol 4'],
)
def test_arrays_and_plain_values_come_back(dump):
  batch = pickled_arrays.loads(dump(BATCH))
  assert batch.keys() == BATCH.keys()
  np.testing.assert_array_equal(batch[b'data'], PIXELS)
  assert batch[b'labels'] == BATCH[b'labels']
  assert batch[b'batch_label'] == b'one'


def test_an_array_in_column_order_comes_back():
  batch = pickled_arrays.loads(
    pickle.dumps({'data': np.asfortranarray(PIXELS)}, 3)
  )
  np.testing.assert_array_equal(batch[b'data'], PIXELS)


class Malicious:
  def __init__(self, function, *args):
    self.call = function, args

  def __reduce__(self):
    return self.call


@pytest.mark.parametrize('protocol', range(5))
@pytest.mark.parametrize('function', [os.mkdir, exec, eval, getattr])
def test_what_a_pickle_would_run_does_not_run(tmp_path, function, protocol):
  place = tmp_path / 'run'
  argument = (
    str(place) if function is os.mkdir else f'open({str(place)!r}, "w")'
  )
  if function is getattr:
    attack = Malicious(getattr, 'text', 'upper')
  else:
    attack = Malicious(function, argument)
  data = pickle.dumps({'data': PIXELS, 'labels': attack}, protocol)
  if function is os.mkdir:
    # The attack itself is sound: a plain load runs it.
    pickle.loads(data)
    place.rmdir()
  with pytest.raises(ValueError, match='which is not allowed'):
    pickled_arrays.loads(data)
  assert not place.exists()


def test_numpy_itself_is_not_reached():
  for function in (np.load, np.frombuffer, np.memmap):
    data = pickle.dumps({'data': Malicious(function, b'x')}, 3)
    with pytest.raises(ValueError, match='not allowed'):
      pickled_arrays.loads(data)


@pytest.mark.parametrize(
  ('value', 'match'),
  [
    ([1], 'a list, not a dict'),
    ({3: 1}, 'a key is a int'),
    ({'data': np.zeros(3)}, "'f8', not uint8"),
    ({'data': np.array([None])}, 'not uint8'),
  ],
)
def test_other_values_are_refused(value, match):
  with pytest.raises(ValueError, match=match):
    pickled_arrays.loads(pickle.dumps(value, 3))


def test_an_array_of_another_size_than_its_bytes_is_refused():
  data = pickle.dumps({'data': PIXELS}, 3)
  # The numbers of a shape, by a byte each.
  small, large = b'K\x04K\x06\x86', b'K\x04K\x07\x86'
  assert small in data
  with pytest.raises(ValueError, match='24 bytes'):
    pickled_arrays.loads(data.replace(small, large))


def test_a_truncated_pickle_is_refused():
  data = dump_as_python2(BATCH)
  for end in range(len(data)):
    with pytest.raises(ValueError, match='not read'):
      pickled_arrays.loads(data[:end])
