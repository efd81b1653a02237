"""Poisson batches: their law, their padding, and that nothing is left out."""

import numpy as np
import pytest
from scipy import stats

pytest.importorskip('jax_privacy', reason='jax-privacy is not installed')

from epe_jax.dpsgd import poisson_batches

N, M, T = 200, 20.0, 400


def draw(seed=0, purpose='test', **changes):
  settings = dict(num_examples=N, expected_batch=M, steps=T)
  return poisson_batches.draw_poisson_batches(
    seed, purpose, **settings | changes
  )


def takes_part(batches, num_examples=N):
  """A 0/1 matrix [steps, examples]."""
  rows = np.zeros((len(batches), num_examples), bool)
  t, place = np.nonzero(batches >= 0)
  rows[t, batches[t, place]] = True
  return rows


def test_each_example_takes_part_in_each_step_by_a_coin_of_its_own():
  batches = draw()
  rows = takes_part(batches)
  # No example is twice in a batch.
  assert rows.sum() == np.count_nonzero(batches >= 0)
  rate = M / N
  # Each total is binomial; two-sided, 1e-9 / 600 for each of 600 totals.
  for total, trials in [
    *((x, T) for x in rows.sum(axis=0)),
    *((x, N) for x in rows.sum(axis=1)),
  ]:
    low, high = stats.binom.ppf([1e-12, 1 - 1e-12], trials, rate)
    assert low <= total <= high
  # Sizes have the variance of a sum of coins: 5 standard errors of √(2/T).
  spread = rows.sum(axis=1).var() / (N * rate * (1 - rate))
  assert abs(spread - 1) < 5 * np.sqrt(2 / T)
  # Neighbours in steps and examples are independent: phi within 5 / √n.
  for a, b in ((rows[1:], rows[:-1]), (rows[:, 1:], rows[:, :-1])):
    phi = np.corrcoef(a.ravel(), b.ravel())[0, 1]
    assert abs(phi) < 5 / np.sqrt(a.size)


def test_streams_of_other_purposes_and_seeds_are_others():
  first = draw()
  np.testing.assert_array_equal(first, draw())
  for other in (draw(purpose='another'), draw(seed=1)):
    phi = np.corrcoef(takes_part(first).ravel(), takes_part(other).ravel())
    assert abs(phi[0, 1]) < 5 / np.sqrt(T * N)


def test_a_batch_that_does_not_fit_is_an_error_and_not_truncated(monkeypatch):
  monkeypatch.setattr(poisson_batches, 'OVERFLOW_PROBABILITY', 0.9999)
  with pytest.raises(ValueError, match=r'seed=0 gives step \d+ a batch of'):
    draw()


def test_microbatches_without_examples_come_last():
  from optax import microbatching

  plain, batches = draw(), draw(microbatch=8)
  assert batches.shape[1] % 8 == 0
  np.testing.assert_array_equal(takes_part(plain), takes_part(batches))
  for row in batches:
    parts = np.asarray(microbatching.reshape_batch_axis(row, 8))
    real = np.sort((parts >= 0).sum(axis=1))[::-1]
    np.testing.assert_array_equal((parts >= 0).sum(axis=1), real)
    assert np.count_nonzero((real > 0) & (real < 8)) <= 1


def test_every_example_is_in_every_batch_of_rate_one():
  batches = draw(expected_batch=float(N), steps=3)
  assert batches.shape == (3, N)
  assert takes_part(batches).all()


@pytest.mark.parametrize(
  ('changes', 'match'),
  [
    ({'expected_batch': 0.0}, 'expected_batch=0.0'),
    ({'expected_batch': N + 1.0}, 'give more than 0 and at most 200'),
    ({'steps': 0}, 'steps=0'),
  ],
)
def test_settings_out_of_range_are_refused(changes, match):
  with pytest.raises(ValueError, match=match):
    draw(**changes)


# 1 - 5e-17 is 1 in float64, and its quantile would be all 50,000 examples.
@pytest.mark.parametrize(
  ('num_examples', 'expected_batch', 'steps'),
  [(N, M, T), (50_000, 256, 20_000)],
)
def test_the_padded_size_is_the_smallest_that_rarely_overflows(
  num_examples, expected_batch, steps
):
  places = poisson_batches.choose_padded_batch(
    num_examples, expected_batch, steps=steps
  )
  overflow = lambda b: (
    steps * stats.binom.sf(b, num_examples, expected_batch / num_examples)
  )
  assert overflow(places) <= poisson_batches.OVERFLOW_PROBABILITY
  assert overflow(places - 1) > poisson_batches.OVERFLOW_PROBABILITY
