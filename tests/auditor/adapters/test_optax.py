import os
import subprocess
import sys

import jax
from jax.flatten_util import ravel_pytree
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from epe_jax import audit as audit_package
from epe_jax.audit import attackers
from epe_jax.auditor.adapters import optax as integration
from tests.auditor.adapters import laws

ROUNDS, DIM = 25, 20_000
PARAMS = {'w': jnp.zeros((DIM // 100, 99)), 'b': jnp.zeros(DIM // 100)}


def add_noise(std):
  """A transformation as plain as noise can be."""

  def update(updates, key, params=None):
    del params
    key, now = jax.random.split(key)
    flat, unravel = ravel_pytree(updates)
    noise = std * jax.random.normal(now, flat.shape)
    return unravel(flat + noise), key

  return optax.GradientTransformation(lambda params: jax.random.key(1), update)


def audit_with(transformation, auditor, **options):
  return integration.audit(transformation, auditor=auditor, **options)


def run(transformation, gradients=None, rounds=ROUNDS):
  gradients = (
    jax.tree.map(jnp.zeros_like, PARAMS) if gradients is None else gradients
  )

  def step(state, _):
    release, state = transformation.update(gradients, state, PARAMS)
    return state, ravel_pytree(release)[0]

  state = transformation.init(PARAMS)
  return jax.jit(lambda state: jax.lax.scan(step, state, length=rounds))(state)


def run_audit(transformation, auditor, *args, rounds=ROUNDS, **options):
  """Runs a transformation and gives the auditor the scores."""
  audited = audit_with(transformation, auditor, **options)
  state, _ = run(audited, *args, rounds=rounds)
  assert audited.collect(state) is auditor


def make_auditor(noise_multiplier=0.5, **config):
  return laws.make_auditor(
    dim=DIM, rounds=ROUNDS, noise_multiplier=noise_multiplier, **config
  )


@pytest.mark.integration
@pytest.mark.parametrize(
  ('noise_multiplier', 'family'),
  [*((z, 'hadamard') for z in laws.NOISE_MULTIPLIERS), (0.5, 'sphere')],
)
def test_the_noise_of_a_transformation_is_measured(noise_multiplier, family):
  auditor = make_auditor(noise_multiplier, clip_norm=2.0, family=family)
  run_audit(add_noise(2 * noise_multiplier), auditor)
  laws.assert_claim_is_met(auditor)


def test_gradients_of_examples_are_not_taken_for_their_sum():
  chain = optax.chain(
    optax.contrib.differentially_private_aggregate(1.0, 0.5, key=7),
    optax.sgd(0.1),
  )
  examples = jax.tree.map(lambda x: jnp.zeros((3, *x.shape)), PARAMS)
  with pytest.raises(
    ValueError, match=r'60,000 numbers.*give per_example=True'
  ):
    run_audit(chain, make_auditor(), examples)
  with pytest.raises(ValueError, match='give per_example=False'):
    run_audit(add_noise(0.5), make_auditor(), PARAMS, per_example=True)


@pytest.mark.integration
@pytest.mark.parametrize('noise_multiplier', laws.NOISE_MULTIPLIERS)
def test_the_noise_of_optax_contrib_is_measured(noise_multiplier):
  auditor = make_auditor(noise_multiplier)
  aggregate = optax.contrib.differentially_private_aggregate(
    l2_norm_clip=1.0, noise_multiplier=noise_multiplier, key=7
  )
  examples = jax.tree.map(lambda x: jnp.zeros((6, *x.shape)), PARAMS)
  run_audit(aggregate, auditor, examples, per_example=True)
  laws.assert_claim_is_met(auditor)


@pytest.mark.integration
def test_half_the_noise_is_found_out():
  auditor = make_auditor(1.0)
  run_audit(add_noise(0.5), auditor)
  attack = laws.evaluate_own_round(auditor)
  assert attack.bounds[0].epsilon > attack.analytic.epsilon
  assert 'above the limit' in ' '.join(auditor.report().split())


@pytest.mark.integration
def test_a_transformation_and_our_own_loop_give_the_same_epsilon():
  _, releases = run(audit_with(add_noise(1e-9), make_auditor()))
  laws.assert_same_as_own_loop(make_auditor, releases, divisor=1.0)


@pytest.mark.integration
def test_who_removes_all_updates_finds_the_noise_however_large_they_are():
  gradients = jax.tree.map(lambda x: x + 1.0, PARAMS)
  auditor = make_auditor(0.5)
  run_audit(add_noise(0.5), auditor, gradients)
  audit = audit_package.evaluate(auditor.record(), floors=False)
  residual = audit.find(attackers.RESIDUAL).first
  own = audit.find(attackers.OWN).first
  low, high = residual.interval
  assert low < audit.find(attackers.RESIDUAL).analytic.epsilon < 1.1 * high
  assert own.epsilon < residual.epsilon / 2


SHARDED = """
import jax, numpy as np
from epe_jax.auditor.adapters import optax as integration
from epe_jax.parallel import sharding
from tests.auditor.adapters import test_optax as t

mesh = jax.sharding.Mesh(np.array(jax.devices()), ('x',))
assert mesh.size == 4
place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec('x'))
traces = []
for params, own in ((t.PARAMS, None), (jax.device_put(t.PARAMS, place), None),
                    (jax.device_put(t.PARAMS, place), sharding.make_mesh())):
  t.PARAMS = params
  auditor = t.make_auditor()
  t.run_audit(t.add_noise(0.5), auditor, params, mesh=own)
  traces.append(auditor.record().trace)
assert abs(traces[0]).max() > 0.01
for trace in traces[1:]:
  np.testing.assert_allclose(trace, traces[0], atol=1e-6)
"""


@pytest.mark.integration
def test_sharded_parameters_give_the_same_scores():
  done = subprocess.run(
    [sys.executable, '-c', SHARDED],
    env={**os.environ, 'JAX_NUM_CPU_DEVICES': '4'},
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stderr


def test_what_an_optimizer_changes_is_seen_in_the_sign_of_its_input():
  auditor = make_auditor(0.3, view='server_update')
  chain = optax.chain(add_noise(0.3), optax.trace(0.9), optax.scale(-1.0))
  audited = audit_with(chain, auditor)
  state, _ = run(audited)
  audited.collect((state, 'of other transformations'))
  record = auditor.record()
  assert record.view == 'server_update'
  assert record.trace[record.included].mean() > 0.7 / np.sqrt(record.dim)


@pytest.mark.integration
def test_what_optax_contrib_closes_over_is_read_and_said():
  aggregate = optax.contrib.differentially_private_aggregate(
    l2_norm_clip=2.0, noise_multiplier=0.7, key=7
  )
  audited = integration.audit(aggregate, steps=ROUNDS, delta=1e-3)
  with pytest.raises(ValueError, match='made when training starts'):
    audited.auditor  # noqa: B018
  examples = jax.tree.map(lambda x: jnp.zeros((6, *x.shape)), PARAMS)
  chain = optax.chain(audited, optax.sgd(0.5))
  state, _ = run(chain, examples)
  auditor = audited.collect(state)
  config = auditor.config
  assert (config.clip_norm, config.noise_multiplier) == (2.0, 0.7)
  assert (config.dim, config.rounds) == (DIM, ROUNDS)
  said = 'read from the transformation: clip norm 2, noise multiplier 0.7.'
  assert said in laws.describe_notes(auditor)
  with pytest.raises(
    ValueError, match=r'clip_norm=1\.0, but that of the trans'
  ):
    integration.audit(aggregate, auditor=make_auditor())


def test_what_a_transformation_does_not_say_is_asked_for():
  with pytest.raises(ValueError, match=r'^clip_norm of the audit is not known'):
    integration.audit(add_noise(1.0), steps=5, delta=1e-5)
  with pytest.raises(ValueError, match=r'^steps of the audit is not known'):
    integration.audit(add_noise(1.0), delta=1e-5)


def test_the_state_of_another_audit_is_an_error():
  audited, other = (
    integration.audit(
      add_noise(1.0),
      steps=ROUNDS,
      clip_norm=1.0,
      noise_multiplier=1.0,
      delta=1e-3,
    )
    for _ in range(2)
  )
  state, _ = run(audited)
  other.init(PARAMS)
  with pytest.raises(ValueError, match='canaries of another auditor; load'):
    other.collect(state)


@pytest.mark.integration
def test_training_longer_than_the_audit_is_an_error():
  auditor = make_auditor()
  with pytest.raises(ValueError, match=r'26 steps.*rounds=25'):
    run_audit(add_noise(1.0), auditor, rounds=ROUNDS + 1)


def test_a_state_without_an_audit_is_an_error():
  with pytest.raises(ValueError, match='has 0 audited'):
    audit_with(add_noise(1.0), make_auditor()).collect(
      optax.sgd(0.1).init(PARAMS)
    )


def test_a_model_of_another_size_is_an_error():
  with pytest.raises(ValueError, match=r'has 3 numbers, but dim=20,000'):
    audit_with(add_noise(1.0), make_auditor()).init({'w': jnp.zeros(3)})


def test_noise_that_is_not_finite_is_an_error():
  auditor = make_auditor()
  with pytest.raises(ValueError, match='step 0 released is not finite'):
    run_audit(add_noise(np.nan), auditor)


@pytest.mark.integration
def test_the_quickstart_is_audited(tmp_path):
  laws.assert_example_audits('optax', tmp_path)
