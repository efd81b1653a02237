"""`tf.train.Example` messages, decoded by protobuf without TensorFlow.

Example { Features features = 1 }
Features { map<string, Feature> feature = 1 }
Feature { oneof kind { BytesList = 1; FloatList = 2; Int64List = 3 } }
each list { repeated value = 1 }
"""

from collections.abc import Sequence
import functools
import math
from typing import Any

from google.protobuf import (
  descriptor_pb2,
  descriptor_pool,
  message,
  message_factory,
)
import numpy as np
from numpy.typing import DTypeLike

from epe_jax.data import sources

# The kinds of a feature, in the order of their numbers, and what holds them.
_STORED = {'bytes': object, 'float': np.float32, 'int64': np.int64}


def stack(
  blobs: Sequence[object], features: sources.Features
) -> dict[str, np.ndarray]:
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
    TypeError: if no example can hold a dtype.

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
      example = _decode(blob)
      for name, (kind, length) in wanted.items():
        values = _get_values(example, name, kind, length)
        if kind == 'bytes' or length == 1:
          columns[name] += values
        else:
          columns[name].append(np.array(values, _STORED[kind]))
    except ValueError as error:
      raise ValueError(f'row {row}: {error}') from error
  return {
    name: _stack_values(name, columns[name], dtype).reshape(len(blobs), *shape)
    for name, (dtype, shape) in features.items()
  }


def read_features(blob: bytes) -> sources.Features:
  """Reads what features an example has; one of one value is a scalar.

  Raises:
    ValueError: if the bytes are not an example.

  >>> read_features(bytes.fromhex('0a0c0a0a0a016112051a030a0107'))
  {'a': (dtype('int64'), ())}
  """
  features = {}
  for name, feature in sorted(_decode(blob).items()):
    if field := feature.WhichOneof('kind'):
      kind, num = (
        field.removesuffix('_list'),
        len(getattr(feature, field).value),
      )
      dtype = bytes if kind == 'bytes' else np.dtype(_STORED[kind])
      features[name] = (dtype, () if num == 1 else (num,))
  return features


def _decode(blob: object) -> Any:
  """name -> Feature of a serialized example."""
  if not isinstance(blob, bytes):
    raise ValueError(f'{type(blob).__name__} where a BLOB should be')
  try:
    return _make_example_class().FromString(blob).features.feature
  except message.DecodeError as error:
    raise ValueError(f'not a tf.train.Example: {error}') from error


@functools.cache
def _make_example_class() -> Any:
  """The class of messages, by the descriptor that tensorflow's protos make.

  Reference: tensorflow/core/example/{example,feature}.proto.
  """
  spec = descriptor_pb2.FieldDescriptorProto
  file = descriptor_pb2.FileDescriptorProto(
    name='example.proto', package='epe_jax', syntax='proto3'
  )

  def add(parent: Any, name: str, number: int, kind: str | int, **more) -> None:
    if isinstance(kind, str):
      more |= {'type_name': f'.epe_jax.{kind}'}
      kind = spec.TYPE_MESSAGE
    more = {'label': spec.LABEL_OPTIONAL} | more
    parent.field.add(name=name, number=number, type=kind, **more)

  feature = file.message_type.add(name='Feature')
  feature.oneof_decl.add(name='kind')
  types = (spec.TYPE_BYTES, spec.TYPE_FLOAT, spec.TYPE_INT64)
  for number, (kind, type_) in enumerate(zip(_STORED, types), 1):
    values = file.message_type.add(name=f'{kind}List')
    add(values, 'value', 1, type_, label=spec.LABEL_REPEATED)
    add(feature, f'{kind}_list', number, f'{kind}List', oneof_index=0)
  features = file.message_type.add(name='Features')
  entry = features.nested_type.add(name='FeatureEntry')
  entry.options.map_entry = True
  add(entry, 'key', 1, spec.TYPE_STRING)
  add(entry, 'value', 2, 'Feature')
  repeated = {'label': spec.LABEL_REPEATED}
  add(features, 'feature', 1, 'Features.FeatureEntry', **repeated)
  add(file.message_type.add(name='Example'), 'features', 1, 'Features')
  pool = descriptor_pool.DescriptorPool()
  pool.Add(file)
  return message_factory.GetMessageClass(
    pool.FindMessageTypeByName('epe_jax.Example')
  )


def _find_kind(dtype: DTypeLike) -> str:
  kind = 'bytes' if dtype is bytes else np.dtype(dtype).kind
  names = {'bytes': 'bytes', 'f': 'float', 'i': 'int64', 'u': 'int64'}
  if kind not in names:
    raise TypeError(f'dtype {dtype!r}: use a float, an integer, or bytes.')
  return names[kind]


def _get_values(example: Any, name: str, kind: str, length: int) -> Any:
  """The values of the named feature, if it is of this kind and length."""
  # Looking up a name that is not there would put it there.
  feature = example.get(name)
  field = feature and feature.WhichOneof('kind')
  if not field:
    there = sorted(n for n in example if example[n].WhichOneof('kind'))
    raise ValueError(f'no feature {name!r} among {there}')
  stored_kind = field.removesuffix('_list')
  if stored_kind != kind:
    raise ValueError(f'feature {name!r} is of type {stored_kind}, not {kind}')
  values = getattr(feature, field).value
  if len(values) != length:
    raise ValueError(f'feature {name!r} has {len(values)} values, not {length}')
  return values


def _stack_values(name: str, values: list, dtype: DTypeLike) -> np.ndarray:
  """All values of a feature, refusing integers that do not fit."""
  if dtype is bytes:
    column = np.empty(len(values), object)
    column[:] = values
    return column
  stored = np.array(values, _STORED[_find_kind(dtype)])
  column = stored.astype(dtype, copy=False)
  if stored.dtype.kind == 'i' and (column != stored).any():
    index = tuple(np.argwhere(column != stored)[0])
    raise ValueError(
      f'row {index[0]}: feature {name!r} has the integer {stored[index]}, '
      f'beyond {np.dtype(dtype)}'
    )
  return column
