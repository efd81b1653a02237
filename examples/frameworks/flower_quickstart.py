"""Federated learning with Flower and differential privacy, audited by simulation.

  python examples/frameworks/flower_quickstart.py

The statements marked `# +` are the audit; the others are a ClientApp and
a ServerApp in the shape of Flower's PyTorch quickstart, on images that are made
up. Canaries are in it from the start: 60 of 1,060, each in the place of a
client in one round.
"""

import argparse
import os
import pathlib

# Nothing is reported to anybody.
os.environ.setdefault('FLWR_TELEMETRY_ENABLED', '0')
os.environ.setdefault('RAY_USAGE_STATS_ENABLED', '0')

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import (
  DifferentialPrivacyServerSideFixedClipping,
  FedAvg,
)
from flwr.simulation import run_simulation
import torch
from torch import nn

from epe_jax.auditor.adapters import flower  # +

CLIENTS, EXAMPLES, ROUNDS, CLASSES = 12, 64, 15, 4
CLIP_NORM, NOISE_MULTIPLIER = 2.0, 0.5


class Net(nn.Module):
  """A small convolutional network."""

  def __init__(self):
    super().__init__()
    self.convolution = nn.Conv2d(1, 8, 3, padding=1)
    self.hidden = nn.Linear(8 * 4 * 4, 64)
    self.output = nn.Linear(64, CLASSES)

  def forward(self, x):
    x = nn.functional.max_pool2d(torch.relu(self.convolution(x)), 2)
    return self.output(torch.relu(self.hidden(x.flatten(1))))


def load_data(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
  """Images of noise, brighter in the quarter that is the label."""
  generator = torch.Generator().manual_seed(seed)
  labels = torch.randint(CLASSES, (EXAMPLES,), generator=generator)
  images = torch.randn(EXAMPLES, 1, 8, 8, generator=generator)
  for image, label in zip(images, labels.tolist()):
    top, left = 4 * (label // 2), 4 * (label % 2)
    image[:, top : top + 4, left : left + 4] += 0.7
  return images, labels


def make_client_app() -> ClientApp:
  app = ClientApp()

  @app.train()
  def train(msg: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    model = Net()
    model.load_state_dict(msg.content['arrays'].to_torch_state_dict())
    images, labels = load_data(int(context.node_config['partition-id']))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(5):
      for batch in torch.arange(EXAMPLES).split(16):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
        loss.backward()
        optimizer.step()
    metrics = {'num-examples': EXAMPLES, 'train_loss': loss.item()}
    content = RecordDict(
      {
        'arrays': ArrayRecord(model.state_dict()),
        'metrics': MetricRecord(metrics),
      }
    )
    return Message(content, reply_to=msg)

  return app


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument(
    '--out', type=pathlib.Path, help='where the audit is kept'
  )
  out = parser.parse_args().out
  app = ServerApp()

  @app.main()
  def serve(grid: Grid, context: Context) -> None:
    torch.manual_seed(0)
    model = Net()
    strategy = DifferentialPrivacyServerSideFixedClipping(
      # All nodes have to be there before the first round.
      FedAvg(
        fraction_evaluate=0.0,
        min_train_nodes=CLIENTS,
        min_available_nodes=CLIENTS,
      ),
      noise_multiplier=NOISE_MULTIPLIER,
      clipping_norm=CLIP_NORM,
      num_sampled_clients=CLIENTS,
    )
    strategy = flower.audit(strategy, delta=1e-5, num_observed=60)  # +
    result = strategy.start(
      grid=grid,
      initial_arrays=ArrayRecord(model.state_dict()),
      num_rounds=ROUNDS,
    )
    model.load_state_dict(result.arrays.to_torch_state_dict())
    images, labels = load_data(CLIENTS)
    accuracy = (model(images).argmax(1) == labels).double().mean()
    print(f'\naccuracy on data of nobody {100 * accuracy:.1f} %\n')
    print(strategy.auditor.report())  # +
    if out is not None:
      strategy.auditor.save(out / 'flower.npz')

  run_simulation(app, make_client_app(), num_supernodes=CLIENTS)


if __name__ == '__main__':
  main()
