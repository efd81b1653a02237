"""DP-FedAvg of FedJAX: for_each_client, which clips, and a server step.

`--backend=jit` trains clients in turn; `--backend=pmap` trains two at once, on
two host devices.
"""

import os
import sys

PMAP = '--backend=pmap' in sys.argv
if PMAP:
  # Before JAX is imported.
  os.environ['XLA_FLAGS'] = '--xla_force_host_platform_device_count=2'

import driver  # noqa: E402
import fedjax  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import works as works_lib  # noqa: E402


def start(work: works_lib.Work) -> driver.Round:
  """One round: batch, train and clip the clients in turn, sum, step."""
  if work.model == 'cnn':
    model = fedjax.models.emnist.create_conv_model()
  else:
    # FedJAX still uses this name, in a metric; JAX has dropped it.
    jnp.NINF = -jnp.inf
    model = fedjax.models.stackoverflow.create_lstm_model(
      works_lib.WORDS, expected_length=works_lib.MAX_WORDS
    )
  clients = [
    fedjax.ClientDataset(_examples(work, x, y)) for x, y in works_lib.data(work)
  ]
  server_opt = fedjax.optimizers.sgd(
    works_lib.SERVER_LEARNING_RATE, momentum=works_lib.SERVER_MOMENTUM
  )
  params = model.init(jax.random.PRNGKey(0))
  clipped_updates = _clipped_updates(model, work)
  server_step = _server_step(server_opt, work)
  # Devices that work together need batches of one shape.
  padded = PMAP and len({n % works_lib.BATCH for n in work.sizes}) > 1
  now = {'params': params, 'opt_state': server_opt.init(params), 'round': 0}

  def run() -> tuple[int, int]:
    now['round'] += 1
    now['steps'] = now['rows'] = 0
    keys = jax.random.split(jax.random.PRNGKey(now['round']), len(clients) + 1)
    inputs = [
      (i, _counted(_batches(c, padded), now), keys[i])
      for i, c in enumerate(clients)
    ]
    total = fedjax.tree_util.tree_sum(
      update for _, update in clipped_updates(now['params'], inputs)
    )
    now['opt_state'], now['params'] = jax.block_until_ready(
      server_step(total, now['opt_state'], now['params'], keys[-1])
    )
    return now['steps'], now['rows']

  return driver.Round(
    run=run,
    weights=lambda: jax.tree_util.tree_leaves(now['params']),
    form='for_each_client, '
    + ('pmap over 2 host devices' if PMAP else 'jit')
    + (', tails padded' if padded else ''),
  )


def _clipped_updates(model, work: works_lib.Work):
  """What each client sends: received minus trained parameters, clipped."""
  optimizer = fedjax.optimizers.sgd(work.learning_rate)
  grad = fedjax.model_grad(model)

  def init(server_params, key):
    return server_params, optimizer.init(server_params), key

  def step(state, batch):
    params, opt_state, key = state
    key, used = jax.random.split(key)
    grads = grad(params, batch, used)
    opt_state, params = optimizer.apply(grads, opt_state, params)
    return params, opt_state, key

  def final(server_params, state):
    update = jax.tree_util.tree_map(jnp.subtract, server_params, state[0])
    return fedjax.tree_util.tree_clip_by_global_norm(
      update, works_lib.CLIP_NORM
    )

  with fedjax.for_each_client_backend('pmap' if PMAP else 'jit'):
    return fedjax.for_each_client(init, step, final)


def _server_step(optimizer, work: works_lib.Work):
  """Adds the noise, divides, and steps."""
  std = works_lib.CLIP_NORM * work.noise_multiplier

  @jax.jit
  def step(total, opt_state, params, key):
    leaves, structure = jax.tree_util.tree_flatten(total)
    noisy = [
      (x + std * jax.random.normal(k, x.shape)) / len(work.sizes)
      for x, k in zip(leaves, jax.random.split(key, len(leaves)))
    ]
    return optimizer.apply(
      jax.tree_util.tree_unflatten(structure, noisy), opt_state, params
    )

  return step


def _batches(client: fedjax.ClientDataset, padded: bool):
  if padded:
    return client.padded_batch(batch_size=works_lib.BATCH)
  return client.batch(batch_size=works_lib.BATCH)


def _counted(batches, now: dict):
  for batch in batches:
    now['steps'] += 1
    now['rows'] += len(batch['y'])
    yield batch


def _examples(
  work: works_lib.Work, x: np.ndarray, y: np.ndarray
) -> dict[str, np.ndarray]:
  return {'x': x[..., None] if work.model == 'cnn' else x, 'y': y}


if __name__ == '__main__':
  driver.serve(start, 'fedjax', 'jaxlib', 'dm-haiku')
