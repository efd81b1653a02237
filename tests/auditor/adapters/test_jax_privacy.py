import pytest

pytest.importorskip('jax_privacy', reason='jax-privacy is not installed')

import importlib
import sys
import types

import dp_accounting
import jax
import jax.numpy as jnp
import jax_privacy
import numpy as np

from epe_jax import accounting
from epe_jax.audit import attackers
from epe_jax.auditor.adapters import jax_privacy as integration
from epe_jax.auditor.adapters.jax_privacy import execution_plan
from tests.auditor.adapters import laws

# jax_privacy 2.0 calls what optax 0.2.8 has renamed.
pytestmark = pytest.mark.filterwarnings('ignore:optax.global_norm')

of_release = pytest.mark.skipif(
  hasattr(execution_plan, 'BandMFConfig'), reason='plans of 2.0 are made here'
)

ROUNDS, DIM = 25, 20_000


def make_plan(noise_multiplier, relation=None, strategy=(1.0,), **config):
  if relation is not None:
    config['accountant'] = dp_accounting.pld.PLDAccountant(relation)
  if hasattr(execution_plan, 'BandMFConfig'):
    return execution_plan.BandMFConfig(
      iterations=ROUNDS,
      strategy=np.array(strategy),
      noise_multiplier=noise_multiplier,
      expected_participations=0.5 * ROUNDS / len(strategy),
      **config,
    ).make(execution_plan.PerformanceFlags(noise_seed=3))
  return execution_plan.BandMFExecutionPlanConfig(
    iterations=ROUNDS,
    strategy=list(strategy),
    noise_multiplier=noise_multiplier,
    epsilon=None,
    delta=None,
    sampling_prob=0.5,
    noise_seed=3,
    **config,
  ).plan


def audit_with(plan, auditor):
  return integration.audit(plan, auditor=auditor)


