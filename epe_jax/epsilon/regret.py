"""How far one trade-off curve is from another, in rates of errors.

To say that a mechanism is μ-Gaussian DP is to describe its trade-off curve by one
number. What that misstates is a difference of error rates, and has a name.

References: Kaissis, Kolek, Balle, Hayes, Rueckert, "Beyond the calibration point:
mechanism comparison in differential privacy" (2024); Gomez, Kulynych, Kaissis and
others, "Gaussian DP for reporting differential privacy guarantees in machine
learning" (2025), who call it regret.
"""

from collections.abc import Callable
from typing import TypeAlias

from jaxtyping import Float
import numpy as np

Curve: TypeAlias = Callable[[Float[np.ndarray, ' m']], Float[np.ndarray, ' m']]
"""log FPR -> the smallest FNR."""

# Dense where rates are small, and where they are not.
_RATES = np.union1d(np.geomspace(1e-12, 1, 2000), np.linspace(0, 1, 2001))
_STEPS = 30


def compute_regret(first: Curve, second: Curve) -> float:
  """The smallest κ by which either curve is above the other at most.

  f is above g by κ at most if f(α + κ) - κ <= g(α) for all α: giving κ of either
  error away makes up for the difference.

  Args:
    first: a trade-off curve.
    second: another.

  Returns:
    κ, in [0, 1/2], on a grid of rates; 0 if curves agree there.

  >>> nothing = lambda log_fpr: -np.expm1(log_fpr)
  >>> everything = lambda log_fpr: np.zeros_like(log_fpr)
  >>> round(compute_regret(nothing, everything), 6)
  0.5
  """
  with np.errstate(divide='ignore'):
    curves = [np.asarray(curve(np.log(_RATES))) for curve in (first, second)]
  return max(_rise(*curves), _rise(*curves[::-1]))


def _rise(
  upper: Float[np.ndarray, ' m'], lower: Float[np.ndarray, ' m']
) -> float:
  def is_enough(kappa: float) -> bool:
    # Beyond an error rate of 1 there is nothing.
    moved = np.interp(_RATES + kappa, _RATES, upper, right=0.0)
    return bool(np.all(moved - kappa <= lower + 1e-12))

  if is_enough(0.0):
    return 0.0
  low, high = 0.0, 0.5
  for _ in range(_STEPS):
    middle = (low + high) / 2
    low, high = (low, middle) if is_enough(middle) else (middle, high)
  return high
