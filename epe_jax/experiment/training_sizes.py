"""The sizes of a training run by its config, before its data are read."""

import jax

from epe_jax.data import data_sets
from epe_jax.experiment.config_files import Config
from epe_jax.planning import flops
from epe_jax.planning.training_costs import Training


def describe_training(config: Config) -> Training:
  """The sizes of a run on the public form of its data.

  A client of n examples trains on min(n, c) with c = client.max_examples. Without the
  data, E min(n, c) is only known to be at most min(E n, c), which is what is given.

  Args:
    config: of a run, with every field set.

  Raises:
    ValueError: the model or the clients are not known before the data are read.

  >>> from epe_jax.experiment import config_files
  >>> x = describe_training(config_files.load_config('emnist'))
  >>> x.dim, x.clients, round(x.examples, 1)
  (1206590, 101, 197.5)
  """
  outline = data_sets.find_federated(config.task).outline
  if outline is None:
    raise ValueError(
      f'task={config.task!r}, whose clients are not known before its data are '
      'read; give emnist or stackoverflow.'
    )
  task, features, train = outline(config)
  assert train.clients is not None, 'published'
  assert train.examples is not None, 'published'
  examples = train.examples / train.clients
  if config.client.max_examples is not None:
    examples = min(examples, config.client.max_examples)
  example = {
    name: jax.ShapeDtypeStruct(shape, dtype)
    for name, (dtype, shape) in features.items()
  }
  batch_size = config.client.batch_size
  return Training(
    config.task,
    config.rounds,
    config.clients_per_round,
    examples * config.client.epochs,
    batch_size,
    flops.count_parameters(task),
    flops.count_flops(task, example, batch_size=batch_size),
    config.precision,
  )
