"""Exact noise: the law of its integers, and whom a release hides, to the last bit."""

from fractions import Fraction
import functools
import math

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import optax
import pytest
from scipy import stats

from epe_jax.canaries import threefry
from epe_jax.experiment.setup import threefry_seeds
from epe_jax.training import (
  aggregation,
  algorithms,
  clipping,
  exact_noise,
  fedavg,
)
from tests import helpers, naming_attack

TRUE = jnp.ones((), bool)
SPREAD, SMALL_STD, ROWS = 512, 880, 2**14
STD = exact_noise.STD
# More hits in as many releases have a chance of 6e-6 for who is right in 6.8 %.
RELEASES, LUCK = 20, 8


@functools.cache
def masses():
  """Outcome -> its probability by the table, in units of 2^-78."""
  out = dict.fromkeys(range(-ROWS // 2, ROWS // 2), 0)
  for row, (high, low, other) in enumerate(exact_noise.make_table().tolist()):
    threshold = (high << 32) + low
    out[row - ROWS // 2] += threshold
    out[other - ROWS // 2] += 2**64 - threshold
  assert sum(out.values()) == 2**78
  return out


@functools.cache
def tails():
  """[i] -> the probability that the outcome is at least i - 2^13."""
  values = list(masses().values())
  out, total = [0] * (ROWS + 1), 0
  for i in reversed(range(ROWS)):
    total += values[i]
    out[i] = total
  return out


def tail(x):
  """P(512 A + B >= x), exactly."""
  total = 0
  for b, mass in masses().items():
    first = -(-(x - b) // SPREAD) + ROWS // 2
    total += mass * tails()[min(max(first, 0), ROWS)]
  return Fraction(total, 2**156)


def secret_key(number):
  return threefry_seeds.wrap_key(np.random.default_rng(number).bytes(16))


def draw(dim, number=0):
  key = secret_key(number)
  return jax.jit(exact_noise.draw_integers, static_argnums=1)(
    key, dim, always=TRUE
  )


def test_the_table_is_a_discrete_gaussian_but_for_2_to_the_minus_64():
  with mpmath.workdps(60):
    law = {
      x: mpmath.exp(-mpmath.mpf(x * x) / (2 * SMALL_STD**2)) for x in masses()
    }
    # By Poisson summation; what is left out of the sum is below 10^-1000.
    total = SMALL_STD * mpmath.sqrt(2 * mpmath.pi)
    unit = mpmath.mpf(2) ** -78
    inside = sum(abs(masses()[x] * unit - p / total) for x, p in law.items())
    outside = 1 - sum(law.values()) / total
    variation = (inside + outside) / 2
    # Two of them are drawn, and their sum is off by as little again.
    s = SMALL_STD / mpmath.sqrt(SPREAD**2 + 1)
    smooth = 2 * mpmath.exp(-2 * mpmath.pi**2 * s**2)
    assert 2 * variation + 2 * smooth < mpmath.mpf(2) ** -63
    assert variation > mpmath.mpf(2) ** -80, 'the bound is not of nothing'
    assert smooth < mpmath.mpf(2) ** -80


def test_the_largest_value_is_that_of_the_last_rows():
  most = max(x for x, mass in masses().items() if mass)
  assert SPREAD * most + most == exact_noise.MAX


@pytest.mark.parametrize(
  'deviations', [0.0, 0.5, 1.0, 2.0, 4.0, 5.5, 6.0, 7.0, 7.1, 8.0]
)
def test_tails_are_right_to_a_ten_thousandth(deviations):
  x = round(deviations * STD)
  found = tail(x)
  expected = float(mpmath.ncdf(-(x - 0.5) / STD))
  assert deviations < 7.1 or expected < 1e-12
  assert float(found) == pytest.approx(expected, rel=1e-4)
  assert tail(-x) + tail(x + 1) == 1, 'the law is symmetric'


def test_float32_normals_have_no_such_tails():
  """What the test above would say of the noise of a simulation."""
  rarest = jnp.array([jnp.nextafter(-1.0, 0.0), 1 - 2.0**-23], jnp.float32)
  low, high = np.sqrt(2) * np.asarray(jax.lax.erf_inv(rarest))
  assert -5.43 < low < -5.41
  assert 5.21 < high < 5.42
  assert stats.norm.sf(high) > 1e-8, 'so much is lost of each tail'


@pytest.mark.integration
def test_each_integer_follows_from_key_and_position_as_python_integers():
  """The slow way, of some: Threefry in NumPy, and a choice of whole numbers."""
  dim, number = 300, 7
  words = np.asarray(jax.random.bits(secret_key(number), (4,), jnp.uint32))
  position = np.arange(dim, dtype=np.uint32)

  def draw_words(purpose):
    a, b = (
      threefry.draw_words(
        threefry.Root(*root), position, np.full(dim, purpose, np.uint32)
      )
      for root in (words[:2], words[2:])
    )
    return (a[0] ^ b[0]).tolist(), (a[1] ^ b[1]).tolist()

  table = exact_noise.make_table().tolist()

  def choose(row, high, low):
    threshold_high, threshold_low, other = table[row]
    is_own = (high << 32) + low < (threshold_high << 32) + threshold_low
    return (row if is_own else other) - ROWS // 2

  rows, (a, b), (c, d) = draw_words(0)[0], draw_words(1), draw_words(2)
  expected = [
    SPREAD * choose(row % ROWS, a[i], b[i])
    + choose((row >> 14) % ROWS, c[i], d[i])
    for i, row in enumerate(rows)
  ]
  assert np.asarray(draw(dim, number)).tolist() == expected
  # Of whatever length the rest is.
  assert np.asarray(draw(40, number)).tolist() == expected[:40]
  assert np.mean(np.asarray(draw(dim, number + 1)) == expected) < 0.1


def test_many_draws_have_the_moments_the_law_and_the_low_bits():
  n = 1 << 20
  x = np.asarray(draw(n))
  z = x / STD
  # Each by five standard errors: 3e-6 in all.
  for power, expected, variance in (
    (1, 0, 1),
    (2, 1, 2),
    (3, 0, 15),
    (4, 3, 96),
  ):
    error = np.sqrt(variance / n)
    assert np.mean(z**power) == pytest.approx(expected, abs=5 * error)
  assert stats.kstest(z, 'norm').pvalue > 1e-6
  assert stats.kstest(1.001 * z + 0.01, 'norm').pvalue < 1e-6
  for modulus in (2, 64, 512, 1000):
    counts = np.bincount(x % modulus, minlength=modulus)
    assert stats.chisquare(counts).pvalue > 1e-6
  neighbours = np.corrcoef(z[1:], z[:-1])[0, 1]
  assert abs(neighbours) < 5 / np.sqrt(n)
  for deviations in (3, 4):
    p = stats.norm.sf(deviations) * 2
    hits = np.sum(np.abs(z) > deviations)
    assert abs(hits - n * p) < 5 * np.sqrt(n * p)
  assert np.abs(x).max() < exact_noise.MAX


def exact_algorithm(dim, *, clip=None, max_clients=8, **changes):
  settings = dict(
    client_opt=optax.sgd(0.1),
    server_opt=optax.sgd(1.0),
    clipping=clip or clipping.fixed(0.5),
    noise_multiplier=0.3,
    expected_clients=4.0,
    aggregation=exact_noise.exact(max_clients),
  )
  task = helpers.linear_task(dim - 1)
  return task, fedavg.dp_fedavg(task, **settings | changes)


def one_round(task, algorithm, cohort, injection=None, seed=0):
  state = algorithm.init(task.init(jax.random.key(0)))
  return jax.jit(algorithm.step)(
    state, cohort, injection or algorithms.no_canaries(), *helpers.keys(seed)
  )


def five_clients(dim, chunk=1, order=(0, 1, 2, 3, 4)):
  clients = helpers.random_clients(
    np.random.default_rng(0), [5, 2, 9, 4, 1], dim - 1
  )
  clients = [clients[i] for i in order]
  return helpers.make_cohort(clients, batch=4, chunk=chunk, ids=order)


@pytest.mark.integration
def test_a_sum_that_an_attacker_can_name_is_hidden_in_a_release():
  attacks = {
    name: naming_attack.ATTACKS[name]
    for name in ('values of float32 normals', 'likelihood by the table')
  }
  for hits in naming_attack.count_hits(
    exact_noise.exact(100), RELEASES, attacks
  ).values():
    assert hits <= LUCK


@pytest.mark.integration
def test_float32_noise_does_not_hide_such_a_sum():
  """Else the test above would show nothing."""
  name = 'values of float32 normals'
  attacks = {name: naming_attack.ATTACKS[name]}
  assert naming_attack.count_hits(aggregation.float32, 8, attacks) == {name: 8}


@pytest.mark.parametrize('z', [0.01, 0.3, 20.0])
def test_no_vector_is_longer_than_the_noise_allows(z):
  """In whole numbers, which are not rounded: |x| <= σ / z."""
  rng, clip_norm, clients = np.random.default_rng(0), 0.037, 50
  way = exact_noise.exact(clients)(z)
  shift = count_shift(clients, z)
  clip = jax.jit(lambda x: clipping.clip(x, clip_norm, way))
  # A twice random walk of lengths, and all in one coordinate.
  for x in (
    rng.standard_normal(100_003),
    rng.standard_normal(4097) ** 5,
    np.eye(1, 700)[0],
    np.ones(2**16),
  ):
    direction = x / np.linalg.norm(x)
    for scale in (1e-4, 1.0, 1e4):
      x = scale * clip_norm * direction
      steps, norm = clip(jnp.asarray(x, jnp.float32))
      squares = sum(int(n) ** 2 for n in np.asarray(steps))
      allowed = (mpmath.mpf(exact_noise.STD) / 2**shift / z) ** 2
      assert squares <= allowed * (1 - mpmath.mpf(10) ** -10)
      assert float(norm) == pytest.approx(np.linalg.norm(x), rel=1e-5)
      if scale >= 1:
        # What is lost is 3e-5, and half a step of each coordinate.
        lost = 1 - math.sqrt(squares / allowed)
        assert lost < 4e-5 + math.sqrt(x.size / allowed)


def count_shift(clients, z):
  """Halvings after which the largest sum and noise fit an int32."""
  largest = clients * exact_noise.STD / z + exact_noise.MAX
  return max(0, math.ceil(math.log2(largest / (2**31 - 1))))


def test_a_norm_is_right_to_the_stated_rounding_where_a_plain_sum_is_not():
  for dim in (1, 511, 512, 513, 100_003, 2**20 + 1):
    x = np.random.default_rng(dim).random(dim, np.float32)
    found = float(aggregation.norm_by_halves(jnp.asarray(x)))
    expected = np.linalg.norm(x.astype(np.float64))
    assert abs(found / expected - 1) < aggregation.bound_rounding(dim) / 2
  # One after the other, ones do not get beyond 2^24.
  assert aggregation.bound_rounding(2**26) < 4e-5


@pytest.mark.parametrize('z', [0.001, 0.3, 4.0])
def test_noise_has_the_stated_std_on_any_grid(z):
  way, dim = exact_noise.exact(1000)(z), 20_000
  draw_in_steps = jax.jit(way.draw, static_argnums=1)
  for clip_norm in (1e-6, 0.5, 3e4):
    drawn = draw_in_steps(jax.random.key(3), dim, jnp.float32(clip_norm))
    assert drawn.dtype == jnp.int32
    std = np.asarray(way.decode(drawn, clip_norm)).std()
    assert std == pytest.approx(z * clip_norm, rel=5 / np.sqrt(2 * dim))
    assert abs(np.mean(drawn)) < 5 * np.std(drawn) / np.sqrt(dim)


def test_a_sum_and_noise_that_do_not_fit_are_refused():
  exact_noise.exact(1000)(0.0001)
  with pytest.raises(
    ValueError, match=r'noise_multiplier=1e-05 .*1000 clients'
  ):
    exact_noise.exact(1000)(0.00001)
  # The largest that is not refused fits even if all send all in one coordinate.
  way, clients = exact_noise.exact(100)(0.001), 100
  one = jax.jit(lambda x: clipping.clip(x, 1.0, way)[0])(jnp.ones(1))
  most = clients * int(one[0])
  reach = exact_noise.MAX >> count_shift(clients, 0.001)
  assert 2**30 < most + reach < 2**31


@pytest.mark.integration
def test_a_round_is_that_of_float32_but_for_its_noise():
  """The noise of the round by itself, and clients and canaries by theirs."""
  dim = 400
  direction = np.zeros(dim, np.float32)
  direction[3] = 2.0
  put_in = helpers.injection(jnp.asarray(direction), 2)
  infos = {}
  for name, make in (
    ('float32', aggregation.float32),
    ('exact', exact_noise.exact(8)),
  ):
    task, algorithm = exact_algorithm(dim, aggregation=make)
    _, infos[name] = one_round(task, algorithm, five_clients(dim), put_in)
  one, two = infos['exact'], infos['float32']
  np.testing.assert_allclose(one.client_part, two.client_part, atol=2e-6)
  metrics = one.by_name()
  for name, value in two.by_name().items():
    if name != 'aggregate_norm':
      assert float(metrics[name]) == pytest.approx(float(value), rel=1e-4)
  canaries = 0.5 * direction / 4
  left = np.asarray(one.aggregate - one.client_part) - canaries
  key, _ = jax.random.split(helpers.keys()[1])
  way = exact_noise.exact(8)(0.3)
  drawn = way.decode(way.draw(key, dim, jnp.float32(0.5)), jnp.float32(0.5)) / 4
  # Clients and canaries are 3e-5 shorter.
  np.testing.assert_allclose(left, drawn, atol=1e-5)


@pytest.mark.integration
def test_the_order_of_clients_and_chunks_changes_no_bit():
  dim, aggregates = 300, []
  task, algorithm = exact_algorithm(dim)
  for chunk, order in ((1, (0, 1, 2, 3, 4)), (1, (4, 2, 0, 3, 1))):
    cohort = five_clients(dim, chunk, order)
    aggregates.append(one_round(task, algorithm, cohort)[1].aggregate)
  np.testing.assert_array_equal(*aggregates)


@pytest.mark.integration
def test_a_client_that_has_diverged_sends_nothing_and_shows_in_the_metrics():
  dim = 5
  task, algorithm = exact_algorithm(dim)
  cohort = five_clients(dim)
  cohort.batches['x'][2] = np.nan
  _, info = one_round(task, algorithm, cohort)
  assert np.isfinite(info.aggregate).all()
  assert not np.isfinite(info.metrics.update_norm)


def test_a_number_that_is_not_finite_is_sent_as_zero():
  way = exact_noise.exact(10)(1.0)
  x = jnp.array([jnp.nan, jnp.inf, -jnp.inf, 0.5])
  sent = way.encode(x, 1.0, jnp.float32(1.0))
  np.testing.assert_array_equal(sent[:3], 0)
  assert sent[3] > 0


@pytest.mark.integration
def test_the_count_of_adaptive_clipping_is_hidden_in_whole_steps():
  """Each client is worth the same steps, and the noise is of 2 count_noise."""
  sigma, m = 3.0, 40.0
  rule = clipping.adaptive(
    0.1,
    quantile=0.5,
    learning_rate=1.0,
    count_noise=sigma,
    expected_clients=m,
    aggregation=exact_noise.exact(100),
  )
  way = exact_noise.exact(100)(2 * sigma)
  keys = jax.random.split(jax.random.key(0), 2_000)
  update = lambda key, n: rule.update(key, jnp.float32(1), n, jnp.float32(30))
  update = jax.jit(jax.vmap(update, in_axes=(0, None)))
  vote = math.floor(
    exact_noise.STD / (2 * sigma) * (1 - aggregation.bound_rounding(1))
  )
  for n in (10, 25):
    moved = np.asarray(update(keys, jnp.float32(n)))
    b = np.log(moved) / -1.0 + 0.5
    expected = (n - 15) / m + 0.5
    assert b.mean() == pytest.approx(expected, abs=5 * sigma / m / 2_000**0.5)
    assert b.std() == pytest.approx(sigma / m, rel=5 / np.sqrt(4_000))
    drawn = int(way.draw(keys[0], 1, 1.0)[0])
    steps = (2 * n - 30) * vote + drawn
    by_hand = steps * (2 * sigma / exact_noise.STD) / 2 / m + 0.5
    assert b[0] == pytest.approx(by_hand, abs=2e-6)


def test_without_noise_nothing_is_rounded():
  jaxprs = []
  for make in (aggregation.float32, exact_noise.exact(8)):
    task, algorithm = exact_algorithm(
      30, aggregation=make, noise_multiplier=0.0
    )
    state = algorithm.init(task.init(jax.random.key(0)))
    args = five_clients(30), algorithms.no_canaries(), *helpers.keys()
    jaxprs.append(str(jax.make_jaxpr(algorithm.step)(state, *args)))
  assert jaxprs[0] == jaxprs[1]
