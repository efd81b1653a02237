"""Runs whose noise is correlated over rounds, and what their audit finds."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from epe_jax import accounting, audit
from epe_jax.accounting import matrix_mechanism
from epe_jax.audit.attackers import DECORRELATED, RESIDUAL
from epe_jax.experiment import audited_run
from epe_jax.experiment.setup import analytic, build
from epe_jax.experiment.setup import config as config_lib
from epe_jax.sampling import canary_schedules
from epe_jax.training import clipping, correlated_noise, fedavg
from tests import helpers
from tests.helpers import load_config

pytestmark = pytest.mark.usefixtures('quick_compilation')

ROUNDS, SCHEMA, DIM, NUM, DELTA = (
  48,
  accounting.ParticipationSchema(12, 4),
  2000,
  300,
  1e-5,
)
MAKE = {
  'tree': lambda: correlated_noise.tree(ROUNDS),
  'banded': lambda: correlated_noise.banded(ROUNDS, bands=4),
  'blt': lambda: correlated_noise.blt(ROUNDS, buffers=2, schema=SCHEMA),
}


def make_algorithm(noise, stream=None):
  settings = {}
  if stream is not None:
    settings['aggregation'] = correlated_noise.correlated(stream)
  return fedavg.dp_fedavg(
    helpers.softmax_regression(DIM - 650),
    # Clients send nothing.
    client_opt=optax.sgd(0.0),
    server_opt=optax.sgd(0.5, momentum=0.9),
    clipping=clipping.fixed(0.3),
    noise_multiplier=noise,
    expected_clients=5.0,
    **settings,
  )


def make_cohort():
  images = [
    (np.ones((2, 64), np.float32), np.zeros(2, np.int32)) for _ in range(2)
  ]
  cohort = helpers.make_cohort(images, batch=2, chunk=1)
  x, y = jax.tree.leaves(cohort.batches)
  return cohort._replace(batches={'pixels': x, 'label': y.astype(np.int32)})


def run_rounds(algorithm, included):
  return helpers.run_audited(algorithm, included, make_cohort(), DIM)


@pytest.mark.integration
@pytest.mark.parametrize('name', MAKE)
@pytest.mark.parametrize('noise', [0.5, 1.0, 3.0])
def test_without_clients_the_attacker_finds_the_analytic_epsilon(name, noise):
  """The mean of 300 scores of a fixed seed is within 3 standard errors of μ."""
  correlation = MAKE[name]()
  worst = accounting.find_sensitivity(correlation.strategy, SCHEMA)
  strategy = correlation.strategy
  patterns = matrix_mechanism.list_moved(worst.pattern, SCHEMA)
  assigned = canary_schedules.worst_case(
    np.random.default_rng(0),
    patterns,
    matrix_mechanism.measure_patterns(strategy, patterns),
    rounds=strategy.shape[1],
    num=NUM,
  )
  included = np.pad(assigned, ((0, 0), (0, NUM)))
  cosines, rounds = run_rounds(
    make_algorithm(noise, correlation.stream), included
  )
  record = audit.make_record(
    cosines,
    rounds,
    included=included,
    dim=DIM,
    delta=DELTA,
    noise_multiplier=noise,
    strategy=correlation.whitened,
  )
  whitened, alone = DECORRELATED.score(record), RESIDUAL.score(record)
  assert whitened is not None
  assert alone is not None
  assert whitened.contradictions == whitened.failed_checks == ()
  shift = np.asarray(whitened.scores.shift)
  observed = whitened.scores.observed
  assert abs(np.mean(observed - shift)) < 3 / np.sqrt(NUM)
  assert abs(np.mean(whitened.scores.unobserved)) < 3 / np.sqrt(NUM)
  # One estimate, and what the mechanism allows canaries that all but are the worst.
  limit = DECORRELATED.analytic_epsilon(record, DELTA)
  assert limit is not None
  (attack,) = audit.evaluate(
    record, threat_models=[DECORRELATED], floors=False
  ).attacks
  scale = accounting.epsilon_of_matrix_mechanism
  low, high = (
    scale(noise, noise * (np.mean(shift) + x / np.sqrt(NUM)), delta=DELTA)
    for x in (-3, 3)
  )
  assert low.epsilon < attack.first.epsilon < high.epsilon
  assert low.epsilon < limit.epsilon < high.epsilon * 1.03
  # Of a square C that is the ε of any client; of a tree clients see less than nodes.
  claimed = scale(noise, worst.bound, delta=DELTA).epsilon
  assert limit.epsilon <= claimed * (1 + 1e-6)
  if name != 'tree':
    assert limit.epsilon == pytest.approx(claimed, rel=1e-6)
  assert np.mean(np.asarray(alone.scores.shift)) < 0.95 * np.mean(shift)


@pytest.mark.integration
@pytest.mark.parametrize('noise', [0.7, 0.0])
def test_noise_that_is_not_correlated_is_that_of_other_runs_bit_for_bit(noise):
  included = np.eye(ROUNDS, 60, dtype=bool)
  one = run_rounds(make_algorithm(noise), included)
  for stream in (
    correlated_noise.independent(ROUNDS).stream,
    correlated_noise.banded(ROUNDS, bands=1).stream,
  ):
    jax.tree.map(
      np.testing.assert_array_equal,
      one,
      run_rounds(make_algorithm(noise, stream), included),
    )


def _load(**changes):
  config = load_config(
    'digits',
    **{
      'rounds': 12,
      'clipping.kind': 'fixed',
      'participation.kind': 'one_order',
      'noise.correlation': 'banded',
      **changes,
    },
  )
  return config_lib.check_config(config)


@pytest.mark.usefixtures('small_task')
def test_a_run_states_the_epsilon_of_its_mechanism_and_audits_its_worst_rounds():
  config = _load()
  setup = build.build(config)
  # 40 of 200 clients in a round: each comes back after 5.
  c = correlated_noise.banded(12, bands=4).strategy
  pattern = np.arange(12) % 5 == 0
  norm = float(np.linalg.norm(c @ pattern))
  stated = analytic.analyze_privacy(config, setup)
  expected = accounting.epsilon_of_matrix_mechanism(
    config.noise_multiplier, norm, delta=setup.delta
  )
  assert stated.clients.epsilon == pytest.approx(expected.epsilon, rel=1e-5)
  assert stated.canaries is not None
  assert stated.canaries.epsilon == pytest.approx(expected.epsilon, rel=1e-5)
  assigned = setup.participants.canaries[:, : config.canaries.observed]
  norms = np.linalg.norm(c @ assigned, axis=0)
  assert np.all(norms > 0.99 * norm * (1 - 1e-6))
  assert not setup.participants.canaries[:, config.canaries.observed :].any()


@pytest.mark.usefixtures('small_task')
def test_groups_that_take_turns_amplify_a_banded_mechanism():
  config = _load(
    **{
      'participation.kind': 'cyclic',
      'participation.separation': 4,
      'clients_per_round': 10,
    }
  )
  setup = build.build(config)
  fact = analytic.analyze_privacy(config, setup).amplification
  assert fact is not None
  assert fact.key == 'amplified'
  expected = accounting.epsilon_of_poisson(
    config.noise_multiplier,
    delta=setup.delta,
    probability=10 * 4 / 200,
    rounds=3,
  )
  assert fact.values['epsilon'] == expected.epsilon
  # More bands than groups are not known to be amplified.
  wider = _load(
    **{'participation.kind': 'cyclic', 'participation.separation': 3}
  )
  found = analytic.find_amplification(wider, num_clients=200, delta=1e-5)
  assert found is not None
  assert found.key == 'no_tight_analysis'


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'clipping.kind': 'adaptive'}, "give clipping.kind='fixed'"),
    ({'simulation': False}, 'hides sums but for their last bits'),
    (
      {'noise.bands': 13},
      r'noise\.bands=13, but of rounds=12 the mechanism runs for 12',
    ),
    (
      {'noise.restart': 3},
      r'noise\.bands=4, but of rounds=12 the mechanism runs for 3',
    ),
    ({'noise.buffers': 2}, r"noise\.buffers=2 has no effect with .*='banded'"),
    (
      {'noise.correlation': 'tree', 'rounds': 10**6},
      r"noise\.correlation='tree' with rounds=1000000 takes matrices",
    ),
  ],
)
def test_what_does_not_go_with_correlated_noise_is_refused(changes, message):
  with pytest.raises(ValueError, match=message):
    config_lib.check_conflicts(_load(**changes))


@pytest.mark.integration
@pytest.mark.usefixtures('small_task', 'no_floors')
@pytest.mark.parametrize(
  ('kind', 'restart'),
  [*itertools.product(('tree', 'bisr', 'blt'), (None, 5)), ('banded', None)],
)
def test_a_run_with_its_kind_of_noise_ends_with_a_report(
  kind, restart, tmp_path
):
  config = _load(**{'noise.correlation': kind, 'noise.restart': restart})
  if kind == 'blt':
    config.noise.buffers = 2
  result = audited_run.run(config, tmp_path / 'run')
  keys = [attack.threat_model.key for attack in result.audit.attacks]
  assert {'residual', 'decorrelated'} <= {*keys}
  record = audit.load_record(tmp_path / 'run/private/scores.npz')
  assert record.strategy is not None
  assert record.strategy.shape == (12, 12)


def test_the_noise_of_a_run_is_drawn_by_one_trace():
  correlation = MAKE['tree']()
  traces = []

  def draw(key):
    traces.append(key)
    return jax.random.normal(key, (3,))

  step = jax.jit(lambda key, state: correlation.stream.next(draw, key, state))
  state = correlation.stream.init(jnp.zeros(3))
  _, state = step(jax.random.key(0), state)
  traced = len(traces)
  for i in range(1, 9):
    _, state = step(jax.random.key(i), state)
  assert len(traces) == traced