def train(plan, rounds=ROUNDS, dim=DIM):
  """The loop of jax_privacy's documentation, on a loss without a gradient."""
  params = {'w': jnp.zeros((dim // 100, 99)), 'b': jnp.zeros(dim // 100)}
  gradient = plan.clipped_grad(
    lambda params, x: 0.0 * jnp.sum(params['w']) * jnp.sum(x), batch_argnums=1
  )
  state = plan.noise_addition_transform.init(params)

  @jax.jit
  def step(state):
    total = gradient(params, jnp.ones((4, 3)))
    return plan.noise_addition_transform.update(total, state)

  releases = []
  for _ in range(rounds):
    release, state = step(state)
    releases.append(jax.flatten_util.ravel_pytree(release)[0])
  return state, np.stack(releases)


@pytest.mark.integration
@pytest.mark.parametrize('noise_multiplier', laws.NOISE_MULTIPLIERS)
@pytest.mark.parametrize(
  ('clip_norm', 'rescale', 'divisor'), [(2.0, True, 1.0), (2.0, False, 4.0)]
)
def test_what_a_plan_claims_is_measured(
  noise_multiplier, clip_norm, rescale, divisor
):
  plan = make_plan(
    noise_multiplier,
    l2_clip_norm=clip_norm,
    rescale_to_unit_norm=rescale,
    normalize_by=divisor,
  )
  sensitivity = integration.compute_sensitivity(plan)
  auditor = laws.make_auditor(
    dim=DIM,
    rounds=ROUNDS,
    noise_multiplier=noise_multiplier,
    clip_norm=sensitivity,
  )
  audited = audit_with(plan, auditor)
  audited.noise_addition_transform.collect(train(audited)[0])
  laws.assert_claim_is_met(auditor)


@pytest.mark.integration
@of_release
def test_a_plan_for_replaced_examples_has_twice_the_noise():
  plan = make_plan(0.5, relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
  auditor = laws.make_auditor(dim=DIM, rounds=ROUNDS, noise_multiplier=1.0)
  audited = audit_with(plan, auditor)
  audited.noise_addition_transform.collect(train(audited)[0])
  laws.assert_claim_is_met(auditor)


def test_a_plan_and_our_own_loop_give_the_same_epsilon():
  make = lambda z=0.5: laws.make_auditor(
    dim=DIM, rounds=ROUNDS, noise_multiplier=z
  )
  _, releases = train(audit_with(make_plan(1e-9), make(1e-9)))
  laws.assert_same_as_own_loop(make, releases, divisor=1.0)


@pytest.mark.parametrize(
  ('settings', 'participations'), [({}, 13), ({'repetitions': 1}, 1)]
)
def test_correlated_noise_leaks_what_all_rounds_together_show(
  settings, participations
):
  """One band more: the noise of Z is larger, and combined rounds undo it."""
  strategy = np.array([1.0, 0.8])
  plan = integration.audit(
    make_plan(0.5, strategy=strategy), delta=1e-5, seed=0, **settings
  )
  noise = plan.noise_addition_transform
  auditor = noise.collect(train(plan)[0])
  c = np.eye(ROUNDS) + 0.8 * np.eye(ROUNDS, k=-1)
  assert auditor.config.strategy is not None
  np.testing.assert_allclose(auditor.config.strategy, c, atol=1e-5)
  laws.assert_claim_is_met(auditor, attackers.DECORRELATED)
  record = auditor.record()
  # Every second step, of columns that do not overlap; or one of them.
  assert record.included.sum(axis=0).max() == participations
  limit = attackers.DECORRELATED.analytic_epsilon(record, 1e-5)
  assert limit is not None
  assert limit.epsilon == pytest.approx(
    accounting.epsilon_of_releases(
      0.5, delta=1e-5, participations=participations
    ).epsilon,
    rel=0.03,
  )
  alone = laws.evaluate_own_round(auditor, attackers.RESIDUAL)
  assert alone.first.epsilon < 0.9 * limit.epsilon


@pytest.mark.parametrize('strategy', [(1.0,), (1.0, 0.8)])
def test_what_a_plan_knows_is_read_and_said(strategy):
  plan = make_plan(0.7, strategy=strategy, l2_clip_norm=2.0, normalize_by=4.0)
  audited = integration.audit(plan, delta=1e-3)
  auditor = audited.noise_addition_transform.collect(train(audited)[0])
  config = auditor.config
  assert config.clip_norm == integration.compute_sensitivity(plan)
  # Of the noise that is independent from step to step.
  expected = 0.7 * np.linalg.norm(strategy)
  assert config.noise_multiplier == pytest.approx(expected)
  assert (config.dim, config.rounds) == (DIM, ROUNDS)
  assert 'read from the plan: clip norm 0.25' in laws.describe_notes(auditor)


def test_a_clip_norm_that_is_not_the_plans_is_an_error():
  auditor = laws.make_auditor(
    dim=DIM, rounds=ROUNDS, noise_multiplier=0.5, clip_norm=3.0
  )
  with pytest.raises(ValueError, match=r'clip_norm=3\.0.*set clip_norm=1'):
    audit_with(make_plan(0.5), auditor)


def test_the_plan_may_have_moved_out_of_experimental(monkeypatch):
  plan, moved = make_plan(0.7), types.ModuleType('jax_privacy.execution_plan')
  moved.DPExecutionPlan = execution_plan.DPExecutionPlan
  with monkeypatch.context() as patch:
    patch.delattr('jax_privacy.experimental.execution_plan', raising=False)
    patch.setitem(sys.modules, 'jax_privacy.experimental.execution_plan', None)
    patch.setitem(sys.modules, moved.__name__, moved)
    patch.setattr(jax_privacy, 'execution_plan', moved, raising=False)
    importlib.reload(integration)
    assert integration.execution_plan is moved
    audited = integration.audit(plan, delta=1e-3)
    auditor = audited.noise_addition_transform.collect(train(audited)[0])
  importlib.reload(integration)
  assert auditor.config.noise_multiplier == pytest.approx(0.7)


@pytest.mark.integration
def test_scores_collected_on_the_way_are_those_of_the_end():
  audits = []
  for rounds in ([10, ROUNDS], [ROUNDS]):
    auditor = laws.make_auditor(dim=DIM, rounds=ROUNDS, noise_multiplier=0.5)
    plan = audit_with(make_plan(0.5), auditor)
    for number in rounds:
      state, _ = train(plan, rounds=number)
      plan.noise_addition_transform.collect(state)
    audits.append(auditor.record())
  np.testing.assert_array_equal(*(x.trace for x in audits))


@pytest.mark.integration
@of_release
def test_the_quickstart_is_audited(tmp_path):
  laws.assert_example_audits('jax_privacy', tmp_path)
