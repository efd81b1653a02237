"""Cohorts: each example where it belongs, as often as it should be."""

import hashlib
import itertools
import threading
import weakref

import hypothesis
from hypothesis import strategies as st
import jax
import numpy as np
import pytest

from epe_jax.data import cohort, federated, store
from epe_jax.training import fedavg

_SIZES = [3, 1, 8, 5, 3, 12, 2]


def _data(sizes=_SIZES):
  """Rows are numbered from 1, so that padding is not a row's number."""
  rows = np.arange(1, sum(sizes) + 1)
  ids = [f'c{i:02}' for i in range(len(sizes))]
  # Every entry of an image is the number of its row.
  images = np.full((len(rows), 2, 3), rows[:, None, None], np.float32)
  return federated.from_arrays(
    {'row': rows, 'image': images}, np.repeat(ids, sizes)
  )


_PLAN = cohort.Plan(batch_size=4, epochs=2, max_examples=None, chunk=2, slots=5)


def _gather(clients, data=None, *, seed=0, round=0, **changes):
  return cohort.gather(
    data or _data(),
    np.array(clients, int),
    _PLAN._replace(**changes),
    seed=seed,
    round=round,
  )


def _by_client(made):
  """client -> (batches, mask), without chunks and empty slots."""
  answer = {}
  for place in np.ndindex(made.clients.shape):
    if made.clients[place] >= 0:
      batches = {name: x[place] for name, x in made.batches.items()}
      answer[int(made.clients[place])] = (batches, made.mask[place])
  return answer


def _assert_equal(a, b):
  jax.tree.map(np.testing.assert_array_equal, a, b)


@st.composite
def _rounds(draw):
  sizes = draw(st.lists(st.integers(1, 9), min_size=1, max_size=6))
  clients = draw(st.sets(st.integers(0, len(sizes) - 1)))
  return sizes, {
    'clients': sorted(clients),
    'batch_size': draw(st.integers(1, 5)),
    'epochs': draw(st.integers(1, 3)),
    'max_examples': draw(st.none() | st.integers(1, 10)),
    'chunk': draw(st.integers(1, 4)),
    'slots': max(1, len(clients)) + draw(st.integers(0, 3)),
  }


