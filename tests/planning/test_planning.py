"""Plans: what an audit will tell and cost, and where it will tell nothing."""

import dataclasses
import functools
import json
import os
import pathlib
import runpy
import subprocess
import sys

from absl.testing import flagsaver
import numpy as np
import pytest
from scipy import stats

from benchmarks.bounds import simulated_runs
from epe_jax import accounting, audit, io, planning
from epe_jax.audit import attackers
from epe_jax.audit.record import respond_to_rounds
from epe_jax.epsilon import tradeoff
from epe_jax.experiment import finished_runs
from epe_jax.planning import planned_scores, plans, predictions
from epe_jax.planning.geometry import Geometry
from epe_jax.report import cells
from tests.planning import simulated_record

ROOT = pathlib.Path(__file__).parents[2]
RESULTS = ROOT / 'benchmarks' / 'results'
CHANGE = attackers.CHANGE
SIZES = dict(
  dim=20_000,
  rounds=50,
  clients_per_round=20,
  noise_multiplier=0.7,
  delta=1e-5,
  num_observed=200,
  num_unobserved=200,
  # Of unknown agreement there would be two plans.
  client_agreement=0.0,
)


def planned(**changes):
  return planning.PlannedRun(**SIZES | changes)


@functools.cache
def usual():
  """The plan of these sizes."""
  return planning.plan(planned())


def plan_for(*models, **changes):
  """The plan for some attackers alone."""
  return planning.plan(planned(**changes), threat_models=models)


def take_first(scores):
  return dataclasses.replace(
    scores, observed=scores.observed[0], unobserved=scores.unobserved[0]
  )


@pytest.mark.integration
def test_who_removes_all_others_finds_the_analytic_epsilon():
  plan = plan_for(attackers.RESIDUAL, num_observed=1000, num_unobserved=1000)
  found = plan.find('residual')
  expected = accounting.epsilon_of_releases(0.7, delta=1e-5).epsilon
  assert found.analytic == expected
  assert found.estimate.q50 == pytest.approx(expected, rel=0.03)
  assert found.estimate.q05 < expected < found.estimate.q95
  assert 0 < found.bound.q50 < expected
  assert plan.find('nobody') is None


@pytest.mark.integration
def test_a_plan_says_when_canaries_take_part_less_often_than_clients():
  plan = plan_for(CHANGE, client_participations=9)
  first = plans.describe_warnings(plan)[0]
  allowed = accounting.epsilon_of_releases(0.7, delta=1e-5, participations=9)
  assert 'canaries take part in 1 of 50 rounds, clients in up to 9' in first
  assert f'allowed ε = {cells.format_number(allowed.epsilon)}' in first
  # Of the model: three times the shift if orthogonal, nine times if they agree.
  mu = tradeoff.mu_of_epsilon(plan.find('change').analytic, 1e-5)
  for times in (3, 9):
    epsilon = tradeoff.epsilon_gdp(times * mu, 1e-5)
    assert f'ε ≈ {cells.format_number(epsilon)}' in first
  assert 'Plan with repetitions=9' in first
  assert 'set client_participations' in plans.describe_warnings(usual())[0]
  alike = plan_for(CHANGE, client_participations=9, repetitions=9)
  assert not any(
    'canaries take part in' in x for x in plans.describe_warnings(alike)
  )
  with pytest.raises(ValueError, match='client_participations=51'):
    planned(client_participations=51)


def test_who_knows_more_finds_more():
  plan = usual()
  medians = [p.estimate.q50 for p in plan.predictions]
  keys = [p.key for p in plan.predictions]
  assert keys == ['change', 'maximum', 'own_round', 'residual']
  assert medians[0] < medians[1] < medians[2]
  assert all(
    p.floor.q05 <= p.floor.q50 <= p.floor.q95 for p in plan.predictions
  )


@pytest.mark.integration
@pytest.mark.parametrize(
  ('changes', 'model'),
  [
    ({'client_agreement': 1.0}, attackers.OWN),
    ({'client_agreement': 1.0}, attackers.MAXIMUM),
    ({'initial_norm': 3.0}, attackers.FINAL),
    ({'initial_norm': 3.0, 'clip_norm': 10.0}, attackers.FINAL),
  ],
)
def test_what_hides_canaries_is_found_to(changes, model):
  sizes = dict(noise_multiplier=0.3, num_observed=400, num_unobserved=400)
  (hidden,) = plan_for(model, **sizes, **changes).predictions
  visible = CHANGE if model == attackers.FINAL else model
  (open_,) = plan_for(visible, **sizes).predictions
  assert hidden.estimate.q50 < open_.estimate.q50


