"""The exact law of Algorithm 1's cosines, its limits, and the estimates."""

import math

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from epe_jax import canaries
from epe_jax.canaries.base import derive_root
from papers.one_shot import gaussian_mechanism

# A test of laws makes six Kolmogorov-Smirnov tests, so a right law fails one of
# them with probability at most 6e-6.
_REJECT = 1e-6
_SAMPLES = 3000
_SIGMA = 0.7
_STATISTICS = {
  'mean': lambda g: g.mean(axis=1),
  'variance': lambda g: g.var(axis=1),
  'first': lambda g: g[:, 0],
  'last': lambda g: g[:, -1],
  'product': lambda g: g[:, 0] * g[:, -1],
  'contrast': lambda g: g[:, 0] - g[:, -1],
}


def _seeds(n, seed=0):
  return [np.random.SeedSequence(seed, spawn_key=(i,)) for i in range(n)]


def _many(law, k, d, sigma=_SIGMA, n=_SAMPLES):
  return np.stack(
    [law(seed, sigma, num_canaries=k, dim=d) for seed in _seeds(n)]
  )


def _oracle(k, d, sigma=_SIGMA, n=_SAMPLES):
  """Algorithm 1 as printed, all simulations at once."""
  rng = np.random.default_rng(1)
  c = rng.standard_normal((n, k, d))
  c /= np.linalg.norm(c, axis=-1, keepdims=True)
  rho = c.sum(axis=1) + sigma * rng.standard_normal((n, d))
  cosines = np.einsum('nkd,nd->nk', c, rho)
  return cosines / np.linalg.norm(rho, axis=-1, keepdims=True)


def _wrong(k, d, *, outside=True, normalise=True, triangle=True):
  """The exact law for k <= d, with one of its parts left out."""
  rng = np.random.default_rng(2)
  found = []
  for _ in range(_SAMPLES):
    a = np.diag(np.sqrt(rng.chisquare(d - np.arange(k))))
    if triangle:
      a += np.tril(rng.standard_normal((k, k)), k=-1)
    norms = np.linalg.norm(a, axis=1, keepdims=True)
    a /= norms if normalise else math.sqrt(d)
    u = a.sum(axis=0) + _SIGMA * rng.standard_normal(k)
    rest = _SIGMA**2 * rng.chisquare(d - k) if outside else 0.0
    found.append(a @ u / math.sqrt(u @ u + rest))
  return np.stack(found)


def _smallest_p_value(a, b):
  tests = [stats.ks_2samp(f(a), f(b)) for f in _STATISTICS.values()]
  return np.min(np.array(tests)[:, 1])


@pytest.mark.parametrize(('k', 'd'), [(3, 8), (10, 50), (1, 2), (5, 5)])
def test_exact_law_is_the_law_of_the_simulation_in_d_dimensions(k, d):
  p = _smallest_p_value(
    _many(gaussian_mechanism.simulate_exact, k, d), _oracle(k, d)
  )
  assert p > _REJECT


@pytest.mark.parametrize(('k', 'd'), [(3, 2), (13, 5)])
def test_exact_law_holds_for_more_canaries_than_dimensions(k, d):
  p = _smallest_p_value(
    _many(gaussian_mechanism.simulate_exact, k, d), _oracle(k, d)
  )
  assert p > _REJECT


@pytest.mark.parametrize(('k', 'd'), [(10, 50), (13, 6)])
def test_exact_law_holds_across_blocks_of_rows(monkeypatch, k, d):
  monkeypatch.setattr(gaussian_mechanism, '_BLOCK', 4)
  p = _smallest_p_value(
    _many(gaussian_mechanism.simulate_exact, k, d), _oracle(k, d)
  )
  assert p > _REJECT


@pytest.mark.integration
@pytest.mark.parametrize(('k', 'd'), [(3, 8), (10, 50)])
def test_literal_simulation_follows_the_same_law(k, d):
  p = _smallest_p_value(
    _many(gaussian_mechanism.simulate_literal, k, d, n=1500), _oracle(k, d)
  )
  assert p > _REJECT


@pytest.mark.parametrize('part', ['outside', 'normalise', 'triangle'])
def test_a_law_with_a_part_left_out_is_rejected(part):
  assert _smallest_p_value(_wrong(3, 8), _oracle(3, 8)) > _REJECT
  assert _smallest_p_value(_wrong(3, 8, **{part: False}), _oracle(3, 8)) < (
    _REJECT
  )


