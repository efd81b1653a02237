"""DP-SGD with optax.contrib, audited: a small network on scikit-learn's digits.

  python examples/frameworks/optax_quickstart.py

The statements marked `# +` are the audit; the others are an optax loop as
usual, compiled as one scan. Canaries are in it from the start: 1,000 of
2,000, each in one step.
"""

import argparse
import pathlib

import jax
import jax.numpy as jnp
import optax
from sklearn import datasets

from epe_jax.auditor.adapters import optax as auditing  # +

HIDDEN, STEPS, BATCH = 256, 200, 64


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument(
    '--out', type=pathlib.Path, help='where the audit is kept'
  )
  out = parser.parse_args().out

  images, labels = datasets.load_digits(return_X_y=True)
  images, labels = jnp.asarray(images / 16, jnp.float32), jnp.asarray(labels)
  keys = jax.random.split(jax.random.key(0), 3)
  params = {
    'first': jax.random.normal(keys[0], (64, HIDDEN)) / 8,
    'second': jax.random.normal(keys[1], (HIDDEN, 10)) / 16,
  }

  def apply(params, x):
    return jax.nn.relu(x @ params['first']) @ params['second']

  def loss(params, x, label):
    logits = apply(params, x)
    return optax.softmax_cross_entropy_with_integer_labels(logits, label)

  noise = optax.contrib.differentially_private_aggregate(
    l2_norm_clip=1.0, noise_multiplier=0.5, key=keys[2]
  )
  noise = auditing.audit(noise, steps=STEPS, delta=1e-5)  # +
  optimizer = optax.chain(noise, optax.sgd(0.5))

  def step(carry, key):
    params, state = carry
    chosen = jax.random.choice(key, len(labels), (BATCH,), replace=False)
    gradients = jax.vmap(jax.grad(loss), (None, 0, 0))(
      params, images[chosen], labels[chosen]
    )
    updates, state = optimizer.update(gradients, state, params)
    return (optax.apply_updates(params, updates), state), None

  train = jax.jit(lambda carry, keys: jax.lax.scan(step, carry, keys)[0])
  step_keys = jax.random.split(jax.random.key(1), STEPS)
  params, state = train((params, optimizer.init(params)), step_keys)
  accuracy = jnp.mean(apply(params, images).argmax(axis=1) == labels)
  print(f'accuracy on the training data {100 * accuracy:.1f} %\n')
  print(noise.collect(state).report())  # +
  if out is not None:
    noise.auditor.save(out / 'optax.npz')


if __name__ == '__main__':
  main()
