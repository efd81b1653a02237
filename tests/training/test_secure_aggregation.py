"""Secure aggregation: the ring, rotation and rounding, and what a server sees."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

from epe_jax import accounting, audit, canaries
from epe_jax.accounting import discrete_noise
from epe_jax.audit import audit_step, audited_algorithm
from epe_jax.audit.attackers import RESIDUAL
from epe_jax.training import (
  aggregation,
  algorithms,
  clipping,
  fedavg,
  secure_aggregation,
)
from tests import helpers

pytestmark = pytest.mark.usefixtures('quick_compilation')

DIM, CLIP = 1024, 0.3


def plan(**changes):
  settings = dict(bits=16, dim=DIM, noise_multiplier=1.0, clients=6.0)
  return secure_aggregation.plan(**settings | changes)


def random_vector(dim, norm=1.0, seed=0):
  x = np.random.default_rng(seed).standard_normal(dim)
  return jnp.asarray(norm * x / np.linalg.norm(x), jnp.float32)


@pytest.mark.parametrize('bits', [2, 8, 16, 30])
def test_a_sum_in_the_ring_is_that_of_python_integers(bits):
  """Even where int32 itself goes round."""
  rng = np.random.default_rng(0)
  messages = rng.integers(-(2**31), 2**31, (40, 300))
  total = np.sum(messages.astype(np.int32), axis=0, dtype=np.int32)
  seen = secure_aggregation.reduce_sum(jnp.asarray(total), bits=bits)
  half = 2 ** (bits - 1)
  for column, number in zip(messages.T, np.asarray(seen)):
    exact = sum(int(x) for x in column)
    assert number == (exact + half) % 2**bits - half


@pytest.mark.integration
@pytest.mark.parametrize('dim', [1, 2, 7, 64, 1000, 2**17 + 1])
def test_a_rotation_is_orthogonal_and_undone(dim):
  size = 1 << (dim - 1).bit_length()
  x = random_vector(dim, 3.0)
  rotated = secure_aggregation.rotate(x, size)
  assert rotated.shape == (size,)
  assert np.linalg.norm(rotated) == pytest.approx(3.0, rel=1e-5)
  back = secure_aggregation.rotate_back(rotated, dim)
  np.testing.assert_allclose(back, x, atol=1e-5)
  if 2 < size <= 1024:
    columns = jax.vmap(lambda e: secure_aggregation.rotate(e, size))(
      jnp.eye(dim)
    )
    np.testing.assert_allclose(np.abs(columns), 1 / math.sqrt(size), rtol=1e-5)
    np.testing.assert_allclose(columns @ columns.T, np.eye(dim), atol=1e-5)


def test_one_large_coordinate_is_spread_and_so_are_equal_ones():
  """Equal ones would be one large coordinate if there were no signs."""
  for x in (np.eye(1, 4096)[0], np.full(4096, 1 / 64)):
    rotated = secure_aggregation.rotate(jnp.asarray(x, jnp.float32), 4096)
    assert np.abs(rotated).max() < 6 / 64


@pytest.mark.integration
def test_rounding_is_to_a_next_integer_and_has_the_right_mean():
  x = jnp.asarray([-2.75, -0.5, 0.0, 0.1, 3.0, 1000.9])
  keys = jax.random.split(jax.random.key(0), 20_000)
  drawn = jax.vmap(lambda key: secure_aggregation.round_stochastically(x, key))(
    keys
  )
  assert np.all((drawn == np.floor(x)) | (drawn == np.floor(x) + 1))
  share = np.asarray(x) - np.floor(x)
  error = np.sqrt(share * (1 - share) / len(keys)) + 2.0**-24
  assert np.all(np.abs(np.mean(drawn, axis=0) - x) <= 4 * error)
  # Coordinates and attempts are independent.
  half = jnp.full(30_001, 0.5)
  one, two = (
    np.asarray(secure_aggregation.round_stochastically(half, keys[0], i))
    for i in (0, 1)
  )
  for a, b in ((one, two), (one[1:], one[:-1]), (one[7500:], one[:-7500])):
    assert abs(np.corrcoef(a, b)[0, 1]) < 4 / math.sqrt(len(a))


@pytest.mark.parametrize('bits', [8, 12, 16])
def test_no_message_is_longer_than_what_is_accounted_for(bits):
  """In whole numbers; drawn once they may be longer than drawn until they fit."""
  for rounding in secure_aggregation.ROUNDINGS:
    way = plan(bits=bits, dim=4096, rounding=rounding)
    made = way.make_aggregation(1.0)
    clip = jax.jit(lambda x, key, made=made: clipping.clip(x, CLIP, made, key))
    steps = 1 / way.granularity
    once = steps + math.sqrt(way.size)
    assert way.ring.l2 <= once
    assert (way.ring.l2 == once) == (rounding == 'stochastic')
    for seed in range(20):
      x = random_vector(4096, 5 * CLIP, seed)
      cut, norm = clip(x, jax.random.key(seed))
      assert float(norm) == pytest.approx(5 * CLIP, rel=1e-4)
      squares = sum(int(n) ** 2 for n in np.asarray(cut))
      assert squares <= way.ring.l2**2
      # No more is lost than is rounded.
      assert squares > (steps * 0.999) ** 2
  assert not np.any(made.encode(x * np.nan, 1.0, CLIP, jax.random.key(0)))


@pytest.mark.parametrize(('norm', 'size'), [(100.0, 4096), (3.0, 64)])
def test_a_rounded_message_has_the_norm_of_its_theorem(norm, size):
  # Kairouz, Liu and Steinke (2021), Proposition 22, with γ = 1 and β = e^-1/2.
  likely = norm**2 + size / 4 + (norm + math.sqrt(size) / 2)
  bound = secure_aggregation.bound_norm(norm, size, 'conditional')
  assert bound == pytest.approx(math.sqrt(likely), rel=1e-12)
  always = secure_aggregation.bound_norm(norm, size, 'stochastic')
  assert always == norm + math.sqrt(size) > bound


def test_a_message_that_is_too_long_is_drawn_again():
  x = jnp.full(1024, 0.5)
  key = jax.random.key(3)
  norms = [
    np.linalg.norm(secure_aggregation.round_stochastically(x, key, i))
    for i in range(40)
  ]
  # The first that is no longer than the median.
  bound = float(np.median(norms[1:]))
  first = next(i for i, n in enumerate(norms) if n <= bound)
  drawn = secure_aggregation.round_conditionally(x, bound, key)
  expected = secure_aggregation.round_stochastically(x, key, first)
  np.testing.assert_array_equal(drawn, expected)


@pytest.mark.parametrize(
  ('std', 'shares'), [(0.7, 0), (0.7, 1), (3.0, 0), (3.0, 30), (500.0, 0)]
)
def test_noise_has_its_law(std, shares):
  """A table gives each outcome its mass, and drawings follow it."""
  table, zero = secure_aggregation.make_table(std, shares)
  own = table[:, 0] / 2.0**32
  mass = own.copy()
  np.add.at(mass, table[:, 1], 1 - own)
  mass /= len(table)
  law = np.exp(discrete_noise.compute_log_law(std**2, zero, shares=shares))
  np.testing.assert_allclose(mass[: law.size], law, atol=1e-9)
  assert mass[law.size :].max(initial=0) < 1e-9
  x = np.arange(-zero, zero + 1)
  # That of one discrete Gaussian is a little less than it says.
  exact = std**2 if shares != 1 else np.sum(law * x**2)
  if shares != 30:
    assert np.sum(law * x**2) == pytest.approx(exact, rel=1e-6)
  if shares == 0:
    np.testing.assert_allclose(
      law, stats.skellam.pmf(x, std**2 / 2, std**2 / 2), atol=1e-9
    )
  ring = accounting.Ring(std, 1.0, DIM, shares)
  drawn = secure_aggregation.draw_noise(jax.random.key(0), 100_000, ring)
  observed = np.bincount(np.asarray(drawn) + zero, minlength=law.size)
  is_likely = law * 100_000 > 10
  expected = np.append(law[is_likely], law[~is_likely].sum()) * 100_000
  counts = np.append(observed[is_likely], observed[~is_likely].sum())
  squares = (counts - expected) ** 2 / np.maximum(expected, 1)
  assert stats.chi2.sf(squares.sum(), len(counts) - 1) > 1e-4


def make_algorithm(way, rate=0.1):
  return fedavg.dp_fedavg(
    helpers.softmax_regression(DIM - 650),
    client_opt=optax.sgd(rate),
    server_opt=optax.sgd(0.5),
    clipping=clipping.fixed(CLIP),
    noise_multiplier=1.0,
    expected_clients=1.0,
    aggregation=lambda z: way,
  )


def make_cohort(order):
  rng = np.random.default_rng(0)
  images = [
    (rng.random((3, 64), np.float32), rng.integers(0, 10, 3)) for _ in range(3)
  ]
  cohort = helpers.make_cohort(
    [images[i] for i in order], batch=3, chunk=1, ids=order
  )
  x, y = jax.tree.leaves(cohort.batches)
  return cohort._replace(batches={'pixels': x, 'label': y.astype(np.int32)})


def inject(num):
  vectors = [random_vector(DIM, seed=j) for j in range(num)]
  return algorithms.Injection(
    lambda: sum(vectors),
    jnp.asarray(num, jnp.int32),
    lambda encode: sum(encode(x, j) for j, x in enumerate(vectors)),
  )


def run_rounds(algorithm, injection, *orders):
  """A first round of each of these clients, by one program."""
  params = helpers.softmax_regression(DIM - 650).init(jax.random.key(0))
  step = jax.jit(lambda *args: algorithm.step(*args[:2], injection, *args[2:]))
  init = algorithm.init(params)
  return [step(init, make_cohort(x), *helpers.keys()) for x in orders]


ALL = (0, 1, 2)


@pytest.mark.integration
@pytest.mark.parametrize('bits', [6, 16])
def test_the_server_sees_the_sum_of_all_messages_modulo_the_ring(bits):
  """Each client and canary is a message, and in a ring of 6 bits some go round."""
  way = plan(bits=bits, granularity=1 / 40)
  way = way.make_aggregation(1.0)._replace(
    decode=lambda total, clip_norm: total.astype(jnp.float32)
  )
  training_key, noise_key = helpers.keys()
  ((state, round),) = run_rounds(make_algorithm(way), inject(2), ALL)
  total = way.draw(jax.random.split(noise_key)[0], DIM, CLIP)
  of_canaries = jax.random.fold_in(training_key, aggregation.ROUNDING)
  for j in range(2):
    key = jax.random.fold_in(of_canaries, j)
    total += way.encode(random_vector(DIM, seed=j), CLIP, CLIP, key)
  algorithm = make_algorithm(way)
  singles = run_rounds(algorithm, algorithms.no_canaries(), [0], [1], [2])
  assert all(np.any(one.client_part) for _, one in singles)
  alone = sum(one.client_part for _, one in singles)
  np.testing.assert_array_equal(round.client_part, alone)
  total += alone.astype(jnp.int32)
  seen = secure_aggregation.reduce_sum(total, bits=bits)
  np.testing.assert_array_equal(round.aggregate, seen)
  wrapped = np.count_nonzero(seen != total)
  assert int(round.metrics.wrapped) == int(state.noise_state) == wrapped
  assert (wrapped > 0) == (bits == 6)


@pytest.mark.integration
def test_a_round_on_a_fine_grid_is_that_of_the_clients_and_the_canaries():
  way = plan(bits=30).make_aggregation(1.0)
  ((_, round),) = run_rounds(make_algorithm(way), inject(2), ALL)
  plain = make_algorithm(aggregation.float32(1.0))
  ((_, expected),) = run_rounds(plain, inject(2), ALL)
  # Less 7e-5 for what float32 rounds, and what the grid does.
  np.testing.assert_allclose(
    np.asarray(round.client_part), np.asarray(expected.client_part), atol=1e-4
  )
  drawn = way.draw(jax.random.split(helpers.keys()[1])[0], DIM, CLIP)
  left = round.aggregate - round.client_part - way.decode(drawn, CLIP)
  direction = np.asarray(inject(2).direction())
  np.testing.assert_allclose(np.asarray(left), CLIP * direction, atol=1e-4)
  for name in ('loss', 'fraction_unclipped', 'update_norm'):
    found, known = (float(getattr(x.metrics, name)) for x in (round, expected))
    assert found == pytest.approx(known, rel=1e-4)


def test_canaries_of_a_round_send_a_message_each_and_others_send_none():
  rows = audit_step.CanaryRows(
    ids=np.array([[3, 1, 0], [2, 4, 0]]),
    weights=np.array([[1, 0, 0], [1, 1, 0.0]]),
  )
  family = canaries.from_matrix(jnp.eye(5))
  for t, sent in enumerate(([3], [2, 4])):
    injection = audited_algorithm.make_injection(family, rows, jnp.int32(t))
    total = injection.messages(lambda x, j: x * 10.0 ** (j + 1))
    expected = np.zeros(5)
    expected[sent] = 10.0 ** np.arange(1, len(sent) + 1)
    np.testing.assert_array_equal(total, expected)


def test_a_sum_of_canaries_without_its_parts_is_refused():
  injection = inject(2)._replace(messages=None)
  with pytest.raises(ValueError, match='vectors enter this sum one by one'):
    run_rounds(make_algorithm(plan().make_aggregation(1.0)), injection, ALL)


def test_noise_of_up_to_65536_steps_is_planned():
  found = plan(bits=30, granularity=2.0**-16)
  assert found.ring.std == 2.0**16
  with pytest.raises(ValueError, match='the grid is too fine'):
    plan(bits=30, granularity=1 / (2.0**16 + 0.5))


def test_shares_of_more_than_half_a_step_have_a_bound():
  # 0.51 steps of each of 6 clients.
  found = plan(granularity=1 / (0.51 * math.sqrt(6)), noise='discrete_gaussian')
  assert found.ring.shares == 6


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'clients': 0.5}, 'clients=0.5'),
    ({'bits': 6, 'clients': 1e4}, r'bits=6: .* give at least 10 bits'),
    ({'granularity': 1e-6}, 'granularity=1e-06 .* give more than 1.53e-05'),
    (
      {'granularity': 1.0, 'noise': 'discrete_gaussian'},
      'less than half a step of the grid',
    ),
  ],
)
def test_what_makes_no_ring_is_refused_with_a_cure(changes, message):
  with pytest.raises(ValueError, match=message):
    plan(**changes)


def test_the_default_grid_is_as_fine_as_the_ring_has_room_for():
  """Sums of the most messages that all are equal do not wrap around the ring."""
  way = plan(bits=10, dim=4096, clients=20.0, noise_multiplier=0.5)
  made, half = way.make_aggregation(0.5), 2**9
  keys = jax.random.split(jax.random.key(0), 46)
  x = jnp.full(4096, CLIP / 64)
  encode = jax.jit(lambda key: made.encode(x, 1.0, CLIP, key))
  total = sum(map(encode, keys)) + made.draw(keys[0], 4096, CLIP)
  largest = np.abs(total).max()
  # The bound is for a chance of 1e-6, and half of its variance is that of rounding.
  assert half / 3 < largest < half
  # Bernstein's inequality, of this many messages at most.
  most = 20 + 6 * math.sqrt(20)
  variance = (most**2 / 4096 + 0.5**2) / way.granularity**2 + most / 4
  chance = 2 * 4096 * math.exp(-(half**2) / 2 / (variance + half / 3))
  assert chance == pytest.approx(secure_aggregation.WRAP, rel=1e-6)
  finer = [plan(bits=b).granularity for b in (8, 12, 16)]
  assert finer[0] > 8 * finer[1] > 64 * finer[2]
  assert plan(bits=30).ring.std == pytest.approx(2**16)


@pytest.mark.integration
@pytest.mark.parametrize(
  'law',
  [
    'skellam',
    'discrete_gaussian',
  ],
)
def test_without_updates_the_attacker_finds_the_mu_of_a_gaussian(law):
  """The mean of 300 scores of a fixed seed is within 3 standard errors of 1/z."""
  rounds, num = 30, 300
  way = plan(bits=18, noise=law, clients=12.0)
  included = np.zeros((rounds, 2 * num), bool)
  included[np.arange(num) % rounds, np.arange(num)] = True
  algorithm = make_algorithm(way.make_aggregation(1.0), rate=0.0)
  cosines, scalars = helpers.run_audited(
    algorithm, included, make_cohort(ALL), DIM
  )
  record = audit.make_record(
    cosines,
    scalars,
    included=included,
    dim=DIM,
    delta=1e-5,
    noise_multiplier=1.0,
    ring=way.ring,
  )
  scores = RESIDUAL.score(record)
  assert scores is not None
  assert scores.contradictions == scores.failed_checks == ()
  error = 3 / math.sqrt(num)
  assert abs(np.mean(scores.scores.observed) - 1.0) < error
  assert abs(np.mean(scores.scores.unobserved)) < error
  # What is allowed is that of integers in all coordinates.
  limit = RESIDUAL.analytic_epsilon(record, 1e-5)
  assert limit == accounting.epsilon_of_ring(way.ring, delta=1e-5)
  gaussian = accounting.epsilon_of_releases(1.0, delta=1e-5).epsilon
  assert gaussian < limit.epsilon < 1.1 * gaussian
