import importlib
from importlib import metadata

import numpy as np
import pytest

fedjax = pytest.importorskip(
  'fedjax', reason='FedJAX is not installed: make test-frameworks'
)

import jax
import jax.numpy as jnp

from epe_jax.auditor.adapters import fedjax as integration
from tests.auditor.adapters import laws

DIM, ROUNDS, CLIENTS = 10_000, 25, 8
CLIP_NORM = 2.0
ZEROS = {'w': jnp.zeros((99, 100)), 'b': jnp.zeros(100)}


def make_gaussian_aggregator(noise_multiplier, clip_norm=CLIP_NORM):
  """FedJAX has none with noise: its mean, of clipped updates, and noise."""
  rng, mean = np.random.default_rng(1), fedjax.aggregators.mean_aggregator()

  def apply(clients, state):
    clipped = [
      (name, fedjax.tree_util.tree_clip_by_global_norm(update, clip_norm), 1.0)
      for name, update, _ in clients
    ]
    release, state = mean.apply(clipped, state)
    std = noise_multiplier * clip_norm / len(clipped)
    noise = lambda x: x + std * rng.normal(size=x.shape)
    return jax.tree_util.tree_map(noise, release), state

  return fedjax.aggregators.Aggregator(mean.init, apply)


def make_auditor(noise_multiplier=0.5):
  return laws.make_auditor(
    dim=DIM,
    rounds=ROUNDS,
    noise_multiplier=noise_multiplier,
    clip_norm=CLIP_NORM,
  )


def run(aggregator, rounds=ROUNDS, num_clients=CLIENTS, weight=1.0):
  state, releases = aggregator.init(), []
  for _ in range(rounds):
    clients = ((f'{i}'.encode(), ZEROS, weight) for i in range(num_clients))
    release, state = aggregator.apply(clients, state)
    releases.append(np.concatenate([release['b'], release['w'].ravel()]))
  return releases


def audit_with(aggregator, auditor, **options):
  return integration.audit(aggregator, auditor=auditor, **options)


@pytest.mark.parametrize('noise_multiplier', laws.NOISE_MULTIPLIERS)
def test_the_noise_of_an_aggregator_is_measured(noise_multiplier):
  auditor = make_auditor(noise_multiplier)
  run(audit_with(make_gaussian_aggregator(noise_multiplier), auditor))
  laws.assert_claim_is_met(auditor)


def test_an_aggregator_and_our_own_loop_give_the_same_epsilon():
  auditor = make_auditor()
  releases = run(audit_with(make_gaussian_aggregator(1e-9), auditor))
  # All rounds have as many canaries: 500 in 25.
  divisor = CLIENTS + len(auditor.canary_ids(0))
  laws.assert_same_as_own_loop(make_auditor, releases, divisor=divisor)


def test_the_share_of_a_canary_is_that_of_its_weight():
  auditor = make_auditor()
  mean = fedjax.aggregators.mean_aggregator()
  with pytest.warns(UserWarning, match='weight=5 moves the mean 1.67 times'):
    run(audit_with(mean, auditor, weight=3.0), rounds=1, weight=5.0)
  assert [x.key for x in auditor.notes] == ['larger_clients']
  canaries = len(auditor.canary_ids(0))
  share = 3.0 / (5.0 * CLIENTS + 3.0 * canaries)
  rounds = auditor.record().rounds
  assert rounds.canary_norm[0] == pytest.approx(CLIP_NORM * share)
  trace = auditor.record().trace[0, auditor.canary_ids(0)]
  inner = trace * rounds.aggregate_norm[0]
  np.testing.assert_allclose(inner, CLIP_NORM * share, rtol=0.1)


def test_a_round_that_failed_is_made_again():
  auditor = make_auditor()
  aggregator = audit_with(make_gaussian_aggregator(0.5), auditor)
  state = aggregator.init()
  with pytest.raises(ValueError, match='round 0 has no clients'):
    aggregator.apply([], state)
  aggregator.apply([(b'0', ZEROS, 1.0)], state)
  assert auditor.num_rounds_observed == 1


def test_the_size_is_read_from_the_first_update():
  aggregator = integration.audit(
    make_gaussian_aggregator(0.5),
    rounds=ROUNDS,
    clip_norm=CLIP_NORM,
    noise_multiplier=0.5,
    delta=1e-3,
  )
  with pytest.raises(ValueError, match='made when training starts'):
    aggregator.auditor  # noqa: B018
  run(aggregator)
  assert aggregator.auditor.config.dim == DIM
  said = 'read from the first update: d = 10,000.'
  assert said in laws.describe_notes(aggregator.auditor)
  with pytest.raises(
    ValueError, match=r'^noise_multiplier of the audit is not'
  ):
    integration.audit(aggregator, rounds=5, clip_norm=1.0, delta=1e-3)


def test_a_weight_of_nothing_is_an_error():
  mean = fedjax.aggregators.mean_aggregator()
  with pytest.raises(ValueError, match=r'weight=0\.0'):
    audit_with(mean, make_auditor(), weight=0.0)


def test_the_quickstart_is_audited(tmp_path):
  laws.assert_example_audits('fedjax', tmp_path)


@pytest.mark.parametrize('version', ['0.9.0', '99.0'])
def test_another_version_is_a_warning(version, monkeypatch):
  monkeypatch.setattr(
    metadata, 'version', lambda x: version if x == 'fedjax' else '0.4.30'
  )
  with pytest.warns(UserWarning, match=f'fedjax {version} is installed'):
    importlib.reload(integration)


@pytest.mark.parametrize('version', ['0.10.2', '0.12.0.1', '1.0'])
def test_a_jax_that_lacks_what_fedjax_calls_is_an_error(version, monkeypatch):
  installed = metadata.version
  monkeypatch.setattr(
    metadata, 'version', lambda x: version if x == 'jax' else installed(x)
  )
  with pytest.raises(
    ImportError, match=f'FedJAX does not run beside jax {version}; install jax'
  ):
    importlib.reload(integration)
