"""`tf.train.Example` messages, decoded by protobuf without TensorFlow.

Example { Features features = 1 }
Features { map<string, Feature> feature = 1 }
Feature { oneof kind { BytesList = 1; FloatList = 2; Int64List = 3 } }
each list { repeated value = 1 }

Reference: tensorflow/core/example/{example,feature}.proto.
"""

from collections.abc import Sequence
import math
from typing import Any

from google.protobuf import descriptor_pool, message, message_factory
import numpy as np
from numpy.typing import DTypeLike

from epe_jax.data import sources

# The messages above, as protoc serializes them.
_POOL = descriptor_pool.DescriptorPool()
_POOL.AddSerializedFile(
  b'\n\rexample.proto\x12\x07epe_jax"\x8f\x01\n\x07Feature\x12(\n\nbytes_list'
  b'\x18\x01 \x01(\x0b2\x12.epe_jax.bytesListH\x00\x12(\n\nfloat_list\x18\x02'
  b' \x01(\x0b2\x12.epe_jax.floatListH\x00\x12(\n\nint64_list\x18\x03 \x01(\x0b'
  b'2\x12.epe_jax.int64ListH\x00B\x06\n\x04kind"\x1a\n\tbytesList\x12\r\n\x05'
  b'value\x18\x01 \x03(\x0c"\x1a\n\tfloatList\x12\r\n\x05value\x18\x01 \x03('
  b'\x02"\x1a\n\tint64List\x12\r\n\x05value\x18\x01 \x03(\x03"}\n\x08Features'
  b'\x12/\n\x07feature\x18\x01 \x03(\x0b2\x1e.epe_jax.Features.FeatureEntry\x1a'
  b'@\n\x0cFeatureEntry\x12\x0b\n\x03key\x18\x01 \x01(\t\x12\x1f\n\x05value\x18'
  b'\x02 \x01(\x0b2\x10.epe_jax.Feature:\x028\x01".\n\x07Example\x12#\n\x08'
  b'features\x18\x01 \x01(\x0b2\x11.epe_jax.Featuresb\x06proto3'
)
_Example: Any = message_factory.GetMessageClass(
  _POOL.FindMessageTypeByName('epe_jax.Example')
)
_STORED = {'bytes': object, 'float': np.float32, 'int64': np.int64}


def stack(
  blobs: Sequence[object], features: sources.Features
) -> sources.Columns:
  """Stacks the named features of some examples into columns.

  Args:
    blobs: n >= 1 serialized examples.
    features: what to take. A float dtype takes floats, an integer dtype
      integers, `bytes` byte strings. Other features are ignored.

  Returns:
    name -> array [n, *shape]; byte strings are arrays of objects.

  Raises:
    ValueError: if an example is damaged, or lacks a feature, or has it in
      another type or length; the message names the row.

  >>> stack([bytes.fromhex('0a0c0a0a0a016112051a030a0107')], {'a': ('i1', ())})
  {'a': array([7], dtype=int8)}
  """
  wanted = {
    name: (_find_kind(dtype), math.prod(shape))
    for name, (dtype, shape) in features.items()
  }
  # Of each feature a list of values, or of an array for each example.
  columns = {name: [] for name in features}
  for row, blob in enumerate(blobs):
    try:
      example = _parse(blob)
      for name, (kind, length) in wanted.items():
        values = _get_values(example, name, kind, length)
        if kind == 'bytes' or length == 1:
          columns[name] += values
        else:
          columns[name].append(np.array(values, _STORED[kind]))
    except ValueError as error:
      raise ValueError(f'row {row}: {error}') from error
  raw = {
    name: np.array(values, _STORED[wanted[name][0]]).reshape(len(blobs), -1)
    for name, values in columns.items()
  }
  return sources.decode_columns(raw, features)


def read_features(blob: object) -> sources.Features:
  """Reads what features an example has; one of one value is a scalar.

  Raises:
    ValueError: if the bytes are not an example.

  >>> read_features(bytes.fromhex('0a0c0a0a0a016112051a030a0107'))
  {'a': (dtype('int64'), ())}
  """
  features = {}
  for name, feature in sorted(_parse(blob).items()):
    if field := feature.WhichOneof('kind'):
      kind, num = (
        field.removesuffix('_list'),
        len(getattr(feature, field).value),
      )
      dtype = bytes if kind == 'bytes' else np.dtype(_STORED[kind])
      features[name] = (dtype, () if num == 1 else (num,))
  return features


def _parse(blob: object) -> Any:
  """name -> Feature of a serialized example."""
  if not isinstance(blob, bytes):
    raise ValueError(f'{type(blob).__name__} where a BLOB should be')
  try:
    return _Example.FromString(blob).features.feature
  except message.DecodeError as error:
    raise ValueError(f'not a tf.train.Example: {error}') from error


def _find_kind(dtype: DTypeLike) -> str:
  kind = 'bytes' if dtype is bytes else np.dtype(dtype).kind
  return {'f': 'float', 'i': 'int64', 'u': 'int64'}.get(kind, kind)


def _get_values(example: Any, name: str, kind: str, length: int) -> Any:
  """The values of the named feature, if it is of this kind and length."""
  # Looking up a name that is not there would put it there.
  feature = example.get(name)
  field = feature and feature.WhichOneof('kind')
  if not field:
    there = sorted(n for n in example if example[n].WhichOneof('kind'))
    raise ValueError(f'no feature {name!r} among {there}')
  if field != f'{kind}_list':
    stored = field.removesuffix('_list')
    raise ValueError(f'feature {name!r} is of type {stored}, not {kind}')
  values = getattr(feature, field).value
  if len(values) != length:
    raise ValueError(f'feature {name!r} has {len(values)} values, not {length}')
  return values
