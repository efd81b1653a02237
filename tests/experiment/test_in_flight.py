"""No loop has more programs in flight than the backend runs."""

import collections
import os
import subprocess
import sys
import types

import jax
import numpy as np
import pytest

from epe_jax import progress
from epe_jax.audit import evaluation
from epe_jax.experiment import audited_run, loop, model_evaluation, programs
from epe_jax.experiment.sweeps import seeds
from epe_jax.parallel import hosts
from epe_jax.tasks import digits as digits_task
from tests import helpers, launches, processes
from tests.helpers import softmax_regression

pytestmark = pytest.mark.usefixtures('quick_compilation')

# They take some ten seconds on two cores. One that hangs is ended here.
SECONDS = 200


def launch(devices, *names):
  """What tests/launches.py returns, and what it says."""
  try:
    done = subprocess.run(
      [sys.executable, '-m', 'tests.launches', str(devices), *names],
      cwd=processes.ROOT,
      # The compiler need not try hard: programs run for milliseconds.
      env={**os.environ, 'XLA_FLAGS': '--xla_backend_optimization_level=0'},
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
      timeout=SECONDS,
    )
  except subprocess.TimeoutExpired as error:
    pytest.fail(f'{names} did not end within {SECONDS} s: {error.output}')
  return done.returncode, done.stdout


@pytest.mark.integration
@pytest.mark.parametrize(
  ('devices', 'names'),
  [
    (2, ('at_once', 'in_order', 'evaluate')),
    (4, ('at_once', 'in_order', 'evaluate', 'run')),
  ],
)
def test_any_number_of_programs_over_several_devices_ends(devices, names):
  status, output = launch(devices, *names)
  assert status == 0, output


class Waiting:
  """Programs that were dispatched, and for whose results nobody waited.

  They end in the order in which they were dispatched, so who waited for one has
  waited for those before it.

  Attributes:
    most: the largest number that there was.
  """

  def __init__(self, patch):
    self.most = 0
    self._dispatched, self._ended = 0, 0
    # Results, which have to live as long as their ids are asked for.
    self._results, self._number = [], {}
    jit = jax.jit
    patch(jax, 'jit', lambda *a, **options: self._counted(jit(*a, **options)))
    for module, name in (
      (jax, 'block_until_ready'),
      (jax, 'device_get'),
      (hosts, 'copy_to_host'),
    ):
      patch(module, name, self._waited(getattr(module, name)))
    lazy = types.SimpleNamespace(ThreadPoolExecutor=Lazy)
    patch(loop, 'futures', lazy)
    patch(progress, 'await_result', lambda future, name: future.result())

  def _counted(self, program):
    def call(*args):
      result = program(*args)
      leaves = jax.tree.leaves(result)
      # Inlined into a program that is traced, it is not dispatched.
      if any(isinstance(x, jax.core.Tracer) for x in leaves):
        return result
      self._dispatched += 1
      self.most = max(self.most, self._dispatched - self._ended)
      self._results.append(result)
      for x in leaves:
        self._number[id(x)] = self._dispatched
      return result

    # It is lowered as the program itself.
    public = [name for name in dir(program) if not name.startswith('__')]
    vars(call).update({name: getattr(program, name) for name in public})
    return call

  def _waited(self, wait):
    def call(tree):
      for x in jax.tree.leaves(tree):
        self._ended = max(self._ended, self._number.get(id(x), 0))
      return wait(tree)

    return call


class Lazy:
  """An executor that does nothing before somebody waits for it."""

  def __init__(self, *args):
    del args

  def __enter__(self):
    return self

  def __exit__(self, *error):
    return None

  def submit(self, function, *args):
    return types.SimpleNamespace(result=lambda: function(*args))

  def shutdown(self, *, wait):
    del wait


@pytest.fixture
def waiting(monkeypatch):
  # A program for each batch of two.
  monkeypatch.setattr(model_evaluation, '_BATCH', 2)
  monkeypatch.setattr(model_evaluation, '_BATCHES', 1)
  monkeypatch.setattr(digits_task, 'task', lambda width: softmax_regression())
  monkeypatch.setattr(evaluation, 'evaluate', helpers.no_estimates)
  return Waiting(monkeypatch.setattr)


@pytest.mark.integration
def test_a_run_has_few_programs_in_flight(tmp_path, waiting):
  config = launches.small_config(
    rounds=50, rounds_per_dispatch=5, evaluate_every=40, checkpoint_every=45
  )
  audited_run.run(config, tmp_path / 'run')
  # Rounds, an evaluation while they are under way, and small programs in between.
  assert 1 < waiting.most <= 3 * programs.MAX_PROGRAMS
  assert waiting.most < launches.XLA_CPU_PROGRAMS


@pytest.mark.integration
def test_runs_of_many_seeds_have_few_programs_in_flight(waiting):
  config = launches.small_config(rounds=40)
  assert len([*seeds.run_seeds(config, [0, 1], at_once=2)]) == 2
  assert 1 < waiting.most <= 2 * programs.MAX_PROGRAMS


def test_processors_of_several_processes_run_one_program_at_a_time(monkeypatch):
  queue = collections.deque('ab')
  assert [*programs.pop_due(queue)] == ['a']
  monkeypatch.setattr(jax, 'process_count', lambda: 2)
  assert [*programs.pop_due(queue)] == ['b']


def test_results_come_in_order_and_one_program_is_ahead():
  events = []

  def dispatched():
    for i in range(4):
      events.append(('dispatched', i))
      yield np.array(i)

  for x in programs.iterate_in_order(dispatched()):
    events.append(('ended', int(x)))
  dispatch = [events.index(('dispatched', i)) for i in range(4)]
  end = [events.index(('ended', i)) for i in range(4)]
  assert sorted(end) == end
  for i in range(2):
    assert dispatch[i + 1] < end[i] < dispatch[i + 2]
