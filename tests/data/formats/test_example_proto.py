"""Examples: every legal encoding is read, and everything else is refused."""

import contextlib
import math

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

from epe_jax.data.formats import example_proto
from tests.tff_files import (
  entry,
  example,
  field,
  floats,
  image,
  ints,
  strings,
  varint,
)


def _decoded(blob):
  """All features of an example, as plain lists."""
  features = {
    name: (dtype, (math.prod(shape),))
    for name, (dtype, shape) in example_proto.read_features(blob).items()
  }
  columns = example_proto.stack([blob], features)
  return {
    name: (
      'bytes' if features[name][0] is bytes else column.dtype.name,
      column[0].tolist(),
    )
    for name, column in columns.items()
  }


def test_all_kinds_of_features_are_decoded():
  blob = example(
    x=floats([1.0, -0.5]), n=ints([-1, 0, 2**63 - 1]), s=strings([b'', b'a'])
  )
  assert _decoded(blob) == {
    'x': ('float32', [1.0, -0.5]),
    'n': ('int64', [-1, 0, 2**63 - 1]),
    's': ('bytes', [b'', b'a']),
  }


@pytest.mark.parametrize(
  'feature',
  [
    ints([1, 2, 300], packed=False),
    ints([1]) + ints([2, 300], packed=False),
    field(3, field(1, varint(1) + varint(2)) + varint(8) + varint(300)),
    floats([5.0]) + ints([1, 2, 300]),
    ints([1, 2, 300]) + field(9, b'unknown') + varint(10 * 8) + varint(7),
    # 300 in five bytes: longer than needed, but legal.
    field(3, field(1, b'\x01\x02\xac\x82\x80\x80\x00')),
  ],
)
def test_every_legal_spelling_of_a_list_is_read_alike(feature):
  assert _decoded(example(n=feature)) == {'n': ('int64', [1, 2, 300])}


def test_the_last_entry_of_a_map_wins_and_parts_of_a_message_are_joined():
  first, second = entry('a', ints([1])), entry('a', floats([2.0]))
  expected = {'a': ('float32', [2.0])}
  assert _decoded(field(1, first + second)) == expected
  assert _decoded(field(1, first) + field(1, second)) == expected
  assert _decoded(field(1, second + first)) == {'a': ('int64', [1])}
  reordered = field(1, field(2, ints([1])) + field(1, b'a'))
  assert _decoded(field(1, reordered)) == {'a': ('int64', [1])}


def test_no_proper_prefix_of_an_example_is_an_example():
  blob = example(x=floats([1.0, 2.0]), n=ints([3, -4]), s=strings([b'abc']))
  for stop in range(1, len(blob)):
    with pytest.raises(ValueError, match=r'not a tf\.train\.Example'):
      example_proto.read_features(blob[:stop])


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
  st.builds(field, st.integers(4, 2**29 - 1), st.binary(max_size=9)),
  st.builds(lambda n: varint(15 * 8) + varint(n), _INT64),
  st.just(varint(15 * 8 + 1) + b'8 bytes.'),
  st.just(varint(15 * 8 + 5) + b'four'),
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
      encode = {'float32': floats, 'int64': ints, 'bytes': strings}[kind]
      packed = {} if kind == 'bytes' else {'packed': draw(st.booleans())}
      feature += draw(_UNKNOWN) + encode(part, **packed)
    if draw(st.booleans()):
      entries.append(entry(name, ints([1, 2, 3])))
    entries.append(entry(name, feature) + draw(_UNKNOWN))
  cut = draw(st.integers(0, len(entries)))
  parts = [field(1, b''.join(part)) for part in (entries[:cut], entries[cut:])]
  return features, draw(_UNKNOWN).join(parts)


_FUZZ = hypothesis.settings(max_examples=200, derandomize=True, deadline=None)


@pytest.mark.integration
@_FUZZ
@hypothesis.given(_spellings())
def test_every_legal_encoding_round_trips(spelling):
  features, blob = spelling
  assert _decoded(blob) == features


@_FUZZ
@hypothesis.given(_spellings(), st.data())
def test_a_damaged_example_gives_a_dictionary_or_a_value_error(spelling, data):
  blob = bytearray(spelling[1])
  hypothesis.assume(blob)
  for _ in range(data.draw(st.integers(1, 3))):
    at = data.draw(st.integers(0, len(blob) - 1))
    blob[at] = data.draw(st.integers(0, 255))
  with contextlib.suppress(ValueError):
    assert isinstance(_decoded(bytes(blob)), dict)


_FEATURES = {'pixels': (np.float32, (28, 28)), 'label': (np.int32, ())}


def test_pixels_are_laid_out_row_by_row_as_stored():
  values = np.linspace(0, 1, 784, dtype=np.float32)
  blob = example(pixels=floats(values), label=ints([7]))
  columns = example_proto.stack([blob, blob], _FEATURES)
  assert columns['label'].tolist() == [7, 7]
  assert columns['label'].dtype == np.int32
  assert columns['pixels'].dtype == np.float32
  np.testing.assert_array_equal(columns['pixels'][1], values.reshape(28, 28))


def test_byte_strings_and_longer_integers_are_stacked():
  blob = example(tokens=strings([b'a b\0']), ids=ints([1, -2]))
  features = {'tokens': (bytes, ()), 'ids': (np.int64, (2,))}
  columns = example_proto.stack([blob] * 2, features)
  assert columns['tokens'].tolist() == [b'a b\0'] * 2
  assert columns['ids'].tolist() == [[1, -2]] * 2


@pytest.mark.parametrize(
  ('blob', 'message'),
  [
    (example(label=ints([1])), "row 1: no feature 'pixels' among .'label'."),
    (
      example(pixels=ints([1] * 784), label=ints([1])),
      "row 1: feature 'pixels' is of type int64, not float",
    ),
    (
      example(pixels=floats([1.0] * 784), label=strings([b'1'])),
      "row 1: feature 'label' is of type bytes, not int64",
    ),
    (image(1, length=783), "'pixels' has 783 values, not 784"),
    (image(1)[:-1], 'row 1: not a tf.train.Example'),
    ('text', 'row 1: str where a BLOB should be'),
    (
      image(2**40),
      "row 1: feature 'label' is 1099511627776, which is not a number of int32",
    ),
  ],
)
def test_an_example_unlike_the_features_is_refused(blob, message):
  with pytest.raises(ValueError, match=message):
    example_proto.stack([image(1), blob], _FEATURES)
