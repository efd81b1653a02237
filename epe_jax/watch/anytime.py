"""Lower bounds that hold after every round at once, so that one may stop at will.

A bound at 95 % fails by chance once in twenty times: a reader who computes it after
each round and stops at the first alarm is misled far more often. An e-process is
evidence that may be monitored at any time. It is a product of bets against a claim.
If the claim is true, each bet pays out at most 1 on average, given everything before
it; then the probability that the product ever exceeds 1/α is at most α (Ville). What
it has not rejected at any round up to t is a confidence sequence.

One bet is made on each canary when all its rounds are over. Its score becomes the
probability V that an unobserved canary would score as high. Under a claim with
trade-off curve f, P(V <= v) <= 1 - f(v) given the past, so that any bet that falls
with V pays out at most what it would for V* with exactly that law:

- `gdp_sequence` tests μ-Gaussian DP. X = Φ⁻¹(1 - V) is then at most N(μ, 1), and the
  bets are exp(λ (X - μ) - λ²/2), averaged over λ >= 0 by a half-normal law.
- `epsilon_sequence` tests (ε, δ)-DP of any mechanism. For each of some thresholds v
  the bets are on V <= v, whose probability p is at most 1 - f(v): ratios of
  likelihoods averaged over larger p by a beta law, and then over thresholds.

Nothing is assumed of the scores but what the claim says of a canary given the earlier
rounds. Canaries that end in one round are bet on one after another, as if they leaked
independently given the past. But their scores are cosines with one vector, whose norm
is random by 1/√(2d) and shifts all of them by that share of μ. And random directions
in one vector are noise to one another, with a covariance of up to μ²/d. So
`gdp_sequence` gives a sum of m such scores the variance m (1 + (m - 1) c), with
c = 3 μ²/(2 d), and weighs them accordingly: however many canaries a vector has, they
tell no more about μ than 1/c of them. `epsilon_sequence` does not do so: it is much
further below the ε of such scores than they shift it.

References: Ville (1939); Robbins (1970) for mixtures; Ramdas, Grünwald, Vovk, Shafer,
"Game-theoretic statistics and safe anytime-valid inference" (2023).
"""

from typing import NamedTuple

from jaxtyping import Float, Int
import numpy as np
from scipy import special

# The scale of λ: by how much μ may exceed a claim that is soon rejected.
_SCALE = 0.5
# Thresholds of V, each a power of the one before, and their shares of the evidence.
_LOG_THRESHOLDS = np.log(0.3) * 1.2 ** np.arange(34)
_SHARES = 1 / ((np.arange(34) + 1.0) * (np.arange(34) + 2.0))
_LOG_SHARES = np.log(_SHARES / _SHARES.sum())
# The beta law of p of Jeffreys.
_PRIOR = 0.5
_HALVINGS = 60
_LARGEST = 1e8
# Of the covariance of two scores with one vector, in units of μ²/d.
_SHARED = 1.5


def gdp_log_evidence(
  tails: Float[np.ndarray, 'n'],
  mu: float,
  *,
  after: Int[np.ndarray, 'm'] | None = None,
  vectors: Int[np.ndarray, 'n'] | None = None,
  dim: float = np.inf,
) -> Float[np.ndarray, 'm']:
  """log of the e-process against μ-Gaussian DP, after each canary.

  Args:
    tails: [n] log V: the log probabilities that unobserved canaries would score as
      high, in the order in which canaries end.
    mu: the claimed μ >= 0.
    after: [m] increasing numbers of canaries, in [1, n], after which evidence is
      computed; None for each.
    vectors: [n] number of the vector with which each canary was scored; None if all
      are different.
    dim: d >= 1 of these vectors; inf if scores are not in units of their norm.

  Returns:
    log evidence: it ever exceeds log 1/α with probability α at most, if the claim
    is true.
  """
  sums = _add_normal_scores(tails, after, vectors)
  return np.asarray(_log_gdp_evidence(sums, np.asarray(mu), dim))


def gdp_sequence(
  tails: Float[np.ndarray, 'n'],
  *,
  significance: float = 0.05,
  after: Int[np.ndarray, 'm'] | None = None,
  vectors: Int[np.ndarray, 'n'] | None = None,
  dim: float = np.inf,
) -> Float[np.ndarray, 'm']:
  """Lower bounds of μ of Gaussian DP that hold after each canary, all at once.

  One of them exceeds the true μ with a chance of the significance at most; all else is
  as for `gdp_log_evidence`.

  Returns:
    [m] bounds >= 0, which never fall.

  >>> x = np.full(100, 3.0)
  >>> gdp_sequence(special.log_ndtr(-x))[[0, 9, 99]].round(2)
  array([0.  , 2.09, 2.71])
  """
  sums = _add_normal_scores(tails, after, vectors)
  # No evidence is against a μ that is above all means.
  means = np.divide(
    sums.scores, sums.num, out=np.zeros_like(sums.scores), where=sums.num > 0
  )
  high = np.max(means, axis=-1, initial=0.0)
  return _find_largest_rejected(
    lambda mu: _log_gdp_evidence(sums, mu, dim), high, significance
  )


