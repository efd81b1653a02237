"""Attackers who are shown a part of a run, each with its law."""

import dataclasses
import tracemalloc

import jax
import numpy as np
import pytest
from scipy import stats

from epe_jax.audit import attackers, release, statistics
from epe_jax.audit.statistics import assign_held_out
from epe_jax.epsilon import diagnostics
from epe_jax.watch import published_models
from tests import recorded_runs


@pytest.fixture(scope='module', params=[0.0, 0.9], ids=['plain', 'momentum'])
def simulated(request):
  return recorded_runs.by_vectors(momentum=request.param)


def models_of(simulated, shown):
  return published_models.derive_models(simulated.record, shown)


def differences(simulated, stops):
  vectors = np.diff(simulated.models[stops], axis=0)
  return recorded_runs.cosines(simulated.canaries, vectors)


def test_a_published_model_shows_what_its_difference_with_the_initial_shows(
  simulated,
):
  for t in (1, 5, 12):
    shown = np.arange(1, 13) == t
    seen = models_of(simulated, shown)
    kept = simulated.record.included[:t].any(axis=0)
    kept |= ~simulated.record.observed
    (exact,) = differences(simulated, [0, t])
    ratio = seen.trace[0] @ exact[kept] / (exact[kept] @ exact[kept])
    np.testing.assert_allclose(
      seen.trace[0], ratio * exact[kept], atol=1e-5 * np.abs(exact).max()
    )
    # The norm is known from 400 canaries: five standard errors.
    assert abs(ratio - 1) < 5 / np.sqrt(2 * 400)
    assert ({'final', 'change'} <= seen.cosines.keys()) == (t == 12)


def test_a_model_of_many_rounds_takes_no_memory_of_their_square():
  rounds = 3000
  long = recorded_runs.by_vectors(
    momentum=0.9, rounds=rounds, observed=20, unobserved=20, dim=100
  )
  shown = np.arange(rounds) == rounds - 2
  tracemalloc.start()
  models_of(long, shown)
  _, peak = tracemalloc.get_traced_memory()
  tracemalloc.stop()
  assert peak < rounds**2


def test_models_of_all_rounds_give_away_the_aggregates(simulated):
  seen = models_of(simulated, np.ones(12, bool))
  record = simulated.record
  rounds = record.rounds
  norm, share = rounds.residual_norm[:, None], rounds.canary_norm[:, None]
  noise, own = norm * record.cosines['residual'], share * record.included
  removed = (noise + own) / np.sqrt(norm**2 + own * (2 * noise + own))
  for ours, theirs in (
    (seen.trace, record.trace),
    (seen.cosines['residual'], removed),
  ):
    for a, b in zip(ours, theirs):
      assert np.corrcoef(a, b)[0, 1] > 1 - 1e-6
  # Only a canary's own round holds it.
  np.testing.assert_array_equal(np.abs(seen.included) > 1e-6, record.included)


def test_a_release_holds_differences_of_models_up_to_it_and_none_later(
  simulated,
):
  shown = release.every_nth_round(12, 4)
  seen = models_of(simulated, shown)
  exact = differences(simulated, [0, 4, 8, 12])
  for i in range(3):
    basis = exact[: i + 1].T
    _, left, *_ = np.linalg.lstsq(basis, seen.trace[i], rcond=None)
    assert left[0] < 1e-8 * np.sum(seen.trace[i] ** 2)
    without = np.linalg.lstsq(basis[:, :i], seen.trace[i], rcond=None)
    assert i == 0 or without[1][0] > 1e-2 * np.sum(seen.trace[i] ** 2)


def test_a_canary_scores_in_a_release_what_is_to_be_expected_of_it(simulated):
  seen = models_of(simulated, release.every_nth_round(12, 3))
  share = seen.included[:, seen.observed]
  error = (seen.trace[:, seen.observed] - share) * np.sqrt(seen.dim)
  weight = share / np.sqrt(np.sum(share**2))
  # A sum of unit variance, off by 3.5 % of the signal for the norms.
  signal = np.sqrt(np.sum(share**2) * seen.dim)
  assert abs(np.sum(weight * error)) < 5 + 5 * signal / np.sqrt(2 * 400)
  assert signal > 20


@pytest.mark.parametrize(('every', 'noise'), [(3, 0.2), (4, 0.3)])
def test_n_rounds_in_one_release_are_one_round_of_noise_root_n(every, noise):
  """With still clients and few canaries, the law of the Gaussian mechanism."""
  simulated = recorded_runs.by_vectors(
    momentum=0.0, noise=noise, clients=0.0, observed=24, unobserved=600
  )
  seen = models_of(simulated, release.every_nth_round(12, every))
  own = statistics.score_own_round(seen.trace, assign_held_out(seen.included))
  scaled = own * np.sqrt(seen.dim)
  # Other canaries of the release are noise too, each of variance 1/d.
  sigma = np.sqrt(noise**2 * every + 2 * every / seen.dim)
  mean = scaled[seen.observed].mean()
  assert mean == pytest.approx(1 / sigma, abs=5 / np.sqrt(24))
  assert abs(mean - 1 / noise) > 5 / np.sqrt(24)
  assert scaled[~seen.observed].std() == pytest.approx(1, abs=5 / np.sqrt(1200))


def test_a_difference_of_models_with_nothing_in_it_shows_nothing():
  record = recorded_runs.by_vectors(momentum=0.0).record
  empty = np.arange(record.num_rounds) < 4
  rounds = record.rounds._replace(
    aggregate_norm=np.where(empty, 0.0, record.rounds.aggregate_norm)
  )
  trace = np.where(empty[:, None], 0.0, record.trace)
  record = recorded_runs.replace_cosines(
    dataclasses.replace(record, rounds=rounds),
    aggregate=trace,
    change=rounds.aggregate_norm @ trace,
  )
  seen = published_models.derive_models(record, release.every_nth_round(12, 4))
  cosines = seen.cosines['models']
  assert np.all(cosines[0] == 0)
  assert np.all(np.isfinite(cosines))
  assert np.all(np.any(cosines[1:], axis=1))


