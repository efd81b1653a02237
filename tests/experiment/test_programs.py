"""The programs of a run: what is compiled depends on no seed and no secret."""

import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from epe_jax import canaries
from epe_jax.audit import audited_algorithm, observers
from epe_jax.experiment import loop, programs
from epe_jax.experiment.setup import build
from tests.helpers import quick_digits

ROOT = pathlib.Path(__file__).parents[2]


def lower(seed):
  config = quick_digits(seed=seed)
  setup = build.build(config)
  state = programs.make_init(setup)(setup.draws, setup.params)
  made = programs.make_programs(setup, state)
  _, cohorts = next(iter(loop.iterate_groups(config, setup, 0, None)))
  # Clients of another seed may have more steps.
  shape = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(
      (*x.shape[:3], 4, *x.shape[4:]) if x.ndim > 3 else x.shape, x.dtype
    ),
    cohorts,
  )
  return (
    made.advance.lower(setup.draws, state, shape).as_text(),
    made.flush.lower(setup.draws, state).as_text(),
    made.score.lower(setup.draws, state).as_text(),
  )


@pytest.mark.integration
def test_the_seed_does_not_change_a_program(small_task):
  assert lower(0) == lower(1)


@pytest.mark.integration
def test_what_was_compiled_for_later_is_not_compiled_again(small_task):
  config = quick_digits()
  setup = build.build(config)
  state = programs.make_init(setup)(setup.draws, setup.params)
  made = programs.make_programs(setup, state)
  compiled = []

  def note(event: str, seconds: float, **more: str | int) -> None:
    if event == '/jax/core/compile/backend_compile_duration':
      compiled.append(more)

  jax.monitoring.register_event_duration_secs_listener(note)
  try:
    programs.compile_for_later(made.score, setup.draws, state)()
    assert len(compiled) == 1
    made.score(setup.draws, state)
    assert len(compiled) == 1
  finally:
    jax.monitoring.unregister_event_duration_listener(note)


@pytest.mark.parametrize('buffer', [1, 2, 3])
def test_vectors_wait_until_their_buffer_is_full(buffer):
  canary_set = canaries.from_matrix(jnp.eye(8)[:2])
  observer = observers.all_iterates(canary_set, rounds=6, buffer=buffer)
  trace = observer.init({'w': jnp.zeros(8)})
  for t in range(1, 7):
    trace = observer.update(trace, observers.RoundView(*[jnp.ones(8)] * 4))
    others = {'final_model': jnp.zeros(8), 'own': {'x': jnp.ones(3)}}
    state = audited_algorithm.AuditState(None, {'rounds': trace} | others, None)
    assert programs.has_waiting(state) == (t % buffer > 0)
  flushed = observer.flush(trace)
  state = state._replace(observers={'rounds': flushed})
  assert not programs.has_waiting(state)


@pytest.mark.integration
def test_programs_are_kept_in_the_cache_of_the_user_up_to_a_size(tmp_path):
  code = """
import warnings
import jax
from epe_jax.experiment import programs
warnings.simplefilter('error')
programs._MIN_SECONDS = 0
programs._MAX_BYTES = 20_000
programs.keep_programs()
for i in range(9):
  jax.jit(lambda x: x + i)(1)
print(jax.config.jax_compilation_cache_dir)
"""

  def run(**environment):
    environment |= {'XDG_CACHE_HOME': str(tmp_path), 'PYTHONPATH': str(ROOT)}
    command = [sys.executable, '-c', code]
    done = subprocess.run(
      command, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()

  folder = tmp_path / 'epe_jax' / 'compiled'
  assert run() == str(folder)
  kept = [path.stat().st_size for path in folder.glob('*-cache')]
  assert 0 < len(kept) < 9
  assert sum(kept) <= 20_000
  # What a user told JAX has precedence.
  elsewhere = str(tmp_path / 'elsewhere')
  assert run(JAX_COMPILATION_CACHE_DIR=elsewhere) == elsewhere
