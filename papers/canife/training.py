"""One epoch of DP-FedAvg with an image for each client, audited by our canaries."""

from collections.abc import Iterable
import functools
import os
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int
import numpy as np
import optax

from epe_jax import canaries, sampling, streams
from epe_jax.audit import audited_algorithm, observers
from epe_jax.audit.record import Record, make_record
from epe_jax.training import clipping, fedavg
from epe_jax.types import Array, Key, Params
from papers.canife import two_layer
from papers.data import fashion_mnist

CLASSES = 10


class Images(NamedTuple):
  """Images of ten classes.

  Attributes:
    train_x: pixels in [0, 1], float32 [n, p].
    train_y: classes, int32 [n].
    test_x: the same of others.
    test_y: the same.
    source: what they are, in a sentence without a full stop.
  """

  train_x: Float[np.ndarray, 'n p']
  train_y: Int[np.ndarray, ' n']
  test_x: Float[np.ndarray, 'm p']
  test_y: Int[np.ndarray, ' m']
  source: str


def load_images(
  folder: str | os.PathLike | None, *, num_train: int, num_test: int
) -> Images:
  """Loads the first images of Fashion-MNIST, or generates as many.

  Args:
    folder: of the four idx files; None generates a mean for each class, and pixels
      that scatter around it.
    num_train: images for training.
    num_test: images for the test.

  Raises:
    FileNotFoundError, ValueError: a file is missing or damaged.
  """
  nums = num_train, num_test
  columns: Any = []
  if folder is not None:
    for num, split in zip(nums, fashion_mnist.read_splits(folder)):
      pixels = split['pixels'][:num].reshape(num, 784)
      columns += [pixels.astype(np.float32) / 255, split['label'][:num]]
    return Images(*columns, source=f'Fashion-MNIST, {num_train:,} images')
  rng = streams.host_rng(0, 'canife images')
  means = rng.random((CLASSES, 784))
  for num in nums:
    labels = rng.integers(CLASSES, size=num).astype(np.int32)
    pixels = means[labels] + rng.normal(scale=0.3, size=(num, 784))
    columns += [np.clip(pixels, 0, 1).astype(np.float32), labels]
  return Images(*columns, source=f'synthetic, {num_train:,} images')


def derive_key(seed: int, name: str) -> Key:
  """A key of a stream of its own."""
  return jax.random.key(int(streams.host_rng(seed, name).integers(2**63)))


class Trained(NamedTuple):
  """A run.

  Attributes:
    models: round -> the model before that round, for the requested rounds.
    record: of our canaries.
    accuracy: of the last model on the test images, in [0, 1].
  """

  models: dict[int, Params]
  record: Record
  accuracy: float


def count_rounds(settings: Any) -> int:
  """Rounds of an epoch; the last images that fill no round are left out."""
  return settings.num_train // settings.batch


def train(
  settings: Any, images: Images, *, seed: int, keep: Iterable[int]
) -> Trained:
  """Trains for one epoch, and audits it by our canaries.

  A client has one image and takes one step at learning rate 1, so that its update is
  minus the gradient.

  Args:
    settings: of the experiment.
    images: of all clients.
    seed: >= 0, of all that is drawn.
    keep: rounds before which the model is kept.
  """
  rounds = count_rounds(settings)
  training_key = derive_key(seed, 'canife training')
  # A simulation: the privacy noise follows from the seed like everything else.
  noise_key = derive_key(seed, 'canife noise')
  task = two_layer.make_task(
    images.train_x.shape[1], width=settings.width, classes=CLASSES
  )
  params = task.init(derive_key(seed, 'canife model'))
  dim = sum(leaf.size for leaf in jax.tree.leaves(params))
  included = np.zeros((rounds, settings.observed + settings.unobserved), bool)
  included[:, : settings.observed] = sampling.once_per_period(
    streams.host_rng(seed, 'canife participation'),
    rounds=rounds,
    num=settings.observed,
  )
  canary_set = canaries.family(settings.family)(
    derive_key(seed, 'canife canaries'), included.shape[1], dim
  )
  watched = {
    'final': observers.final_model(canary_set),
    'rounds': observers.all_iterates(
      canary_set, rounds=rounds, views=('aggregate', 'residual')
    ),
  }
  algorithm = audited_algorithm.audited(
    fedavg.dp_fedavg(
      task,
      client_opt=optax.sgd(1.0),
      server_opt=optax.sgd(settings.learning_rate),
      clipping=clipping.fixed(settings.clip_norm),
      noise_multiplier=settings.noise_multiplier,
      expected_clients=settings.batch,
    ),
    canary_set,
    included,
    watched,
  )
  order = sampling.shuffled_epochs(
    seed, num_clients=len(images.train_y), clients_per_round=settings.batch
  )

  @functools.partial(jax.jit, donate_argnums=0)
  def step(state, x, y, clients):
    # Images are arguments; constants would be compiled into the program.
    t = state.algorithm.round
    return algorithm.step(
      state,
      make_cohort(x, y, clients),
      jax.random.fold_in(training_key, t),
      jax.random.fold_in(noise_key, t),
    )[0]

  state, models, kept = algorithm.init(params), {}, set(keep)
  for t in range(rounds):
    if t in kept:
      models[t] = jax.device_get(state.algorithm.params)
    clients = order(t)
    x, y = images.train_x[clients], images.train_y[clients]
    state = step(state, x, y, np.asarray(clients, np.int32))
  metrics = task.metrics(
    state.algorithm.params,
    {'x': jnp.asarray(images.test_x), 'y': jnp.asarray(images.test_y)},
  )
  return Trained(
    models,
    make_record(
      jax.device_get(audited_algorithm.score_observers(state, watched)),
      jax.device_get(state.rounds),
      included=included,
      dim=dim,
      delta=1 / settings.num_train,
      momentum=0.0,
      noise_multiplier=settings.noise_multiplier,
      periods=1,
    ),
    float(np.mean(metrics['accuracy'])),
  )


def make_cohort(
  x: Float[Array, 'm p'], y: Int[Array, ' m'], clients: Int[Array, ' m']
) -> fedavg.Cohort:
  """A cohort of clients with an example each, one in a chunk.

  On a CPU that is much faster than larger chunks, whose updates are written to
  memory.
  """
  alone = lambda column: column[:, None, None, None]
  return fedavg.Cohort(
    {'x': alone(x), 'y': alone(y)},
    jnp.ones((len(y), 1, 1, 1), bool),
    clients[:, None],
  )