def test_a_law_of_the_wrong_sigma_is_rejected():
  wrong = _many(gaussian_mechanism.simulate_exact, 3, 8, sigma=0.8)
  assert _smallest_p_value(wrong, _oracle(3, 8)) < _REJECT


@pytest.mark.parametrize('sigma', [4.22, 0.541])
def test_scaled_moments_tend_to_one_over_sigma_and_one(sigma):
  # Theorem 3.3. Over n k cosines sqrt(d) mean has standard error 1/sqrt(n k)
  # and d var has sqrt(2/(n k)); five of them fail with probability 6e-7.
  n, k, d = 20, 1000, 10**9
  g = math.sqrt(d) * _many(
    gaussian_mechanism.simulate_exact, k, d, sigma=sigma, n=n
  )
  error = 5 / math.sqrt(n * k)
  assert abs(g.mean() - 1 / sigma) < error
  assert abs(g.var(axis=1).mean() * k / (k - 1) - 1) < math.sqrt(2) * error
  # The tolerance would catch a standard deviation of the noise off by a third.
  assert abs(1 / sigma - 1 / (1.33 * sigma)) > error


@pytest.mark.parametrize('d', [2, 3])
def test_without_noise_two_canaries_show_the_law_of_their_angle(d):
  # rho = c_1 + c_2 halves the angle, so both cosines are its half's, and
  # (1 + <c_1, c_2>)/2 = cos(angle / 2)^2 ~ Beta((d - 1)/2, (d - 1)/2).
  g = _many(gaussian_mechanism.simulate_exact, 2, d, sigma=0.0, n=6000)
  np.testing.assert_allclose(g[:, 0], g[:, 1], atol=1e-10)

  def p_value(dim):
    null = stats.beta((dim - 1) / 2, (dim - 1) / 2)
    return stats.kstest(g[:, 0] ** 2, null.cdf)[1]

  assert p_value(d) > _REJECT
  assert p_value(d + 1) < _REJECT


def test_without_noise_a_lone_canary_is_the_release():
  seed = np.random.SeedSequence(0)
  g = gaussian_mechanism.simulate_exact(seed, 0.0, num_canaries=1, dim=1000)
  np.testing.assert_allclose(g, [1.0], rtol=1e-15)


def test_literal_takes_any_family_of_canaries():
  def axes(key, num, dim):
    del key
    return canaries.Canaries(
      num=num,
      dim=dim,
      project=lambda v: v[..., :num],
      superpose=lambda ids, w: jnp.zeros(dim).at[ids].add(w),
    )

  g = gaussian_mechanism.simulate_literal(
    np.random.SeedSequence(0), 0.0, num_canaries=4, dim=100, family=axes
  )
  np.testing.assert_allclose(g, np.full(4, 0.5), rtol=1e-6)


def test_literal_keeps_canaries_and_noise_independent():
  def lone(key, num, dim):
    c = jax.random.normal(key, (dim,))
    c /= jnp.linalg.norm(c)
    return canaries.Canaries(
      num=num,
      dim=dim,
      project=lambda v: (v @ c)[..., None],
      superpose=lambda ids, w: w[0] * c,
    )

  d = 10_000
  g = gaussian_mechanism.simulate_literal(
    np.random.SeedSequence(0), 1.0, num_canaries=1, dim=d, family=lone
  )
  # sqrt(d) g is N(1, 1) up to O(1/d); it would be sqrt(d) with the same key.
  assert abs(math.sqrt(d) * g[0] - 1) < 6


@pytest.mark.parametrize('law', ['simulate_exact', 'simulate_literal'])
def test_cosines_are_fixed_by_the_seed(law):
  draw = getattr(gaussian_mechanism, law)
  one, two = _seeds(2)
  shape = {'num_canaries': 5, 'dim': 30}
  np.testing.assert_array_equal(
    draw(one, 1.0, **shape), draw(one, 1.0, **shape)
  )
  assert np.all(draw(one, 1.0, **shape) != draw(two, 1.0, **shape))


def _estimates(sigmas, seed=0, **changes):
  arguments = {
    'num_canaries': 20,
    'dim': 10_000,
    'delta': 1e-5,
    'simulations': 4,
  }
  return gaussian_mechanism.run_estimators(seed, sigmas, **arguments | changes)


