"""Clients who take part in other rounds than canaries, against all clients of a run."""

import dataclasses
import math

import numpy as np
import pytest

from benchmarks.bounds import simulated_runs
from epe_jax import accounting
from epe_jax.audit import attackers, evaluation, upper_bounds
from epe_jax.epsilon import known_shifts, risks, tradeoff
from epe_jax.experiment import client_rounds
from epe_jax.report import clients, run_tables
from epe_jax.sampling import client_schedules
from tests import recorded_runs

_DELTA = 1e-3


def _participations(record, n, limit=math.inf, **settings):
  shifts = recorded_runs.client_shifts(record, n)
  return client_rounds.Participations(1, n, limit, shifts=shifts, **settings)


def _simulate(repetitions=1, momentum=0.0, **settings):
  return simulated_runs.simulate(
    np.random.default_rng(1),
    **dict(
      observed=60,
      unobserved=400,
      rounds=12,
      dim=20_000,
      noise=1.5,
      clients=0.0,
      momentum=momentum,
      repetitions=repetitions,
    )
    | settings,
  ).record


def _attack(record, **changes):
  models = [attackers.CHANGE]
  audit = evaluation.evaluate(
    record, delta=_DELTA, threat_models=models, floors=False
  )
  found = audit.find(attackers.CHANGE)
  return dataclasses.replace(found, is_calibrated=True, **changes)


@pytest.mark.parametrize('agree', [True, False])
def test_shifts_of_a_client_add_up_in_the_model_of_a_linear_server(agree):
  rng, rounds, z, n, d, num = np.random.default_rng(0), 12, 1.5, 9, 40, 40_000
  momentum = 0.7
  basis = np.linalg.qr(rng.normal(size=(d, d)))[0]
  updates = np.tile(basis[0], (n, 1)) if agree else basis[:n]
  left, kept, velocity = np.zeros((num, d)), np.zeros(d), np.zeros(d)
  noise = np.zeros((num, d))
  for t in range(rounds):
    # Clients take part in the last n rounds.
    i = t - (rounds - n)
    velocity = momentum * velocity + (updates[i] if i >= 0 else 0)
    noise = momentum * noise + z * rng.normal(size=(num, d))
    left, kept = left + noise, kept + velocity
  # The best test of a known sum in Gaussian noise.
  direction = kept / np.linalg.norm(kept)
  measured = (kept @ direction) / (left @ direction).std()
  record = _simulate(momentum=momentum, noise=z)
  rounds_of_client = [[([t], 1.0) for t in range(rounds - n, rounds)]]
  laws = client_rounds.find_shifts(
    upper_bounds.expect_shifts(record), rounds_of_client
  )
  assert laws[agree].shifts == pytest.approx((measured,), rel=0.03)


@pytest.mark.parametrize('probability', [0.02, 0.3, 1.0])
def test_the_law_of_rounds_that_are_drawn_is_that_of_simulated_clients(
  probability,
):
  rng, rounds, num = np.random.default_rng(0), 40, 100_000
  of_rounds = rng.uniform(0.05, 0.3, rounds)
  schedule = [([t], probability) for t in range(rounds)]
  orthogonal, agreeing = client_rounds.find_shifts(of_rounds, [schedule])
  taken = rng.random((num, rounds)) < probability
  for law, sums in (
    (orthogonal, np.sqrt(taken @ of_rounds**2)),
    (agreeing, taken @ of_rounds),
  ):
    assert np.dot(law.shifts, law.weights) == pytest.approx(
      sums.mean(), rel=0.02
    )
    expected = known_shifts.epsilon_mixture(sums[:10_000], _DELTA)
    assert clients._compute_epsilon(law, _DELTA) == pytest.approx(
      float(expected), rel=0.04
    )


def test_a_law_has_no_client_beyond_the_most_exposed_one():
  of_rounds = np.linspace(0.2, 2.0, 7)
  blocks = [(np.arange(3), 1 / 3), (np.arange(3, 7), 1 / 4)]
  orthogonal, agreeing = client_rounds.find_shifts(of_rounds, [blocks])
  assert max(agreeing.shifts) == pytest.approx(of_rounds[2] + of_rounds[6])
  assert max(orthogonal.shifts) == pytest.approx(
    math.hypot(of_rounds[2], of_rounds[6]), rel=1e-5
  )
  assert sum(agreeing.weights) == pytest.approx(1, abs=1e-4)
  # Equal ones are kept as they are.
  equal = client_rounds.find_shifts(np.full(7, 0.7), [blocks])
  assert equal[1].shifts == pytest.approx((1.4,) * len(equal[1].shifts))
  none = client_rounds.find_shifts(of_rounds, [[]])
  assert none[1].shifts == none[0].shifts == (0.0,)


