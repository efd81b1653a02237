"""DP-SGD with jax_privacy, audited: a linear classifier on made-up data.

  python examples/frameworks/jax_privacy_quickstart.py

The statements marked `# +` are the audit; the others are the loop of
jax_privacy's documentation. Canaries are in it from the start: 200 of 1,200,
each in one step.
"""

import argparse
import pathlib

import jax
import jax.numpy as jnp
from jax_privacy.experimental import execution_plan
import numpy as np
import optax

from epe_jax.auditor.adapters import jax_privacy  # +

FEATURES, CLASSES, EXAMPLES, STEPS = 400, 25, 2000, 100


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument(
    '--out', type=pathlib.Path, help='where the audit is kept'
  )
  out = parser.parse_args().out

  rng = np.random.default_rng(0)
  data = rng.normal(size=(EXAMPLES, FEATURES)).astype(np.float32)
  labels = (data @ rng.normal(size=(FEATURES, CLASSES))).argmax(axis=1)

  def loss(weights, batch, target):
    logits = batch @ weights
    return optax.softmax_cross_entropy_with_integer_labels(
      logits, target
    ).mean()

  plan = execution_plan.BandMFExecutionPlanConfig(
    iterations=STEPS,
    strategy=[1.0],
    epsilon=None,
    delta=None,
    noise_multiplier=0.6,
    sampling_prob=0.05,
  ).plan
  plan = jax_privacy.audit(plan, delta=1e-5, num_observed=200)  # +
  gradient = plan.clipped_grad(loss, batch_argnums=(1, 2))
  optimizer = optax.sgd(0.01)
  weights = jnp.zeros((FEATURES, CLASSES))
  states = plan.noise_addition_transform.init(weights), optimizer.init(weights)

  @jax.jit
  def step(weights, states, batch, target, is_padding):
    total = gradient(weights, batch, target, is_padding_example=is_padding)
    noisy, noise_state = plan.noise_addition_transform.update(total, states[0])
    updates, state = optimizer.update(noisy, states[1])
    return optax.apply_updates(weights, updates), (noise_state, state)

  width = 256
  for indices in plan.batch_selection_strategy.batch_iterator(EXAMPLES):
    # Poisson batches differ in size; padded examples have no gradient.
    padded = np.resize(indices, width)
    weights, states = step(
      weights,
      states,
      data[padded],
      labels[padded],
      np.arange(width) >= len(indices),
    )
  accuracy = np.mean((data @ np.asarray(weights)).argmax(axis=1) == labels)
  print(f'accuracy on the training data {100 * accuracy:.1f} %\n')
  print(plan.noise_addition_transform.collect(states).report())  # +
  if out is not None:
    plan.noise_addition_transform.auditor.save(out / 'jax_privacy.npz')


if __name__ == '__main__':
  main()
