"""Rows of many clients in columns: client i owns rows o_i to o_{i+1} - 1.

A data set of 342,477 users is then a few arrays and not 342,477 objects: it
opens in milliseconds as memory maps, a client is a slice, and nothing is read
from the disk before a round asks for it.
"""

from collections.abc import Iterable, Iterator, Mapping
import dataclasses
import hashlib
import operator

from jaxtyping import Int64, Shaped
import numpy as np

from epe_jax import streams

_NO_ROWS = 'no examples. Leave it out: a client without examples cannot train.'

Specs = dict[str, tuple[np.dtype, tuple[int, ...]]]
"""Name of a column -> its dtype and the shape of a row."""


@dataclasses.dataclass(frozen=True, eq=False)
class FederatedData:
  """Rows of many clients: client i owns rows offsets[i]:offsets[i + 1].

  Attributes:
    columns: name -> array [num_examples, ...]; may be memory-mapped.
    offsets: [num_clients + 1], from 0 to num_examples, strictly increasing.
    client_ids: [num_clients] strings, strictly increasing, so that the order
      of clients never depends on the order of files or dictionaries.
    digest: `hash_contents` of the data, if known; see `compute_digest`.

  Raises:
    ValueError: if there is no column or no client, if a client owns no rows,
      or if lengths, offsets or ids contradict each other.

  >>> data = FederatedData(
  ...   {'x': np.array([5, 6, 7])}, np.array([0, 1, 3]), np.array(['a', 'b'])
  ... )
  >>> data.num_clients, data.num_examples, data.sizes
  (2, 3, array([1, 2]))
  >>> data.client(1)
  {'x': array([6, 7])}
  """

  columns: Mapping[str, Shaped[np.ndarray, '...']]
  offsets: Int64[np.ndarray, ' boundaries']
  client_ids: Shaped[np.ndarray, ' clients']
  digest: str | None = None

  def __post_init__(self):
    if not self.columns:
      raise ValueError('columns is empty. Give at least one column.')
    if not len(self.client_ids):
      raise ValueError('client_ids is empty. Give at least one client.')
    if self.client_ids.dtype.kind != 'U':
      raise ValueError(
        f'client_ids has dtype {self.client_ids.dtype}. Use strings, e.g. '
        "client_ids.astype('U')."
      )
    if len(self.offsets) != len(self.client_ids) + 1:
      raise ValueError(
        f'offsets has {len(self.offsets)} entries for '
        f'{len(self.client_ids)} clients. Give one more than clients.'
      )
    _check_order(self.client_ids)
    _check_offsets(self.offsets, self.client_ids)
    for name, column in self.columns.items():
      if column.shape[:1] != (self.offsets[-1],):
        raise ValueError(
          f'column {name!r} has shape {column.shape}, but the offsets end at '
          f'{self.offsets[-1]}. All columns need this many rows.'
        )

  @property
  def num_clients(self) -> int:
    return len(self.client_ids)

  @property
  def num_examples(self) -> int:
    return int(self.offsets[-1])

  @property
  def sizes(self) -> Int64[np.ndarray, ' clients']:
    """Number of examples of each client."""
    return np.diff(self.offsets)

  def client(self, i: int) -> dict[str, np.ndarray]:
    """Views of the rows of client i, 0 <= i < num_clients."""
    if not 0 <= i < self.num_clients:
      raise IndexError(f'client {i}: there are {self.num_clients} clients.')
    rows = slice(self.offsets[i], self.offsets[i + 1])
    return {name: column[rows] for name, column in self.columns.items()}

  def clients(self) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """(id, views of the rows) of every client, in order."""
    for i, client_id in enumerate(self.client_ids):
      yield str(client_id), self.client(i)


def compute_digest(data: FederatedData) -> str:
  """Gives the known digest of the data, or computes `hash_contents`.

  The digest of a store is computed when it is written, so that 100 GB need not be read
  again.
  """
  return data.digest or hash_contents(data)


