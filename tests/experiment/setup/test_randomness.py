"""What a run draws from: its seed, or a secret with a key for each purpose."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from epe_jax.data import federated
from epe_jax.experiment.setup import (
  build,
  participation,
  randomness,
  threefry_seeds,
)
from tests.helpers import load_config

SECRET = bytes(range(32))
DATA = federated.from_arrays(
  {'x': np.arange(50)}, np.array([f'c{i:02}' for i in range(50)])
)


def test_secrets_are_long_and_differ():
  one, two = randomness.draw_secret(), randomness.draw_secret()
  assert len(one) == 32
  assert one != two


def test_each_purpose_has_a_key_of_its_own_that_follows_from_the_secret():
  one, again = (randomness.derive_randomness(SECRET) for _ in range(2))
  other = randomness.derive_randomness(SECRET[:-1] + b'x')
  seeds = lambda r: [r.clients, r.canaries, r.order]
  assert seeds(one) == seeds(again)
  assert len({*seeds(one), *seeds(other)}) == 6
  for name in ('noise', 'training'):
    found, same, different = (
      jax.random.key_data(getattr(r, name)) for r in (one, again, other)
    )
    np.testing.assert_array_equal(found, same)
    assert (np.asarray(found) != np.asarray(different)).all()
  # 256 bits decide who takes part, 128 the noise.
  assert all(seed.bit_length() > 200 for seed in seeds(one))
  assert jax.random.key_data(one.noise).size == 4
  assert SECRET.hex() not in repr(one)
  assert not any(str(seed) in repr(one) for seed in seeds(one))


@pytest.mark.parametrize('secret', [None, SECRET], ids=['seed', 'secret'])
def test_the_noise_of_a_run_has_a_key_that_trains_nobody(secret):
  config = load_config('digits', simulation=secret is None)
  found = build.build(config, secret=secret).randomness
  words = lambda key: np.asarray(jax.random.key_data(key))
  noise, training = words(found.noise), words(found.training)
  # Not in part either: a key of 128 bits is two of 64.
  for half in noise.reshape(-1, 2):
    assert not np.intersect1d(half, training).size
  one, two = (
    np.asarray(jax.random.normal(key, (10_000,)))
    for key in (found.noise, found.training)
  )
  assert abs(np.corrcoef(one, two)[0, 1]) < 5 / np.sqrt(10_000)
  # What the model begins with and canaries are public in a simulation.
  for name in ('init', 'canary'):
    public = words(randomness.derive_key(config.seed, name))
    assert not np.intersect1d(noise, public).size
    assert not np.intersect1d(training, public).size


@pytest.mark.integration
def test_generators_are_known_by_what_they_draw():
  randomness.fingerprint_generators.cache_clear()
  first = randomness.fingerprint_generators()
  randomness.fingerprint_generators.cache_clear()
  assert randomness.fingerprint_generators() == first
  randomness.fingerprint_generators.cache_clear()
  try:
    with jax.threefry_partitionable(False):
      assert randomness.fingerprint_generators() != first
  finally:
    randomness.fingerprint_generators.cache_clear()


@pytest.mark.parametrize('word', [0, 3])
def test_each_word_of_a_key_of_128_bits_matters(word):
  key = threefry_seeds.wrap_key(SECRET[:16])
  changed = bytearray(SECRET[:16])
  changed[4 * word] ^= 1
  other = threefry_seeds.wrap_key(bytes(changed))
  for draw in (
    lambda k: jax.random.bits(k, (100,)),
    lambda k: jax.random.bits(jax.random.fold_in(k, 3), (100,)),
    lambda k: jax.random.bits(jax.random.split(k)[1], (100,)),
  ):
    one, two = draw(key), draw(other)
    # 3,200 bits, of which half differ; five standard deviations.
    differ = int(np.unpackbits(np.asarray(one ^ two).view(np.uint8)).sum())
    assert abs(differ - 1600) < 5 * np.sqrt(800)


def test_its_bits_follow_from_the_place_alone():
  key = threefry_seeds.wrap_key(SECRET[:16])
  whole = jax.random.bits(key, (10,))
  np.testing.assert_array_equal(jax.random.bits(key, (4,)), whole[:4])
  rounds = jnp.arange(3)
  draw = lambda t: jax.random.normal(jax.random.fold_in(key, t), (5,))
  alone = jnp.stack([draw(t) for t in rounds])
  np.testing.assert_array_equal(jax.jit(jax.vmap(draw))(rounds), alone)


def test_its_normals_are_normal():
  key = threefry_seeds.wrap_key(SECRET[:16])
  drawn = np.asarray(jax.random.normal(key, (100_000,)))
  # Wrong once in a million keys.
  assert stats.kstest(drawn, 'norm').pvalue > 1e-6
  first = jax.random.wrap_key_data(
    jax.random.key_data(key)[:2], impl='threefry2x32'
  )
  half = np.asarray(jax.random.normal(first, (100_000,)))
  # Whoever knows half of a key knows nothing of what it draws.
  assert abs(np.corrcoef(drawn, half)[0, 1]) < 5 / np.sqrt(100_000)


def test_a_simulation_has_no_secret_and_another_run_must_have_one():
  for simulation, secret in ((True, SECRET), (False, None)):
    config = load_config('digits', simulation=simulation)
    with pytest.raises(ValueError, match=f'simulation={simulation}, with'):
      build.build(config, secret=secret)


def plan_of(secret, **changes):
  config = load_config(
    'digits',
    rounds=20,
    clients_per_round=10,
    **changes,
    simulation=secret is None,
  )
  seeds = randomness.derive_randomness(secret) if secret else None
  return participation.plan_participation(
    config,
    DATA,
    client_seed=seeds.clients if seeds else config.seed,
    canary_seed=seeds.canaries if seeds else config.seed,
  )


@pytest.mark.parametrize(
  'kind', ['shuffled', 'one_order', 'fixed_size', 'poisson', 'limited']
)
def test_whoever_knows_the_config_does_not_know_who_takes_part(kind):
  changes = {'participation.kind': kind}
  secret, again, seeded = (
    [set(plan.clients(t).tolist()) for t in range(20)]
    for plan in (
      plan_of(SECRET, **changes),
      plan_of(SECRET, **changes),
      plan_of(None, **changes),
    )
  )
  assert secret == again
  assert secret != seeded
  # Each client of a round is in the other's round with chance 1/5.
  both = sum(len(a & b) for a, b in zip(secret, seeded))
  size = sum(map(len, secret))
  assert abs(both - size / 5) < 5 * np.sqrt(size * 0.16)


def test_whoever_knows_the_config_does_not_know_coins_and_assigned_rounds():
  changes = {
    'canaries.schedule': 'coin_flip',
    'canaries.observed': 100,
    'canaries.unobserved': 100,
  }
  secret, again, seeded = (
    plan_of(s, **changes) for s in (SECRET, SECRET, None)
  )
  np.testing.assert_array_equal(secret.canaries, again.canaries)
  for name in ('observed coins', 'seats'):
    one, two = (
      p.canaries.any(axis=0)
      if name == 'observed coins'
      else p.assigned.argmax(0)
      for p in (secret, seeded)
    )
    chance = 1 / 2 if name == 'observed coins' else 1 / 20
    error = np.sqrt(chance * (1 - chance) / 200)
    assert abs(np.mean(one == two) - chance) < 5 * error
