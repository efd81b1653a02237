"""DP-FedAvg in NumPy, audited: a linear classifier on made-up data of 30 clients.

  python examples/frameworks/numpy_loop.py

The statements marked `# epe_jax` are the audit. As the loop is a simulation it
knows what real clients put in, and shows that to the strongest attacker, too.
"""

import argparse
import pathlib

import numpy as np

from epe_jax import AuditConfig, Auditor  # epe_jax

FEATURES, CLASSES, CLIENTS, EXAMPLES, ROUNDS = 500, 20, 30, 40, 60
CLIP_NORM, NOISE_MULTIPLIER = 0.1, 0.5


def compute_update(weights, x, y):
  """One step of gradient descent on a client's examples, clipped."""
  logits = x @ weights
  probabilities = np.exp(logits - logits.max(axis=1, keepdims=True))
  probabilities /= probabilities.sum(axis=1, keepdims=True)
  probabilities[np.arange(len(y)), y] -= 1
  update = -0.1 * x.T @ probabilities / len(y)
  return update * min(1.0, CLIP_NORM / np.linalg.norm(update))


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument(
    '--out', type=pathlib.Path, help='where the audit is kept'
  )
  out = parser.parse_args().out

  rng = np.random.default_rng(0)
  truth = rng.normal(size=(FEATURES, CLASSES))
  data = rng.normal(size=(CLIENTS, EXAMPLES, FEATURES))
  labels = (data @ truth).argmax(axis=-1)
  weights = np.zeros((FEATURES, CLASSES))
  auditor = Auditor(  # epe_jax
    AuditConfig(
      dim=weights.size,
      rounds=ROUNDS,
      clip_norm=0.1,
      noise_multiplier=0.5,
      delta=1e-3,
      server_momentum=0.0,
    )
  )
  for t in range(ROUNDS):
    others = sum(compute_update(weights, x, y) for x, y in zip(data, labels))
    canaries = auditor.injection(t, like=weights)  # epe_jax
    count = CLIENTS + canaries.count
    noise = NOISE_MULTIPLIER * CLIP_NORM * rng.normal(size=weights.shape)
    release = (others + canaries.update + noise) / count
    auditor.observe(t, release, divisor=count, others=others / count)  # epe_jax
    weights += release
  accuracy = np.mean((data @ weights).argmax(axis=-1) == labels)
  print(f'accuracy on the training data {100 * accuracy:.1f} %\n')
  auditor.observe_final(weights, initial=np.zeros_like(weights))  # epe_jax
  print(auditor.report())  # epe_jax
  if out is not None:
    auditor.save(out / 'numpy.npz')


if __name__ == '__main__':
  main()
