"""How much had leaked by round t."""

import dataclasses
import functools
import json
import re

import numpy as np
import pytest

from epe_jax.audit import attackers, audit_json, evaluation
from epe_jax.audit.record import respond_to_rounds
from epe_jax.audit.record_file import write_record
from epe_jax.epsilon import known_shifts, registry, two_gaussians
from epe_jax.epsilon.types import Scores
from epe_jax.report import tables
from epe_jax.report.comparisons import over_reports
from epe_jax.watch import by_round, published_models, sequential
from tests import recorded_runs
from tests.in_process import run_command


@pytest.fixture(scope='module')
def simulated():
  return recorded_runs.by_vectors(momentum=0.9)


@pytest.fixture(scope='module')
def small():
  return recorded_runs.by_vectors(
    momentum=0.9, observed=24, unobserved=40, dim=500
  )


def at_round(leaked, t, threat_model=None, *, bounds=False):
  return [
    one
    for one in leaked
    if one.round == t
    and threat_model in (None, one.threat_model)
    and (one.estimate.confidence is not None) == bounds
  ]


def test_after_the_last_round_the_estimates_are_those_of_the_run(small):
  record = small.record
  leaked = by_round.evaluate_by_round(record, rounds=[12], resamples=20)
  audit = evaluation.evaluate(record, floors=False)
  assert {one.threat_model for one in leaked} == {
    attack.threat_model for attack in audit.attacks
  }
  for one in leaked:
    own = audit.find(one.threat_model).find(one.estimate.method)
    assert one.estimate.epsilon == own.epsilon


def test_by_a_round_a_run_leaked_what_a_run_that_ended_there_leaks():
  record = recorded_runs.by_law(observed=400, unobserved=400, shift=3.0)
  rows = by_round.evaluate_by_round(record, rounds=[5, 20])
  truth = two_gaussians.epsilon_two_gaussians(0, 1, 3.0, 1, 1e-5)
  slope = two_gaussians.epsilon_two_gaussians(0, 1, 4.0, 1, 1e-5) - truth
  for t in (5, 20):
    (row,) = at_round(rows, t, attackers.OWN)
    n = record.included[:t].sum()
    assert (row.num_observed, row.num_unobserved) == (n, 400)
    # ε of a mean that is off by at most five standard errors.
    assert row.estimate.epsilon == pytest.approx(
      truth, abs=5 * slope / np.sqrt(n)
    )
    low, high = row.estimate.interval
    assert low < row.estimate.epsilon < high
    (bound,) = at_round(rows, t, attackers.OWN, bounds=True)
    assert bound.estimate.interval is None
    assert 0 < bound.estimate.epsilon < row.estimate.epsilon
  width = {
    t: np.ptp(at_round(rows, t, attackers.OWN)[0].estimate.interval)
    for t in (5, 20)
  }
  assert width[20] < width[5]


def test_only_scores_that_are_shifted_get_a_point_estimate():
  rows = by_round.evaluate_by_round(recorded_runs.by_law(), rounds=[20])
  points = {one.threat_model for one in at_round(rows, 20)}
  bounds = {one.threat_model for one in at_round(rows, 20, bounds=True)}
  assert bounds - points == {attackers.LIKELIHOOD}


def test_the_model_of_a_round_leaks_what_its_own_cosines_say(simulated):
  rows = by_round.evaluate_by_round(
    simulated.record,
    rounds=[4, 9],
    resamples=20,
  )
  record = simulated.record
  for t in (4, 9):
    change = simulated.models[t] - simulated.models[0]
    exact = recorded_runs.cosines(simulated.canaries, change)
    effect = respond_to_rounds(12, momentum=0.9)[t]
    weight = effect @ record.included
    seen = weight > 0
    scores = Scores(exact[seen], exact[~record.observed], shift=weight[seen])
    truth = known_shifts.location_mixture(scores, delta=1e-5).epsilon
    (row,) = at_round(rows, t, attackers.CHANGE)
    assert row.estimate.epsilon == pytest.approx(truth, rel=1e-3)
    assert not at_round(rows, t, attackers.FINAL)


