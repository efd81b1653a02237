"""ε of a round, the noise that has it, and what is composed of it."""

import math

import dp_accounting
from dp_accounting import rdp
import numpy as np
import pytest
from scipy import stats

from epe_jax.accounting import gaussian
from papers.canife import composition, runs, training
from papers.one_shot import canife


def clopper_pearson(count, num):
  return stats.binomtest(count, num).proportion_ci().high


def test_scores_without_an_error_give_the_cap():
  found = composition.measure_round(
    np.linspace(1, 2, 50), np.linspace(-1, 0, 50)
  )
  limit = clopper_pearson(0, 50)
  assert found.counted == math.inf
  assert found.delta == 0.01
  expected = math.log((1 - 0.01 - limit) / limit)
  assert found.lower == pytest.approx(expected, rel=1e-9)
  assert composition.cap(50) == pytest.approx(expected, rel=1e-9)


def test_the_threshold_is_the_best_by_counts_and_limits_are_taken_there():
  rng = np.random.default_rng(0)
  included, excluded = rng.normal(1.5, 1, 40), rng.normal(0, 1, 60)
  best = (-math.inf, 0, 0)
  for level in np.concatenate([included, excluded]):
    misses, alarms = np.sum(included < level), np.sum(excluded >= level)
    if misses and alarms:
      a, b = misses / 40, alarms / 60
      epsilon = max(math.log((0.99 - a) / b), math.log((0.99 - b) / a))
      best = max(best, (epsilon, misses, alarms))
  found = composition.measure_round(included, excluded)
  assert found.counted == pytest.approx(best[0])
  a, b = clopper_pearson(best[1], 40), clopper_pearson(best[2], 60)
  expected = max(math.log((0.99 - a) / b), math.log((0.99 - b) / a), 0)
  assert found.lower == pytest.approx(expected)


def test_equal_scores_give_nothing():
  same = np.zeros(10)
  assert composition.measure_round(same, same).lower == 0


def test_composition_is_that_of_dp_accounting():
  event = dp_accounting.ComposedDpEvent(
    [
      dp_accounting.SelfComposedDpEvent(
        dp_accounting.PoissonSampledDpEvent(
          0.01, dp_accounting.GaussianDpEvent(sigma)
        ),
        count,
      )
      for sigma, count in ((0.9, 100), (1.3, 68))
    ]
  )
  accountant = rdp.RdpAccountant(composition.ORDERS)
  accountant.compose(event)
  assert composition.epsilon_of_rounds(
    [0.9, 1.3], [100, 68], probability=0.01, delta=1e-5
  ) == pytest.approx(accountant.get_epsilon(1e-5))


def test_inverted_noise_has_the_epsilon_and_falls_as_it_rises():
  epsilons = [0.2, 0.5, 1.0, 2.5, 6.0, 30.0]
  sigmas = [composition.invert_noise(e, delta=0.01) for e in epsilons]
  assert sigmas == sorted(sigmas, reverse=True)
  assert len(set(sigmas)) == len(sigmas)
  for epsilon, sigma in zip(epsilons, sigmas):
    back = composition.epsilon_of_rounds(
      [sigma], [1], probability=1, delta=0.01
    )
    assert back == pytest.approx(epsilon, rel=1e-6)
    # Rényi DP converts to no less than the exact ε.
    assert back >= gaussian.epsilon_of_releases(sigma, delta=0.01).epsilon
  smallest = composition.invert_noise(composition.MIN_EPSILON, delta=0.01)
  assert composition.invert_noise(0.0, delta=0.01) == smallest


def test_the_papers_analytic_epsilon_is_that_of_renyi_dp_at_one_over_n():
  delta = 1 / 60_000
  renyi = composition.epsilon_of_rounds([0.2], [1], probability=1, delta=delta)
  assert renyi == pytest.approx(34.5, abs=0.05)
  exact = gaussian.epsilon_of_releases(0.2, delta=delta).epsilon
  assert exact == pytest.approx(32.5, abs=0.05)


def test_an_infinite_epsilon_falls_back_on_the_noise_of_the_mechanism():
  given = dict(round_delta=0.01, probability=0.01, delta=1e-5, fallback=1.0)
  assert composition.compose_audits(
    [math.inf], [50], **given
  ) == composition.epsilon_of_rounds([1.0], [50], probability=0.01, delta=1e-5)


def load_settings(**changes):
  settings = canife.ITEM.experiment.load()
  settings.update(changes)
  return settings


def test_every_round_is_of_one_stretch():
  settings = load_settings(num_train=1000, batch=10, audit_every=30)
  assert runs.list_audits(settings) == (30, 60, 90)
  assert runs.list_stretches(settings) == [30, 30, 40]


def test_images_are_generated_where_there_is_no_file(tmp_path):
  made = training.load_images(None, num_train=20, num_test=5)
  assert made.train_x.shape == (20, 784)
  assert made.test_y.shape == (5,)
  assert made.source == 'synthetic, 20 images'
  assert 0 <= made.train_x.min() <= made.train_x.max() <= 1
  with pytest.raises(FileNotFoundError, match='train-images-idx3-ubyte'):
    training.load_images(tmp_path, num_train=1, num_test=1)
