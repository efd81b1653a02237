"""pfl 0.6: the banded matrix mechanism has less noise than its accountant assumes.

BandedMatrixFactorizationMechanism optimizes X = CᵀC, whose diagonal is 1, so that each
column of C has norm 1 and a user who takes part k times, far enough apart, has a
sensitivity of sqrt(k). It then takes C from `np.linalg.cholesky(X)`, which is L with
LLᵀ = X: rows of L have norm 1, and columns have more. Flipped before and after, the
same factorization gives the C that was meant.

  python examples/findings/pfl_banded_matrix.py
"""

import logging
import os
import tempfile

import numpy as np
import pfl.model.pytorch  # noqa: F401  Chooses PyTorch.
from pfl.privacy.ftrl_mechanism import BandedMatrixFactorizationMechanism
from pfl.privacy.privacy_accountant import PLDPrivacyAccountant
from pfl.stats import MappedVectorStatistics
from scipy import optimize, stats
import torch

ROUNDS, SEPARATION, EPSILON, DELTA = 100, 25, 2.0, 1e-5


def make_accountant(compositions):
  """One who takes part in so many rounds, without sampling."""
  return PLDPrivacyAccountant(
    num_compositions=compositions,
    sampling_probability=1.0,
    mechanism='gaussian',
    epsilon=EPSILON,
    delta=DELTA,
  )


def compute_epsilon(mu):
  """ε of the Gaussian mechanism of a μ."""

  def excess(epsilon):
    above = stats.norm.cdf(-epsilon / mu + mu / 2)
    below = stats.norm.cdf(-epsilon / mu - mu / 2)
    return above - np.exp(epsilon) * below - DELTA

  return optimize.brentq(excess, 0, 100)


def main() -> None:
  logging.disable(logging.CRITICAL)
  # It writes its matrix into the current folder.
  os.chdir(tempfile.mkdtemp())
  mechanism = BandedMatrixFactorizationMechanism(
    clipping_bound=1.0,
    num_iterations=ROUNDS,
    min_separation=SEPARATION,
    make_privacy_accountant=make_accountant,
  )
  noise = []
  for t in range(ROUNDS):
    zeros = MappedVectorStatistics({'w': torch.zeros(5000)})
    released, _ = mechanism.add_noise(zeros, 10, seed=t)
    noise.append(released['w'].numpy())
  matrix, std = mechanism.query_matrix, mechanism.relative_noise_stddev
  independent = matrix @ np.array(noise)
  print(
    f'C times the noise of {ROUNDS} rounds is independent, of standard deviation '
    f'{independent.std():.3f}; {std:.3f} was chosen'
  )
  sensitivities = [
    np.linalg.norm(matrix[:, first::SEPARATION]) for first in range(SEPARATION)
  ]
  accounted = np.sqrt(-(-ROUNDS // SEPARATION))
  print(
    f'sensitivity of C to who takes part every {SEPARATION} rounds: up to '
    f'{max(sensitivities):.2f}; {accounted:.2f} was accounted for'
  )
  print(
    f'ε = {compute_epsilon(max(sensitivities) / std):.2f} at δ = {DELTA:g}, where '
    f'{compute_epsilon(accounted / std):.2f} is claimed'
  )
  gram = matrix @ matrix.T
  meant = np.flip(np.linalg.cholesky(np.flip(gram)).T)
  assert np.allclose(meant.T @ meant, gram)
  print(
    f'of the C that was meant, columns have norm at most '
    f'{np.linalg.norm(meant, axis=0).max():.2f}, and '
    f'{np.linalg.norm(matrix, axis=0).max():.2f} of the one that is used'
  )


if __name__ == '__main__':
  main()
