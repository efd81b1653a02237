"""Privacy loss distributions of dp_accounting, an independent reference."""

from dp_accounting.pld import privacy_loss_distribution


def from_dp_accounting(noise_multiplier, p=1.0, steps=1, interval=1e-3):
  """Of so many steps of the Gaussian mechanism on Poisson samples."""
  one = privacy_loss_distribution.from_gaussian_mechanism(
    noise_multiplier, sampling_prob=p, value_discretization_interval=interval
  )
  return one.self_compose(steps) if steps > 1 else one