def epsilon_sequence(
  tails: Float[np.ndarray, 'n'],
  *,
  delta: float,
  significance: float = 0.05,
  after: Int[np.ndarray, 'm'] | None = None,
) -> Float[np.ndarray, 'm']:
  """Lower bounds of ε at δ, of any mechanism, that hold all at once.

  The arguments are those of `gdp_sequence`.

  Returns:
    [m] bounds >= 0, which never fall. With n canaries they cannot exceed about
    log n, as any bound without a shape of the mechanism.

  >>> tails = np.full(1000, np.log(1e-4))
  >>> epsilon_sequence(tails, delta=1e-5, after=np.array([10, 1000])).round(1)
  array([8. , 8.9])
  """
  hits, n = _count_hits(tails, after)
  return _find_largest_rejected(
    lambda epsilon: _log_evidence(hits, n, epsilon, delta),
    np.full(len(n), -_LOG_THRESHOLDS[-1]),
    significance,
  )


def _find_largest_rejected(log_evidence, high, significance):
  """The largest privacy level that is rejected at each time or before it."""
  level, low = np.log(1 / significance), np.zeros(len(high))
  for _ in range(_HALVINGS):
    middle = (low + high) / 2
    is_rejected = log_evidence(middle) >= level
    low, high = (
      np.where(is_rejected, middle, low),
      np.where(is_rejected, high, middle),
    )
  # Where nothing is rejected the halves have shrunk to 0.
  low = np.where(log_evidence(low) >= level, low, 0.0)
  return np.maximum.accumulate(low)


class _Sums(NamedTuple):
  """Sums over the canaries that have ended, by how many share their vector.

  Attributes:
    sharing: [sizes] canaries of a vector.
    scores: [times, sizes] sums of Φ⁻¹(1 - V).
    num: [times, sizes] canaries.
  """

  sharing: np.ndarray
  scores: np.ndarray
  num: np.ndarray


def _add_normal_scores(tails, after, vectors):
  # Of V = 1 as far below as any bet reads, and finite of V = 0.
  x = np.clip(-special.ndtri_exp(tails), -40.0, _LARGEST)
  n = np.arange(1, len(x) + 1) if after is None else after
  vectors = np.arange(len(x)) if vectors is None else vectors
  _, which, sizes = np.unique(vectors, return_inverse=True, return_counts=True)
  sharing, of_size = np.unique(sizes[which], return_inverse=True)
  is_of_size = of_size[:, None] == np.arange(len(sharing))
  scores = np.cumsum(np.where(is_of_size, x[:, None], 0.0), axis=0)
  return _Sums(sharing, scores[n - 1], np.cumsum(is_of_size, axis=0)[n - 1])


def _log_gdp_evidence(sums, mu, dim):
  """log evidence at each time against each μ, or one μ."""
  mu = mu[..., None]
  weights = 1 / (1 + (sums.sharing - 1) * _SHARED * mu**2 / dim)
  excess = np.sum(weights * (sums.scores - mu * sums.num), axis=-1)
  return _log_mixture(excess, np.sum(weights * sums.num, axis=-1))


def _log_mixture(excess, n):
  """log ∫ exp(λ excess - n λ²/2) dλ over the half-normal law of λ."""
  spread = 1 + n * _SCALE**2
  z = excess * _SCALE / np.sqrt(spread)
  # log(2 e^(z²/2) Φ(z)), of whose factors one is 0 and the other infinite far below 0.
  below = np.log(special.erfcx(-np.minimum(z, 0) / np.sqrt(2)))
  z = np.maximum(z, 0)
  above = np.log(2) + z**2 / 2 + special.log_ndtr(z)
  return np.where(z > 0, above, below) - np.log(spread) / 2


def _count_hits(tails, after):
  """How many V are at most each threshold, after some numbers of canaries."""
  n = np.arange(1, len(tails) + 1) if after is None else after
  hits = np.cumsum(tails[:, None] <= _LOG_THRESHOLDS, axis=0)
  return hits[n - 1], n


def _log_evidence(hits, n, epsilon, delta):
  """log of the mean over thresholds of ratios of likelihoods, mixed over p > p0."""
  grown = np.exp(np.asarray(epsilon, np.float64))[..., None]
  # Both directions of (ε, δ)-DP.
  thresholds = np.exp(_LOG_THRESHOLDS)
  most = np.minimum(
    delta + grown * thresholds, 1 - (1 - delta - thresholds) / grown
  )
  most = np.clip(most, 1e-300, 1 - 1e-12)
  n = np.asarray(n)[..., None]
  a, b = hits + _PRIOR, n - hits + _PRIOR
  with np.errstate(divide='ignore'):
    # Dropping the part of the prior below p0 only weakens a bet, and makes it fall
    # with ε.
    log_beyond = np.log(special.betaincc(a, b, most))
  log_ratio = (
    special.betaln(a, b)
    - special.betaln(_PRIOR, _PRIOR)
    + log_beyond
    - hits * np.log(most)
    - (n - hits) * np.log1p(-most)
  )
  return special.logsumexp(log_ratio + _LOG_SHARES, axis=-1)
