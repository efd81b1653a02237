"""Opacus, Flower and pfl-research, in an environment with PyTorch."""

import functools
import secrets
import types

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
  DifferentialPrivacyServerSideFixedClipping,
  FedAdam,
  FedAvg,
  FedAvgM,
)
from flwr.supercore.task_identity import TaskIdentity
import numpy as np
from opacus.optimizers import AdaClipDPOptimizer, DPOptimizer
from pfl.common_types import Population
from pfl.context import UserContext
from pfl.metrics import Metrics
from pfl.privacy import CentrallyAppliedPrivacyMechanism, GaussianMechanism
from pfl.privacy.adaptive_clipping import AdaptiveClippingGaussianMechanism
from pfl.stats import MappedVectorStatistics
import torch

from epe_jax.conformance import Claim, Refused
from frameworks import subject

# Who sends messages, which a run of Flower would say.
TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1


class Opacus:
  """A DPOptimizer that is given the gradients of each example."""

  def __init__(self, claim: Claim, kind=DPOptimizer, **options):
    self._params = [
      torch.nn.Parameter(torch.zeros(shape)) for shape in claim.shapes
    ]
    generator = torch.Generator().manual_seed(secrets.randbits(62))
    self._optimizer = kind(
      torch.optim.SGD(self._params, lr=1.0),
      noise_multiplier=claim.noise_multiplier,
      max_grad_norm=claim.clip_norm,
      expected_batch_size=claim.num_clients,
      generator=generator,
      **options,
    )
    self._is_adaptive = kind is AdaClipDPOptimizer

  @property
  def clip_norm(self):
    if not self._is_adaptive:
      return None
    return float(self._optimizer.max_grad_norm)

  def aggregate(self, updates, weights):
    del weights  # Examples have none.
    for param, tensors in zip(self._params, zip(*updates)):
      param.grad_sample = torch.from_numpy(np.stack(tensors))
    before = [param.detach().clone() for param in self._params]
    self._optimizer.step()
    self._optimizer.zero_grad()
    # SGD with learning rate 1 subtracts what was released.
    return [
      (old - new.detach()).numpy() for old, new in zip(before, self._params)
    ]


def make_opacus_adaptive(claim: Claim):
  return Opacus(
    claim,
    AdaClipDPOptimizer,
    target_unclipped_quantile=0.5,
    clipbound_learning_rate=0.2,
    max_clipbound=1e8 * claim.clip_norm,
    min_clipbound=1e-8 * claim.clip_norm,
    unclipped_num_std=claim.num_clients / 20 + claim.noise_multiplier,
  )


class _Grid:
  """As much of a grid as a strategy asks of it."""

  def __init__(self, num_nodes):
    self._nodes = range(1, num_nodes + 1)

  def get_node_ids(self):
    return self._nodes


class Flower:
  """A strategy that is given replies; its release is the change of the model."""

  def __init__(self, claim: Claim, wrap, strategy=FedAvg, **options):
    zeros = [np.zeros(shape, np.float32) for shape in claim.shapes]
    self._arrays = _make_arrays(zeros)
    self._wrapped = wrap(strategy(**options), claim)
    self._grid, self._round = _Grid(claim.num_clients), 0

  def aggregate(self, updates, weights):
    self._round += 1
    for _ in self._wrapped.configure_train(
      self._round, self._arrays, ConfigRecord(), self._grid
    ):
      pass  # What would be sent to clients.
    before = self._arrays.to_numpy_ndarrays()
    replies = [
      _make_reply(before, update, weight)
      for update, weight in zip(updates, weights)
    ]
    arrays, _ = self._wrapped.aggregate_train(self._round, replies)
    if arrays is None:
      raise Refused('aggregate_train returns None')
    self._arrays = arrays
    return [new - old for new, old in zip(arrays.to_numpy_ndarrays(), before)]


class FlowerAdaptive(Flower):
  """The same with a clip norm that adapts and is public."""

  @property
  def clip_norm(self):
    return float(self._wrapped.clipping_norm)


def _make_arrays(tensors):
  return ArrayRecord(
    {f'{i}': Array(np.array(x)) for i, x in enumerate(tensors)}
  )


def _make_reply(before, update, weight):
  trained = [old + tensor for old, tensor in zip(before, update)]
  # Flower divides by the norm of an update, and stops if it is 0.
  if all(np.array_equal(*pair) for pair in zip(before, trained)):
    trained = [x + np.maximum(np.spacing(np.abs(x)), 1e-12) for x in before]
  content = RecordDict(
    {
      'arrays': _make_arrays(trained),
      'metrics': MetricRecord({'num-examples': float(weight)}),
    }
  )
  asked = Message(
    content=RecordDict({'config': ConfigRecord()}),
    dst_node_id=1,
    message_type='train',
  )
  return Message(content=content, reply_to=asked)


