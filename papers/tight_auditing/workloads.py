"""Models that are audited, their data, and what training them costs in privacy."""

from collections.abc import Mapping
import math
import pathlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float
import numpy as np
import optax

from epe_jax import accounting
from epe_jax.dpsgd.gradient_canaries import GradientCanary
from epe_jax.types import Array, Batch, Params, Task, weighted
from papers import models
from papers.data import loading
from papers.data.examples import Examples
from papers.tight_auditing import accounted_run, input_canaries

# Test examples that are evaluated at once.
_TEST_CHUNK = 500
# Test examples in the attacker's hands.
_POOL = 64


class Workload(NamedTuple):
  """A model and its data, and what training it costs in privacy.

  Attributes:
    settings: title, task, model, steps, expected_batch and so on.
    task: the model.
    data: train and test examples.
    accounted: ε of the run by its noise.
  """

  settings: Any
  task: Task
  data: Examples
  accounted: accounted_run.AccountedRun

  @property
  def sampling_probability(self) -> float:
    """q, of the examples."""
    return self.settings.expected_batch / len(self.data.train['label'])

  @property
  def dim(self) -> int:
    """The number of parameters."""
    shapes = jax.eval_shape(self.task.init, jax.random.key(0))
    return sum(math.prod(x.shape) for x in jax.tree.leaves(shapes))

  @property
  def majority(self) -> float:
    """The share of the most frequent class of the test examples."""
    labels = self.data.test['label']
    return float(np.bincount(labels).max() / len(labels))

  def make_optimizer(self) -> optax.GradientTransformation:
    """SGD at the learning rate and momentum of the settings."""
    settings = self.settings
    return optax.sgd(settings.learning_rate, settings.momentum or None)

  def compute_epsilon(self, noise_multiplier: float, delta: float) -> float:
    """ε of the run by dp_accounting; infinite without noise."""
    if not noise_multiplier:
      return math.inf
    return accounting.epsilon_of_poisson(
      noise_multiplier,
      delta=delta,
      probability=self.sampling_probability,
      rounds=self.settings.steps,
    ).epsilon

  def make_input_canary(self, kind: str, **options: Any) -> GradientCanary:
    """A canary example of a kind of `input_canaries.KINDS`, made of test examples."""
    data = self.data
    pool = {k: x[:_POOL] for k, x in data.test.items()}
    return input_canaries.KINDS[kind](
      self.task,
      input_canaries.Pool(pool, data.inputs, data.num_classes),
      **options,
    )

  def measure_accuracy(self, params: Params) -> float:
    """The share of test examples that a model classifies correctly."""
    metrics, test = jax.jit(self.task.metrics), self.data.test
    hits, num = 0.0, len(test['label'])
    for start in range(0, num, _TEST_CHUNK):
      part = {k: x[start : start + _TEST_CHUNK] for k, x in test.items()}
      hits += float(weighted(metrics(params, part)['accuracy']).total.sum())
    return hits / num

  def score_accuracy(self, params: Params) -> Float[Array, '']:
    """The same within a program, all test examples at once."""
    test: Batch = jax.tree.map(jnp.asarray, self.data.test)
    hits = weighted(self.task.metrics(params, test)['accuracy'])
    return jnp.sum(hits.total) / jnp.sum(hits.weight)


def load_workload(
  settings: Any, data: Mapping[str, pathlib.Path], *, delta: float, seed: int
) -> Workload:
  """Loads the data of a workload, makes its model and accounts for its run.

  Args:
    settings: title; data, num_train and num_test as for `load_examples`; task, the
      name of a function of `models`, and model, its sizes; steps; expected_batch;
      clip_norm; learning_rate; momentum; microbatch.
    data: path of each data set, by name.
    delta: δ of the run.
    seed: of what is drawn of the data.

  Raises:
    ValueError, FileNotFoundError: the data cannot be read, or are not given.
  """
  if settings.data in loading.FILES and settings.data not in data:
    raise ValueError(
      f'{settings.title} trains on {settings.data}; give '
      f'--data={settings.data}=PATH.'
    )
  loaded = loading.load_examples(
    settings.data,
    data.get(settings.data),
    rng_seed=seed,
    num_train=settings.num_train,
    num_test=settings.num_test,
  )
  accounted = accounted_run.account_for_run(
    sampling_probability=settings.expected_batch / len(loaded.train['label']),
    steps=settings.steps,
    delta=delta,
    title=settings.title,
  )
  return Workload(settings, _make_task(settings, loaded), loaded, accounted)


def _make_task(settings: Any, loaded: Examples) -> Task:
  shape = loaded.train[loaded.inputs].shape[1:]
  sizes: dict[str, Any] = dict(settings.model)
  if settings.task == 'fully_connected':
    sizes['num_features'] = math.prod(shape)
  else:
    sizes['image_shape'] = shape
  return getattr(models, settings.task)(loaded.num_classes, **sizes)
