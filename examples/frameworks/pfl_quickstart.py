"""Federated averaging with pfl-research, audited: a small network, made-up users.

  python examples/frameworks/pfl_quickstart.py

The statements marked `# +` are the audit; the others are a simulation as
in pfl's tutorials. What is learned is a fixed linear rule, of which each user
has examples. Canaries are in it from the start, in the place of users: 1,000 of
2,000, each in one of 60 rounds.
"""

import argparse
import pathlib
import warnings

import numpy as np
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism
import torch
from torch import nn

from epe_jax.auditor.adapters import pfl  # +

FEATURES, CLASSES, USERS, COHORT, ROUNDS = 50, 10, 1000, 100, 60
EXAMPLES = 20  # Of each user.


class Network(nn.Module):
  def __init__(self):
    super().__init__()
    self.layers = nn.Sequential(
      nn.Linear(FEATURES, 200), nn.ReLU(), nn.Linear(200, CLASSES)
    )

  def loss(self, x, label):
    return nn.functional.cross_entropy(self.layers(x), label)

  @torch.no_grad()
  def metrics(self, x, label):
    correct = (self.layers(x).argmax(dim=1) == label).sum().item()
    return {'accuracy': Weighted(correct, len(label))}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument(
    '--out', type=pathlib.Path, help='where the audit is kept'
  )
  out = parser.parse_args().out

  np.random.seed(0)  # noqa: NPY002, pfl takes its seeds from there.
  torch.manual_seed(0)
  torch.set_num_threads(1)  # Steps so small are slower on several.
  warnings.filterwarnings('ignore', 'To copy construct from a tensor')
  rule = torch.randn(FEATURES, CLASSES)

  def make_user(number: int) -> PyTorchTensorDataset:
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(EXAMPLES, FEATURES, generator=generator)
    return PyTorchTensorDataset([x, (x @ rule).argmax(dim=1)], str(number))

  users, new_users = (
    FederatedDataset(make_user, get_user_sampler('minimize_reuse', range(*ids)))
    for ids in ((USERS,), (USERS, USERS + 50))
  )
  network = Network()
  model = PyTorchModel(
    network, torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0)
  )
  mechanism = CentrallyAppliedPrivacyMechanism(
    GaussianMechanism(clipping_bound=0.5, relative_noise_stddev=0.6)
  )
  postprocessors = [mechanism]
  canaries = pfl.audit(postprocessors, rounds=ROUNDS, delta=1e-5)  # +
  backend = SimulatedBackend(users, new_users, postprocessors=postprocessors)
  FederatedAveraging().run(
    NNAlgorithmParams(
      central_num_iterations=ROUNDS,
      evaluation_frequency=ROUNDS,
      train_cohort_size=COHORT,
      val_cohort_size=None,
    ),
    backend,
    model,
    NNTrainHyperParams(
      local_num_epochs=5, local_learning_rate=0.1, local_batch_size=EXAMPLES
    ),
    send_metrics_to_platform=False,
  )

  pairs = [make_user(number).raw_data for number in range(USERS, USERS + 50)]
  x, label = (torch.cat(tensors) for tensors in zip(*pairs))
  accuracy = network.metrics(x, label)['accuracy'].overall_value
  print(f'accuracy on new users {100 * accuracy:.1f} %\n')
  print(canaries.auditor.report())  # +
  if out is not None:
    canaries.auditor.save(out / 'pfl.npz')


if __name__ == '__main__':
  main()
