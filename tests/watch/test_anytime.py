"""Sequential bounds against quadrature, brute force and simulated audits."""

import mpmath
import numpy as np
import pytest
from scipy import special, stats

from epe_jax.epsilon import cosine_null, tradeoff
from epe_jax.watch import anytime

DELTA = 1e-5


def tails_of(scores):
  """log V of scores whose law is N(0, 1) where nothing leaks."""
  return special.log_ndtr(-np.asarray(scores, np.float64))


@pytest.mark.parametrize('mu', [0.0, 0.8, 3.0])
def test_evidence_against_gaussian_dp_is_the_integral_of_bets(mu):
  scores = np.random.default_rng(0).normal(2.0, 1.0, 30)
  found = anytime.gdp_log_evidence(tails_of(scores), mu)
  for n in (1, 7, 30):
    excess = mpmath.mpf(float(np.sum(scores[:n] - mu)))

    def bet(rate, excess=excess, n=n):
      law = 2 * mpmath.npdf(rate, 0, 0.5)
      return law * mpmath.exp(rate * excess - n * rate**2 / 2)

    exact = mpmath.log(mpmath.quad(bet, mpmath.linspace(0, 8, 33)))
    assert found[n - 1] == pytest.approx(float(exact), abs=1e-9)


def epsilon_log_evidence(tails, epsilon, after=None):
  """The evidence against (ε, δ)-DP that `epsilon_sequence` inverts."""
  hits, num = anytime._count_hits(tails, after)
  return anytime._log_evidence(hits, num, epsilon, DELTA)


@pytest.mark.integration
@pytest.mark.parametrize('epsilon', [0.0, 1.5, 8.0])
def test_evidence_against_dp_is_the_average_of_bets_on_thresholds(epsilon):
  scores = np.random.default_rng(1).normal(3.0, 1.0, 12)
  tails = tails_of(scores)
  found = epsilon_log_evidence(tails, epsilon)
  curve = tradeoff.approximate_dp_curves(DELTA)
  for n in (1, 12):
    total = mpmath.mpf(0)
    shares = [1 / ((j + 1) * (j + 2)) for j in range(34)]
    for j, share in enumerate(shares):
      threshold = np.log(0.3) * 1.2**j
      hits = int(np.sum(tails[:n] <= threshold))
      most = 1 - float(curve.fnr(epsilon, np.array([threshold]))[0])

      def bet(angle, hits=hits, most=most, n=n):
        # The law of Jeffreys is uniform in the angle.
        p = mpmath.sin(angle) ** 2
        ratio = (p / most) ** hits
        return ratio * ((1 - p) / (1 - most)) ** (n - hits) * 2 / mpmath.pi

      start = mpmath.asin(mpmath.sqrt(most))
      integral = mpmath.quad(bet, mpmath.linspace(start, mpmath.pi / 2, 9))
      total += share / sum(shares) * integral
    assert found[n - 1] == pytest.approx(float(mpmath.log(total)), abs=1e-6)


def draw_least_favourable(rng, epsilon, shape):
  """log V of the worst (ε, δ)-DP mechanism, by the inverse of 1 - f."""
  uniform = rng.random(shape)
  # 1 - f(v) = δ + e^ε v up to the corner, and 1 - e^-ε (1 - δ - v) beyond it.
  low = (uniform - DELTA) * np.exp(-epsilon)
  high = 1 - DELTA - (1 - uniform) * np.exp(epsilon)
  with np.errstate(divide='ignore'):
    return np.log(np.clip(np.where(low < high, high, low), 0.0, 1.0))


def test_the_least_favourable_law_has_the_curve_that_is_claimed():
  tails = draw_least_favourable(np.random.default_rng(2), 1.0, 200_000)
  curve = tradeoff.approximate_dp_curves(DELTA)
  for v in (1e-3, 0.1, 0.3, 0.7):
    expected = 1 - curve.fnr(1.0, np.log([v]))[0]
    assert np.mean(tails <= np.log(v)) == pytest.approx(expected, abs=0.006)


@pytest.mark.integration
@pytest.mark.parametrize('mu', [0.0, 1.0, 5.0])
def test_bounds_of_mu_are_exceeded_as_seldom_as_they_say_however_often_one_looks(
  mu,
):
  rng, audits = np.random.default_rng(3), 1000
  exceeded = sum(
    bool(np.any(anytime.gdp_sequence(tails_of(scores)) > mu))
    for scores in rng.normal(mu, 1, (audits, 400))
  )
  # A failure has probability 1e-6 at exact coverage.
  assert exceeded <= stats.binom.isf(1e-6, audits, 0.05)
  # A bound at each round by itself is exceeded far more often.
  means = np.cumsum(rng.normal(mu, 1, (audits, 400)), axis=1)
  n = np.arange(1, 401)
  each = means / n - special.ndtri(0.95) / np.sqrt(n) > mu
  assert each.any(axis=1).sum() > 4 * stats.binom.isf(1e-6, audits, 0.05)


@pytest.mark.integration
@pytest.mark.parametrize('epsilon', [0.0, 1.0, 4.0])
def test_evidence_against_a_true_claim_seldom_ever_grows(epsilon):
  rng, audits = np.random.default_rng(4), 1000
  after = np.arange(10, 201, 10)
  alarms = sum(
    bool(np.any(epsilon_log_evidence(tails, epsilon, after=after) > np.log(20)))
    for tails in draw_least_favourable(rng, epsilon, (audits, 200))
  )
  assert alarms <= stats.binom.isf(1e-6, audits, 0.05)