@pytest.mark.integration
def test_a_weak_plan_names_the_canaries_that_would_do():
  plan = plan_for(CHANGE, num_observed=20, num_unobserved=40)
  found = plan.find('change')
  assert found.floor.q95 > found.estimate.q50 / 2
  (warning,) = [
    x
    for x in plans.describe_warnings(plan)
    if x.startswith('first and last model')
  ]
  num = found.min_canaries
  assert f'use at least {num:,} and {2 * num:,} held out' in warning
  enough = plan_for(CHANGE, num_observed=int(1.2 * num), num_unobserved=2 * num)
  found = enough.find('change')
  assert found.min_canaries == 0
  assert found.floor.q95 <= found.estimate.q50 / 2


@pytest.mark.parametrize('num', [2, 20])
@pytest.mark.parametrize('needed', [3, 7, 2000])
def test_the_canaries_that_would_do_are_found_from_any_number_of_them(
  monkeypatch, num, needed
):
  monkeypatch.setattr(
    predictions, '_suffices', lambda run, model, num, ratio: num >= needed
  )
  run = planned(num_observed=num, num_unobserved=num)
  found = predictions._find_min_canaries(run, attackers.CHANGE)
  assert max(num + 1, needed) <= found <= 1.25 * max(num, needed) + 1


@pytest.mark.integration
def test_where_there_is_nothing_to_find_no_number_of_canaries_is_named():
  plan = plan_for(CHANGE, noise_multiplier=50.0, dim=2000)
  assert plan.find('change').min_canaries is None
  assert any(
    'expect nothing of this attacker' in x
    for x in plans.describe_warnings(plan)
  )


def test_without_noise_nothing_is_said_of_who_removes_the_others():
  models = attackers.OWN, attackers.RESIDUAL
  plan = plan_for(*models, noise_multiplier=0.0)
  assert plan.find('residual') is None
  assert plan.find('own_round').analytic == np.inf
  text = json.dumps(io.spell_non_finite(plan.to_json()), allow_nan=False)
  assert json.loads(text)['run']['dim'] == 20_000
  why = 'worst case: not planned: without noise ε is ∞.'
  assert why in str(plan)
  assert why not in str(usual())


def test_without_unobserved_canaries_a_maximum_has_no_law():
  plan = plan_for(attackers.MAXIMUM, num_unobserved=0)
  assert plan.find('maximum') is None
  assert 'every round (maximum): not planned: only held-out' in ' '.join(
    str(plan).split()
  )
  assert any(
    'their scores cannot be tested' in x for x in plans.describe_warnings(plan)
  )


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'rounds': 0}, 'rounds=0; give an integer >= 1'),
    ({'repetitions': 51}, r'repetitions=51; give an integer in \[1, 50\]'),
    ({'num_observed': 1}, 'num_observed=1; give an integer >= 2'),
    ({'num_unobserved': 1}, 'num_unobserved=1; give 0, or at least 2'),
    ({'num_observed': 19_900}, 'nearly orthogonal only if'),
    (
      {'client_agreement': 1.5},
      r'client_agreement=1.5; give a number in \[0, 1\]',
    ),
    ({'family': 'cube'}, "family='cube' is neither"),
    ({'delta': 0.0}, 'delta=0.0'),
    ({'noise_multiplier': float('nan')}, 'noise_multiplier=nan'),
  ],
)
def test_wrong_sizes_are_refused_by_name(changes, message):
  with pytest.raises(ValueError, match=message):
    planned(**changes)


@pytest.mark.parametrize('momentum', [0.0, 0.9])
def test_lengths_are_those_of_simulated_vectors(momentum):
  run = planned(
    client_agreement=1.0, clients_per_round=3, server_momentum=momentum
  )
  geometry = Geometry(run)
  simulated = simulated_runs.simulate(
    np.random.default_rng(0),
    observed=200,
    unobserved=2,
    rounds=50,
    dim=20_000,
    noise=0.7,
    momentum=momentum,
  )
  unit = simulated.record.rounds.canary_norm[0]
  of_rounds = (simulated.record.rounds.aggregate_norm / unit) ** 2
  # Squares of 20,000 normal numbers vary by 1 % of their mean.
  np.testing.assert_allclose(of_rounds, geometry.squares, rtol=0.05)
  change = simulated.models[-1] - simulated.models[0]
  assert np.sum(change**2) / unit**2 == pytest.approx(
    geometry.change_square, rel=0.05
  )
  weights = respond_to_rounds(50, momentum=momentum)[-1]
  np.testing.assert_allclose(geometry.weights, weights, rtol=1e-12)


