"""Federated fine-tuning of adapters with user-level DP: examples/own_adapters.py

A Flax network stays as it is, trained on public data; clients train adapters of rank
r, W + A B, alone. All that a round releases are adapters, so the audit is of them:

  epe-jax run examples/own_adapters.py --workdir=runs/adapters
"""

import tempfile
from typing import Any

from flax import linen as nn
import jax
from jax import numpy as jnp
from jax import random
import numpy as np
import optax

from epe_jax import experiment
from epe_jax.configs import common  # pyright: ignore[reportMissingImports]
from epe_jax.data import federated
from epe_jax.report import report
from epe_jax.tasks.classifier import classifier

FEATURES, HIDDEN, CLASSES = 64, 128, 4
NET = nn.Sequential([nn.Dense(HIDDEN), nn.relu, nn.Dense(CLASSES)])
apply: Any = NET.apply  # Flax types what it returns as a value or a pair.


def draw(rng, num, turn):
  """Examples whose class is the largest of four features; `turn` says which ones."""
  x = rng.normal(size=(num, FEATURES)).astype(np.float32)
  y = np.argmax(np.roll(x, turn, axis=1)[:, :CLASSES], axis=1)
  return x, y.astype(np.int32)


def pretrain(x, y, steps=200):
  """The public part: never trained on clients, and the same in all their rounds."""
  optimizer = optax.adam(1e-2)
  params = NET.init(random.key(0), x)
  state = optimizer.init(params)

  @jax.jit
  def step(params, state):
    loss = lambda p: optax.softmax_cross_entropy_with_integer_labels(
      apply(p, x), y
    ).mean()
    updates, state = optimizer.update(jax.grad(loss)(params), state)
    return optax.apply_updates(params, updates), state

  for _ in range(steps):
    params, state = step(params, state)
  return params


def make_task(public, rank):
  """The adapters are all the parameters that the task has."""
  is_kernel = lambda x: x.ndim == 2
  kernels, tree = jax.tree.flatten(public)

  def init(key):
    keys = random.split(key, len(kernels))
    return {
      f'{i}': {
        'a': random.normal(k, (w.shape[0], rank)) / np.sqrt(w.shape[0]),
        'b': jnp.zeros((rank, w.shape[1])),
      }
      for i, (k, w) in enumerate(zip(keys, kernels))
      if is_kernel(w)
    }

  def logits(adapters, x, key):
    merged = [
      w + adapters[f'{i}']['a'] @ adapters[f'{i}']['b'] if is_kernel(w) else w
      for i, w in enumerate(kernels)
    ]
    return apply(jax.tree.unflatten(tree, merged), x)

  return classifier(init, logits)


def load(config):
  rng = np.random.default_rng(config.seed)
  public = pretrain(*draw(rng, 2000, turn=0))
  users = {}
  for i in range(config.data.num_clients + 50):
    x, y = draw(rng, 20, turn=CLASSES)
    users[f'{i}'] = {'x': x, 'y': y}
  test = {name: users.pop(name) for name in [*users][:50]}
  return experiment.Workload(
    task=make_task(public, config.model.rank),
    train=federated.from_clients(users),
    test=federated.from_clients(test),
  )


def get_config():
  return common.make_config(
    task='examples.own_adapters:load',  # Found from the folder that you are in.
    data=dict(num_clients=500),
    model=dict(rank=8),
    rounds=40,
    clients_per_round=50,
    client=dict(learning_rate=0.5, batch_size=10, epochs=2),
    server=dict(learning_rate=1.0, momentum=0.9),
    clipping=dict(kind='fixed', initial=0.5),
    noise_multiplier=0.5,
    canaries=dict(observed=200, unobserved=200),
    evaluate_every=20,
    checkpoint_every=20,
  )


if __name__ == '__main__':
  config = get_config()
  config.task = '__main__:load'
  with tempfile.TemporaryDirectory() as folder:
    result = experiment.run(config, folder)
  print(report.format_report(result) if result else '')