def draw_cosines(rng, mu, dim, canaries, audits):
  """log V of canaries that share the noise of one vector."""
  normal = rng.standard_normal((audits, canaries))
  rest = np.sqrt(rng.chisquare(dim - 1, normal.shape))
  w = normal / np.hypot(normal, rest)
  a = mu / np.sqrt(rng.chisquare(dim, (audits, 1)))
  cosines = (w + a) / np.sqrt(1 + 2 * a * w + a**2)
  return np.asarray(cosine_null.CosineNull(dim).logsf(cosines))


# The shares are what is lost to the covariance of the scores, and no more.
@pytest.mark.parametrize(('mu', 'share'), [(0.5, 0.765), (5.0, 0.885)])
def test_many_canaries_of_one_vector_seldom_reject_a_true_claim(mu, share):
  dim, canaries, audits = 1000, 1000, 200
  several = draw_cosines(np.random.default_rng(8), mu, dim, canaries, audits)
  shared = dict(vectors=np.zeros(canaries, int), after=np.array([canaries]))

  def count_alarms(dim):
    return sum(
      anytime.gdp_log_evidence(tails, mu, dim=dim, **shared)[0] > np.log(20)
      for tails in several
    )

  # A failure has probability 1e-6 at exact coverage.
  most = stats.binom.isf(1e-6, audits, 0.05)
  assert count_alarms(dim) <= most
  bounds = [anytime.gdp_sequence(t, dim=dim, **shared)[0] for t in several]
  assert np.sum(np.array(bounds) > mu) == count_alarms(dim)
  assert np.median(bounds) > share * mu
  if mu == 5.0:
    # As if they were of vectors of their own.
    assert count_alarms(np.inf) > 20


def test_canaries_with_vectors_of_their_own_are_weighed_alike():
  tails = tails_of(np.random.default_rng(9).normal(2, 1, 50))
  np.testing.assert_array_equal(
    anytime.gdp_sequence(tails), anytime.gdp_sequence(tails, dim=100)
  )
  # Those that share one count for less, those that do not as before.
  pairs = np.arange(50) // 2
  alone = anytime.gdp_log_evidence(tails, 1.0, vectors=pairs)
  np.testing.assert_array_equal(alone, anytime.gdp_log_evidence(tails, 1.0))
  shared = anytime.gdp_log_evidence(tails, 1.0, vectors=pairs, dim=100)
  assert alone[-1] > shared[-1] > 0.9 * alone[-1]


def test_noise_that_is_a_tenth_too_weak_is_soon_found_out():
  rng, audits, noise = np.random.default_rng(5), 100, 0.3
  found = 0
  for scores in rng.normal(1 / (0.9 * noise), 1, (audits, 205)):
    evidence = anytime.gdp_log_evidence(tails_of(scores), 1 / noise)
    found += bool(np.any(evidence > np.log(20)))
  assert found >= 90


@pytest.mark.integration
def test_bounds_are_where_the_evidence_has_the_level():
  scores = np.random.default_rng(6).normal(2.0, 1.0, 300)
  tails = tails_of(scores)
  for significance in (0.05, 1e-4):
    bounds = anytime.gdp_sequence(tails, significance=significance)
    assert np.all(np.diff(bounds) >= 0)
    # At the last record the bound is that of its own round.
    n = int(np.flatnonzero(np.diff(bounds) > 0)[-1]) + 2
    evidence = anytime.gdp_log_evidence(tails, float(bounds[n - 1]))[n - 1]
    assert evidence == pytest.approx(-np.log(significance), abs=1e-6)
    after = np.array([1, 50, 300])
    bounds = anytime.epsilon_sequence(
      tails, delta=DELTA, significance=significance, after=after
    )
    assert np.all(np.diff(bounds) >= 0)
    assert bounds[-1] > 0
    evidence = epsilon_log_evidence(tails, float(bounds[-1]), after=after)
    assert evidence[-1] == pytest.approx(-np.log(significance), abs=1e-6)
    assert np.all(
      anytime.epsilon_sequence(tails, delta=DELTA, significance=significance)[
        after - 1
      ]
      >= bounds
    )


def test_bounds_come_near_the_truth_and_those_of_any_mechanism_less_so():
  scores = np.random.default_rng(7).normal(2.0, 1.0, 5000)
  mu = anytime.gdp_sequence(tails_of(scores))[-1]
  assert 1.93 < mu < 2.0
  epsilon = anytime.epsilon_sequence(
    tails_of(scores), delta=DELTA, after=np.array([5000])
  )[0]
  truth = float(tradeoff.epsilon_gdp(2.0, DELTA))
  assert 0.4 * truth < epsilon < truth


def test_canaries_that_are_given_away_and_those_that_are_not_are_read():
  for tails in (np.full(50, -np.inf), np.zeros(50), np.full(50, -1e5)):
    mu = anytime.gdp_sequence(tails)
    epsilon = anytime.epsilon_sequence(tails, delta=DELTA)
    assert not np.isnan(mu).any()
    assert np.all(np.isfinite(epsilon))
    assert (mu[-1] > 0) == (epsilon[-1] > 0) == bool(tails[0] < -1)


def test_times_beyond_the_scores_are_refused():
  with pytest.raises(
    ValueError, match=r'after=\[0, 4\]; give integers in \[1, 3\]'
  ):
    anytime.epsilon_sequence(np.zeros(3), delta=DELTA, after=np.array([0, 4]))
