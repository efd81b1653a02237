"""Federated averaging with NVFlare's components, audited: a linear classifier.

  python examples/frameworks/nvflare_quickstart.py

The statements marked `# +` are the audit. Filters and aggregator are
called here as a job calls them, in one process; in a job they are named in its
configuration. NVFlare has no filter that adds Gaussian noise to clipped
updates, so one is written out.
"""

import argparse
import pathlib

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.dxo_filter import DXOFilter
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.aggregators.intime_accumulate_model_aggregator import (
  InTimeAccumulateWeightedAggregator,
)
from nvflare.app_common.app_constant import AppConstants

from epe_jax.auditor.adapters import nvflare  # +

FEATURES, CLASSES, SITES, ROUNDS = 400, 25, 24, 60
DIM = FEATURES * CLASSES
CLIP_NORM, NOISE_MULTIPLIER = 0.2, 0.5


class GaussianPrivacy(DXOFilter):
  """Clips an update, and adds the share of a site in the noise of all."""

  def __init__(self, rng):
    super().__init__([DataKind.WEIGHT_DIFF], [DataKind.WEIGHT_DIFF])
    self._rng = rng

  def process_dxo(self, dxo, shareable, fl_ctx):
    update = dxo.data['w']
    update = update * min(1.0, CLIP_NORM / np.linalg.norm(update))
    std = NOISE_MULTIPLIER * CLIP_NORM / np.sqrt(SITES)
    dxo.data = {'w': update + self._rng.normal(0, std, update.shape)}
    return dxo


def train(weights, x, y):
  """What a site makes of the model on its examples."""
  logits = x @ weights
  probabilities = np.exp(logits - logits.max(axis=1, keepdims=True))
  probabilities /= probabilities.sum(axis=1, keepdims=True)
  probabilities[np.arange(len(y)), y] -= 1
  return -0.2 * x.T @ probabilities / len(y)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument(
    '--out', type=pathlib.Path, help='where the audit is kept'
  )
  out = parser.parse_args().out

  rng = np.random.default_rng(0)
  data = rng.normal(size=(SITES, 60, FEATURES))
  labels = (data @ rng.normal(size=(FEATURES, CLASSES))).argmax(axis=-1)
  aggregator = InTimeAccumulateWeightedAggregator(
    expected_data_kind=DataKind.WEIGHT_DIFF
  )
  context = FLContext()
  aggregator.handle_event(EventType.START_RUN, context)
  filters = [[GaussianPrivacy(rng)] for _ in range(SITES)]
  aggregator = nvflare.audit(  # +
    aggregator,
    dim=DIM,
    rounds=ROUNDS,
    clip_norm=0.2,
    noise_multiplier=0.5,
    delta=1e-3,
    num_observed=300,
  )
  filters = [[aggregator.filter(i), *f] for i, f in enumerate(filters)]  # +

  weights = np.zeros((FEATURES, CLASSES))
  for t in range(ROUNDS):
    context.set_prop(AppConstants.CURRENT_ROUND, t)
    for site in range(SITES):
      update = {'w': train(weights, data[site], labels[site])}
      meta = {MetaKey.NUM_STEPS_CURRENT_ROUND: 1}
      sent = DXO(DataKind.WEIGHT_DIFF, update, meta).to_shareable()
      sent.set_header(AppConstants.CURRENT_ROUND, t)
      sent.add_cookie(AppConstants.CONTRIBUTION_ROUND, t)
      sent.set_peer_props({ReservedKey.IDENTITY_NAME: f'site-{site}'})
      for one in filters[site]:
        sent = one.process(sent, context)
      aggregator.accept(sent, context)
    weights = weights + from_shareable(aggregator.aggregate(context)).data['w']
  accuracy = np.mean((data @ weights).argmax(axis=-1) == labels)
  print(f'accuracy on the training data {100 * accuracy:.1f} %\n')
  print(aggregator.auditor.report())  # +
  if out is not None:
    aggregator.auditor.save(out / 'nvflare.npz')


if __name__ == '__main__':
  main()
