"""DP-FedAvg of Apple's pfl-research: FederatedAveraging, SimulatedBackend.

`--layout=last` keeps images as PyTorch's channels_last; `--precision=bfloat16` is
PyTorch's autocast.
"""

import sys

import driver
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import MinimizeReuseUserSampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism
import torch
from torch import nn
import works as works_lib

LAST = '--layout=last' in sys.argv
ROUNDED = '--precision=bfloat16' in sys.argv


class Model(nn.Module):
  """What pfl asks of a model, with a count of what it trained on."""

  def __init__(self):
    super().__init__()
    self.steps = 0
    self.rows = 0

  def loss(self, x, y):
    self.train()
    self.steps += 1
    self.rows += len(x)
    with torch.autocast('cpu', torch.bfloat16, enabled=ROUNDED):
      return nn.functional.cross_entropy(self(x), y.flatten())

  def metrics(self, x, y):
    # Asked for in iteration 0 alone, which is never timed.
    loss = nn.functional.cross_entropy(self(x), y.flatten())
    return {'loss': Weighted(loss.item(), 1)}


class Cnn(Model):
  """Of EMNIST; channels come first, as PyTorch has them."""

  def __init__(self):
    super().__init__()
    self.layers = nn.Sequential(
      nn.Conv2d(1, 32, 3),
      nn.ReLU(),
      nn.Conv2d(32, 64, 3),
      nn.ReLU(),
      nn.MaxPool2d(2),
      nn.Dropout(0.25),
      nn.Flatten(),
      nn.Linear(9216, 128),
      nn.ReLU(),
      nn.Dropout(0.5),
      nn.Linear(128, works_lib.CLASSES),
    )

  def forward(self, x):
    return self.layers(x)


class Lstm(Model):
  """Of StackOverflow."""

  def __init__(self):
    super().__init__()
    ids = works_lib.WORDS + 4
    self.embedding = nn.Embedding(ids, 96)
    self.lstm = nn.LSTM(96, 670, batch_first=True)
    # PyTorch has two biases where one suffices.
    nn.init.zeros_(self.lstm.bias_hh_l0).requires_grad_(False)
    self.projection = nn.Linear(670, 96)
    self.logits = nn.Linear(96, ids)

  def forward(self, x):
    x, _ = self.lstm(self.embedding(x))
    # [b * words, ids]: faster than a cross-entropy over a middle axis.
    return self.logits(self.projection(x)).flatten(0, 1)


def start(work: works_lib.Work) -> driver.Round:
  """One round is one iteration of `FederatedAveraging.run`."""
  module = Cnn() if work.model == 'cnn' else Lstm()
  if LAST:
    module = module.to(memory_format=torch.channels_last)
  trained = [p for p in module.parameters() if p.requires_grad]
  model = PyTorchModel(
    module,
    torch.optim.SGD,
    torch.optim.SGD(
      trained,
      works_lib.SERVER_LEARNING_RATE,
      momentum=works_lib.SERVER_MOMENTUM,
    ),
  )
  clients = dict(enumerate(_tensors(work)))
  dataset = FederatedDataset(
    lambda i: PyTorchTensorDataset(clients[i], user_id=str(i)),
    MinimizeReuseUserSampler(list(clients)),
  )
  private = CentrallyAppliedPrivacyMechanism(
    GaussianMechanism(works_lib.CLIP_NORM, work.noise_multiplier)
  )
  backend = SimulatedBackend(dataset, dataset, postprocessors=[private])
  local = NNTrainHyperParams(
    local_num_epochs=1,
    local_learning_rate=work.learning_rate,
    local_batch_size=works_lib.BATCH,
  )
  algorithm = FederatedAveraging()
  now = {'round': 0}

  def run() -> tuple[int, int]:
    now['round'] += 1
    module.steps = module.rows = 0
    algorithm.run(
      NNAlgorithmParams(
        central_num_iterations=now['round'],
        evaluation_frequency=10**9,
        train_cohort_size=len(clients),
        val_cohort_size=0,
      ),
      backend,
      model,
      local,
      send_metrics_to_platform=False,
    )
    return module.steps, module.rows

  return driver.Round(
    run=run,
    weights=lambda: [p.detach().numpy() for p in trained],
    form='FederatedAveraging, SimulatedBackend, GaussianMechanism'
    + LAST * ', channels_last'
    + ROUNDED * ', autocast to bfloat16',
  )


def _tensors(work: works_lib.Work) -> list[list[torch.Tensor]]:
  found = []
  for x, y in works_lib.data(work):
    x = x[:, None] if work.model == 'cnn' else x
    found.append([torch.from_numpy(x.copy()), torch.from_numpy(y).long()])
  return found


if __name__ == '__main__':
  driver.serve(start, 'pfl', 'torch')
