"""Texts of variable length in an HDF5 file, read by the bytes of the file.

A dataset of texts has for each (length, address of a collection, index in it),
and a collection is a run of objects: index, size, bytes. HDF5's own library
takes these numbers as they come: in a damaged file it makes room for any
length, and walks some collections forever. Only rows in chunks are left to it.

Source: HDF5 File Format Specification 3.0, III.E (Global Heap) and VIII.
"""

from collections.abc import Callable
import struct
from typing import Any, BinaryIO

import numpy as np

_ROW = np.dtype([('length', '<u4'), ('address', '<u8'), ('index', '<u4')])
_COLLECTION = struct.Struct('<4sBxxxQ')
_OBJECT = struct.Struct('<HHxxxxQ')
# HDF5 fills a few collections at a time.
_KEPT = 16


def readable(dataset: Any) -> bool:
  """Whether rows lie in one piece and with addresses of the usual size."""
  sizes = dataset.file.id.get_create_plist().get_sizes()
  return dataset.id.get_offset() is not None and sizes == (8, 8)


def rows(dataset: Any, file: BinaryIO, *, largest: int) -> np.ndarray:
  """The texts of a dataset, as byte strings.

  Args:
    dataset: an h5py Dataset of texts of variable length, `readable`.
    file: the same file, open for its bytes.
    largest: refuses more bytes of text than this.

  Returns:
    Array of objects, of the dataset's shape.

  Raises:
    ValueError: if a text is not where its row says; the message names the row.
  """
  base = dataset.file.userblock_size
  where, size = dataset.id.get_offset(), dataset.size * _ROW.itemsize
  table = np.frombuffer(_bytes(file, where, size), _ROW)
  total = int(table['length'].sum(dtype=np.uint64))
  if total > largest:
    worst = int(table['length'].argmax())
    raise ValueError(
      f'texts of {total} bytes, over {largest}; row {worst} alone has '
      f'{table["length"][worst]}'
    )
  texts = np.empty(len(table), object)
  collections = {}
  for row, (length, address, index) in enumerate(table.tolist()):
    try:
      texts[row] = b''
      if length:
        if address not in collections:
          if len(collections) == _KEPT:
            collections.clear()
          read = lambda at, size: _bytes(file, base + at, size)
          collections[address] = _collection(read, address, largest)
        raw, places = collections[address]
        texts[row] = _text(raw, places, index, length)
    except ValueError as error:
      raise ValueError(f'row {row}: {error}') from error
  return texts.reshape(dataset.shape)


def _text(
  raw: bytes, places: dict[int, tuple[int, int]], index: int, length: int
) -> bytes:
  start, size = places.get(index, (0, -1))
  if length > size:
    raise ValueError(
      f'a text of {length} bytes where '
      + (f'{size} are stored' if size >= 0 else 'none is stored')
    )
  return raw[start : start + length]


def _collection(
  read: Callable[[int, int], bytes], address: int, largest: int
) -> tuple[bytes, dict[int, tuple[int, int]]]:
  """(bytes, index -> where its object begins and how long it is)."""
  name, version, end = _COLLECTION.unpack(read(address, _COLLECTION.size))
  if (name, version) != (b'GCOL', 1) or end > largest:
    raise ValueError(f'no collection of texts at byte {address}')
  raw, places, at = read(address, end), {}, _COLLECTION.size
  while at + _OBJECT.size <= end:
    index, _, size = _OBJECT.unpack_from(raw, at)
    at += _OBJECT.size
    if index == 0:  # the space that is left
      break
    if size > end - at:
      raise ValueError(f'the collection of texts at byte {address} is damaged')
    places[index] = (at, size)
    at += -(-size // 8) * 8
  return raw, places


def _bytes(file: BinaryIO, start: int, size: int) -> bytes:
  # An address can be any number of 64 bits, and seek takes 63.
  if start < 1 << 62:
    file.seek(start)
    raw = file.read(size)
    if len(raw) == size:
      return raw
  raise ValueError(f'the file ends before byte {start} + {size}')
