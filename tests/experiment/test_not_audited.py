"""Runs without canaries: plain training, and files that say so."""

import json

import jax
from jax.flatten_util import ravel_pytree
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from epe_jax import canaries
from epe_jax.audit import audited_algorithm, observers
from epe_jax.experiment import audited_run, finished_runs
from epe_jax.experiment.setup import build
from epe_jax.report import report
from epe_jax.tasks import digits
from epe_jax.training import algorithms, clipping, fedavg
from tests import helpers
from tests.helpers import load_config
from tests.in_process import run_command

_NONE = {'canaries.observed': 0, 'canaries.unobserved': 0}
_ROUNDS, _DIM = 4, 4


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
  workdir = tmp_path_factory.mktemp('runs') / 'plain'
  config = load_config('digits', **_NONE)
  task = helpers.softmax_regression()
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(digits, 'task', lambda width: task)
    return workdir, config, audited_run.run(config, workdir)


def algorithm(noise):
  return fedavg.dp_fedavg(
    helpers.linear_task(),
    client_opt=optax.sgd(0.1),
    server_opt=optax.sgd(0.5, momentum=0.9),
    clipping=clipping.adaptive(
      0.1, quantile=0.5, learning_rate=0.2, count_noise=1.0, expected_clients=5
    ),
    noise_multiplier=noise,
    expected_clients=5.0,
  )


def path(step, state):
  """Parameters after each round, and the algorithm's metrics of each round."""
  rng, params, shown = np.random.default_rng(0), [], []
  step = jax.jit(step)
  for t in range(_ROUNDS):
    clients = helpers.random_clients(rng, [3, 5, 2, 4, 4])
    cohort = helpers.make_cohort(clients, batch=2, chunk=1, steps=3)
    state, info = step(state, cohort, *helpers.keys(t))
    inner = getattr(state, 'algorithm', state)
    params.append(ravel_pytree(inner.params)[0])
    audit_alone = ('effective_dimension', 'residual_norm')
    shown.append(
      {k: v for k, v in info.by_name().items() if k not in audit_alone}
    )
  return params, shown


def same(a, b):
  for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
    np.testing.assert_array_equal(x, y)


@pytest.mark.integration
@pytest.mark.parametrize('noise', [0.0, 0.3])
def test_without_canaries_training_is_the_algorithm_alone_bit_for_bit(noise):
  alone = algorithm(noise)
  params = helpers.linear_task().init(jax.random.key(0))
  nobody = algorithms.no_canaries()
  plain = path(
    lambda state, cohort, *keys: alone.step(state, cohort, nobody, *keys),
    alone.init(params),
  )
  none = audited_algorithm.unaudited(alone)
  same(path(none.step, none.init(params)), plain)
  # Canaries that only watch change nothing; one that takes part does.
  set_ = canaries.from_matrix(jnp.eye(_DIM))
  attackers = {'trace': observers.all_iterates(set_, rounds=_ROUNDS)}
  rows = np.zeros((_ROUNDS, _DIM), bool)
  watched = audited_algorithm.audited(alone, set_, rows, attackers)
  same(path(watched.step, watched.init(params)), plain)
  rows[1, 2] = True
  joined = audited_algorithm.audited(alone, set_, rows, attackers)
  moved, _ = path(joined.step, joined.init(params))
  np.testing.assert_array_equal(moved[0], plain[0][0])
  assert np.abs(moved[1] - plain[0][1]).max() > 0


@pytest.mark.integration
def test_a_run_without_canaries_makes_none_and_says_so(finished):
  workdir, config, result = finished
  setup = build.build(config)
  assert not setup.is_audited
  assert setup.participants.expected_clients == config.clients_per_round
  assert not (workdir / 'private/scores.npz').exists()
  assert result.audit.attacks == ()
  assert result.num_observed == result.num_unobserved == 0
  assert result.analytic_epsilon is None
  assert result.clients_analytic_epsilon > 0
  lines = (workdir / 'private/metrics.jsonl').read_text().splitlines()
  assert all(json.loads(line)['num_canaries'] == 0 for line in lines[1:])


def test_its_report_has_how_it_trained_and_no_estimate(finished):
  workdir, _, _ = finished
  text = report.write_report(workdir).read_text()
  assert 'Not audited: no canaries' in text
  assert 'Every estimate' not in text
  assert {p.name for p in workdir.glob('*.png')} == {'accuracy.png'}
  assert '(accuracy.png)' in text
  assert '(attackers.png)' not in text
  result = finished_runs.load_result(workdir)
  table = report.format_report(result)
  assert 'Not audited: no canaries' in table
  assert 'By analysis ε of a client of up to' in table
  assert 'lower bound' not in table.lower()
  assert max(map(len, table.splitlines())) <= 100


def test_estimates_of_a_run_without_canaries_are_refused(finished, tmp_path):
  workdir, _, _ = finished
  done = run_command('estimate', workdir)
  assert done.returncode == 2
  assert 'was not audited: no canaries' in done.stderr
  # What is not a workdir, or not finished, is for others to refuse.
  finished_runs.check_record(tmp_path)
  finished_runs.check_record(tmp_path / 'scores.csv')


@pytest.mark.parametrize('schedule', ['coin_flip', 'as_clients', 'replace'])
def test_without_canaries_no_schedule_matters(schedule):
  changes = {'canaries.schedule': schedule, **_NONE}
  setup = build.build(load_config('digits', **changes))
  assert setup.participants.canaries.shape == (6, 0)
  usual = build.build(load_config('digits', **_NONE))
  for t in range(6):
    np.testing.assert_array_equal(
      setup.participants.clients(t), usual.participants.clients(t)
    )
