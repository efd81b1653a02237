"""flwr 1.41, 1.42: the adaptive clip norm leaves its target, and the noise with it.

DifferentialPrivacyServerSideAdaptiveClipping counts the clients whose update is
clipped, and multiplies the clip norm by exp(-0.2 (fraction clipped - target)). Where
too many are clipped the clip norm shrinks further, and where too few are it grows
(Andrew et al. 2021 count updates that are not clipped). The noise of a round is then
that of the new clip norm, while updates were clipped to the old one.

  python examples/findings/flower_adaptive_clipping.py
"""

import logging

from flwr.app import (
  Array,
  ArrayRecord,
  ConfigRecord,
  Message,
  MetricRecord,
  RecordDict,
)
from flwr.serverapp.strategy import (
  DifferentialPrivacyServerSideAdaptiveClipping,
  FedAvg,
)
from flwr.supercore.task_identity import TaskIdentity
import numpy as np

logging.disable(logging.INFO)
TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
CLIENTS, DIM, NOISE_MULTIPLIER = 100, 20_000, 0.5


class Grid:
  """As much of a grid as configure_train asks of it."""

  def get_node_ids(self):
    return range(1, CLIENTS + 1)


def main() -> None:
  strategy = DifferentialPrivacyServerSideAdaptiveClipping(
    FedAvg(), NOISE_MULTIPLIER, CLIENTS, initial_clipping_norm=0.5
  )
  model = ArrayRecord({'w': Array(np.zeros(DIM))})
  update = np.full(DIM, 1 / np.sqrt(DIM))  # Of norm 1, from every client.
  for t in range(1, 41):
    clip_norm = strategy.clipping_norm
    messages = strategy.configure_train(t, model, ConfigRecord(), Grid())
    replies = [
      Message(
        content=RecordDict(
          {
            'arrays': ArrayRecord({'w': Array(update.copy())}),
            'metrics': MetricRecord({'num-examples': 1.0}),
          }
        ),
        reply_to=message,
      )
      for message in messages
    ]
    released, _ = strategy.aggregate_train(t, replies)
    noise = released.to_numpy_ndarrays()[0] - clip_norm * update
    # The noise multiplier of the updates, beside that of the count of clipped ones.
    needed = strategy.noise_multiplier * clip_norm / CLIENTS
    if t in (1, 2, 10, 40):
      print(
        f'round {t:2}: updates of norm 1 are clipped to {clip_norm:.3f}, with '
        f'{noise.std() / needed:.3f} of the noise that this needs; the next clip '
        f'norm is {strategy.clipping_norm:.3f}'
      )


if __name__ == '__main__':
  main()
