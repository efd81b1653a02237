"""flwr 1.41: momentum of FedAvgM is applied before the noise of the DP wrapper.

DifferentialPrivacyServerSideFixedClipping takes any strategy, clips replies, lets the
strategy aggregate, and adds noise z C / n to what comes out. FedAvgM keeps what a
client sent, without noise, and releases it again in each later round, each time under
noise for one release. With an accountant the wrapper refuses FedAvgM; it is given
none here, which is the default.

  python examples/findings/flower_server_optimizers.py
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
  DifferentialPrivacyServerSideFixedClipping,
  FedAvg,
  FedAvgM,
)
from flwr.supercore.task_identity import TaskIdentity
import numpy as np

logging.disable(logging.INFO)
TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
CLIENTS, CLIP_NORM, DIM, ROUNDS = 10, 1.0, 1000, 20


class Grid:
  """As much of a grid as configure_train asks of it."""

  def get_node_ids(self):
    return range(1, CLIENTS + 1)


def release(strategy, direction):
  """Changes of the model by rounds, in the first of which one client sends C."""
  wrapped = DifferentialPrivacyServerSideFixedClipping(
    strategy, 1e-6, CLIP_NORM, CLIENTS
  )
  model, released = np.zeros(DIM), []
  for t in range(ROUNDS):
    arrays = ArrayRecord({'w': Array(model)})
    messages = list(
      wrapped.configure_train(t + 1, arrays, ConfigRecord(), Grid())
    )
    replies = []
    for i, message in enumerate(messages):
      update = direction if t == i == 0 else 1e-12 * direction
      content = RecordDict(
        {
          'arrays': ArrayRecord({'w': Array(model + update)}),
          'metrics': MetricRecord({'num-examples': 1.0}),
        }
      )
      replies.append(Message(content=content, reply_to=message))
    after, _ = wrapped.aggregate_train(t + 1, replies)
    new = after.to_numpy_ndarrays()[0]
    released.append(new - model)
    model = new
  return np.array(released)


def main() -> None:
  rng = np.random.default_rng(0)
  direction = rng.normal(size=DIM)
  direction *= CLIP_NORM / np.linalg.norm(direction)
  for strategy in (FedAvg(), FedAvgM(server_momentum=0.9)):
    share = release(strategy, direction) @ direction * CLIENTS / CLIP_NORM**2
    print(
      f'{type(strategy).__name__}: a client of round 1 has an influence of '
      f'{np.round(share[:4], 2)} C/n in rounds 1 to 4; over {ROUNDS} rounds, under '
      f'independent noise, {np.linalg.norm(share):.2f} times that of one round'
    )


if __name__ == '__main__':
  main()
