"""A new family of canaries is one file and one entry in the registry."""

import os
import subprocess
import sys

import jax
import numpy as np
import optax
import pytest

from epe_jax import canaries, planning
from epe_jax.audit import audited_algorithm, observers
from epe_jax.audit.record_file import load_record
from epe_jax.training import clipping, fedavg
from tests import helpers

_FILE = '''
"""Pairs of coordinates, at random places."""

import jax
import jax.numpy as jnp

from epe_jax.canaries import Canaries


def pairs(key, num, dim):
  places = jax.random.permutation(key, dim)[: 2 * num].reshape(num, 2)

  def superpose(ids, weights):
    values = jnp.repeat(weights[:, None] / jnp.sqrt(2), 2, axis=1)
    return jnp.zeros(dim).at[places[ids]].add(values)

  return Canaries(
    num, dim, lambda v: v[..., places].sum(axis=-1) / jnp.sqrt(2), superpose
  )
'''

_RUN = """
import pathlib, sys
from epe_jax import canaries
canaries.FAMILIES['pairs'] = canaries.Family('pairs:pairs')
from epe_jax import experiment
from tests import helpers
config = helpers.quick_digits(rounds=4)
config.canaries.family = 'pairs'
experiment.run(config, pathlib.Path(sys.argv[1]))
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
  (tmp_path / 'pairs.py').write_text(_FILE)
  monkeypatch.syspath_prepend(tmp_path)
  yield tmp_path
  sys.modules.pop('pairs', None)


@pytest.fixture
def family(folder, monkeypatch):
  declared = canaries.Family('pairs:pairs')
  monkeypatch.setitem(canaries.FAMILIES, 'pairs', declared)
  return 'pairs'


@pytest.mark.integration
def test_a_new_family_is_audited_with_and_planned_for(family):
  dim, rounds, num = 200, 4, 40
  task = helpers.linear_task(dim - 1)
  made = canaries.family(family)(jax.random.key(0), num, dim)
  attackers = {'rounds': observers.all_iterates(made, rounds=rounds)}
  included = np.zeros((rounds, num), bool)
  included[np.arange(20) % rounds, np.arange(20)] = True
  algorithm = audited_algorithm.audited(
    fedavg.dp_fedavg(
      task,
      client_opt=optax.sgd(0.1),
      server_opt=optax.sgd(1.0),
      clipping=clipping.fixed(1.0),
      noise_multiplier=0.05,
      expected_clients=8,
    ),
    made,
    included,
    attackers,
  )
  rng = np.random.default_rng(0)
  clients = helpers.random_clients(rng, [3, 5, 4], dim - 1)
  cohort = helpers.make_cohort(clients, batch=2, chunk=1)
  state = algorithm.init(task.init(jax.random.key(1)))
  step = jax.jit(algorithm.step)
  for t in range(rounds):
    state, _ = step(state, cohort, *helpers.keys(2 * t))
  trace = audited_algorithm.score_observers(state, attackers)['aggregate']
  assert np.min(trace[included]) > 2 * np.max(trace[:, 20:])
  assert canaries.min_effective_dimension(family, dim) is None
  plan = planning.plan(
    planning.PlannedRun(
      dim=dim,
      rounds=rounds,
      clients_per_round=3,
      noise_multiplier=1.0,
      delta=1e-5,
      num_observed=10,
      num_unobserved=30,
      family=family,
      client_agreement=0.0,
    )
  )
  assert plan


@pytest.mark.integration
def test_a_config_names_a_new_family(folder):
  paths = os.pathsep.join([str(helpers.ROOT), str(folder)])
  subprocess.run(
    [sys.executable, '-c', _RUN, str(folder / 'run')],
    env=os.environ | {'PYTHONPATH': paths},
    check=True,
  )
  record = load_record(folder / 'run' / 'private' / 'scores.npz')
  scores = record.cosines['aggregate']
  assert scores[record.included].mean() > scores[~record.included].mean()
