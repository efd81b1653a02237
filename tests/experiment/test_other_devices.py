"""Programs lower for GPUs and TPUs, which are not at hand, by `jax.export`.

Lowering finds operations that a platform lacks. It compiles nothing, so it says
nothing about memory or time.
"""

import jax
from jax import export
import jax.numpy as jnp
import pytest

from epe_jax import canaries
from epe_jax.audit import audited_algorithm
from epe_jax.experiment import chunk_size, programs
from epe_jax.experiment.setup import build
from tests.helpers import load_config

PLATFORMS = ('cuda', 'tpu')
# No whole number of tiles, and canaries of more than one group.
DIM, NUM = 70_000, 5_000


def lower(function, *arguments):
  """Lowers a function for all platforms at once, or raises the error of one."""
  return export.export(jax.jit(function), platforms=PLATFORMS)(*arguments)


@pytest.mark.parametrize('family', canaries.FAMILIES)
def test_canaries_of_every_family_lower(family):
  make = canaries.family(family)

  def both(key, v, ids, weights):
    c = make(key, NUM, DIM)
    return c.project(v), c.superpose(ids, weights)

  key = jax.eval_shape(lambda: jax.random.key(0))
  v = jax.ShapeDtypeStruct((2, DIM), jnp.float32)
  ids = jax.ShapeDtypeStruct((3,), jnp.int32)
  weights = jax.ShapeDtypeStruct((3,), jnp.float32)
  lowered = lower(both, key, v, ids, weights)
  assert lowered.platforms == PLATFORMS
  assert [x.shape for x in lowered.out_avals] == [(2, NUM), (DIM,)]


def small_config(task):
  """A task whose layers are the paper's, and narrower."""
  config = load_config(task)
  if task == 'stackoverflow':
    config.data.update(synthetic=True, num_clients=10, vocabulary_size=100)
    return config
  config.model.width = 2
  if task == 'emnist':
    config.data.update(synthetic=True, num_clients=5, num_examples=200)
  return config


@pytest.mark.parametrize(
  ('task', 'family'),
  [
    ('digits', 'hadamard'),
    *(
      # Each family on its own is above.
      pytest.param(task, family, marks=pytest.mark.integration)
      for task, family in (
        ('digits', 'sphere'),
        ('digits', 'hadamard2'),
        ('emnist', 'hadamard'),
        ('stackoverflow', 'hadamard'),
      )
    ),
  ],
)
def test_audited_rounds_lower(task, family, tmp_path):
  config = small_config(task)
  if task != 'digits':
    config.data.cache = str(tmp_path)
  config.canaries.family = family
  setup = build.build(config)
  # Of several clients at once, as it is on an accelerator.
  setup = setup._replace(plan=setup.plan._replace(chunk=2))
  empty = chunk_size.make_empty_cohorts(config, setup, None)

  def advance_and_score(draws, state, cohorts):
    make = setup.make_algorithm
    state, metrics = programs.advance_run(make, draws, state, cohorts)
    return (
      state,
      metrics,
      audited_algorithm.score_observers(state, make(draws)[1]),
    )

  lowered = lower(advance_and_score, setup.draws, setup.state, empty)
  assert lowered.platforms == PLATFORMS
  # What comes back is what runs here.
  here = jax.eval_shape(advance_and_score, setup.draws, setup.state, empty)
  assert [(x.shape, x.dtype) for x in lowered.out_avals] == [
    (x.shape, x.dtype) for x in jax.tree.leaves(here)
  ]
