"""Writes small files of TensorFlow Federated's form for the tests.

The encoder is written from the protocol buffers wire format alone and shares
nothing with the decoder under test.
"""

import contextlib
import sqlite3
import struct


# A small encoder: varints, length-delimited fields, and three kinds of lists.
def varint(n):
  n %= 1 << 64
  digits = [n >> shift & 127 for shift in range(0, 70, 7)]
  while len(digits) > 1 and not digits[-1]:
    digits.pop()
  return bytes([d | 128 for d in digits[:-1]] + digits[-1:])


def field(number, payload):
  return varint(number * 8 + 2) + varint(len(payload)) + payload


def floats(values, packed=True):
  raw = [struct.pack('<f', x) for x in values]
  if packed:
    return field(2, field(1, b''.join(raw)))
  return field(2, b''.join(varint(8 + 5) + x for x in raw))


def ints(values, packed=True):
  if packed:
    return field(3, field(1, b''.join(map(varint, values))))
  return field(3, b''.join(varint(8) + varint(n) for n in values))


def strings(values):
  return field(1, b''.join(field(1, x) for x in values))


def entry(key, feature):
  return field(1, field(1, key.encode()) + field(2, feature))


def example(**features):
  return field(1, b''.join(entry(k, v) for k, v in features.items()))


def image(label, value=1.0, length=784):
  return example(pixels=floats([value] * length), label=ints([label]))


def write(path, rows, metadata=None, *, indexed=False):
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
    if indexed:
      db.execute('CREATE INDEX i ON examples (split_name, client_id)')
    db.commit()
  return path
