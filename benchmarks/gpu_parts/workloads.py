"""Synthetic data of the public sizes, for timing only.

They are tasks of a run, by `config.task`. Images are the pattern of their class with
noise from a pool; sentences are repeated from a pool.
"""

import functools
import hashlib
from typing import Any

import numpy as np

from epe_jax import streams
from epe_jax.data import federated
from epe_jax.experiment import workloads
from epe_jax.tasks import emnist as emnist_task
from epe_jax.tasks import stackoverflow as stackoverflow_task

_CLASSES, _PIXELS = 62, 28
# Sizes of the pools of noise images and of sentences.
_NOISES, _SENTENCES = 1 << 12, 1 << 18
_MAX_WORDS = 20
EMNIST_CLIENTS, EMNIST_IMAGES = 3_400, 671_585
"""Writers of EMNIST, and images of those that train."""
STACKOVERFLOW_USERS = 342_477
"""Users of StackOverflow that train."""


def emnist(config: Any) -> workloads.Workload:
  """Images of 62 classes; config.data has num_clients and num_examples."""
  num, clients = config.data.num_examples, config.data.num_clients
  train, test = _draw_images(config.seed, num, clients)
  return workloads.Workload(
    emnist_task.task(_CLASSES, width=config.model.width),
    train,
    test,
    f'random images, {clients} clients, {num} images',
  )


# Rounds of several configs are of the same images.
@functools.lru_cache(1)
def _draw_images(
  seed: int, num: int, clients: int
) -> tuple[federated.FederatedData, federated.FederatedData]:
  """Images to train and to test on."""
  rng = streams.host_rng(seed, 'gpu images')
  patterns = rng.random((_CLASSES, _PIXELS, _PIXELS), np.float32)
  noises = rng.random((_NOISES, _PIXELS, _PIXELS), np.float32)

  def draw(num: int, clients: int, name: str) -> federated.FederatedData:
    label = rng.integers(_CLASSES, size=num, dtype=np.int32)
    pixels = patterns[label]
    for start in range(0, num, _NOISES):
      part = pixels[start : start + _NOISES]
      part += noises[rng.integers(_NOISES, size=len(part))]
    pixels *= np.float32(0.5)
    sizes = _draw_sizes(rng, num, clients)
    columns = {'pixels': pixels, 'label': label}
    return _make_data(columns, sizes, f'{name} {seed}')

  train = draw(num, clients, 'gpu emnist train')
  return train, draw(max(num // 9, clients), clients, 'gpu emnist test')


def stackoverflow(config: Any) -> workloads.Workload:
  """Sentences; config.data has num_clients, max_sentences and all_full.

  With all_full every user has max_sentences; else the numbers of sentences are
  lognormal about the mean of 396 of the public data, and cut there.
  """
  data = config.data
  rng = streams.host_rng(config.seed, 'gpu sentences')
  length = np.minimum(1 + rng.poisson(rng.gamma(3, 5, _SENTENCES)), _MAX_WORDS)
  # Zipf's law, as 1 / (rank + 3).
  law = np.cumsum(1 / (np.arange(data.vocabulary_size) + 3))
  uniform = rng.random((_SENTENCES, _MAX_WORDS)) * law[-1]
  pool = (1 + np.searchsorted(law, uniform)).astype(np.int16)
  pool[np.arange(_MAX_WORDS) >= length[:, None]] = 0

  def draw(clients: int, name: str) -> federated.FederatedData:
    sizes = np.full(clients, data.max_sentences)
    if not data.all_full:
      shares = rng.lognormal(np.log(396) - 0.5, size=clients)
      sizes = np.clip(shares, 1, data.max_sentences).astype(np.int64)
    words = np.resize(pool, (int(sizes.sum()), _MAX_WORDS))
    return _make_data({'words': words}, sizes, f'{name} {config.seed}')

  train = draw(data.num_clients, 'gpu text train')
  test = draw(max(data.num_clients // 100, 10), 'gpu text test')
  return workloads.Workload(
    stackoverflow_task.task(
      data.vocabulary_size,
      embedding_size=config.model.embedding_size,
      hidden_size=config.model.hidden_size,
    ),
    train,
    test,
    f'random sentences, {data.num_clients} users of at most '
    f'{data.max_sentences}',
    baseline=float(np.mean(pool[pool > 0] == 1)),
  )


def _draw_sizes(rng: np.random.Generator, num: int, clients: int) -> np.ndarray:
  """Examples of each client, 1 or more: as lognormal shares of `num`."""
  shares = rng.lognormal(0, 0.5, clients)
  return 1 + rng.multinomial(num - clients, shares / shares.sum())


def _make_data(
  columns: dict[str, np.ndarray], sizes: np.ndarray, name: str
) -> federated.FederatedData:
  # A hash of the seed and the sizes: hashing the data would take longer than making it.
  digest = hashlib.sha256(f'{name} {sizes.tolist()}'.encode()).hexdigest()
  return federated.FederatedData(
    columns,
    np.concatenate([[0], np.cumsum(sizes)]),
    np.char.mod('client%07d', np.arange(len(sizes))),
    digest,
  )
