"""A template for checking your own DP aggregation.

python -m epe_jax.conformance.example
epe-jax check epe_jax.conformance.example:make --shapes=20x30,30
"""

import secrets

import numpy as np

from epe_jax import conformance


class GaussianMean:
  """Replace this by yours: one round, from raw updates to the release."""

  def __init__(self, claim: conformance.Claim):
    self.claim = claim
    self.rng = np.random.default_rng(secrets.randbits(128))

  def aggregate(self, updates, weights):
    total = [np.zeros(shape) for shape in self.claim.shapes]
    for update in updates:
      norm = np.sqrt(
        sum(np.sum(tensor.astype(float) ** 2) for tensor in update)
      )
      if not np.isfinite(norm):
        continue  # A client that sends NaN or inf is left out.
      scale = min(1.0, self.claim.clip_norm / max(norm, 1e-12))
      total = [t + scale * tensor for t, tensor in zip(total, update)]
    noisy = [t + self.draw_noise(t.shape) for t in total]
    return [t / self.claim.num_clients for t in noisy]

  def draw_noise(self, shape):
    std = self.claim.noise_multiplier * self.claim.clip_norm
    return self.rng.normal(0, std, shape)


class NoNoiseOnBiases(GaussianMean):
  """The same with a mistake."""

  def draw_noise(self, shape):
    return super().draw_noise(shape) if len(shape) > 1 else np.zeros(shape)


def make(claim: conformance.Claim) -> conformance.Mechanism:
  """Called by `epe-jax check` with claims of several sizes."""
  return GaussianMean(claim)


def main() -> None:
  """Prints the reports of both mechanisms."""
  claim = conformance.Claim(
    clip_norm=1.0,
    noise_multiplier=1.0,
    num_clients=10,
    shapes=((20, 30), (30,)),
  )
  for mechanism in (GaussianMean, NoNoiseOnBiases):
    report = conformance.check(mechanism, claim)
    print(f'{mechanism.__name__}\n\n{conformance.format_report(report)}\n')


if __name__ == '__main__':
  main()