@hypothesis.settings(max_examples=150, derandomize=True, deadline=None)
@hypothesis.given(_rounds())
def test_every_epoch_holds_every_example_of_a_client_once_and_no_other(case):
  sizes, arguments = case
  data = _data(sizes)
  made = _gather(data=data, **arguments)
  b, epochs = arguments['batch_size'], arguments['epochs']
  cap = arguments['max_examples']
  clients = _by_client(made)
  assert sorted(clients) == arguments['clients']
  for client, (batches, mask) in clients.items():
    n = min(sizes[client], cap or sizes[client])
    rows = np.sort(batches['row'][: -(-n // b)].reshape(-1)[:n])
    assert len(set(rows) & set(data.client(client)['row'])) == n
    per_epoch = -(-n // b)
    for e in range(epochs):
      # Batches that straddled two epochs would hold other rows here.
      span = slice(e * per_epoch, (e + 1) * per_epoch)
      assert mask[span].sum() == n
      # Only the last batch of an epoch is short.
      assert mask[span].reshape(-1)[:n].all()
      found = batches['row'][span][mask[span]]
      np.testing.assert_array_equal(np.sort(found), rows)
    assert mask.sum() == epochs * n


@hypothesis.settings(max_examples=50, derandomize=True, deadline=None)
@hypothesis.given(_rounds())
def test_columns_stay_together_and_padding_is_zero(case):
  sizes, arguments = case
  made = _gather(data=_data(sizes), **arguments)
  rows, images = made.batches['row'], made.batches['image']
  assert (images == rows[..., None, None]).all()
  np.testing.assert_array_equal(rows != 0, made.mask)
  # An empty slot has no examples, and a client has some.
  np.testing.assert_array_equal(made.mask.any((2, 3)), made.clients >= 0)


def test_cohorts_have_the_types_of_the_columns_and_room_for_their_largest():
  # Of 6 steps at most, a round that needs 2 or less has room for 2.
  steps = {(): 1, (0,): 2, (1, 6): 2, (2,): 6, (4, 5): 6, (0, 1, 2, 3, 4): 6}
  for clients, room in steps.items():
    x = _gather(clients)
    assert isinstance(x, fedavg.Cohort)
    assert x.batches['image'].shape == (3, 2, room, 4, 2, 3)
    assert x.batches['image'].dtype == np.float32
    assert x.batches['row'].dtype == np.int64
    assert x.mask.shape == (3, 2, room, 4)
    assert x.mask.dtype == np.bool_
    assert x.clients.shape == (3, 2)
    assert x.clients.dtype == np.int32
  assert (_gather([]).clients == -1).all()


@pytest.mark.parametrize('largest', [1, 2, 5, 64, 100, 34_567])
def test_there_are_few_shapes_and_none_is_four_times_too_large(largest):
  rooms = {
    need: cohort.choose_room(need, largest) for need in range(largest + 1)
  }
  assert rooms[largest] == largest
  for need, room in rooms.items():
    assert need <= room
    assert room == 1 or -(-room // 4) < need
  assert len(set(rooms.values())) <= 2 + np.log(largest) / np.log(4)


def test_a_capped_client_trains_on_other_rows_in_each_round():
  data = _data([40])
  rounds = [
    _by_client(_gather([0], data, round=t, max_examples=7, epochs=3))[0]
    for t in range(2)
  ]
  kept = []
  for batches, mask in rounds:
    epochs = [batches['row'][i : i + 2][mask[i : i + 2]] for i in (0, 2, 4)]
    assert {len(set(rows)) for rows in epochs} == {7}
    assert len({frozenset(rows) for rows in epochs}) == 1
    assert len({tuple(rows) for rows in epochs}) == 3
    kept.append(frozenset(epochs[0]))
  assert kept[0] != kept[1]


def test_a_cap_that_no_client_reaches_changes_nothing():
  _assert_equal(_gather([0, 5], max_examples=12), _gather([0, 5]))


def test_clients_come_by_size_and_then_by_index():
  made = _gather([0, 1, 3, 4, 5])
  assert made.clients.tolist() == [[5, 3], [0, 4], [1, -1]]


def test_a_cohort_is_a_function_of_the_set_of_clients():
  expected = _gather([0, 4, 5, 2])
  for clients in itertools.permutations([0, 4, 5, 2]):
    _assert_equal(_gather(clients), expected)


def test_a_client_does_not_depend_on_chunks_slots_or_other_clients():
  alone = _by_client(_gather([3], chunk=1, slots=1))[3]
  for clients, chunk, slots in [
    ([3, 0], 1, 2),
    ([5, 3, 2], 2, 4),
    ([0, 1, 2, 3, 4, 5, 6], 3, 7),
  ]:
    made = _gather(clients, chunk=chunk, slots=slots)
    _assert_equal(_by_client(made)[3], alone)


def test_the_first_epochs_do_not_depend_on_the_number_of_epochs():
  (one, _), (two, _) = (
    _by_client(_gather([5], epochs=epochs))[5] for epochs in (1, 2)
  )
  _assert_equal(one['row'][:3], two['row'][:3])
  assert not one['row'][3:].any()


def test_seed_round_client_and_epoch_each_change_the_order():
  # Two clients of 40 examples: an order recurs with probability 1 / 40!.
  data = _data([40, 40])
  orders = set()
  for seed, t in [(0, 0), (0, 1), (1, 0), (2**32, 0), (0, 2**32)]:
    made = _gather([0, 1], data, seed=seed, round=t, batch_size=40, slots=2)
    for client, (batches, _) in _by_client(made).items():
      for rows in batches['row']:
        orders.add(tuple((rows - 40 * client).tolist()))
  assert len(orders) == 5 * 2 * 2


def test_a_seed_has_the_same_cohorts_on_every_machine():
  # A tripwire and no law: NumPy may change its generators, and says so when it
  # does. Runs from before and after would then not have the same cohorts.
  digest = hashlib.sha256()
  for t in range(3):
    made = _gather([0, 2, 5], seed=7, round=t, max_examples=5)
    rows = made.batches['row'].astype('<i8').tobytes()
    digest.update(rows + made.clients.astype('<i4').tobytes())
  assert digest.hexdigest()[:16] == '2d8a254d6f8d1d20'


def test_all_orders_of_a_client_are_equally_likely():
  # 6 orders in 600 rounds: chi squared with 5 degrees of freedom exceeds 30.9
  # with probability 1e-5, and the seed is fixed.
  counts = dict.fromkeys(itertools.permutations([1, 2, 3]), 0)
  for t in range(600):
    made = _gather([0], round=t, epochs=1, slots=1, chunk=1)
    counts[tuple(made.batches['row'][0, 0, 0, :3].tolist())] += 1
  chi_squared = sum((c - 100) ** 2 / 100 for c in counts.values())
  assert chi_squared < 30.9


def test_memory_mapped_columns_give_the_same_cohort(tmp_path):
  data = _data()
  mapped = store.write(tmp_path / 's', data.clients(), source='a test')
  assert not mapped.columns['row'].flags.owndata
  made = _gather([2, 5], mapped)
  _assert_equal(made, _gather([2, 5], data))
  assert made.batches['row'].flags.writeable


@pytest.mark.parametrize('n', [1, 7, 8, 9])
@pytest.mark.parametrize('cap', [None, 5])
def test_the_largest_client_takes_every_step(n, cap):
  data, plan = _data([1, n]), _PLAN._replace(epochs=3, max_examples=cap)
  _, mask = _by_client(_gather([1], data, epochs=3, max_examples=cap))[1]
  assert mask.any(axis=1).all()
  assert len(mask) == cohort.count_steps(data.sizes, plan)


def _threads():
  return [t for t in threading.enumerate() if t.name.startswith('prefetch')]


def test_prefetch_gives_every_round_in_order_and_ends_its_thread():
  made_by = []

  def make(t):
    made_by.append((t, threading.current_thread()))
    return t * t

  assert list(cohort.prefetch(make, iter([5, 3, 9]))) == [
    (5, 25),
    (3, 9),
    (9, 81),
  ]
  assert [t for t, _ in made_by] == [5, 3, 9]
  assert len({thread for _, thread in made_by}) == 1
  assert threading.current_thread() not in {thread for _, thread in made_by}
  assert not _threads()
  assert not list(cohort.prefetch(make, []))


@pytest.mark.parametrize('depth', [1, 2, 5])
def test_prefetch_makes_depth_rounds_ahead_and_no_more(depth, monkeypatch):
  monkeypatch.setattr(cohort, 'DEPTH', depth)
  made = []
  rounds = cohort.prefetch(made.append, itertools.count())
  for t in range(4):
    assert next(rounds)[0] == t
    # What was handed to the thread is made; nothing else ever is.
    for _ in range(1000):
      if len(made) == t + 1 + depth:
        break
      threading.Event().wait(0.01)
    assert made == list(range(t + 1 + depth))
  rounds.close()


def test_prefetch_works_while_the_consumer_does():
  # The consumer waits, in round 0, for what the thread does for round 1.
  begun = threading.Event()

  def make(t):
    if t == 1:
      begun.set()

  rounds = cohort.prefetch(make, range(2))
  next(rounds)
  assert begun.wait(timeout=60)
  rounds.close()


def test_an_error_comes_in_its_round_names_it_and_ends_the_thread():
  def make(t):
    if t == 2:
      raise KeyError('lost')
    return t

  rounds = cohort.prefetch(make, range(9))
  assert [next(rounds), next(rounds)] == [(0, 0), (1, 1)]
  with pytest.raises(KeyError, match='lost') as error:
    next(rounds)
  assert error.value.__notes__ == ['while making what round 3 needs']
  assert error.traceback[-1].name == 'make'
  assert not _threads()
  assert next(rounds, None) is None


def test_an_error_of_the_rounds_ends_the_thread():
  def rounds():
    yield 0
    raise RuntimeError('no more clients')

  with pytest.raises(RuntimeError, match='no more clients'):
    list(cohort.prefetch(str, rounds()))
  assert not _threads()


@pytest.mark.parametrize('end', ['close', 'drop', 'break'])
def test_an_early_end_leaves_no_thread(end):
  rounds = cohort.prefetch(str, itertools.count())
  if end == 'break':
    for t, _ in rounds:
      if t == 3:
        break
  else:
    next(rounds)
  assert len(_threads()) == 1
  if end == 'close':
    rounds.close()
  else:
    del rounds
  assert not _threads()


def test_an_iterator_that_was_never_used_starts_no_thread():
  rounds = cohort.prefetch(str, itertools.count())
  assert not _threads()
  del rounds


def test_prefetch_keeps_no_result_that_was_handed_out():
  class Result:
    pass

  alive = []

  def make(t):
    result = Result()
    alive.append(weakref.ref(result))
    return result

  rounds = cohort.prefetch(make, range(3))
  t, result = next(rounds)
  assert alive[t]() is result
  del result
  assert alive[t]() is None
  rounds.close()


@pytest.mark.parametrize('batch_size', [1, 5, 17, 34, 100])
def test_evaluation_sees_every_example_once_in_batches_of_one_shape(batch_size):
  data, seen = _data(), []
  for batch, mask in cohort.iterate_batches(data, batch_size=batch_size):
    assert batch['image'].shape == (batch_size, 2, 3)
    assert batch['image'].dtype == np.float32
    np.testing.assert_array_equal(batch['row'] != 0, mask)
    assert (batch['image'] == batch['row'][:, None, None]).all()
    seen.append(batch['row'][mask])
  np.testing.assert_array_equal(np.concatenate(seen), data.columns['row'])
  assert len(seen) == -(-data.num_examples // batch_size)
