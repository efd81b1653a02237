"""Flower with secure aggregation (SecAgg+), audited through what each round releases.

  python examples/frameworks/secagg_quickstart.py

The statements marked `# +` are the audit; the others are a simulation in the
shape of Flower's NumPy quickstart, on images that are made up. The auditor has 50
devices among the clients, each for one round, and gives each its message before
training. From then on it asks the server for no more than the release of each round
and whose messages are in it. Some devices are gone before they reply.
"""

import argparse
import logging
import os
import pathlib
import tempfile

# Nothing is reported to anybody.
os.environ.setdefault('FLWR_TELEMETRY_ENABLED', '0')
os.environ.setdefault('RAY_USAGE_STATS_ENABLED', '0')

from flwr.app import Context, Error, Message
from flwr.client import NumPyClient
from flwr.client.mod import fixedclipping_mod, secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.common.secure_aggregation.quantization import dequantize, quantize
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import (
  DifferentialPrivacyClientSideFixedClipping,
  FedAvg,
)
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
import numpy as np
import torch
from torch import nn

from epe_jax import AuditConfig, Auditor  # +

CLIENTS, EXAMPLES, ROUNDS, CLASSES = 12, 64, 10, 4
CLIP_NORM, NOISE_MULTIPLIER, DROPOUT = 1.0, 0.5, 0.05
# Coordinates are clipped to this and rounded to one of so many steps.
RANGE, STEPS = 8.0, 2**22


def make_model() -> nn.Module:
  return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, CLASSES))


def take_arrays(model: nn.Module) -> list[np.ndarray]:
  return [x.detach().numpy().copy() for x in model.parameters()]


def put_arrays(model: nn.Module, arrays: list[np.ndarray]) -> None:
  for parameter, array in zip(model.parameters(), arrays):
    parameter.data = torch.tensor(array, dtype=torch.float32)


