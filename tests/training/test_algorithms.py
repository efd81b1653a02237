"""What enters a round besides its clients; as users compile it, bit for bit."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from epe_jax.training import (
  aggregation,
  algorithms,
  clipping,
  fedavg,
  local_training,
)
from tests import helpers


def test_without_canaries_the_injection_leaves_every_bit():
  task = helpers.linear_task()
  params = task.init(jax.random.key(0))
  clients = helpers.random_clients(np.random.default_rng(0), [3, 4])
  cohort = helpers.make_cohort(clients, batch=4, chunk=1)
  training_key, noise_key = helpers.keys()
  algorithm = fedavg.dp_fedavg(
    task,
    client_opt=optax.sgd(0.1),
    server_opt=optax.sgd(1.0),
    clipping=clipping.fixed(0.5),
    noise_multiplier=1.0,
    expected_clients=4.0,
  )

  def plain(params, cohort):
    train = local_training.local_training(task, optax.sgd(0.1))
    sum_updates = fedavg.make_sum(train, aggregation.float32(1.0))
    total = sum_updates(params, cohort, jnp.float32(0.5), training_key)
    key, _ = jax.random.split(noise_key)
    drawn = jax.random.normal(key, (4,), jnp.float32)
    return (total.vector + 1.0 * jnp.float32(0.5) * drawn) / 4.0

  _, round = jax.jit(algorithm.step)(
    algorithm.init(params),
    cohort,
    algorithms.no_canaries(),
    training_key,
    noise_key,
  )
  np.testing.assert_array_equal(round.aggregate, jax.jit(plain)(params, cohort))
