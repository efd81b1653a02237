"""DP-FedAvg in NumPy, audited: a linear classifier on made-up data of 30 clients.

  python examples/frameworks/numpy_loop.py

The lines marked `# +` are the audit. The loop has the sum of the updates of real
clients, so the attacker who knows all other updates is audited, too.
"""

import argparse
import pathlib

import numpy as np

from epe_jax.auditor.adapters import loop  # +

FEATURES, CLASSES, CLIENTS, EXAMPLES, ROUNDS = 500, 20, 30, 40, 60
CLIP_NORM, NOISE_MULTIPLIER = 0.1, 0.5
RNG = np.random.default_rng(0)


def compute_update(weights, x, y):
  """One step of gradient descent on a client's examples, clipped."""
  logits = x @ weights
  probabilities = np.exp(logits - logits.max(axis=1, keepdims=True))
  probabilities /= probabilities.sum(axis=1, keepdims=True)
  probabilities[np.arange(len(y)), y] -= 1
  update = -0.1 * x.T @ probabilities / len(y)
  return update * min(1.0, CLIP_NORM / np.linalg.norm(update))


@loop.audit(rounds=60, clip_norm=0.1, noise_multiplier=0.5, delta=1e-3)  # +
def privatize(total, count):
  """The mean of clipped updates, with noise."""
  noise = NOISE_MULTIPLIER * CLIP_NORM * RNG.normal(size=total.shape)
  return (total + noise) / count


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument(
    '--out', type=pathlib.Path, help='where the audit is kept'
  )
  out = parser.parse_args().out

  truth = RNG.normal(size=(FEATURES, CLASSES))
  data = RNG.normal(size=(CLIENTS, EXAMPLES, FEATURES))
  labels = (data @ truth).argmax(axis=-1)
  weights = np.zeros((FEATURES, CLASSES))
  for _ in range(ROUNDS):
    total = sum(compute_update(weights, x, y) for x, y in zip(data, labels))
    weights += privatize(total, CLIENTS)
  accuracy = np.mean((data @ weights).argmax(axis=-1) == labels)
  print(f'accuracy on the training data {100 * accuracy:.1f} %\n')
  print(privatize.auditor.report())  # +
  if out is not None:
    privatize.auditor.save(out / 'numpy.npz')


if __name__ == '__main__':
  main()
