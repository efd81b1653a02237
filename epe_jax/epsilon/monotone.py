"""ε between two laws on a line whose likelihood ratio increases.

If log q(x)/p(x) = L(x) increases with x, the events that distinguish Q from P best
are the half-lines {x > a}, and those that distinguish P from Q best are {x < b}:

  δ₊(a) = Q(x > a) - e^L(a) P(x > a)   at ε = L(a),
  δ₋(b) = P(x < b) - e^-L(b) Q(x < b)  at ε = -L(b).

δ₊ decreases with a and δ₋ increases with b, so each is solved for its threshold,
which gives ε. e^ε itself is never computed.
"""

from collections.abc import Callable
from typing import NamedTuple

from jaxtyping import Float
import numpy as np
from scipy import interpolate
from scipy.optimize import elementwise

_Array = Float[np.ndarray, '*shape']
_Tails = tuple[_Array, _Array]


class MonotonePair(NamedTuple):
  """P, and the laws Q_s of a family with one parameter s > 0.

  All functions take x and s of one shape and return arrays of that shape.

  Attributes:
    log_ratio: (x, s) -> L(x), increasing with x.
    tails: x -> log P(x' < x), log P(x' > x).
    shifted_tails: (x, s) -> log Q_s(x' < x), log Q_s(x' > x).
    bracket: (s, δ) -> thresholds between which both solutions lie: P has at
      most mass δ below the first, and Q_s at most δ above the second.
  """

  log_ratio: Callable[[_Array, _Array], _Array]
  tails: Callable[[_Array], _Tails]
  shifted_tails: Callable[[_Array, _Array], _Tails]
  bracket: Callable[[_Array, _Array], _Tails]


def solve_epsilon(
  pair: MonotonePair,
  s: Float[np.ndarray, ' n'],
  delta: Float[np.ndarray, ' n'] | float,
) -> Float[np.ndarray, ' n']:
  """Smallest ε >= 0 at which P and Q_s are (ε, δ)-close in both directions.

  At s = 0 the two laws are equal. There is one δ, or one for each s.
  """
  result = np.zeros_like(s)
  positive = s > 0
  if not np.any(positive):
    return result
  s, delta = s[positive], np.broadcast_to(delta, result.shape)[positive]

  def above(a, s, target):
    """Log of δ₊/δ, for the event {x > a}."""
    _, log_p = pair.tails(a)
    _, log_q = pair.shifted_tails(a, s)
    return _log_excess(log_q, log_p + pair.log_ratio(a, s)) - target

  def below(b, s, target):
    log_p, _ = pair.tails(b)
    log_q, _ = pair.shifted_tails(b, s)
    return _log_excess(log_p, log_q - pair.log_ratio(b, s)) - target

  with np.errstate(all='ignore'):
    low, high = pair.bracket(s, delta)
    arguments = (s, np.log(delta))
    of_upper = pair.log_ratio(_root(above, low, high, arguments), s)
    of_lower = -pair.log_ratio(_root(below, low, high, arguments), s)
  result[positive] = np.maximum(np.maximum(of_upper, of_lower), 0.0)
  return result


def interpolate_epsilon(
  pair: MonotonePair, s: Float[np.ndarray, '*batch'], delta: float, nodes: int
) -> Float[np.ndarray, '*batch']:
  """ε of very many s, by interpolation between nodes."""
  at = np.linspace(np.min(s), np.max(s), nodes)
  smooth = interpolate.PchipInterpolator(at, solve_epsilon(pair, at, delta))
  return np.maximum(smooth(np.ravel(s)), 0.0).reshape(np.shape(s))


def log_sum(
  values: Float[np.ndarray, '*shape n'],
) -> Float[np.ndarray, '*shape']:
  """Log of Σ e^values over the last axis."""
  # Called a hundred times a root, of few values: SciPy's takes fifty times as long.
  return np.asarray(np.logaddexp.reduce(values, axis=-1))


def _log_excess(log_mass, log_limit):
  """Log of e^log_mass - e^log_limit, clipped to finite values for a root finder."""
  share = -np.expm1(np.minimum(log_limit - log_mass, 0.0))
  return np.maximum(log_mass + np.log(share), -1e4)


def _root(excess, low, high, arguments):
  """The root of an excess; if it has none, the end where it is nearer to 0."""
  ends = excess(low, *arguments), excess(high, *arguments)
  root = elementwise.find_root(excess, (low, high), args=arguments)
  nearer = np.where(np.abs(ends[0]) < np.abs(ends[1]), low, high)
  return np.where(root.success, root.x, nearer)