def _measure_clients(record, n, of_model):
  """ε of each of 300 clients of n epochs: orthogonal and agreeing."""
  epoch = record.num_rounds // n
  schedule = client_schedules.shuffled_epochs(
    7, num_clients=300, clients_per_round=300 // epoch
  )
  sums = np.zeros((2, 300))
  for t in range(record.num_rounds):
    sums[:, schedule(t)] += [[of_model[t] ** 2], [of_model[t]]]
  sums[0] = np.sqrt(sums[0])
  return tradeoff.epsilon_gdp(sums, _DELTA)


@pytest.mark.parametrize('n', [1, 2, 4])
def test_what_is_expected_of_clients_lies_among_all_of_them(n):
  clip_norms = np.geomspace(1.0, 0.2, 12)
  record = _simulate(
    momentum=0.9, clip_norms=clip_norms, noise=0.5, dim=10**5, observed=400
  )
  attack = _attack(record)
  of_rounds = upper_bounds.expect_shifts(record)
  low, high = attack.first.interval
  for epsilon in (low, high):
    one = dataclasses.replace(attack.first, epsilon=epsilon)
    found = clients.expect_client(
      dataclasses.replace(attack, estimates=(one,)), _participations(record, n)
    )
    factor = clients._find_factor(epsilon, attack.analytic.law, _DELTA)
    for value, each in zip(
      found, _measure_clients(record, n, factor * of_rounds)
    ):
      assert each.min() < value < each.max()
      # An attacker who does not know the round of the client.
      shift = [tradeoff.mu_of_epsilon(e, _DELTA) for e in each]
      mixed = known_shifts.epsilon_mixture(np.array(shift), _DELTA)
      assert value == pytest.approx(float(mixed), rel=0.04)


def test_canaries_of_as_many_rounds_show_what_agreeing_clients_leave():
  """With momentum too: whatever of one round is scaled to several is measured."""
  settings = {'momentum': 0.8, 'noise': 0.5}
  once, often = (
    _attack(_simulate(repetitions, **settings)) for repetitions in (1, 4)
  )
  record = _simulate(**settings)
  ends = []
  for epsilon in once.first.interval:
    one = dataclasses.replace(once.first, epsilon=epsilon)
    found = clients.expect_client(
      dataclasses.replace(once, estimates=(one,)), _participations(record, 4)
    )
    assert found.orthogonal < found.agreeing
    ends.append(found.agreeing)
  # Intervals of both meet.
  assert ends[0] <= often.first.interval[1]
  assert often.first.interval[0] <= ends[1]
  # Measured of as many rounds: a client whose updates agree is the canary.
  same = clients.expect_client(
    often, _participations(_simulate(4, **settings), 4)
  )
  assert same.agreeing == pytest.approx(float(often.first.epsilon), rel=0.02)


def test_no_more_is_expected_of_a_client_than_it_is_allowed():
  record = recorded_runs.by_vectors(momentum=0.0).record
  audit = evaluation.evaluate(record, delta=_DELTA, floors=False)
  attack = audit.find(attackers.FINAL)
  limit = float(attack.first.epsilon) / 2
  run = _participations(record, 9, limit)
  assert clients.expect_client(attack, run) == (limit, limit)
  # Nor are risks: they are those of the limit.
  table = clients.compute_attack_risks(attack, run)
  mu = tradeoff.mu_of_epsilon(limit, _DELTA)
  expected = risks.compute_risks(
    mu, fpr=clients.FPR, prior=clients.PRIOR, baseline=clients.BASELINE
  )
  for found in table.expected:
    assert found == pytest.approx(expected, rel=1e-3)
  # An amplified ε says less of a curve than a Gaussian mechanism.
  amplified = clients.compute_attack_risks(
    attack, run._replace(is_amplified=True)
  )
  assert amplified.expected[1].accuracy >= expected.accuracy
  # Who sees every round has the analytic ε alone.
  own = audit.find(attackers.OWN)
  assert clients.expect_client(own, run) is None


