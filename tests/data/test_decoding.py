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


def _source(clients, read=None):
  def all_of(split, features, after):
    for client_id, columns in clients.items():
      if after is None or client_id > after:
        yield client_id, columns

  return sources.Source('a test', {}, read or all_of, sources.decode_columns)


def _decoded(source, after=None, transform=_doubled, **kwargs):
  recipe = decoding.Recipe(_FEATURES, transform, {})
  return list(decoding.decode_clients(source, 'train', recipe, after, **kwargs))


@pytest.mark.parametrize('workers', [0, 2])
def test_clients_are_decoded_in_order(monkeypatch, workers):
  # Of a client or two in a batch, so that both processes have many.
  monkeypatch.setattr(decoding, '_BATCH', 300)
  found = _decoded(_source(_clients()), after='019', workers=workers)
  assert [client_id for client_id, _ in found] == [*_clients()][20:]
  for client_id, columns in found:
    assert columns['x'].tolist() == (2 * _clients()[client_id]['x']).tolist()


@pytest.mark.parametrize('workers', [0, 1])
def test_a_wrong_row_is_named_with_its_source_split_and_client(workers):
  clients = _clients()
  clients['030']['x'][7] = -1
  message = "^a test, split 'train', client '030', row 7: -1 is negative$"
  with pytest.raises(ValueError, match=message):
    _decoded(_source(clients), workers=workers)
  assert not multiprocessing.active_children()


def test_no_more_is_read_than_what_is_under_way(monkeypatch):
  monkeypatch.setattr(decoding, '_BATCH', 1)
  handed_out = 0

  def read(split, features, after):
    nonlocal handed_out
    for client in _clients().items():
      handed_out += 1
      yield client

  recipe = decoding.Recipe(_FEATURES, _doubled, {})
  source = _source({}, read)
  stream = decoding.decode_clients(source, 'train', recipe, workers=1)
  for taken, _ in enumerate(stream, 1):
    assert handed_out <= taken + 2
  assert taken == 50


def test_a_process_that_dies_is_told_of():
  with pytest.raises(RuntimeError, match=r'decoding process died.*resume'):
    _decoded(_source(_clients()), transform=_exit, workers=1)
