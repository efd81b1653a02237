"""A ServerApp and a ClientApp with a small PyTorch model, audited."""

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import (
  DifferentialPrivacyServerSideFixedClipping,
  FedAvg,
)
import torch
from torch import nn

from epe_jax.auditor.adapters import flower

ROUNDS, CLIP_NORM, NOISE_MULTIPLIER = 3, 1.0, 0.01

client_app = ClientApp(mods=[flower.canary_mod])
server_app = ServerApp()


def make_model():
  return nn.Sequential(nn.Linear(20, 50), nn.BatchNorm1d(50), nn.Linear(50, 2))


@client_app.train()
def train(msg, context):
  del context
  model = make_model()
  model.load_state_dict(msg.content['arrays'].to_torch_state_dict())
  x = torch.randn(16, 20)
  loss = nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long())
  loss.backward()
  for p in model.parameters():
    p.data -= 0.1 * p.grad
  content = RecordDict(
    {
      'arrays': ArrayRecord(model.state_dict()),
      'metrics': MetricRecord({'num-examples': 16, 'loss': loss.item()}),
    }
  )
  return Message(content, reply_to=msg)


def train_audited(grid, *, nodes, client_side):
  """Runs all rounds, and returns the auditor."""
  arrays = ArrayRecord(make_model().state_dict())
  strategy = DifferentialPrivacyServerSideFixedClipping(
    FedAvg(fraction_evaluate=0.0, min_available_nodes=nodes),
    NOISE_MULTIPLIER,
    CLIP_NORM,
    nodes,
  )
  strategy = flower.audit(
    strategy,
    client_side=client_side,
    delta=1e-3,
    num_observed=2 * ROUNDS,
    num_unobserved=200,
  )
  strategy.start(grid=grid, initial_arrays=arrays, num_rounds=ROUNDS)
  return strategy.auditor


@server_app.main()
def serve(grid, context):
  options = context.run_config
  train_audited(grid, nodes=options['nodes'], client_side=True).save(
    options['out']
  )
