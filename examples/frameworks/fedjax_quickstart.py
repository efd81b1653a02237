"""Federated averaging with FedJAX, audited: a linear classifier on made-up data.

  python examples/frameworks/fedjax_quickstart.py

The statements marked `# +` are the audit; the others are FedJAX's own
example of its FedAvg, with an aggregator that clips updates, averages them
alike and adds noise, as FedJAX has none. FedJAX does not run beside JAX >= 0.10: it
needs an environment with an older JAX.
"""

import argparse
import pathlib

import fedjax
import jax
import jax.numpy as jnp
import numpy as np

from epe_jax.auditor.adapters import fedjax as auditing  # +

FEATURES, CLASSES, CLIENTS, ROUNDS = 400, 25, 20, 50
CLIP_NORM, NOISE_MULTIPLIER = 0.2, 0.5


def make_data():
  """A federation of clients whose labels follow from their features."""
  rng = np.random.default_rng(0)
  truth = rng.normal(size=(FEATURES, CLASSES))
  clients = {}
  for i in range(CLIENTS):
    x = rng.normal(size=(40, FEATURES)).astype(np.float32)
    clients[f'{i}'.encode()] = {'x': x, 'y': (x @ truth).argmax(axis=1)}
  return fedjax.InMemoryFederatedData(clients)


def make_gaussian_aggregator():
  """The mean of clipped updates, and noise."""
  rng, mean = np.random.default_rng(1), fedjax.aggregators.mean_aggregator()

  def apply(clients, state):
    clipped = [
      (name, fedjax.tree_util.tree_clip_by_global_norm(update, CLIP_NORM), 1.0)
      for name, update, _ in clients
    ]
    release, state = mean.apply(clipped, state)
    std = NOISE_MULTIPLIER * CLIP_NORM / len(clipped)
    noise = lambda x: x + std * rng.normal(size=x.shape)
    return jax.tree_util.tree_map(noise, release), state

  return fedjax.aggregators.Aggregator(mean.init, apply)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument(
    '--out', type=pathlib.Path, help='where the audit is kept'
  )
  out = parser.parse_args().out

  def loss(params, batch, key):
    del key
    log_p = jax.nn.log_softmax(batch['x'] @ params['w'])
    return -jnp.mean(log_p[jnp.arange(len(batch['y'])), batch['y']])

  data, gradient = make_data(), jax.grad(loss)
  hparams = fedjax.ShuffleRepeatBatchHParams(batch_size=20, num_epochs=1)
  optimizer = fedjax.optimizers.sgd(0.1)

  def train(params, client, key):
    state = optimizer.init(params)
    start = params
    for batch in client.shuffle_repeat_batch(hparams):
      grads = gradient(params, batch, key)
      state, params = optimizer.apply(grads, state, params)
    return jax.tree_util.tree_map(lambda a, b: b - a, start, params)

  aggregator = make_gaussian_aggregator()
  aggregator = auditing.audit(  # +
    aggregator,
    rounds=ROUNDS,
    clip_norm=0.2,
    noise_multiplier=0.5,
    delta=1e-3,
    num_observed=300,
  )
  params, state = {'w': jnp.zeros((FEATURES, CLASSES))}, aggregator.init()
  for t in range(ROUNDS):
    key = jax.random.PRNGKey(t)
    updates = [
      (name, train(params, client, key), 1.0) for name, client in data.clients()
    ]
    release, state = aggregator.apply(updates, state)
    params = jax.tree_util.tree_map(jnp.add, params, release)
  x, y = (
    np.concatenate(
      [client.all_examples()[name] for _, client in data.clients()]
    )
    for name in ('x', 'y')
  )
  accuracy = np.mean((x @ params['w']).argmax(axis=1) == y)
  print(f'accuracy on the training data {100 * accuracy:.1f} %\n')
  print(aggregator.auditor.report())  # +
  if out is not None:
    aggregator.auditor.save(out / 'fedjax.npz')


if __name__ == '__main__':
  main()
