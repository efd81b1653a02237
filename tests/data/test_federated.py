"""Federated data in columns: rows come back as they went in, or an error."""

import numpy as np
import pytest

from epe_jax.data import federated
from tests.helpers import named_clients


def _assert_equal(data, clients):
  assert data.client_ids.tolist() == sorted(clients)
  assert data.sizes.tolist() == [
    len(clients[i]['label']) for i in sorted(clients)
  ]
  for client_id, columns in data.clients():
    assert columns.keys() == clients[client_id].keys()
    for name, column in columns.items():
      expected = clients[client_id][name]
      assert column.dtype == expected.dtype
      np.testing.assert_array_equal(column, expected)


def test_every_builder_gives_back_the_rows_of_every_client():
  clients = named_clients()
  rows = [(i, r) for i in clients for r in range(len(clients[i]['label']))]
  columns = {
    name: np.stack([clients[i][name][r] for i, r in rows])
    for name in ('pixels', 'label')
  }
  owners = np.array([i for i, _ in rows])
  _assert_equal(federated.from_clients(clients), clients)
  _assert_equal(federated.from_arrays(columns, owners), clients)


def test_rows_of_a_client_keep_their_order_when_clients_are_interleaved():
  rng = np.random.default_rng(1)
  owners = rng.choice(np.array(['a', 'b', 'c']), 300)
  data = federated.from_arrays({'row': np.arange(300)}, owners)
  for client_id, columns in data.clients():
    np.testing.assert_array_equal(
      columns['row'], np.flatnonzero(owners == client_id)
    )


def test_a_client_is_a_view():
  data = federated.from_clients(named_clients())
  assert np.shares_memory(data.client(2)['pixels'], data.columns['pixels'])


@pytest.mark.parametrize('i', [-1, 7])
def test_a_client_number_out_of_range_is_refused(i):
  with pytest.raises(IndexError, match='7 clients'):
    federated.from_clients(named_clients()).client(i)


@pytest.mark.parametrize(
  ('columns', 'offsets', 'ids', 'message'),
  [
    ({'x': [1, 2]}, [0, 1, 1, 2], 'abc', "client 'b' has no examples. Leave"),
    ({'x': [1, 2]}, [0, 2, 1], 'ab', "fall from 2 to 1 at client 'b'"),
    ({'x': [1, 2]}, [1, 2], 'a', 'start at 1'),
    ({'x': [1, 2]}, [0, 1], 'a', r"column 'x' has shape \(2,\)"),
    ({'x': [1, 2]}, [0, 1, 3], 'ab', 'offsets end at 3'),
    ({'x': [1, 2], 'y': [1]}, [0, 2], 'a', "column 'y'"),
    ({'x': 1}, [0, 1], 'a', r"column 'x' has shape \(\)"),
    ({'x': [1, 2]}, [0, 1, 2], 'aa', "client 'a' occurs twice"),
    ({'x': [1, 2]}, [0, 1, 2], 'ba', "client 'a' comes after 'b'. Sort"),
    ({'x': [1, 2]}, [0, 2], 'ab', 'offsets has 2 entries for 2 clients'),
    ({}, [0, 1], 'a', 'columns is empty'),
    ({'x': []}, [0], '', 'client_ids is empty'),
  ],
)
def test_contradictions_are_refused(columns, offsets, ids, message):
  columns = {name: np.array(column) for name, column in columns.items()}
  with pytest.raises(ValueError, match=message):
    federated.FederatedData(columns, np.array(offsets), np.array(list(ids)))


_X = np.arange(3.0)


@pytest.mark.parametrize(
  ('clients', 'message'),
  [
    ([], 'clients is empty'),
    ([('a', {})], "client 'a' has no columns"),
    ([('a', {'x': _X[:0]})], "client 'a' has no examples"),
    ([('a', {'x': _X}), ('b', {'x': _X[:0]})], "client 'b' has no examples"),
    ([('a', {'x': _X}), ('b', {'y': _X})], "client 'b' has columns"),
    ([('a', {'x': _X}), ('b', {'x': _X.astype('f4')})], 'same names, dtypes'),
    ([('a', {'x': _X}), ('b', {'x': _X[:, None]})], 'names, dtypes and shapes'),
    ([('a', {'x': _X, 'y': _X[:2]})], 'same number of rows'),
    ([('a', {'x': np.array(1.0)})], 'same number of rows'),
    ([('a\0', {'x': _X})], r"'a.x00' ends in a NUL"),
  ],
)
def test_clients_that_cannot_be_stacked_are_refused(clients, message):
  with pytest.raises(ValueError, match=message):
    federated.from_clients(dict(clients))
  with pytest.raises(ValueError, match=message):
    list(federated.check_clients(clients))


@pytest.mark.parametrize(
  ('ids', 'message'),
  [('aba', "'a' comes after 'b'"), ('aa', "client 'a' occurs twice")],
)
def test_a_stream_of_clients_out_of_order_is_refused(ids, message):
  with pytest.raises(ValueError, match=message):
    list(federated.check_clients((i, {'x': _X}) for i in ids))


def test_a_sample_has_examples_of_all_clients_with_their_owners():
  rows = np.arange(1000)
  owners = np.array([f'c{i % 7}' for i in rows])
  data = federated.from_arrays({'x': rows, 'y': -rows}, owners)
  some = federated.sample(data, 0, num_examples=300)
  assert some.num_examples == len(set(some.columns['x'])) == 300
  for client_id, columns in some.clients():
    assert {f'c{x % 7}' for x in columns['x']} == {client_id}
    np.testing.assert_array_equal(columns['y'], -columns['x'])
  # 300 of 1000 rows hit each client of 142 or 143: the hypergeometric law has
  # mean 43 and standard deviation 5.
  assert np.abs(some.sizes - 43).max() < 25
  again = federated.sample(data, 0, num_examples=300)
  np.testing.assert_array_equal(again.columns['x'], some.columns['x'])
  other = federated.sample(data, 1, num_examples=300)
  assert not np.array_equal(other.columns['x'], some.columns['x'])


def test_the_first_clients_of_data_are_a_view_of_their_rows():
  data = federated.from_arrays(
    {'x': np.arange(6)}, np.array(['c', 'a', 'b', 'a', 'c', 'b'])
  )
  taken = federated.take_clients(data, 2)
  assert [(i, c['x'].tolist()) for i, c in taken.clients()] == [
    ('a', [1, 3]),
    ('b', [2, 5]),
  ]
  assert np.shares_memory(taken.columns['x'], data.columns['x'])
  assert federated.take_clients(data, 4) is data


def test_a_sample_of_everything_is_everything():
  data = federated.from_arrays({'x': np.arange(3)}, np.array(['a', 'b', 'a']))
  assert federated.sample(data, 0, num_examples=3) is data
