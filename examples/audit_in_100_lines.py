"""A whole audit, from canaries to ε, with the core of the package alone.

DP-FedAvg trains a linear model on 20 synthetic clients a round. One hundred canaries
take part in one round each, one hundred others in none. Three attackers score all of
them, and how well a score tells the two groups apart is ε.

  python examples/audit_in_100_lines.py
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from epe_jax import accounting, audit, canaries, epsilon, sampling, training
from epe_jax.types import Task

DIM, ROUNDS, CLIENTS = 4000, 40, 20
NUM = 100  # Observed canaries, and as many unobserved ones.
CLIP_NORM, NOISE_MULTIPLIER, DELTA = 0.1, 0.5, 1e-4


def loss(params, batch, key=None):
  del key  # For dropout and the like.
  return (batch['x'] @ params - batch['y']) ** 2


def draw_cohort(rng):
  """Clients with two batches of four: [chunks, chunk, steps, b, ...]."""
  shape = (CLIENTS, 1, 2, 4)
  x = rng.normal(size=(*shape, DIM)).astype(np.float32)
  return training.Cohort(
    batches={'x': x, 'y': x[..., :50].sum(axis=-1)},
    mask=jnp.ones(shape, bool),
    clients=jnp.arange(CLIENTS)[:, None],
  )


def train_and_observe(seed):
  """Trains with canaries and returns the record of all that attackers saw."""
  rng = np.random.default_rng(seed)
  schedule = sampling.once_per_period(rng, rounds=ROUNDS, num=NUM)
  included = np.pad(schedule, ((0, 0), (0, NUM)))
  all_canaries = canaries.sphere(jax.random.key(seed), 2 * NUM, DIM)
  attackers = {
    'rounds': audit.all_iterates(
      all_canaries, rounds=ROUNDS, views=('aggregate', 'residual')
    )
  }
  algorithm = training.dp_fedavg(
    Task(lambda key: jnp.zeros(DIM), loss, lambda p, b: {'loss': loss(p, b)}),
    client_opt=optax.sgd(1e-4),
    server_opt=optax.sgd(1.0),
    clipping=training.clipping.fixed(CLIP_NORM),
    noise_multiplier=NOISE_MULTIPLIER,
    expected_clients=CLIENTS + NUM / ROUNDS,
  )
  audited = audit.audited(algorithm, all_canaries, included, attackers)
  state, step = audited.init(jnp.zeros(DIM)), jax.jit(audited.step)
  for t in range(ROUNDS):
    training_key, noise_key = jax.random.split(jax.random.key(seed + t + 1))
    state, _ = step(state, draw_cohort(rng), training_key, noise_key)
  return audit.make_record(
    audit.score_observers(state, attackers),
    state.rounds,
    included=included,
    dim=DIM,
    delta=DELTA,
  )


def estimate(record):
  """Returns (point estimate, lower bound at 95 %) for each attacker, by name."""
  # An unobserved canary is scored in the round of an observed one.
  rounds = audit.assign_held_out(record.included)
  residual = audit.score_residual(
    record.cosines['residual'], record.included, rounds, record.rounds
  )
  own_round = audit.score_own_round(record.trace, rounds)
  largest = audit.max_over_rounds(record.trace)
  scores = {
    'every round (maximum)': (largest, epsilon.Unknown()),
    'every round': (own_round, epsilon.Sphere(DIM)),
    'worst case': (residual, epsilon.Gaussian()),
  }
  estimates = {}
  for name, (x, null) in scores.items():
    both = epsilon.Scores(x[record.observed], x[~record.observed], null=null)
    point = epsilon.two_gaussian(both, delta=DELTA, std='null')
    bound = epsilon.lower_bound(both, delta=DELTA)
    estimates[name] = float(point.epsilon), float(bound.epsilon)
  return estimates


if __name__ == '__main__':
  limit = accounting.epsilon_of_releases(NOISE_MULTIPLIER, delta=DELTA).epsilon
  for attacker, (point, bound) in estimate(train_and_observe(seed=0)).items():
    print(f'{attacker:22} estimate {point:5.2f}, lower bound {bound:.2f}')
  print(f'limit                  ε = {limit:5.2f} at δ = {DELTA:g}')
