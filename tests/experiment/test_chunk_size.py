"""How many clients are trained at once: as many as fit, in even chunks."""

import jax
import pytest

from epe_jax.experiment import build, chunk_size
from tests.helpers import load_config

pytestmark = pytest.mark.usefixtures('quick_compilation')


@pytest.mark.parametrize('clients', [1, 2, 40, 101, 167])
@pytest.mark.parametrize('fit', [1, 2, 7, 33, 100, 5000])
def test_a_chunk_is_what_fits_and_chunks_are_even(clients, fit):
  fixed, each = 1000.0, 3.0
  limit = fixed + each * fit + 1
  chunk = chunk_size.choose_chunk_size(fixed, each, limit, clients)
  assert 1 <= chunk <= min(fit, clients)
  # No fewer chunks would fit, and none has more than one empty slot to spare.
  number = -(-clients // chunk)
  assert number == 1 or -(-clients // (number - 1)) > fit
  assert number * chunk - clients < number


def test_one_client_is_trained_at_once_where_not_even_one_seems_to_fit():
  assert chunk_size.choose_chunk_size(100, 10, 50, clients=8) == 1


@pytest.mark.parametrize(('each', 'clients'), [(0, 4), (-1, 4), (1, 0)])
def test_what_is_no_size_is_refused(each, clients):
  with pytest.raises(ValueError, match=f'clients={clients}'):
    chunk_size.choose_chunk_size(0, each, 100, clients)


@pytest.fixture
def small(small_task):
  config = load_config('digits', **{'client.max_examples': 16})
  config.canaries.update(family='dirac', observed=2, unobserved=2)
  return config, build.build(config)


def pretend(monkeypatch, limit):
  """That the device is an accelerator with so many bytes."""
  device = jax.local_devices()[0]
  stats = {} if limit is None else {'bytes_limit': limit}

  class Accelerator:
    memory_stats = staticmethod(lambda: stats)

  monkeypatch.setattr(chunk_size.jax, 'default_backend', lambda: 'gpu')
  monkeypatch.setattr(chunk_size.jax, 'local_devices', lambda: [Accelerator])
  return device


def test_on_a_cpu_clients_are_trained_one_by_one(small):
  config, setup = small
  assert chunk_size.set_chunk_size(config, setup).plan.chunk == 1


def test_an_integer_in_the_config_is_the_chunk(small, monkeypatch):
  config, _ = small
  pretend(monkeypatch, 10**12)
  config.chunk = 3
  setup = chunk_size.set_chunk_size(config, build.build(config))
  assert setup.plan.chunk == 3


def test_the_memory_of_a_device_decides(small, monkeypatch):
  config, setup = small
  state = jax.eval_shape(setup.algorithm.init, setup.params)
  two, four, eight = (
    chunk_size._measure_temporary(setup, state, n, None) for n in (2, 4, 8)
  )
  each = (four - two) / 2
  # What a client takes is nearly the same, however many there are.
  assert (eight - four) / 4 == pytest.approx(each, rel=0.25)
  monkeypatch.setattr(
    chunk_size,
    '_measure_temporary',
    lambda setup, state, n, mesh: two + (n - 2) * each,
  )
  found = {}
  for limit in (1, 10**6, 10**12):
    pretend(monkeypatch, limit)
    found[limit] = chunk_size.set_chunk_size(config, setup).plan.chunk
  assert found[1] == 1
  assert 1 <= found[10**6] < 40
  assert found[10**12] == 40
  pretend(monkeypatch, None)
  assert chunk_size.set_chunk_size(config, setup).plan.chunk == 1
