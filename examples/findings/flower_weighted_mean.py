"""flwr 1.41, 1.42: noise for a plain mean of clients is added to a weighted one.

DifferentialPrivacyServerSideFixedClipping clips each reply to C and adds noise z C / n
to what FedAvg returns: a mean weighted by num-examples. A client with 10 times the
examples of the others has 10 times their weight, and noise for a tenth of it. With an
accountant the wrapper refuses unequal weights; it has none by default.

  python examples/findings/flower_weighted_mean.py
"""

import logging
import math

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as strategies
from flwr.supercore.task_identity import TaskIdentity
import numpy as np

logging.disable(logging.INFO)
TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
CLIENTS, DIM, CLIP_NORM, NOISE_MULTIPLIER, DELTA = 100, 20_000, 1.0, 1.0, 1e-5


def release(strategy: strategies.Strategy, largest: float, examples: int):
  """What a round releases if one client, with as many examples, sends `largest`."""
  strategy.current_arrays = ArrayRecord([np.zeros(DIM)])
  replies = []
  for i in range(CLIENTS):
    update = np.full(DIM, largest if i == 0 else 1e-9)
    metrics = MetricRecord({'num-examples': examples if i == 0 else 10})
    content = RecordDict({'arrays': ArrayRecord([update]), 'metrics': metrics})
    order = Message(RecordDict(), i + 1, 'train')
    replies.append(Message(content, reply_to=order))
  return strategy.aggregate_train(1, replies)[0]['0'].numpy()


def find_epsilon(noise_multiplier: float) -> float:
  """The ε of a Gaussian mechanism at DELTA (Balle and Wang 2018, Theorem 8)."""
  mu = 1 / noise_multiplier
  cdf = lambda x: math.erfc(-x / math.sqrt(2)) / 2
  delta = lambda e: cdf(mu / 2 - e / mu) - math.exp(e) * cdf(-mu / 2 - e / mu)
  low, high = 0.0, 200.0
  while high - low > 1e-6:
    middle = (low + high) / 2
    low, high = (middle, high) if delta(middle) > DELTA else (low, middle)
  return high


wrap = strategies.DifferentialPrivacyServerSideFixedClipping
for examples in (10, 100):
  exact = wrap(strategies.FedAvg(), 0.0, CLIP_NORM, CLIENTS)
  noisy = wrap(strategies.FedAvg(), NOISE_MULTIPLIER, CLIP_NORM, CLIENTS)
  moved = release(exact, 1.0, examples) - release(exact, 1e-9, examples)
  times = np.linalg.norm(moved) * CLIENTS / CLIP_NORM
  noise = np.std(release(noisy, 1e-9, examples)) * CLIENTS / CLIP_NORM
  print(
    f'a client with {examples} examples, others with 10: moves the model '
    f'{times:.2f} times C / n; noise {noise:.2f} C / n; '
    f'ε {find_epsilon(noise / times):.1f} at δ = {DELTA:g}, '
    f'claimed {find_epsilon(NOISE_MULTIPLIER):.1f}'
  )
