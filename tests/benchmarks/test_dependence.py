"""What docs/canaries.md derives of canaries of one vector, in simulated runs."""

import jax
import numpy as np
import pytest
from scipy import special, stats

from benchmarks.bounds import run_audits, simulated_runs
from epe_jax.audit import attackers
from epe_jax.epsilon.types import Sphere, Unknown


def _scores(directions, *, num, dim, noise, clients, took_part=True, runs=4000):
  """Inner products with the aggregate of one round, [runs, num], in clip norms."""
  rng = np.random.default_rng(3)
  all_scores = np.empty((runs, num))
  for scores in all_scores:
    run = simulated_runs.simulate(
      rng,
      observed=num if took_part else 1,
      unobserved=1 if took_part else num,
      rounds=1,
      dim=dim,
      noise=noise,
      clients=clients,
      canaries=directions,
    )
    rounds, trace = run.record.rounds, run.record.trace
    scores[:] = (trace[0] * rounds.aggregate_norm[0] / rounds.canary_norm[0])[
      run.record.observed == took_part
    ]
  return all_scores


def _inflation(scores):
  """By how much the mean varies more than that of independent scores."""
  num = scores.shape[1]
  return num * scores.mean(axis=1).var() / scores.var(axis=0).mean()


def test_canaries_of_a_vector_are_noise_to_each_other_in_pairs():
  num, dim, noise, clients, runs = 30, 40, 0.5, 2.0, 1000
  scores = _scores(
    'sphere', num=num, dim=dim, noise=noise, clients=clients, runs=runs
  )
  others = num - 1
  variance = noise**2 + (others + clients**2) / dim
  share = others / (others + clients**2 + noise**2 * dim)
  error = np.sqrt(2 / runs)
  np.testing.assert_allclose(
    scores.var(axis=0).mean(), variance, rtol=6 * error
  )
  np.testing.assert_allclose(_inflation(scores), 1 + share, rtol=6 * error)
  # Counts scatter more than independent ones, but not by more than the mean.
  counted = _inflation((scores > np.median(scores)).astype(float))
  assert 1 + 4 * error < counted < 1 + share + 4 * error


def test_orthogonal_canaries_are_no_noise_to_each_other():
  runs = 1000
  scores = _scores(
    'orthogonal', num=30, dim=40, noise=0.5, clients=2.0, runs=runs
  )
  error = np.sqrt(2 / runs)
  variance = 0.5**2 + 2.0**2 / 40
  np.testing.assert_allclose(
    scores.var(axis=0).mean(), variance, rtol=6 * error
  )
  np.testing.assert_allclose(_inflation(scores), 1, rtol=6 * error)


@pytest.mark.integration
def test_counts_of_orthogonal_canaries_that_took_no_part_scatter_less():
  num, dim, t = 63, 64, 1.5
  scores = _scores(
    'orthogonal',
    num=num,
    dim=dim,
    noise=1.0,
    clients=0.0,
    took_part=False,
  )
  # In units of the length of each vector, as cosines are.
  scores = scores * np.sqrt(num) / np.linalg.norm(scores, axis=1)[:, None]
  p = stats.norm.sf(t)
  expected = 1 - num / dim * (t * stats.norm.pdf(t)) ** 2 / (2 * p * (1 - p))
  counted = _inflation((scores > t).astype(float))
  np.testing.assert_allclose(counted, expected, atol=0.07)
  assert counted < 0.8


def test_a_bound_that_ignores_the_dependence_keeps_its_word_for_the_mechanism():
  z = -special.ndtri(0.05)
  for dim in (1000, 10**6):
    share = np.concatenate(
      [np.geomspace(1e-9, 0.5, 400), 1 - np.geomspace(1e-6, 0.5)]
    )
    a = np.sqrt(share * dim)
    fails = special.ndtr(
      -(z + a * (1 / np.sqrt(1 - share) - 1)) / np.sqrt(1 + share)
    )
    assert fails.max() < 0.0503


@pytest.mark.integration
def test_canaries_of_this_package_have_the_products_that_the_study_gives_them():
  for family in ('sphere', 'hadamard', 'hadamard2'):
    rows = np.asarray(
      run_audits.make_rows(family, jax.random.key(0), 256, 256), np.float64
    )
    products = (rows @ rows.T)[np.triu_indices(256, 1)]
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, rtol=1e-5)
    expected = 0.0 if family.startswith('hadamard') else 1 / 256
    np.testing.assert_allclose(
      np.mean(products**2), expected, rtol=0.05, atol=1e-10
    )


@pytest.mark.parametrize('directions', ['sphere', 'orthogonal'])
def test_where_canaries_make_much_of_a_vector_the_null_law_is_their_own(
  directions,
):
  def read(dim, noise):
    run = simulated_runs.simulate(
      np.random.default_rng(0),
      observed=100,
      unobserved=100,
      rounds=1,
      dim=dim,
      noise=noise,
      canaries=directions,
    )
    return {
      model.key: model.score(run.record).scores.null
      for model in (attackers.CHANGE, attackers.OWN)
    }

  assert set(read(200, 0.5).values()) == {Unknown()}
  # Less than a hundredth: 100 of 100 + 9 + 10⁵.
  assert set(read(10**5, 1.0).values()) == {Sphere(10**5)}


@pytest.mark.integration
def test_cosines_of_orthogonal_canaries_lack_what_the_others_hold():
  scores = _scores(
    'orthogonal', num=40, dim=80, noise=0.5, clients=0.0, took_part=False
  )
  # One canary took part: of |v|² = z² d + 1 it has 1 and its own noise.
  share = (1 + 0.5**2) / (0.5**2 * 80 + 1)
  cosines = scores / np.sqrt(0.5**2 * 80 + 1)
  expected = (1 - share) / (80 - 1)
  np.testing.assert_allclose(np.mean(cosines**2), expected, rtol=0.01)
