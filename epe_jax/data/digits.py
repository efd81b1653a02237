"""Real handwritten digits dealt to clients, small enough for every test.

The 1,797 images of 8 x 8 pixels come with scikit-learn, so nothing is
downloaded; a model trains on them in seconds on a CPU.
"""

import importlib.util
import pathlib
from typing import Any

from jaxtyping import Float
import numpy as np

from epe_jax import extras, streams
from epe_jax.data import data_sets, federated, fields


def load_workload(config: Any) -> Any:
  """Loads the workload of a config with task='digits'."""
  from epe_jax.data import workload
  from epe_jax.tasks import digits as digits_task

  train, test = load(
    config.seed,
    num_clients=config.data.num_clients,
    concentration=config.data.concentration,
  )
  return workload.Workload(
    digits_task.task(config.model.width),
    train,
    test,
    "scikit-learn's handwritten digits (real images), dealt to "
    f'{train.num_clients} clients with Dirichlet({config.data.concentration}) '
    'label skew',
  )


def load(
  rng_seed: int, *, num_clients: int, concentration: float
) -> tuple[federated.FederatedData, federated.FederatedData]:
  """Deals digits: class l goes to the clients in shares Dir(concentration).

  For every label the shares of the clients are drawn from a symmetric
  Dirichlet law, so a small concentration gives clients few labels each and
  unequal sizes, and a large one gives them all the same mixture. A client
  that is left without an image then takes one from the largest client.

  Args:
    rng_seed: seed of the split and of the shares, >= 0. Equal seeds give
      equal data.
    num_clients: train clients, from 1 to the number of train images.
    concentration: of the Dirichlet law, > 0.

  Returns:
    (train, test) with columns pixels, float32 [n, 8, 8] in [0, 1], ink 1, and
    label, int32 [n]. A fifth of the images, drawn at random, is held out and belongs
    to the one client 'test'.

  Raises:
    ValueError: if there are more clients than images, or none.

  References:
    Yurochkin et al. 2019, Bayesian Nonparametric Federated Learning of Neural
    Networks, section 4, for the label skew.

  >>> train, test = load(0, num_clients=20, concentration=0.5)
  >>> train.num_clients, train.num_examples, test.num_examples
  (20, 1438, 359)
  """
  pixels, labels = _read_images()
  columns = {
    'pixels': (pixels / 16).astype(np.float32).reshape(-1, 8, 8),
    'label': labels.astype(np.int32),
  }
  num_images = len(columns['label'])
  num_test = round(0.2 * num_images)
  num_train = num_images - num_test
  if not 1 <= num_clients <= num_train:
    raise ValueError(
      f'data.num_clients={num_clients}, but {num_train} train images can serve 1 to '
      f'{num_train} clients. Choose a number of these.'
    )
  rng = streams.host_rng(rng_seed, 'digits')
  order = rng.permutation(num_images)
  test = {name: column[order[:num_test]] for name, column in columns.items()}
  train = {name: column[order[num_test:]] for name, column in columns.items()}
  owner = _deal(rng, train['label'], num_clients, concentration)
  # Leading zeros, so that clients sort as their numbers do.
  width = len(str(num_clients - 1))
  names = np.array([f'client{i:0{width}}' for i in range(num_clients)])
  return (
    federated.from_arrays(train, names[owner]),
    federated.from_arrays(test, np.full(num_test, 'test')),
  )


def _deal(
  rng: np.random.Generator,
  labels: np.ndarray,
  num_clients: int,
  concentration: float,
) -> np.ndarray:
  """The client of each image: every client gets one or more."""
  owner = np.empty(len(labels), np.int64)
  for label in np.unique(labels):
    images = np.flatnonzero(labels == label)
    shares = rng.dirichlet(np.full(num_clients, concentration))
    owner[images] = rng.choice(num_clients, len(images), p=shares)
  sizes = np.bincount(owner, minlength=num_clients)
  for client in np.flatnonzero(sizes == 0):
    giver = sizes.argmax()
    owner[np.flatnonzero(owner == giver)[-1]] = client
    sizes[giver] -= 1
    sizes[client] = 1
  return owner


def _read_images() -> tuple[Float[np.ndarray, 'n 64'], Float[np.ndarray, ' n']]:
  """Reads pixels in [0, 16] and labels from the file that scikit-learn has.

  Its own reader comes with all of scikit-learn, whose import takes a second.
  """
  with extras.explain_missing():
    package = importlib.util.find_spec('sklearn')
    if package is None or package.origin is None:
      raise ModuleNotFoundError("No module named 'sklearn'", name='sklearn')
    path = pathlib.Path(package.origin).with_name('datasets')
    path = path / 'data' / 'digits.csv.gz'
    if not path.is_file():
      from sklearn import datasets

      digits: Any = datasets.load_digits()
      return digits.data, digits.target
  table = np.loadtxt(path, delimiter=',')
  return table[:, :-1], table[:, -1]


DATA_SET = data_sets.Federated(
  load=load_workload,
  fields={
    'data.num_clients': fields.integer(1),
    'data.concentration': fields.real(
      'a number in [0.001, 1e6]', 1e-3, 1e6, is_open=False
    ),
    'model.width': fields.integer(1, 4096),
  },
)
