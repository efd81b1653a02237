"""ε of a run of DP-SGD by its noise, interpolated between a few PLDs."""

import functools
from typing import NamedTuple

from jaxtyping import Float
import numpy as np
from scipy import interpolate
import tqdm

from epe_jax.dpsgd import families

# Beyond these noise multipliers (ε far above 100 and below 0.1) ε is extrapolated.
_NOISES, _NODES = (0.4, 30.0), 24


class AccountedRun(NamedTuple):
  """ε of a run by its noise multiplier, interpolated.

  Attributes:
    log_noise: logarithms of noise multipliers, increasing.
    log_epsilon: logarithms of the ε of the run.
  """

  log_noise: Float[np.ndarray, 'm']
  log_epsilon: Float[np.ndarray, 'm']

  def compose(self, epsilon: float, delta: float) -> float:
    """ε of the run from that of a step with the canary in it."""
    if epsilon == 0 or np.isinf(epsilon):
      return epsilon
    noise = families.noise_of_epsilon(epsilon, delta)
    curve = interpolate.PchipInterpolator(self.log_noise, self.log_epsilon)
    return float(np.exp(curve(np.log(noise))))

  def calibrate(self, epsilon: float) -> float:
    """The noise multiplier at which the run has a given ε."""
    curve = interpolate.PchipInterpolator(
      self.log_epsilon[::-1], self.log_noise[::-1]
    )
    return float(np.exp(curve(np.log(epsilon))))


@functools.cache
def account_for_run(
  *, sampling_probability: float, steps: int, delta: float, title: str
) -> AccountedRun:
  """Accounts for a run at several noise multipliers by dp_accounting.

  Args:
    sampling_probability: q, in (0, 1].
    steps: T >= 1.
    delta: δ, in (0, 1).
    title: of the progress bar.
  """
  family = families.subsampled_gaussian_family(
    sampling_probability, steps=steps
  )
  noises = np.geomspace(*_NOISES, _NODES)
  epsilons = [
    family.epsilon(float(z), delta)
    for z in tqdm.tqdm(noises, desc=title, unit='noise')
  ]
  return AccountedRun(np.log(noises), np.log(epsilons))
