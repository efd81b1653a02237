"""Audits your own model and data: examples/own_task.py [jax] [flax] [haiku]

It is a config, too, for runs that are resumed, swept and reported as any other:

  epe-jax run examples/own_task.py --workdir=runs/own
  epe-jax sweep examples/own_task.py --workdir=runs/kinds \\
    --axis=model.kind=jax,flax,haiku
"""

import sys
import tempfile

from flax import linen as nn
import haiku as hk
from jax import numpy as jnp
from jax import random
import numpy as np

from epe_jax import experiment
from epe_jax.configs import common  # pyright: ignore[reportMissingImports]
from epe_jax.data import federated
from epe_jax.report import report
from epe_jax.tasks.classifier import classifier

X = np.zeros((20, 60), np.float32)  # One client's inputs, for their shape.


def make_jax_task():
  init = lambda key: {'w': random.normal(key, (60, 99)), 'v': jnp.ones((99, 2))}
  return classifier(init, lambda p, x, key: jnp.tanh(x @ p['w'] / 8) @ p['v'])


def make_flax_task():
  net = nn.Sequential([nn.Dense(150), jnp.tanh, nn.Dense(2)])
  return classifier(lambda k: net.init(k, X), lambda p, x, k: net.apply(p, x))


def make_haiku_task():
  net = hk.transform(lambda x: hk.nets.MLP([150, 2])(x))
  return classifier(
    lambda key: net.init(key, X), lambda p, x, key: net.apply(p, key, x)
  )


TASKS = dict(jax=make_jax_task, flax=make_flax_task, haiku=make_haiku_task)


def load(config):
  rng = np.random.default_rng(config.seed)
  rows = rng.normal(size=(config.data.num_clients, *X.shape)).astype(np.float32)
  users = {
    f'{i}': {'x': x, 'y': np.int32(x[:, 0] > 0)} for i, x in enumerate(rows)
  }
  test = {name: users.pop(name) for name in [*users][:10]}
  return experiment.Workload(
    task=TASKS[config.model.kind](),
    train=federated.from_clients(users),
    test=federated.from_clients(test),
  )


def get_config():
  return common.make_config(
    task='examples.own_task:load',  # Found from the folder that you are in.
    data=dict(num_clients=60),
    model=dict(kind='jax'),
    rounds=40,
    clients_per_round=8,
    client=dict(learning_rate=0.1, batch_size=10, epochs=1),
    server=dict(learning_rate=1.0, momentum=0.0),
    clipping=dict(kind='fixed', initial=0.1),
    noise_multiplier=0.5,
    canaries=dict(observed=200, unobserved=200),
    evaluate_every=20,
    checkpoint_every=20,
  )


if __name__ == '__main__':
  for name in sys.argv[1:] or TASKS:
    config = get_config()
    config.task, config.model.kind = '__main__:load', name
    with tempfile.TemporaryDirectory() as folder:
      result = experiment.run(config, folder)
    print(f'\n{name}: {report.format_report(result) if result else ""}')