@pytest.mark.integration
@pytest.mark.parametrize(
  ('in_round', 'bound'), [(18, 'clopper_pearson_bonferroni'), (25, 'rank_test')]
)
def test_a_plan_and_an_audit_choose_the_same_bound_and_say_why(in_round, bound):
  # They make 18 and 25 of about 2,000, just below and above a hundredth. By their
  # cosines, which scatter, some round of the former would seem to be above.
  sizes = dict(rounds=20, dim=4000)
  canaries = dict(observed=20 * in_round, unobserved=100)
  plan = plan_for(
    attackers.OWN,
    client_agreement=1.0,
    clients_per_round=3,
    **sizes,
    **{f'num_{name}': num for name, num in canaries.items()},
  )
  simulated = simulated_runs.simulate(
    np.random.default_rng(0), noise=0.7, **sizes, **canaries
  )
  own = audit.evaluate(simulated.record, floors=False).find(attackers.OWN)
  assert plan.find('own_round').bound_name == own.bounds[0].method == bound
  note = 'canaries make up more than 1 % of what this attacker sees, so that'
  is_crowded = bound == 'rank_test'
  assert any(one.key == 'crowded' for one in own.notes) == is_crowded
  warned = any(
    x.startswith(f'every round: {note}') for x in plans.describe_warnings(plan)
  )
  assert warned == is_crowded


CROWDED = {'num_observed': 2000, 'dim': 5000, 'noise_multiplier': 0.3}
KINDS = {
  'once': {},
  'clients who agree': {'client_agreement': 1.0, 'clients_per_round': 3},
  'several rounds, momentum': {'repetitions': 3, 'server_momentum': 0.9},
  'orthogonal': {'family': 'hadamard'},
  'coins': {'design': 'coin_flip'},
  'crowded': CROWDED,
  'crowded and orthogonal': CROWDED | {'family': 'hadamard'},
  'without noise': {'noise_multiplier': 0.0, 'clients_per_round': 1000},
}


# Planned runs have independent noise.
MODELS = attackers.OF_INDEPENDENT_NOISE


@pytest.mark.parametrize('kind', KINDS)
def test_a_plan_describes_scores_as_an_audit_of_a_record_does(kind):
  geometry = Geometry(planned(initial_norm=3.0, **KINDS[kind]))
  rng = np.random.default_rng(0)
  record = simulated_record.simulate_record(rng, geometry)
  num_planned = 0
  for threat_model in MODELS:
    audited = threat_model.score(record)
    simulation = planned_scores.simulate(geometry, threat_model)
    if isinstance(simulation, str):
      assert simulation in ('not_calibrated', 'no_noise')
      continue
    num_planned += 1
    described = simulation.describe(take_first(simulation.draw(rng, 1)))
    assert described.is_calibrated
    assert audited.is_calibrated
    assert described.bounds == audited.bounds
    assert described.is_expected == audited.is_expected
    assert described.notes == audited.notes
    ours, theirs = described.scores, audited.scores
    assert (ours.null, ours.design) == (theirs.null, theirs.design)
    assert ours.observed.shape == theirs.observed.shape
    assert ours.unobserved.shape == theirs.unobserved.shape
    assert ours.overlap == pytest.approx(theirs.overlap, rel=1e-5)
    assert (ours.shift is None) == (theirs.shift is None)
    if ours.shift is not None:
      np.testing.assert_allclose(ours.shift, theirs.shift, rtol=1e-5)
    for estimators in zip(described.points, audited.points, strict=True):
      one, other = (estimate(theirs, delta=1e-5) for estimate in estimators)
      assert one.method == other.method
      assert one.epsilon == pytest.approx(other.epsilon, rel=1e-5)
  assert num_planned == (4 if kind == 'without noise' else 5)


@pytest.mark.parametrize('kind', ['once', 'clients who agree', 'orthogonal'])
@pytest.mark.parametrize('repetitions', [1, 3])
def test_scores_are_drawn_from_the_law_of_those_of_records(kind, repetitions):
  run = planned(
    **KINDS[kind], rounds=20, repetitions=repetitions, initial_norm=3.0
  )
  geometry, rng = Geometry(run), np.random.default_rng(0)
  records = [simulated_record.simulate_record(rng, geometry) for _ in range(8)]
  for threat_model in MODELS:
    simulation = planned_scores.simulate(geometry, threat_model)
    if isinstance(simulation, str):
      continue
    drawn = simulation.draw(rng, len(records))
    scored = [threat_model.score(record).scores for record in records]
    for group in ('observed', 'unobserved'):
      ours = np.ravel(getattr(drawn, group))
      theirs = np.concatenate([getattr(scores, group) for scores in scored])
      # Of 60 tests one fails by chance once in 160.
      assert stats.ks_2samp(ours, theirs).pvalue > 1e-4, threat_model.key


