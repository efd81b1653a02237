"""Decoding: the same rows in the same order, by however many processes."""

import multiprocessing
import os

import numpy as np
import pytest

from epe_jax.data import decoding, sources

_FEATURES = {'x': (np.int64, ())}


def _doubled(columns):
  x = columns['x']
  if (x < 0).any():
    raise ValueError(f'row {np.flatnonzero(x < 0)[0]}: {x.min()} is negative')
  return {'x': 2 * x}


def _exit(columns):
  os._exit(3)


def _clients(num=50):
  return {f'{i:03}': {'x': np.arange(i + 1)} for i in range(num)}


def _source():
  return sources.Source(
    'a test', {}, lambda _: iter([]), sources.decode_columns
  )


def _decode(clients, transform=_doubled, **options):
  recipe = decoding.Recipe(_FEATURES, transform, {})
  return decoding.decode_clients(clients, _source(), 'train', recipe, **options)


@pytest.mark.parametrize('workers', [0, 2])
def test_clients_are_decoded_in_order(workers):
  found = list(_decode(_clients().items(), workers=workers))
  assert [client_id for client_id, _ in found] == [*_clients()]
  for client_id, columns in found:
    assert columns['x'].tolist() == (2 * _clients()[client_id]['x']).tolist()


@pytest.mark.parametrize('workers', [0, 1])
def test_a_wrong_row_is_named_with_its_source_split_and_client(workers):
  clients = _clients()
  clients['030']['x'][7] = -1
  message = "^a test, split 'train', client '030', row 7: -1 is negative$"
  with pytest.raises(ValueError, match=message):
    list(_decode(clients.items(), workers=workers))
  assert not multiprocessing.active_children()


def test_no_more_is_read_than_what_is_under_way():
  handed_out = 0

  def read():
    nonlocal handed_out
    for client in _clients().items():
      handed_out += 1
      yield client

  for taken, _ in enumerate(_decode(read(), workers=1), 1):
    assert handed_out <= taken + 4
  assert taken == 50


def test_a_process_that_dies_is_told_of():
  with pytest.raises(RuntimeError, match=r'decoding process died.*resume'):
    list(_decode(_clients().items(), transform=_exit, workers=1))