def test_an_estimate_does_not_depend_on_its_company():
  together = _estimates([2.0, 1.0, 0.5], simulations=5)
  alone = _estimates([0.5], simulations=3)
  for name in ('null', 'fitted'):
    np.testing.assert_array_equal(alone[name][0], together[name][2, :3])
  other = _estimates([0.5], seed=1, simulations=3)
  assert np.all(other['null'] != alone['null'])


def test_every_audit_has_noise_and_canaries_of_its_own():
  assert len(np.unique(_estimates([1.0, 2.0])['null'])) == 8


def test_null_reading_is_calibrated_and_fitted_reading_reads_high():
  # sqrt(d) times the mean cosine is 1/sigma with standard error 1/sqrt(k), and
  # epsilon is increasing in it, so the median of 25 estimates lies between the
  # epsilons 5 standard errors of a median of 25 below and above the truth.
  k, sigma, delta, n = 400, 1.0, 1e-6, 25
  found = _estimates(
    [sigma], num_canaries=k, dim=10**8, delta=delta, simulations=n
  )
  margin = 5 * 1.2534 / math.sqrt(n * k)
  low, high = (
    dp_accounting.get_epsilon_gaussian(1 / (1 / sigma + x), delta)
    for x in (-margin, margin)
  )
  assert low < np.median(found['null']) < high
  assert np.median(found['fitted']) > np.median(found['null'])


def test_table_has_a_row_for_each_reading_of_each_sigma():
  sigmas = [2.0, 1.0]
  found = _estimates(sigmas)
  rows = gaussian_mechanism.summarize(
    sigmas, found, num_canaries=20, dim=1000, delta=1e-5
  )
  assert [(r.sigma, r.estimator) for r in rows] == [
    (2.0, 'null'),
    (2.0, 'fitted'),
    (1.0, 'null'),
    (1.0, 'fitted'),
  ]
  values = found['fitted'][1]
  assert rows[3].mean == pytest.approx(sum(values) / 4)
  square = sum((values - values.mean()) ** 2) / 3
  assert rows[3].std == pytest.approx(math.sqrt(square))
  assert rows[3].simulations == 4
  assert rows[3].analytic_epsilon == pytest.approx(
    dp_accounting.get_epsilon_gaussian(1.0, 1e-5)
  )


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    ({'num_canaries': 1}, 'num_canaries=1.*num_canaries >= 2'),
    ({'num_canaries': 0}, 'num_canaries=0.*num_canaries >= 2'),
    ({'dim': 1}, 'dim=1.*dim >= 2'),
    ({'delta': 0.0}, r'delta=0.*in \(0, 1\)'),
    ({'delta': 1.0}, r'delta=1.*in \(0, 1\)'),
    ({'simulations': 0}, 'simulations=0.*simulations >= 1'),
  ],
)
def test_estimates_names_the_argument_and_the_cure(change, message):
  with pytest.raises(ValueError, match=message):
    _estimates([1.0], **change)


def test_two_canaries_without_noise_are_refused_as_they_score_alike():
  with pytest.raises(ValueError, match=r'=2.*num_canaries >= 3'):
    _estimates([1.0, 0.0], num_canaries=2)
  assert np.all(np.isfinite(_estimates([0.0], num_canaries=3)['fitted']))


def test_a_vector_of_normals_has_the_law_and_its_length_alone_decides_it():
  root = derive_root(jax.random.key(5), 0)
  vector = jax.jit(gaussian_mechanism.draw_normals, static_argnums=1)
  for dim in (1, 8191, 100_001):
    x = vector(root, dim)
    assert x.shape == (dim,)
  x = np.asarray(x, np.float64)
  assert stats.kstest(x, stats.norm.cdf).pvalue > 1e-6
  # No number is there twice, as it would be if pieces shared their counters.
  assert len(np.unique(x)) > len(x) - 5000
  for lag in (1, 4096, 8192):
    assert abs(np.corrcoef(x[lag:], x[:-lag])[0, 1]) < 5.5 / 300
  other = vector(derive_root(jax.random.key(6), 0), dim)
  assert abs(np.corrcoef(x, other)[0, 1]) < 5.5 / 300
