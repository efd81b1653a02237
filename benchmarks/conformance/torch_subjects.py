"""Opacus, Flower and pfl-research, in an environment with PyTorch."""

import contextlib
import copy
import dataclasses
import functools
import logging
import secrets
import tempfile
import types

from flwr.serverapp.strategy import (
  DifferentialPrivacyServerSideAdaptiveClipping,
  DifferentialPrivacyServerSideFixedClipping,
  FedAdam,
  FedAvg,
  FedAvgM,
)
import numpy as np
from opacus.optimizers import AdaClipDPOptimizer, DPOptimizer
from pfl.common_types import Population
from pfl.context import UserContext
from pfl.metrics import Metrics
import pfl.model.pytorch  # noqa: F401  Chooses PyTorch.
from pfl.privacy import (
  CentrallyAppliedPrivacyMechanism,
  GaussianMechanism,
  ftrl_mechanism,
)
from pfl.privacy.adaptive_clipping import AdaptiveClippingGaussianMechanism
from pfl.stats import MappedVectorStatistics
import torch

from benchmarks.conformance import subject
from epe_jax.conformance import Claim
from epe_jax.conformance.adapters import flower

logging.disable(logging.INFO)


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


def make_flower(claim: Claim, strategy):
  """A server optimizer within the wrapper for a fixed clip norm."""
  return flower.Mechanism(
    DifferentialPrivacyServerSideFixedClipping(
      strategy, claim.noise_multiplier, claim.clip_norm, claim.num_clients
    ),
    claim,
  )


def make_flower_momentum(claim: Claim):
  return make_flower(claim, FedAvgM(server_momentum=0.9))


def make_flower_adam(claim: Claim):
  return make_flower(claim, FedAdam())


def make_flower_adaptive(claim: Claim):
  """FedAvg with clipping to a norm that adapts, at the server."""
  return flower.Mechanism(
    DifferentialPrivacyServerSideAdaptiveClipping(
      FedAvg(),
      claim.noise_multiplier,
      claim.num_clients,
      initial_clipping_norm=claim.clip_norm,
      clipped_count_stddev=claim.num_clients / 20 + claim.noise_multiplier,
    ),
    claim,
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
        {f'{i}': torch.tensor(tensor) for i, tensor in enumerate(update)},
        weight=1,
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
    return [noisy[f'{i}'].numpy() for i in range(self._num_tensors)]


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


@functools.cache
def _factorize(rounds: int, separation: int):
  """A mechanism without noise; to find its matrix takes a second."""
  accountant = types.SimpleNamespace(cohort_noise_parameter=0.0)
  with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
    return ftrl_mechanism.BandedMatrixFactorizationMechanism(
      1.0, rounds, separation, lambda _: accountant
    )


def make_pfl_banded(claim: Claim):
  """With noise for sqrt(k) clip norms, the sensitivity that it accounts for."""
  mechanism = copy.deepcopy(_factorize(claim.max_rounds, claim.min_separation))
  # As its accountant would, if it chose z for one participation.
  std = claim.noise_multiplier * claim.participations**0.5
  GaussianMechanism.__init__(mechanism, claim.clip_norm, std)
  return Pfl(claim, CentrallyAppliedPrivacyMechanism(mechanism))


_CLAIM = Claim(
  clip_norm=1.0, noise_multiplier=1.0, num_clients=20, shapes=subject.SHAPES
)


def make_local_claim(epsilon: float, **changes) -> Claim:
  """ε at 1e-5 of what one client sends."""
  given = {'clip_norm': 1.0, 'num_clients': 1, 'shapes': subject.SHAPES}
  return Claim.from_epsilon(epsilon, release='sum', **(given | changes))


SUBJECTS = (
  subject.Subject('DPOptimizer', 'opacus', Opacus, _CLAIM),
  subject.Subject('AdaClipDPOptimizer', 'opacus', make_opacus_adaptive, _CLAIM),
  subject.Subject(
    'DifferentialPrivacyServerSideFixedClipping(FedAvg)',
    'flwr',
    flower.fixed_clipping,
    _CLAIM,
    'Without an accountant, which is the default.',
  ),
  subject.Subject(
    'DifferentialPrivacyServerSideFixedClipping(FedAvgM)',
    'flwr',
    make_flower_momentum,
    _CLAIM,
    'Server momentum 0.9, without an accountant; with one it is refused.',
  ),
  subject.Subject(
    'DifferentialPrivacyServerSideFixedClipping(FedAdam)',
    'flwr',
    make_flower_adam,
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
    'LocalDpMod',
    'flwr',
    flower.local_dp,
    make_local_claim(10.0),
    'The message of one client, for ε = 10 and the clip norm as sensitivity.',
  ),
  subject.Subject(
    'LocalDpMod, any two updates',
    'flwr',
    flower.local_dp,
    make_local_claim(1.0, adjacency='replace'),
    'For ε = 1 and the clip norm as sensitivity, where two updates differ by twice '
    'that.',
  ),
  subject.Subject(
    'LocalDpMod, a parameter without an axis',
    'flwr',
    flower.local_dp,
    make_local_claim(1.0, shapes=(*subject.SHAPES, ())),
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
  subject.Subject(
    'BandedMatrixFactorizationMechanism',
    'pfl',
    make_pfl_banded,
    dataclasses.replace(
      _CLAIM, max_rounds=32, participations=4, min_separation=8
    ),
    'Of 32 rounds, a user takes part in every 8th at most; z is that of all four.',
  ),
)