def test_an_attacker_without_a_calibrated_estimate_is_named():
  plan = usual()
  reasons = {one.key: one.reason for one in plan.not_planned}
  assert reasons == {
    'final': 'no_initial_norm',
    'likelihood': 'not_calibrated',
  }
  text = ' '.join(str(plan).split())
  assert 'every round (likelihood): not planned: it has no calibrated' in text


@pytest.mark.parametrize(
  'name', ['digits', 'emnist', 'emnist62', 'stackoverflow']
)
def test_the_change_of_the_model_of_a_recorded_run_is_within_its_plan(name):
  result = finished_runs.load_result(ROOT / 'docs' / 'runs' / name)
  (found,) = (
    a for a in result.audit.attacks if a.threat_model == attackers.CHANGE
  )
  run = planning.PlannedRun(
    dim=result.dim,
    rounds=result.rounds,
    clients_per_round=result.config['clients_per_round'],
    noise_multiplier=result.noise_multiplier,
    delta=result.delta,
    num_observed=result.num_observed,
    num_unobserved=result.num_unobserved,
    repetitions=result.participations,
    server_momentum=result.config['server']['momentum'],
  )
  (planned_,) = planning.plan(run, threat_models=[attackers.CHANGE]).predictions
  # 90 % each, of the chance in one audit and of that in planned ones.
  low, high = found.first.interval
  assert planned_.estimate.q05 < high
  assert planned_.estimate.q95 > low


@pytest.mark.parametrize('family', ['hadamard', 'hadamard2', 'sphere'])
def test_memory_is_that_which_was_measured(family):
  work = json.loads((RESULTS / 'audited_round.json').read_text())['works']['B']
  run = planned(
    dim=4_050_748,
    rounds=work['rounds'],
    num_observed=1000,
    num_unobserved=1000,
    family=family,
  )
  costs = plans.count_costs(run)
  assert costs.rounds_together == work['scored_together'][family]
  # Three rounds were measured: rows of a buffer that none has filled are no memory yet.
  unfilled = max(costs.rounds_together - 3, 0)
  expected = sum(costs.memory.values()) - 2 * unfilled * 4 * run.dim
  # Processes differ by some megabytes.
  assert expected == pytest.approx(
    work['peak_bytes_more'][family], rel=0.05, abs=12e6
  )


# The peak of a run when its training ends, before anything is estimated.
PEAK = """
import json, os, resource, sys
from epe_jax.experiment import audited_run, programs
from epe_jax.experiment.setup import build
from epe_jax.experiment.setup import config as config_lib

def stop(*record, **more):
  kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  print(1024 * kilobytes, flush=True)
  os._exit(0)

programs.keep_programs()
build.make_run_record = stop
config = config_lib.load_config('digits')
config.update_from_flattened_dict(json.loads(sys.argv[1]))
audited_run.run(config, sys.argv[2])
stop()
"""


@pytest.mark.slow  # Six processes that compile and train: minutes.
@pytest.mark.skipif(sys.platform != 'linux', reason='Its units differ.')
def test_memory_is_that_of_a_small_run(tmp_path):
  def measure(name, num, family='sphere'):
    fields = {
      'rounds': 40,
      'client.epochs': 1,
      'canaries.observed': num,
      'canaries.unobserved': num,
      'canaries.family': family,
      'checkpoint_every': 40,
    }
    # The second finds its programs compiled: compilers need more, and varying, memory.
    for i in range(2):
      done = subprocess.run(
        [
          sys.executable,
          '-c',
          PEAK,
          json.dumps(fields),
          tmp_path / f'{name}{i}',
        ],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {'XDG_CACHE_HOME': str(tmp_path)},
      )
    return int(done.stdout.splitlines()[-1])

  plain = measure('plain', 0)
  for family in ('sphere', 'hadamard'):
    run = planned(
      dim=55_210, rounds=40, num_observed=400, num_unobserved=400, family=family
    )
    memory = sum(plans.count_costs(run).memory.values())
    assert 0.9 < memory / (measure(family, 400, family) - plain) < 1.6


def test_a_plan_reads_as_a_table():
  text = str(usual())
  for part in (
    'd = 20,000',
    'floor 5-95 %',
    'every round',
    'Assumed:',
    'Based on',
  ):
    assert part in text


@pytest.mark.integration
def test_the_page_is_what_the_script_writes():
  page = (ROOT / 'docs' / 'planning.md').read_text(encoding='utf-8')
  # Flags that it defines are those of other scripts, too.
  with flagsaver.flagsaver():
    script = runpy.run_path(str(ROOT / 'scripts' / 'plan.py'))
  assert script['splice_page'](page) == page


@pytest.mark.integration
def test_a_plan_needs_no_jax():
  code = (
    'import sys; from epe_jax import planning; planning.plan; '
    'assert not {"jax", "flax"} & sys.modules.keys()'
  )
  subprocess.run([sys.executable, '-c', code], check=True)
