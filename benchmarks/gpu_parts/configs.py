"""The configs of the runs and rounds that are measured."""

import importlib
import pathlib
from typing import Any

from gpu_parts import workloads
from gpu_parts.results import Context

ROOT = pathlib.Path(__file__).parents[2]


def load(name: str, mode: str = 'full') -> Any:
  """The config of a job in a mode, with Hadamard canaries."""
  module = importlib.import_module(f'epe_jax.configs.{name}')
  config = module.get_config(mode)
  config.canaries.family = 'hadamard'
  return config


def digits(quick: bool) -> Any:
  """The default job."""
  return load('digits', 'smoke' if quick else 'full')


def emnist(context: Context, *, rounds: int) -> Any:
  """The paper's rounds of EMNIST, on given or synthetic data of its size."""
  config = load('emnist', 'smoke' if context.quick else 'full')
  config.rounds = config.evaluate_every = config.checkpoint_every = rounds
  if path := context.files.get('emnist'):
    config.data.path = path
    return config
  config.task = f'{workloads.__name__}:emnist'
  config.data.num_clients = 50 if context.quick else workloads.EMNIST_CLIENTS
  config.data.num_examples = 2_000 if context.quick else workloads.EMNIST_IMAGES
  if context.quick:
    config.model.width = 4
    config.evaluate_examples = 50
  return config


def stackoverflow(
  context: Context, *, rounds: int, all_full: bool = False
) -> Any:
  """The paper's rounds of StackOverflow, at most 256 sentences of a user.

  Args:
    context: of the part.
    rounds: T.
    all_full: every user has 256 sentences, and there are only as many users as
      one round needs: the work of a round is then the same for all.
  """
  config = load('stackoverflow', 'smoke' if context.quick else 'full')
  config.rounds = config.evaluate_every = config.checkpoint_every = rounds
  if (path := context.files.get('stackoverflow')) and not all_full:
    config.data.path = path
    config.data.word_count = context.files.get('word_count')
    return config
  config.task = f'{workloads.__name__}:stackoverflow'
  with config.unlocked():
    config.data.all_full = all_full
  config.data.num_clients = workloads.STACKOVERFLOW_USERS
  config.data.max_sentences = 256
  if all_full:
    config.data.num_clients = 200
  if context.quick:
    config.data.vocabulary_size = 1000
    config.data.num_clients = 50
    config.data.max_sentences = config.client.max_examples
    config.evaluate_examples = 20
  return config
