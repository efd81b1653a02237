"""The ε that norms let one expect of the own-round reading."""

import numpy as np
import pytest

from epe_jax import effective_noise, round_scalars
from epe_jax.epsilon import gaussian
from tests import recorded_runs

DIM, DELTA = 40_000, 1e-5


def line(*, z, clients, canaries, clip=0.7, m=50.0):
  """What a server logs of a round with these, and its aggregate."""
  rng = np.random.default_rng(0)
  noise = z * clip * rng.normal(size=DIM)
  others = rng.normal(size=DIM)
  others *= clients / np.linalg.norm(others)
  directions = rng.normal(size=(canaries, DIM))
  directions /= np.linalg.norm(directions, axis=1)[:, None]
  aggregate = (others + clip * directions.sum(axis=0) + noise) / m
  norm = np.linalg.norm(aggregate)
  logged = recorded_runs.scalars(
    1,
    clip_norm=clip,
    canary_norm=clip / m,
    noise_std=z * clip / m,
    canaries=canaries,
    sum_norm=clients,
    aggregate_norm=norm,
  )
  return logged, directions @ aggregate / norm


def both(first, second):
  return round_scalars.RoundScalars(*map(np.append, first, second))


def test_alone_with_the_noise_a_canary_meets_the_noise():
  logged, _ = line(z=0.3, clients=0.0, canaries=1)
  (sigma,) = effective_noise.multipliers(logged, dim=DIM)
  assert sigma == pytest.approx(np.sqrt(0.3**2 + 1 / DIM))


@pytest.mark.parametrize('z', [0.0, 0.05, 0.2])
def test_canaries_score_as_the_effective_noise_says(z):
  logged, cosines = line(z=z, clients=30.0, canaries=200)
  (sigma,) = effective_noise.multipliers(logged, dim=DIM)
  # The mean of 200 cosines of std 1/√d; four standard errors.
  assert np.sqrt(DIM) * cosines.mean() == pytest.approx(
    1 / sigma, abs=4 / np.sqrt(200)
  )
  # Without the others it would be another number.
  alone = 1 / max(z, 1 / np.sqrt(DIM))
  assert abs(alone - 1 / sigma) > 0.3


def test_epsilon_is_of_the_mean_over_canaries_and_not_over_rounds():
  few, _ = line(z=0.1, clients=0.0, canaries=1)
  many, _ = line(z=0.1, clients=60.0, canaries=3)
  participation = np.zeros((2, 5), bool)
  participation[0, 0] = participation[1, 1:4] = True
  one, three = 1 / effective_noise.multipliers(both(few, many), dim=DIM)
  found = effective_noise.epsilon(
    both(few, many), participation, dim=DIM, delta=DELTA
  )
  mean = (one + 3 * three) / 4
  expected = gaussian.epsilon_two_gaussians(0, 1, mean, 1, DELTA)
  assert found == pytest.approx(float(expected))


def test_canaries_of_several_rounds_are_refused():
  logged, _ = line(z=0.1, clients=1.0, canaries=1)
  with pytest.raises(ValueError, match='takes part in 2 rounds'):
    effective_noise.epsilon(
      both(logged, logged), np.ones((2, 1), bool), dim=DIM, delta=DELTA
    )
