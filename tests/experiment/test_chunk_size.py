"""How many clients are trained at once: as many as fit, in even chunks."""

import weakref

import jax
import numpy as np
import pytest

from epe_jax.experiment import audited_run, chunk_size, programs
from epe_jax.experiment.setup import build
from tests.helpers import load_config

pytestmark = pytest.mark.usefixtures('quick_compilation')


@pytest.fixture
def small(small_task):
  config = load_config('digits', **{'client.max_examples': 16})
  config.canaries.update(family='hadamard', observed=2, unobserved=2)
  return config, build.build(config)


def test_a_chunk_is_one_on_a_cpu_and_elsewhere_even_or_what_is_set(
  small, monkeypatch
):
  config, setup = small
  assert chunk_size.set_chunk_size(config, setup).plan.chunk == 1
  monkeypatch.setattr(chunk_size.jax, 'default_backend', lambda: 'gpu')
  assert chunk_size.set_chunk_size(config, setup).plan.chunk == 40
  with monkeypatch.context() as patch:
    patch.setattr(chunk_size.jax, 'process_count', lambda: 2)
    assert chunk_size.set_chunk_size(config, setup).plan.chunk == 1
  config.chunk = 3
  setup = chunk_size.set_chunk_size(config, build.build(config))
  assert setup.plan.chunk == 3


def out_of_memory():
  return jax.errors.JaxRuntimeError(
    'RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17.2GiB.'
  )


def fits_up_to(largest, tried):
  """A program of rounds for a device with room for so many clients at once."""

  def advance(cohorts):
    tried.append(cohorts.clients.shape)
    if cohorts.clients.shape[-1] > largest:
      raise out_of_memory()
    return cohorts.mask

  return advance


@pytest.mark.parametrize(
  ('largest', 'shapes'),
  [
    (40, [(1, 1, 40)]),
    (20, [(1, 1, 40), (1, 2, 20)]),
    (6, [(1, 1, 40), (1, 2, 20), (1, 4, 10), (1, 8, 5)]),
  ],
)
def test_a_chunk_is_halved_until_the_device_has_memory_for_it(
  small, largest, shapes
):
  config, setup = small
  setup = setup._replace(plan=setup.plan._replace(chunk=40))
  tried = []
  made = chunk_size.halve_until_it_fits(
    config, setup, fits_up_to(largest, tried)
  )
  assert tried == shapes
  assert made.plan.chunk == shapes[-1][-1]


def test_the_trial_holds_what_waits_for_the_device_while_a_round_runs(small):
  config, setup = small
  made, alive = [], []

  def make(*of):
    cohorts = chunk_size.make_empty_cohorts(*of)
    made.append(weakref.ref(cohorts.mask))
    return cohorts

  def advance(cohorts):
    alive.append(sum(x() is not None for x in made))
    if len(alive) == 1:
      raise out_of_memory()

  setup = setup._replace(plan=setup.plan._replace(chunk=40))
  chunk_size.halve_until_it_fits(config, setup, advance, make_cohorts=make)
  # The one that runs, the one that is dispatched, and two that are prefetched.
  assert alive == [4, 4]


def test_too_little_memory_for_one_client_says_what_to_set(small):
  config, setup = small
  with pytest.raises(jax.errors.JaxRuntimeError) as caught:
    chunk_size.halve_until_it_fits(config, setup, fits_up_to(0, []))
  assert 'audit.memory=2e+09' in caught.value.__notes__[0]


@pytest.mark.integration
@pytest.mark.usefixtures('small_task', 'unestimated')
def test_a_run_that_halves_its_chunk_goes_on_as_one_that_was_given_it(
  tmp_path, monkeypatch
):
  config = load_config('digits', rounds=2, **{'client.max_examples': 16})
  config.canaries.update(family='hadamard', observed=2, unobserved=2)
  config.client.epochs = 1

  def run(name, chunk):
    config.chunk = chunk
    assert audited_run.run(config, tmp_path / name).chunk == 10
    return dict(np.load(tmp_path / name / 'private/scores.npz'))

  given = run('given', 10)
  make_programs, tried = programs.make_programs, []

  def make_scarce(*args):
    made = make_programs(*args)

    def advance(draws, state, cohorts):
      tried.append(cohorts.clients.shape)
      if cohorts.clients.shape[-1] > 10:
        # As on a device, where the state has been donated already.
        jax.tree.map(lambda x: x.delete(), state)
        raise out_of_memory()
      return made.advance(draws, state, cohorts)

    return made._replace(advance=advance)

  monkeypatch.setattr(programs, 'make_programs', make_scarce)
  monkeypatch.setattr(chunk_size, 'is_tried', lambda: True)
  monkeypatch.setattr(
    chunk_size,
    'set_chunk_size',
    lambda config, setup, mesh: setup._replace(
      plan=setup.plan._replace(chunk=40)
    ),
  )
  # One that is set is tried as well as one that is estimated.
  for chunk in (None, 40):
    tried.clear()
    halved = run(f'halved {chunk}', chunk)
    assert tried == [(1, 1, 40), (1, 2, 20), *[(1, 4, 10)] * 3]
    for name, array in given.items():
      np.testing.assert_array_equal(halved[name], array)