def hash_contents(data: FederatedData) -> str:
  """Computes the SHA-256 of all clients and rows, in memory or on the disk.

  Names, types and shapes count too. The items of an array of objects are byte strings.

  Returns:
    64 hexadecimal digits.
  """
  arrays = [('client_ids', data.client_ids), ('offsets', data.offsets)]
  # By name only: a column may also be called 'offsets'.
  named = sorted([*arrays, *data.columns.items()], key=operator.itemgetter(0))
  digest = hashlib.sha256()
  for name, array in named:
    digest.update(repr((name, array.dtype.str, array.shape)).encode())
    if array.dtype.kind == 'O':
      # Lengths tell b'a', b'bc' from b'ab', b'c'.
      ends = np.cumsum([len(x) for x in array.flat], dtype=np.int64)
      digest.update(ends.data)
      array = np.frombuffer(b''.join(array.flat), np.uint8)
    digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
  return digest.hexdigest()


def from_arrays(
  columns: Mapping[str, Shaped[np.ndarray, '...']],
  client_of_row: Shaped[np.ndarray, ' n'],
) -> FederatedData:
  """Groups rows by their client.

  Args:
    columns: name -> array [n, ...].
    client_of_row: id of the client that owns each row, [n] strings.

  Returns:
    Clients sorted by id; the rows of a client keep their order.

  Raises:
    ValueError: if a column does not have n rows, or ids are not strings.

  >>> data = from_arrays({'x': np.arange(4)}, np.array(['b', 'a', 'b', 'a']))
  >>> data.client_ids.tolist(), data.columns['x'].tolist()
  (['a', 'b'], [1, 3, 0, 2])
  """
  for name, column in columns.items():
    if column.shape[:1] != client_of_row.shape:
      raise ValueError(
        f'column {name!r} has shape {column.shape}, but client_of_row names '
        f'{len(client_of_row)} rows. Give one id per row.'
      )
  client_ids, owner, sizes = np.unique(
    client_of_row, return_inverse=True, return_counts=True
  )
  order = np.argsort(owner, kind='stable')
  return FederatedData(
    {name: columns[name][order] for name in sorted(columns)},
    compute_offsets(sizes),
    client_ids,
  )


def from_clients(
  clients: Mapping[str, Mapping[str, np.ndarray]],
) -> FederatedData:
  """Stacks the rows of clients, in memory.

  Args:
    clients: id -> (name -> array [n_i, ...]). All clients have the same
      columns, of the same dtype and shape of a row; n_i >= 1.

  Returns:
    Clients sorted by id; the rows of a client keep their order.

  Raises:
    ValueError: if there are no clients, or they differ in their columns.

  >>> rows = {'b': {'x': np.array([7])}, 'a': {'x': np.array([5, 6])}}
  >>> data = from_clients(rows)
  >>> data.client_ids.tolist(), data.columns['x'].tolist()
  (['a', 'b'], [5, 6, 7])
  """
  client_ids, parts = zip(
    *check_clients((i, clients[i]) for i in sorted(clients))
  )
  return FederatedData(
    {name: np.concatenate([part[name] for part in parts]) for name in parts[0]},
    compute_offsets([count_rows(part) for part in parts]),
    np.array(client_ids, np.str_),
  )


def take_clients(data: FederatedData, num_clients: int) -> FederatedData:
  """Takes the first clients in the order of their ids, without a copy.

  Args:
    data: the data.
    num_clients: their number, >= 1; the data are returned unchanged if they have no
      more.

  >>> data = from_arrays({'x': np.arange(4)}, np.array(['b', 'a', 'b', 'a']))
  >>> take_clients(data, 1).client(0)
  {'x': array([1, 3])}
  """
  if num_clients >= data.num_clients:
    return data
  rows = int(data.offsets[num_clients])
  return FederatedData(
    {name: column[:rows] for name, column in data.columns.items()},
    data.offsets[: num_clients + 1],
    data.client_ids[:num_clients],
  )


def sample(
  data: FederatedData, seed: int, *, num_examples: int
) -> FederatedData:
  """Samples examples of all clients, without replacement, into memory.

  Every example is equally likely, so that a mean over the sample estimates the
  mean over all of them without bias.

  Args:
    data: the data.
    seed: of the draw, >= 0.
    num_examples: size of the sample, >= 1; the data are returned unchanged if they
      have no more.

  Returns:
    The clients with an example in the sample, with these examples.

  >>> data = from_arrays({'x': np.arange(99)}, np.array(['a', 'b', 'c'] * 33))
  >>> sample(data, 0, num_examples=5).num_examples
  5
  """
  if num_examples >= data.num_examples:
    return data
  rng = streams.host_rng(seed, 'sample')
  rows = rng.choice(data.num_examples, num_examples, replace=False)
  # Sorted, so that a memory map is read forwards.
  rows.sort()
  owner = np.searchsorted(data.offsets, rows, side='right') - 1
  return from_arrays(
    {name: column[rows] for name, column in data.columns.items()},
    data.client_ids[owner],
  )


