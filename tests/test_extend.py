"""The examples of docs/extend.md: a file and a line, and the rest follows."""

import dataclasses
import pathlib
import re
import sys
import types

import jax
import jax.numpy as jnp
from ml_collections import config_dict
import numpy as np
import pytest

import epe_jax
from epe_jax import audit, epsilon
from epe_jax.audit import attackers
from epe_jax.audit.record import RoundScalars
from epe_jax.canaries import registry as families
from epe_jax.data import data_sets
from epe_jax.epsilon import registry as estimators
from epe_jax.experiment import arithmetic
from epe_jax.experiment.setup import build
from tests import helpers

PAGE = pathlib.Path(__file__).parents[1] / 'docs' / 'extend.md'


def read_section(title):
  """The file and the line of a section, if it has them."""
  text = PAGE.read_text(encoding='utf-8')
  section = text.partition(f'## {title}\n')[2].partition('\n## ')[0]
  (file,) = re.findall(r'```python\n(.*?)```', section, re.DOTALL)
  (line,) = re.findall(r'```py\n(.*?)```', section, re.DOTALL)
  return file, line


@pytest.fixture
def add_file(monkeypatch):
  """Makes a module of a file of the page, under the name that its line has."""

  def add(source, name):
    module = types.ModuleType(name)
    exec(compile(source, str(PAGE), 'exec'), module.__dict__)
    monkeypatch.setitem(sys.modules, name, module)
    return module

  return add


def make_scores():
  rng = np.random.default_rng(0)
  return rng.normal(2, 1, 200), rng.normal(0, 1, 200)


def test_an_attacker_is_scored_with_the_others(add_file):
  file, line = read_section('An attacker')
  module = add_file(file, 'epe_jax.audit.signs')
  scope = {**vars(attackers), 'signs': module.signs}
  exec(line, scope)
  rounds, k, dim = 4, 40, 1000
  included = np.zeros((rounds, 2 * k), bool)
  included[np.arange(k) % rounds, np.arange(k)] = True
  cosines = np.random.default_rng(0).normal(size=2 * k) / dim**0.5
  known = dict.fromkeys(RoundScalars._fields, np.ones(rounds))
  record = audit.make_record(
    {'signs': cosines},
    RoundScalars(**known),
    included=included,
    dim=dim,
    delta=1e-3,
    noise_multiplier=1.0,
  )
  found = audit.evaluate(record, threat_models=scope['OF_INDEPENDENT_NOISE'])
  (attack,) = (a for a in found.attacks if a.threat_model.key == 'signs')
  assert attack.bounds[0].confidence == 0.95
  assert not attack.is_calibrated
  with pytest.warns(UserWarning, match=r"attackers \['signs'\] score nothing"):
    audit.evaluate(
      dataclasses.replace(record, cosines={'final': cosines}),
      threat_models=(module.signs,),
    )


@pytest.mark.usefixtures('quick_compilation')
def test_an_attacker_that_ships_is_no_fault_of_the_machine(
  add_file, monkeypatch
):
  file, _ = read_section('An attacker')
  module = add_file(file, 'epe_jax.audit.signs')
  made = build.make_observers
  monkeypatch.setattr(
    build,
    'make_observers',
    lambda config, c, mesh: (
      made(config, c, mesh) | {'signs': module.observe_signs(c)}
    ),
  )
  config = helpers.quick_digits()
  assert arithmetic.check_arithmetic(config, build.build(config))


def test_a_canary_family_is_a_linear_map_of_unit_vectors(add_file, monkeypatch):
  file, line = read_section('A canary family')
  add_file(file, 'epe_jax.canaries.pairs')
  added = eval(f'{{{line}}}', vars(families).copy())
  monkeypatch.setitem(families.FAMILIES, 'pairs', added['pairs'])
  canaries = families.family('pairs')(jax.random.key(0), 7, 50)
  ids, weights = jnp.arange(7), jnp.arange(1.0, 8.0)
  vector = canaries.superpose(ids, weights)
  np.testing.assert_allclose(canaries.project(vector), weights, rtol=1e-6)
  assert vector.shape == (50,)
  assert float(vector @ vector) == pytest.approx(float(weights @ weights))
  assert families.min_effective_dimension('pairs', 350) == 100
  with pytest.raises(ValueError, match="'pairs'"):
    families.find_family('none')


def test_an_estimator_is_among_those_of_an_audit(add_file, monkeypatch):
  file, line = read_section('An estimator')
  module = add_file(file, 'epe_jax.epsilon.median_shift')
  scope = {**vars(estimators), 'median_shift': module.median_shift}
  entry = eval(line, scope)
  monkeypatch.setattr(estimators, 'ENTRIES', (*estimators.ENTRIES, entry))
  observed, unobserved = make_scores()
  found = epe_jax.estimate(observed, unobserved, delta=1e-5)
  (attack,) = found.audit.attacks
  (mine,) = (e for e in attack.estimates if e.method == 'median_shift')
  assert mine.confidence is None
  # It measures what the estimator of means does, but scatters more.
  assert mine.epsilon == pytest.approx(attack.first.epsilon, rel=0.2)
  assert estimators.find('median_shift') == entry
  rng = np.random.default_rng(0)
  cosines = 0.03 + rng.normal(size=100) / 100
  known = epe_jax.estimate(cosines, [], delta=1e-5, dim=10_000)
  (mine,) = (
    e
    for attack in known.audit.attacks
    for e in attack.estimates
    if e.method == 'median_shift'
  )
  assert mine.epsilon == pytest.approx(epsilon.epsilon_gdp(3, 1e-5), rel=0.2)


def test_a_data_set_is_loaded_by_its_name(add_file, monkeypatch):
  file, line = read_section('A data set')
  added = eval(f'{{{line}}}')
  add_file(file, added['stripes'])
  monkeypatch.setitem(data_sets.MODULES, 'stripes', added['stripes'])
  assert 'stripes' in data_sets.list_federated()
  config = config_dict.create(seed=0, data=dict(num_clients=5))
  loaded = data_sets.find_federated('stripes').load(config)
  assert (loaded.train.num_clients, loaded.train.num_examples) == (5, 50)
  assert loaded.train.columns['pixels'].max() == 1
  assert loaded.source == 'drawn stripes'