def make_flower_fixed(claim: Claim, strategy=FedAvg, **options):
  return Flower(
    claim,
    lambda strategy, claim: DifferentialPrivacyServerSideFixedClipping(
      strategy, claim.noise_multiplier, claim.clip_norm, claim.num_clients
    ),
    strategy,
    **options,
  )


def make_flower_adaptive(claim: Claim):
  return FlowerAdaptive(
    claim,
    lambda strategy, claim: DifferentialPrivacyServerSideAdaptiveClipping(
      strategy,
      claim.noise_multiplier,
      claim.num_clients,
      initial_clipping_norm=claim.clip_norm,
      clipped_count_stddev=claim.num_clients / 20 + claim.noise_multiplier,
    ),
  )


class Pfl:
  """A mechanism of pfl, with users who all count alike."""

  def __init__(self, claim: Claim, mechanism):
    self._mechanism, self._num_tensors = mechanism, len(claim.shapes)
    self._context = types.SimpleNamespace(
      cohort_size=claim.num_clients, population=Population.TRAIN, seed=None
    )

  @property
  def clip_norm(self):
    bound = getattr(self._mechanism, 'mutable_clipping_bound', None)
    return None if bound is None else bound.value()

  def aggregate(self, updates, weights):
    del weights  # Unless an algorithm is told otherwise.
    clipped = []
    for update in updates:
      statistics = MappedVectorStatistics(
        {f'{i}': np.array(tensor) for i, tensor in enumerate(update)}, weight=1
      )
      context = UserContext(num_datapoints=1, seed=None)
      clipped.append(
        self._mechanism.postprocess_one_user(
          stats=statistics, user_context=context
        )[0]
      )
    total = functools.reduce(lambda a, b: a + b, clipped)
    noisy, _ = self._mechanism.postprocess_server(
      stats=total, central_context=self._context, aggregate_metrics=Metrics()
    )
    noisy.average()
    return [noisy[f'{i}'] for i in range(self._num_tensors)]


def make_pfl(claim: Claim):
  gaussian = GaussianMechanism(claim.clip_norm, claim.noise_multiplier)
  return Pfl(claim, CentrallyAppliedPrivacyMechanism(gaussian))


def make_pfl_adaptive(claim: Claim):
  return Pfl(
    claim,
    AdaptiveClippingGaussianMechanism(
      lambda bound: GaussianMechanism(bound, claim.noise_multiplier),
      initial_clipping_bound=claim.clip_norm,
      clipping_indicator_noise_stddev=2.0 * claim.noise_multiplier,
      adaptive_clipping_norm_quantile=0.5,
    ),
  )


_CLAIM = Claim(
  clip_norm=1.0, noise_multiplier=1.0, num_clients=20, shapes=subject.SHAPES
)

SUBJECTS = (
  subject.Subject('DPOptimizer', 'opacus', Opacus, _CLAIM),
  subject.Subject('AdaClipDPOptimizer', 'opacus', make_opacus_adaptive, _CLAIM),
  subject.Subject(
    'DifferentialPrivacyServerSideFixedClipping(FedAvg)',
    'flwr',
    make_flower_fixed,
    _CLAIM,
    'Without an accountant, which is the default.',
  ),
  subject.Subject(
    'DifferentialPrivacyServerSideFixedClipping(FedAvgM)',
    'flwr',
    functools.partial(make_flower_fixed, strategy=FedAvgM, server_momentum=0.9),
    _CLAIM,
    'Server momentum 0.9, without an accountant; with one it is refused.',
  ),
  subject.Subject(
    'DifferentialPrivacyServerSideFixedClipping(FedAdam)',
    'flwr',
    functools.partial(make_flower_fixed, strategy=FedAdam),
    _CLAIM,
    'Default server settings, without an accountant; with one it is refused.',
  ),
  subject.Subject(
    'DifferentialPrivacyServerSideAdaptiveClipping(FedAvg)',
    'flwr',
    make_flower_adaptive,
    _CLAIM,
  ),
  subject.Subject(
    'CentrallyAppliedPrivacyMechanism(GaussianMechanism)',
    'pfl',
    make_pfl,
    _CLAIM,
  ),
  subject.Subject(
    'AdaptiveClippingGaussianMechanism', 'pfl', make_pfl_adaptive, _CLAIM
  ),
)
