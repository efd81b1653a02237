"""Audits your own model and data: examples/own_task.py [jax] [flax] [haiku]"""

import secrets
import sys

from flax import linen as nn
import haiku as hk
import jax
from jax import numpy as jnp
from jax import random
import numpy as np
import optax

from epe_jax import accounting, audit, canaries, sampling, training
from epe_jax.data import cohort, federated
from epe_jax.report import report
from epe_jax.tasks.classifier import classifier

USERS, ROUNDS, CLIENTS, CANARIES, NOISE, DELTA = 50, 40, 8, 200, 0.5, 1e-5
X = np.random.default_rng(0).normal(size=(USERS, 20, 60)).astype(np.float32)
DATA = {f'{i}': {'x': x, 'y': np.int32(x[:, 0] > 0)} for i, x in enumerate(X)}


def make_jax_task():
  init = lambda key: {'w': random.normal(key, (60, 99)), 'v': jnp.ones((99, 2))}
  return classifier(init, lambda p, x, key: jnp.tanh(x @ p['w'] / 8) @ p['v'])


def make_flax_task():
  net = nn.Sequential([nn.Dense(150), jnp.tanh, nn.Dense(2)])
  init = lambda key: net.init(key, X[0])
  return classifier(init, lambda p, x, key: net.apply(p, x))


def make_haiku_task():
  net = hk.transform(lambda x: hk.nets.MLP([150, 2])(x))
  init = lambda key: net.init(key, X[0])
  return classifier(init, lambda p, x, key: net.apply(p, key, x))


def train_audited(task, noise_key: jax.Array) -> audit.Record:
  data, params = federated.from_clients(DATA), task.init(random.key(0))
  dim = sum(x.size for x in jax.tree.leaves(params))
  algorithm = training.dp_fedavg(
    task,
    client_opt=optax.sgd(0.1),
    server_opt=optax.sgd(1.0),
    clipping=training.clipping.fixed(0.1),
    noise_multiplier=NOISE,
    expected_clients=CLIENTS + CANARIES / ROUNDS,
  )
  rng = np.random.default_rng(0)
  canary_set = canaries.sphere(random.key(1), CANARIES, dim)
  assigned = sampling.once_per_period(rng, rounds=ROUNDS, num=CANARIES)
  watch = {'all': audit.all_iterates(canary_set, rounds=ROUNDS)}
  algorithm = audit.audited(algorithm, canary_set, assigned, watch)
  state, step = algorithm.init(params), jax.jit(algorithm.step)
  plan = cohort.Plan(10, epochs=1, max_examples=None, chunk=1, slots=CLIENTS)
  for t in range(ROUNDS):
    users = rng.choice(USERS, CLIENTS, replace=False)
    batches = cohort.gather(data, users, plan, seed=0, round=t)
    state, _ = step(state, batches, random.key(t), random.fold_in(noise_key, t))
  cosines = audit.score_observers(state, watch)
  return audit.make_record(
    cosines, state.rounds, included=assigned, dim=dim, delta=DELTA
  )


TASKS = dict(jax=make_jax_task, flax=make_flax_task, haiku=make_haiku_task)

if __name__ == '__main__':
  print('analytic', accounting.epsilon_of_releases(NOISE, delta=DELTA).epsilon)
  for name in sys.argv[1:] or TASKS:
    fresh = jnp.asarray(np.frombuffer(secrets.token_bytes(8), np.uint32))
    record = train_audited(TASKS[name](), random.wrap_key_data(fresh))
    print(f'\n{name}: {report.format_estimates(audit.evaluate(record))}')