def check_clients(
  clients: Iterable[tuple[str, Mapping[str, np.ndarray]]],
  *,
  after: str | None = None,
  specs: Specs | None = None,
) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
  """Checks that the clients of a stream can be stacked, and passes them on.

  Args:
    clients: (id, name -> array [n_i, ...]) in increasing order of id. All have
      the same columns, of the same dtype and shape of a row; n_i >= 1.
    after: id of the client before the stream, if any.
    specs: of its columns.

  Yields:
    The clients, with their columns sorted by name.

  Raises:
    ValueError: there are no clients at all, or one is out of order,
      repeated, empty, or differs from the first in its columns.
  """
  for client_id, columns in clients:
    if after is not None and client_id <= after:
      raise _make_order_error(after, client_id)
    # NumPy pads strings with NULs, and would lose one at the end of an id.
    if client_id.endswith('\0'):
      raise ValueError(f'client {client_id!r} ends in a NUL. Remove it.')
    columns = {name: columns[name] for name in sorted(columns)}
    specs = specs or describe_columns(columns)
    try:
      check_columns(columns, specs)
    except ValueError as error:
      raise ValueError(f'client {client_id!r} has {error}') from error
    yield client_id, columns
    after = client_id
  if after is None:
    raise ValueError('clients is empty. Give at least one client.')


def check_columns(columns: Mapping[str, np.ndarray], specs: Specs) -> None:
  """Checks the rows of a client.

  Args:
    columns: name -> array [n, ...], sorted by name.
    specs: the expected dtypes and shapes.

  Raises:
    ValueError: there are no columns or other ones, or they do not all have the same
      n >= 1 rows.
  """
  if not columns:
    raise ValueError('no columns. Give at least one.')
  lengths = {name: column.shape[:1] for name, column in columns.items()}
  if len(set(lengths.values())) != 1 or () in lengths.values():
    raise ValueError(
      f'columns of lengths {lengths}. Give all columns of a client the same '
      'number of rows.'
    )
  if not count_rows(columns):
    raise ValueError(_NO_ROWS)
  if describe_columns(columns) != specs:
    raise ValueError(
      f'columns {describe_columns(columns)}, but others have {specs}. Give all clients '
      'the same names, dtypes and shapes.'
    )


def describe_columns(columns: Mapping[str, np.ndarray]) -> Specs:
  """Gives the dtype and the shape of a row of each column."""
  return {name: (x.dtype, x.shape[1:]) for name, x in columns.items()}


def count_rows(columns: Mapping[str, np.ndarray]) -> int:
  """Counts the rows of a client."""
  return len(next(iter(columns.values())))


def compute_offsets(
  sizes: list[int] | np.ndarray,
) -> Int64[np.ndarray, ' boundaries']:
  """Computes the offsets of clients of these sizes.

  >>> compute_offsets([2, 1])
  array([0, 2, 3])
  """
  return np.cumsum([0, *sizes], dtype=np.int64)


def _check_order(client_ids: np.ndarray) -> None:
  wrong = np.flatnonzero(client_ids[1:] <= client_ids[:-1])
  if wrong.size:
    first, second = client_ids[wrong[0]], client_ids[wrong[0] + 1]
    raise _make_order_error(str(first), str(second))


def _make_order_error(first: str, second: str) -> ValueError:
  if first == second:
    return ValueError(
      f'client {first!r} occurs twice. Give all rows of a client together.'
    )
  return ValueError(
    f'client {second!r} comes after {first!r}. Sort the clients by id, or '
    'build the data with from_clients or from_arrays, which sort.'
  )


def _check_offsets(offsets: np.ndarray, client_ids: np.ndarray) -> None:
  if offsets[0] != 0:
    raise ValueError(f'offsets start at {offsets[0]}. They must start at 0.')
  wrong = np.flatnonzero(offsets[1:] <= offsets[:-1])
  if not wrong.size:
    return
  i, client_id = wrong[0], str(client_ids[wrong[0]])
  if offsets[i] == offsets[i + 1]:
    raise ValueError(f'client {client_id!r} has {_NO_ROWS}')
  raise ValueError(
    f'offsets fall from {offsets[i]} to {offsets[i + 1]} at client '
    f'{client_id!r}. They must increase.'
  )
