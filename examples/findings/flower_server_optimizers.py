"""flwr 1.41, 1.42: momentum of FedAvgM is applied before the noise of the DP wrapper.

DifferentialPrivacyServerSideFixedClipping takes any strategy, clips replies, lets the
strategy aggregate, and adds noise z C / n to what comes out. FedAvgM keeps what a
client sent, without noise, and releases it again in each later round. Clients start at
the noisy model, so the noise returns too, but a round later than the update. With an
accountant the wrapper refuses FedAvgM; it is given none here, which is the default.

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
from scipy import linalg

logging.disable(logging.INFO)
TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
CLIENTS, CLIP_NORM, DIM, ROUNDS = 10, 1.0, 1000, 32


class Grid:
  """As much of a grid as configure_train asks of it."""

  def get_node_ids(self):
    return range(1, CLIENTS + 1)


def release(strategy, first, noise_multiplier):
  """Changes of the model by rounds.

  Args:
    strategy: the inner one, which is new.
    first: what one client sends in the first round; all else is next to nothing.
    noise_multiplier: of the first round; there is next to no other noise.
  """
  wrapped = DifferentialPrivacyServerSideFixedClipping(
    strategy, noise_multiplier, CLIP_NORM, CLIENTS
  )
  model, released = np.zeros(DIM), []
  for t in range(ROUNDS):
    wrapped.noise_multiplier = 1e-9 if t else noise_multiplier
    arrays = ArrayRecord({'w': Array(model)})
    messages = list(
      wrapped.configure_train(t + 1, arrays, ConfigRecord(), Grid())
    )
    replies = []
    for i, message in enumerate(messages):
      update = first if t == i == 0 else np.full(DIM, 1e-12)
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
  nothing = np.full(DIM, 1e-12)
  for make in (FedAvg, lambda: FedAvgM(server_momentum=0.9)):
    moved = release(make(), direction, 1e-9)
    share = moved @ direction * CLIENTS / CLIP_NORM**2
    noisy = release(make(), nothing, 1.0)
    # How much of the noise of a round is in the releases from that round on.
    returns = noisy @ noisy[0] / (noisy[0] @ noisy[0])
    mixing = linalg.toeplitz(returns, np.zeros(ROUNDS))
    mu = np.linalg.norm(linalg.solve(mixing, share))
    print(
      f'{type(make()).__name__}: a client of round 1 has an influence of '
      f'{np.round(share[:4], 2) + 0.0} C/n in rounds 1 to 4, and its noise of '
      f'{np.round(returns[:4], 2) + 0.0}; at z = 1 it has μ = {mu:.2f} in {ROUNDS} rounds, '
      'where 1 is claimed'
    )


if __name__ == '__main__':
  main()