def test_canaries_that_never_take_part_have_null_cosines(simulated):
  seen = models_of(simulated, release.every_nth_round(12, 4))
  for record, known in ((simulated.record, True), (seen, False)):
    for attack_scores in attackers.score_all(record):
      if not attack_scores.is_calibrated or attack_scores.scores.shift is None:
        continue
      scores = attack_scores.scores
      # A wrong alarm once in 10,000 for each of a dozen tests.
      assert diagnostics.anderson_darling(scores.unobserved).p_value > 1e-4
      # Where canaries make much of a vector their null law is their own.
      if known and scores.has_known_null:
        test = diagnostics.anderson_darling_null(
          scores.unobserved, null=scores.null
        )
        assert test.p_value > 1e-4
        if attack_scores.threat_model in (
          attackers.OWN,
          attackers.RESIDUAL,
        ):
          took_part = diagnostics.anderson_darling_null(
            scores.observed, null=scores.null
          )
          assert took_part.p_value < 1e-4


def test_published_aggregates_leave_their_canaries_and_nothing_else():
  record = recorded_runs.by_law()
  shown = release.every_nth_round(20, 3)
  some = release.restrict_to_rounds(record, shown)
  assert some.observed.sum() == record.included[shown].sum()
  assert (~some.observed).sum() == 60
  took_part = record.included[shown].any(axis=0)
  kept = took_part | ~record.observed
  np.testing.assert_array_equal(some.trace, record.trace[shown][:, kept])
  np.testing.assert_array_equal(
    some.cosines['final'], record.cosines['final'][kept]
  )
  # A canary of an unpublished round is not told from one that took no part.
  other = record.observed & ~took_part
  seen = statistics.max_over_rounds(record.trace[shown])
  assert stats.ks_2samp(seen[other], seen[~record.observed]).pvalue > 1e-4
  assert stats.ks_2samp(seen[took_part], seen[~record.observed]).pvalue < 1e-4


def test_a_run_until_its_last_round_is_the_run():
  record = recorded_runs.by_law()
  whole = release.truncate_after(record, 20)
  for field in dataclasses.fields(record):
    jax.tree.map(
      np.testing.assert_array_equal,
      getattr(whole, field.name),
      getattr(record, field.name),
    )
  half = release.truncate_after(record, 10)
  assert half.observed.sum() == record.included[:10].sum()
  assert (~half.observed).sum() == 60
  assert half.trace.shape[0] == len(half.expected) == 10
  assert not {'final', 'change'} & half.cosines.keys()


def test_of_those_with_coins_all_go_whose_seat_is_not_shown():
  record = recorded_runs.by_law(observed=400, design='coin_flip')
  assert not record.observed.all()
  shown = release.every_nth_round(20, 3)
  for some, rounds in (
    (release.restrict_to_rounds(record, shown), shown),
    (release.truncate_after(record, 7), np.arange(20) < 7),
  ):
    assert some.design == 'coin_flip'
    seated = record.assigned[rounds].any(axis=0)
    np.testing.assert_array_equal(some.observed, record.observed[seated])
    np.testing.assert_array_equal(
      some.assigned, record.assigned[rounds][:, seated]
    )
    # With probability 1/3 each: independent inclusion, up to five standard errors.
    heads = some.observed.mean()
    assert abs(heads - 0.5) < 5 * 0.5 / np.sqrt(len(some.observed))


def test_models_are_scored_in_the_rounds_assigned_to_held_out_canaries():
  simulated = recorded_runs.by_vectors(momentum=0.9, design='coin_flip')
  seen = models_of(simulated, release.every_nth_round(12, 4))
  # Their norms are told by those whose coin said no.
  assert seen.design == 'fixed'
  np.testing.assert_array_equal(seen.assigned.any(axis=0), True)
  np.testing.assert_array_equal(
    seen.included, np.where(seen.observed, seen.assigned, 0)
  )
  np.testing.assert_array_equal(seen.observed, simulated.record.observed)


def test_what_cannot_be_shown_is_refused():
  simulated = recorded_runs.by_vectors(momentum=0.9, unobserved=40)
  record, every = simulated.record, np.ones(12, bool)

  def refused(match, *, record=record, shown=every):
    with pytest.raises(ValueError, match=match):
      published_models.derive_models(record, shown)

  def changed(**fields):
    return dataclasses.replace(record, **fields)

  refused('do not add up to the change', record=changed(momentum=0.0))
  refused(r'momentum=1\.0', record=changed(momentum=1.0))
  refused("optimizer='sgd'", record=changed(momentum=None))
  refused(
    r"audit\.view='aggregate'",
    record=recorded_runs.show_as(record, 'server_update'),
  )
  refused(r'shape \(3,\)', shown=np.ones(3, bool))
  few = release.replace_views(
    record,
    included=np.ones_like(record.included),
    assigned=np.ones_like(record.included),
  )
  refused('fewer than two', record=few)
  with pytest.raises(ValueError, match='with one or more'):
    release.restrict_to_rounds(record, np.zeros(12, bool))
  with pytest.raises(ValueError, match='round=13; give 1 to the 12'):
    release.truncate_after(record, 13)
  lonely = recorded_runs.by_law(observed=2, rounds=20)
  first = 1 + int(np.argmax(lonely.included.any(axis=1)))
  with pytest.raises(ValueError, match='1 of 2 observed canaries took part'):
    release.truncate_after(lonely, first)