def load_data(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
  """Images of noise, brighter in the quarter that is the label."""
  generator = torch.Generator().manual_seed(seed)
  labels = torch.randint(CLASSES, (EXAMPLES,), generator=generator)
  images = torch.randn(EXAMPLES, 64, generator=generator)
  for image, label in zip(images, labels.tolist()):
    image[16 * label : 16 * label + 16] += 0.7
  return images, labels


class Client(NumPyClient):
  """Trains; a device of the auditor sends what it was given for the round."""

  def __init__(self, number: int, folder: str):
    self.number, self.folder = number, folder

  def fit(self, parameters, config):
    metrics = {'number': self.number}
    path = pathlib.Path(self.folder, f'{config["round"]}-{self.number}.npz')
    if path.exists():
      with np.load(path) as update:
        sent = [x + update[name] for x, name in zip(parameters, update)]
      return sent, EXAMPLES, metrics
    torch.set_num_threads(1)
    model = make_model()
    put_arrays(model, parameters)
    images, labels = load_data(self.number)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(5):
      for batch in torch.arange(EXAMPLES).split(16):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
        loss.backward()
        optimizer.step()
    return take_arrays(model), EXAMPLES, metrics


def leave_mod(msg: Message, context: Context, call_next) -> Message:
  """A device may be gone when masked updates are collected."""
  config = msg.content.config_records.get('fitins.config')
  if config is not None:
    seed = config['round'], context.node_config['partition-id']
    if np.random.default_rng(seed).random() < DROPOUT:
      return Message(Error(code=0, reason='gone'), reply_to=msg)
  return call_next(msg, context)


class Strategy(DifferentialPrivacyClientSideFixedClipping):
  """Adds noise for the clients whose messages are in the sum, and is observed."""

  def __init__(self, inner: FedAvg, observe):
    super().__init__(inner, NOISE_MULTIPLIER, CLIP_NORM, CLIENTS)
    self.observe = observe

  def configure_fit(self, server_round, parameters, client_manager):
    self.sent = parameters_to_ndarrays(parameters)
    return super().configure_fit(server_round, parameters, client_manager)

  def aggregate_fit(self, server_round, results, failures):
    # SecAgg+ has recovered the sum without the others.
    self.num_sampled_clients = len(results)
    released, metrics = super().aggregate_fit(server_round, results, [])
    model = parameters_to_ndarrays(released)
    update = [x - y for x, y in zip(model, self.sent)]
    arrived = [reply.metrics['number'] for _, reply in results]
    self.observe(server_round - 1, update, arrived)
    return released, metrics


def measure_rounding(
  model: list[np.ndarray], update: list[np.ndarray], steps: int
) -> float:
  """The cosine of a message with what is left of it on the grid of SecAgg+."""
  sent = quantize([x + y for x, y in zip(model, update)], RANGE, steps)
  rounded = dequantize(sent, RANGE, steps)
  after = np.concatenate([(x - y).ravel() for x, y in zip(rounded, model)])
  before = np.concatenate([x.ravel() for x in update]).astype(float)
  return before @ after / np.linalg.norm(before) / np.linalg.norm(after)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument(
    '--out', type=pathlib.Path, help='where the audit is kept'
  )
  out = parser.parse_args().out
  logging.getLogger('flwr').setLevel(logging.ERROR)
  torch.manual_seed(0)
  model = make_model()
  initial = take_arrays(model)
  auditor = Auditor(  # +
    AuditConfig(
      dim=sum(x.size for x in initial),
      rounds=ROUNDS,
      clip_norm=CLIP_NORM,
      noise_multiplier=NOISE_MULTIPLIER,
      delta=1e-5,
      num_observed=5 * ROUNDS,
      server_momentum=0.0,
    )
  )

  folder = tempfile.TemporaryDirectory()
  for t in range(ROUNDS):
    # The devices of the auditor are the first ones of each round.
    for number, canary in enumerate(auditor.canary_ids(t).tolist()):
      message = auditor.canary_update(canary, like=initial)  # +
      np.savez(f'{folder.name}/{t}-{number}.npz', *message)

  def observe(t, update, arrived):
    ids = auditor.canary_ids(t).tolist()  # +
    included = [j for number, j in enumerate(ids) if number in arrived]  # +
    for j in {*ids} - {*included}:
      print(f'canary {j} is not in the sum of round {t}')
    auditor.observe(t, update, divisor=len(arrived), included=included)  # +

  app = ServerApp()

  @app.main()
  def serve(grid: Grid, context: Context) -> None:
    fedavg = FedAvg(
      fraction_evaluate=0.0,
      min_fit_clients=CLIENTS,
      min_available_clients=CLIENTS,
      initial_parameters=ndarrays_to_parameters(initial),
      on_fit_config_fn=lambda server_round: {'round': server_round - 1},
    )
    legacy = LegacyContext(
      context,
      config=ServerConfig(num_rounds=ROUNDS),
      strategy=Strategy(fedavg, observe),
    )
    # All weights are equal: a larger max_weight only makes the grid coarser.
    secagg = SecAggPlusWorkflow(
      num_shares=7,
      reconstruction_threshold=4,
      max_weight=EXAMPLES,
      clipping_range=RANGE,
      quantization_range=STEPS,
    )
    DefaultWorkflow(fit_workflow=secagg)(grid, legacy)
    arrays = legacy.state.array_records['parameters'].to_numpy_ndarrays()
    put_arrays(model, arrays)

  clients = ClientApp(
    client_fn=lambda context: Client(
      int(context.node_config['partition-id']), folder.name
    ).to_client(),
    mods=[leave_mod, secaggplus_mod, fixedclipping_mod],
  )
  run_simulation(app, clients, num_supernodes=CLIENTS)
  folder.cleanup()
  auditor.observe_final(take_arrays(model), initial=initial)  # +
  images, labels = load_data(CLIENTS)
  accuracy = (model(images).argmax(1) == labels).double().mean()
  print(f'\naccuracy on data of nobody {100 * accuracy:.1f} %')
  canary = auditor.canary_update(0, like=initial)
  for bits in (22, 16, 12, 10):
    cosine = measure_rounding(initial, canary, 2**bits)
    print(
      f'cosine of a canary with its message, of 2^{bits} steps {cosine:.8f}'
    )
  print()
  print(auditor.report())  # +
  if out is not None:
    auditor.save(out / 'secagg.npz')


if __name__ == '__main__':
  main()
