"""The workload of a config: its task and data."""

from epe_jax import functions
from epe_jax.data import registry, workload
from epe_jax.data.workload import Workload
from epe_jax.experiment import own_task, workdirs

Config = workdirs.Config


def load_workload(config: Config) -> Workload:
  """Loads the workload of config.task: a data set's, or that of a user's own function.

  A task of a user's own is 'package.module:function', a function config ->
  `Workload`. It is called in every process of a run, and gives the same each time.

  Args:
    config: the config of the run, with every field set. It names the data, and
      config.evaluate_examples is the number of test examples.

  Raises:
    ValueError: a field is out of range or contradicts another.
    FileNotFoundError: the data file is missing.
  """
  name = config.task
  if functions.is_function(name):
    loaded = functions.import_function(name)(config)
    if not isinstance(loaded, Workload):
      raise ValueError(
        f'task={name!r} gives a {type(loaded).__name__}; give an '
        'experiment.Workload(task, train, test).'
      )
    own_task.check_task(name, loaded.task, loaded.train)
  elif name in registry.list_federated():
    loaded = registry.find_federated(name).load(config)
  else:
    names = ', '.join(map(repr, registry.list_federated()))
    raise ValueError(
      f'task={name!r}; give one of {names}, or package.module:function.'
    )
  test, baseline = workload.sample_test(config, loaded.test), loaded.baseline
  if baseline is None:
    known = loaded.train if config.simulation else test
    baseline = own_task.find_baseline(name, known, test)
  return Workload(
    loaded.task, loaded.train, test, loaded.source or name, baseline
  )