def test_where_they_cannot_be_derived_the_models_of_rounds_are_left_out(
  simulated,
):
  adam = dataclasses.replace(simulated.record, momentum=None)
  rows = by_round.evaluate_by_round(adam, rounds=[4], resamples=20)
  assert rows
  assert not at_round(rows, 4, attackers.CHANGE)


@pytest.mark.parametrize('observed', [4, 50, 400])
def test_rounds_run_from_the_first_that_tells_anything_to_the_last(observed):
  record = recorded_runs.by_law(observed=observed, rounds=40)
  rounds = by_round.choose_rounds(record, num=6)
  assert rounds[-1] == 40
  assert np.all(np.diff(rounds) > 0)
  assert len(rounds) <= 6
  by = record.included[: rounds[0]].any(axis=0).sum()
  before = record.included[: rounds[0] - 1].any(axis=0).sum()
  enough = max(2, min(30, observed // 2))
  assert before < enough <= by


def test_few_unobserved_canaries_have_no_interval_where_they_are_resampled():
  rng = np.random.default_rng(0)
  observed = rng.normal(2, 1, 200)
  intervals = [
    evaluation.estimate_with_interval(
      attackers.score_external(Scores(observed, rng.normal(size=num))),
      delta=1e-3,
      resamples=50,
    ).interval
    for num in (5, 15)
  ]
  assert intervals[0] is None
  assert intervals[1] is not None


def test_the_table_has_a_line_for_each_round_and_a_column_for_each_attacker(
  simulated,
):
  rows = by_round.evaluate_by_round(
    simulated.record,
    rounds=[4, 12],
    resamples=20,
  )
  markdown = over_reports.format_over_rounds(rows)
  text = tables.render_text(markdown, is_folded=False)
  points, bounds = text.split('Lower bounds')
  assert 'no guarantee' in points
  assert re.search(r'^4 +80 +- +[\d.]+ \([\d.]+ to [\d.]+\)', points, re.M)
  assert re.search(r'^12 +240 +[\d.]+ \(', points, re.M)
  assert 'every round (likelihood)' in bounds
  assert 'every round (likelihood)' not in points
  for part in (points, bounds):
    lines = [s for s in part.splitlines() if re.match('(round|4|12) ', s)]
    assert len({len(s) for s in lines}) == 1
    assert len(lines) == 3
  assert '| 12 | 240 |' in markdown


def test_bounds_of_all_rounds_at_once_are_a_table_of_their_own(simulated):
  rows = by_round.evaluate_by_round(
    simulated.record, rounds=[4, 12], resamples=20
  )
  bounds = sequential.bound_sequentially(simulated.record, claim=2.0)
  markdown = over_reports.format_over_rounds(rows, bounds)
  text = tables.render_text(markdown, is_folded=False)
  part = text.split('95 % at all rounds at once: worst case')[1]
  lines = part.strip().splitlines()
  assert ' '.join(lines[0].split()).endswith('evidence against ε = 2.00')
  assert [line.split()[:2] for line in lines[1:]] == [
    ['4', '80'],
    ['12', '240'],
  ]
  assert lines[2].split()[2] == f'{bounds.mu[-1]:.2f}'
  assert lines[2].split()[-1].startswith('1e')
  values = audit_json.to_plain(by_round.Rounds(tuple(rows), bounds))
  assert len(values['each_round']) == len(rows)
  assert values['all_rounds']['mu'] == bounds.mu.tolist()
  assert json.loads(json.dumps(values['all_rounds']))['claim'] == 2.0
  none = audit_json.to_plain(by_round.Rounds(tuple(rows), None))
  assert none['all_rounds'] is None


def test_a_round_that_the_run_has_not_is_refused():
  with pytest.raises(ValueError, match='round=21'):
    by_round.evaluate_by_round(recorded_runs.by_law(), rounds=[21])


def test_a_part_of_a_run_is_shown(small):
  record = small.record
  assert published_models.restrict_record(record) is record
  some = published_models.restrict_record(record, every=2, last=6)
  np.testing.assert_array_equal(
    some.included.sum(axis=1), record.included[7::2].sum(axis=1)
  )
  seen = published_models.restrict_record(record, every=4, models=True)
  assert seen.view == 'models'
  assert len(seen.trace) == 3


@pytest.mark.integration
def test_the_script_shows_parts_of_a_run_and_what_leaked_by_round(tmp_path):
  few = recorded_runs.by_vectors(
    momentum=0.9, observed=8, unobserved=10, dim=200, rounds=4
  )
  (tmp_path / 'private').mkdir()
  write_record(tmp_path / 'private/scores.npz', few.record)
  run = functools.partial(run_command, 'estimate', tmp_path)
  seen = run('--every=2', '--models', '--all')
  assert 'Attackers see published models' in seen.stdout
  last = json.loads(run('--last=2', '--format=json').stdout)['attacks']
  assert {attack['view'] for attack in last} >= {'all_iterates'}
  by_round = run('--by_round', '--delta=1e-3')
  assert by_round.stdout.startswith('δ = 1e-3')
  assert 'remove --every' in run('--by_round', '--every=2').stderr
  assert 'every=5; give 1 to the 4 rounds' in run('--every=5').stderr


def test_simultaneous_bounds_share_one_level_and_fall_in_delta(small):
  record, deltas = small.record, (1e-3, 1e-6, 1e-5)
  bounds = by_round.bound_simultaneously(
    record, rounds=[6, 12], deltas=deltas, significance=0.1
  )
  models = {one.threat_model for one in bounds}
  assert models == set(attackers.OF_INDEPENDENT_NOISE)
  # The final model is not seen at round 6, its change is.
  assert len(bounds) == 3 * (2 * len(models) - 1)
  for attacker in models:
    of_attacker = [
      one for one in bounds if one.threat_model == attacker and one.round == 12
    ]
    values = [one.estimate.epsilon for one in of_attacker]
    assert values == sorted(values, reverse=True)
    assert [one.estimate.delta for one in of_attacker] == sorted(deltas)
    assert {one.estimate.confidence for one in of_attacker} == {0.9}
    scores = attacker.score(record)
    alone = registry.choose_exact_bound(scores.scores)
    own = alone(
      scores.scores, delta=1e-3, significance=0.1 / len(bounds)
    ).epsilon
    assert of_attacker[-1].estimate.epsilon == own


def test_simultaneous_bounds_of_one_are_the_bound_of_the_run(small):
  bounds = by_round.bound_simultaneously(small.record)
  assert {one.round for one in bounds} == {12}
  assert {one.estimate.delta for one in bounds} == {small.record.delta}
  with pytest.raises(ValueError, match='delta=2'):
    by_round.bound_simultaneously(small.record, deltas=[2])


def test_the_command_prints_bounds_that_hold_together(small, tmp_path):
  path = tmp_path / 'scores.npz'
  write_record(path, small.record)
  command = ['estimate', path, '--simultaneous']
  text = run_command(*command, '--by_round', '--deltas=1e-6,1e-4').stdout
  assert 'Lower bounds of ε, 95 % all together' in text
  assert 'δ = 1e-6' in text
  rows = json.loads(
    run_command(*command, '--deltas=1e-4', '--format=json').stdout
  )
  assert {row['estimate']['delta'] for row in rows} == {1e-4}
  for flags, message in (
    (['--deltas=1e-4,x'], 'give numbers'),
    (['--by_round', '--claim=3'], 'is tested by bounds of its own'),
  ):
    failed = run_command(*command, *flags)
    assert message in failed.stderr
  failed = run_command('estimate', path, '--deltas=1e-4')
  assert 'add --simultaneous' in failed.stderr