def test_what_was_not_measured_is_what_a_linear_server_is_expected_to_leave():
  record = recorded_runs.by_vectors(momentum=0.0).record
  audit = evaluation.evaluate(record, delta=_DELTA, floors=False)
  attack = dataclasses.replace(
    audit.find(attackers.CHANGE), is_calibrated=False
  )
  found = clients.expect_client(attack, _participations(record, 4))
  mu = upper_bounds.expect_shifts(record)[0]
  assert found.agreeing == pytest.approx(
    tradeoff.epsilon_gdp(4 * mu, _DELTA), rel=1e-4
  )
  assert found.orthogonal == pytest.approx(
    tradeoff.epsilon_gdp(2 * mu, _DELTA), rel=1e-4
  )


def test_where_the_rounds_of_clients_are_not_recorded_nothing_is_expected():
  record = recorded_runs.by_vectors(momentum=0.0).record
  final = evaluation.evaluate(record, delta=_DELTA, floors=False).find(
    attackers.FINAL
  )
  unknown = client_rounds.Participations(1, 3, 9.0)
  assert clients.expect_client(final, unknown) is None
  assert run_tables.format_client(final, unknown) == '≤ 9.00'
  assert not client_rounds.Participations(3, 3, 9.0).differ
  assert client_rounds.Participations(3, 3, 9.0, canaries_vary=True).differ
  assert client_rounds.Participations(3, 3, 9.0, is_sampled=True).differ


@pytest.mark.parametrize('epsilon', [0.0, math.inf])
def test_canaries_that_show_nothing_or_everything_have_a_factor(epsilon):
  record = recorded_runs.by_vectors(momentum=0.0).record
  attack = _attack(record)
  one = dataclasses.replace(attack.first, epsilon=epsilon)
  run = _participations(record, 3, limit=50.0)
  found = clients.expect_client(
    dataclasses.replace(attack, estimates=(one,)), run
  )
  assert found == ((0.0, 0.0) if epsilon == 0 else (50.0, 50.0))


def test_guesses_about_a_client_of_one_round_are_those_of_the_best_threshold():
  record = _simulate(momentum=0.9, noise=0.1, observed=2000, unobserved=2000)
  attack = _attack(record)
  run = client_rounds.Participations(1, 1, math.inf)
  found = clients.compute_attack_risks(attack, run)
  scores = attackers.CHANGE.score(record).scores
  ins, outs = np.sort(scores.observed), np.sort(scores.unobserved)
  cuts = np.concatenate([ins, outs])
  right = 1 - np.searchsorted(ins, cuts) / ins.size
  right = (right + np.searchsorted(outs, cuts) / outs.size) / 2
  # The largest of 4,000 cuts is a little too high by chance.
  assert -0.01 < right.max() - found.estimate.accuracy < 0.02
  low, high = (x.accuracy for x in found.interval)
  assert low < found.estimate.accuracy < high
  # Rounds have weights of their own, and ε is of those with the largest.
  mu = tradeoff.mu_of_epsilon(attack.first.epsilon, _DELTA)
  gaussian = risks.compute_risks(mu, fpr=0.01, prior=0.01, baseline=0.001)
  assert gaussian.accuracy > found.estimate.accuracy + 0.02


def test_a_claim_is_refused_where_canaries_may_leak_more_than_clients():
  once = client_rounds.Participations(1, 12, 20.1)
  client_rounds.check_claim('claim', 0.5, 4.38, once)
  sampled = once._replace(is_sampled=True)
  client_rounds.check_claim('claim', 4.38, 4.38, sampled)
  with pytest.raises(ValueError, match=r'claim=2 .* allowed ε = 4\.38\. Claim'):
    client_rounds.check_claim('claim', 2.0, 4.38, sampled)
  with pytest.raises(ValueError, match=r'claim=2 .* 12 rounds .* in 13'):
    client_rounds.check_claim('claim', 2.0, 40.0, once._replace(canaries=13))


def test_a_bound_of_sums_over_rounds_has_its_reason():
  for repetitions, is_noted in ((1, False), (4, True)):
    record = recorded_runs.by_law(repetitions=repetitions)
    own = attackers.OWN.score(record)
    assert any(note.key == 'sum_over_rounds' for note in own.notes) == is_noted


def test_an_expectation_without_a_law_has_no_clients():
  # Bounds of servers that are not linear have other laws.
  record = recorded_runs.by_vectors(momentum=0.0).record
  for kind in ('bound', 'expectation'):
    analytic = accounting.Analytic(2.0, (), kind)
    attack = _attack(record, analytic=analytic)
    assert clients.expect_client(attack, _participations(record, 3)) is None
