"""APPFL's trainers as they send a client's model, in an environment with PyTorch."""

import logging
import math

from appfl.algorithm.trainer.vanilla_trainer import VanillaTrainer
import numpy as np
from omegaconf import OmegaConf
import torch

from benchmarks.conformance import subject
from epe_jax.conformance import Claim, Refused


class Model(torch.nn.Module):
  """Parameters of zeros, whose inner product with the data is the loss.

  Of the last `num_normalized` numbers of the data it keeps running means.
  """

  def __init__(self, shapes, num_normalized=0):
    super().__init__()
    self.tensors = torch.nn.ParameterList(torch.zeros(x) for x in shapes)
    self.norm = None
    if num_normalized:
      self.norm = torch.nn.BatchNorm1d(
        num_normalized, affine=False, momentum=1.0
      )

  def forward(self, data):
    flat = torch.cat([x.reshape(-1) for x in self.tensors])
    if self.norm is not None:
      self.norm(-data[:, len(flat) :])
    return data[:, : len(flat)] @ flat


class Logger(logging.Logger):
  """A logger with the methods of APPFL's, which write tables."""

  def __init__(self):
    super().__init__('appfl', logging.ERROR)

  def log_title(self, titles):
    pass

  set_title = log_content = log_title


class Trainer:
  """A fresh client, whose gradient in each step is an update.

  With learning rate 1 the model that it sends is minus the sum of what it clipped.
  With `normalize` the last tensor is not a parameter, but running means of the data.
  """

  def __init__(
    self, claim: Claim, steps: int = 1, normalize: bool = False, **configs
  ):
    self._shapes, self._steps, self._normalize = claim.shapes, steps, normalize
    self._configs = {
      'device': 'cpu',
      'mode': 'step',
      'num_local_steps': steps,
      'optim': 'SGD',
      'optim_args': {'lr': 1.0},
      'train_batch_size': 1 + normalize,  # It refuses a batch of one.
      'optimize_memory': False,
      'use_dp': True,
      'epsilon': claim.epsilon,
      'clip_value': claim.clip_norm,
      'clip_norm': claim.norm,
      **configs,
    }

  def aggregate(self, updates, weights):
    if len(updates) != 1:
      raise Refused('a message has the update of one client')
    flat = np.concatenate([np.ravel(tensor) for tensor in updates[0]])
    examples = [(torch.tensor(flat, dtype=torch.float32), 0)]
    if self._normalize:
      model = Model(self._shapes[:-1], math.prod(self._shapes[-1]))
    else:
      model = Model(self._shapes)
    trainer = VanillaTrainer(
      model,
      lambda output, target: output.mean(),
      lambda labels, outputs: math.nan,
      examples * self._steps * (1 + self._normalize),
      train_configs=OmegaConf.create(self._configs),
      logger=Logger(),
      client_id='one',
    )
    trainer.runtime_context = {
      'all_client_ids': ['one'],
      'round_id': 0,
      'secure_agg_secret': b'secret',
    }
    trainer.train()
    sent, _ = trainer.get_parameters()
    if 'flat' in sent:  # Behind secure aggregation; nobody else masks it.
      ends = np.cumsum([math.prod(shape) for shape in self._shapes])[:-1]
      parts = np.split(sent['flat'].numpy(), ends)
      sent = [x.reshape(shape) for x, shape in zip(parts, self._shapes)]
    else:
      sent = [x.numpy() for x in sent.values()][: len(self._shapes)]
    return [-tensor for tensor in sent]


def make_claim(epsilon: float, **changes) -> Claim:
  """ε of the model that one client sends, for any two data sets of one step."""
  given = {'clip_norm': 1.0, 'num_clients': 1, 'shapes': subject.SHAPES}
  given |= {'release': 'sum', 'adjacency': 'replace'}
  return Claim.from_epsilon(epsilon, **(given | changes))


# Processes of their own import these by name.
def make_clipped(claim: Claim, *args, **configs):
  return Trainer(claim, *args, clip_grad=True, **configs)


def make_five_steps(claim: Claim):
  return make_clipped(claim, 5)


def make_normalized(claim: Claim):
  return make_clipped(claim, normalize=True)


def make_gaussian(claim: Claim, **configs):
  return make_clipped(claim, dp_mechanism='gaussian', **configs)


def make_masked(claim: Claim):
  return make_gaussian(claim, use_secure_agg=True)


_LAPLACE = make_claim(1.0, noise='laplace', norm=1)

SUBJECTS = (
  subject.Subject(
    'VanillaTrainer, Laplace',
    'appfl',
    make_clipped,
    _LAPLACE,
    'One local step, clipped in the norm of order 1, with `clip_grad`.',
  ),
  subject.Subject(
    'VanillaTrainer, Laplace, without clip_grad',
    'appfl',
    Trainer,
    _LAPLACE,
    'One local step; `clip_grad` is not set, as by default.',
  ),
  subject.Subject(
    'VanillaTrainer, Laplace, five steps',
    'appfl',
    make_five_steps,
    _LAPLACE,
    'Five local steps, clipped in the norm of order 1, with `clip_grad`.',
  ),
  subject.Subject(
    'VanillaTrainer, Laplace, batch normalization',
    'appfl',
    make_normalized,
    make_claim(1.0, noise='laplace', norm=1, shapes=(*subject.SHAPES, (60,))),
    'One local step; the last tensor is the running mean of `BatchNorm1d`, a buffer.',
  ),
  subject.Subject(
    'VanillaTrainer, Gaussian',
    'appfl',
    make_gaussian,
    make_claim(10.0),
    'One local step, for ε = 10, with `clip_grad`.',
  ),
  subject.Subject(
    'VanillaTrainer, Gaussian, behind secure aggregation',
    'appfl',
    make_masked,
    make_claim(10.0),
    'The sum of the messages of one client, whose masks cancel.',
  ),
)
