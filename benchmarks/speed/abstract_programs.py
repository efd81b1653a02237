"""The programs of runs and games by shapes alone, for devices that need not be at hand.

Data are shapes, too: as many clients and examples as those of the public data sets, by
the synthetic ones, and no example of them.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, SingleDeviceSharding
import numpy as np
import optax

from benchmarks.peers import works as peer_works
from epe_jax.data import federated, sources, synthetic, workload
from epe_jax.dpsgd import (
  dp_sgd,
  gradient_canaries,
  poisson_batches,
  white_box,
)
from epe_jax.experiment import chunk_size, model_evaluation, programs
from epe_jax.experiment.setup import build, randomness
from epe_jax.experiment.setup.config import Config
from epe_jax.parallel import sharding
from epe_jax.tasks import emnist, stackoverflow
from epe_jax.types import PyTree
from papers import models
from papers.tight_auditing import trained

GAME = 'game '
"""With which the name of a white-box game begins, behind it that of its model."""

# Matrix products of one example, forward and backward, in the paper's models.
_FLOPS = {1_206_590: peer_works.cnn_flops, 4_050_748: peer_works.lstm_flops}
# Sentences of a user that are read, so that client.max_examples decides.
_SENTENCES = 256
# Of CIFAR-10.
_IMAGES = {
  'pixels': ((50_000, 32, 32, 3), np.float32),
  'label': ((50_000,), np.int32),
}


class Lowered(NamedTuple):
  """A program that is ready to be compiled, or what was compiled.

  Attributes:
    program: of `jax.stages`.
    steps: how often a loop over the batches of an average client turns.
    figures: known without compiling, by name.
  """

  program: Any
  steps: float
  figures: dict[str, Any]


def place(x: PyTree, spec: jax.sharding.Sharding) -> PyTree:
  """The shapes of arrays, on devices."""
  return jax.tree.map(
    lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=spec), x
  )


class Run:
  """A run by shapes: its programs on some devices.

  Attributes:
    setup: built from the config, with the chunk that it sets, or one chunk of all.
    mesh: of the devices; None for one.
  """

  def __init__(self, config: Config, devices: Sequence[Any]):
    """Builds it, and compiles the initial state, whose shardings are the compiler's."""
    self._config, self.mesh = config, sharding.mesh(devices)
    self._one: Any = SingleDeviceSharding(devices[0])
    if self.mesh is not None:
      self._one = NamedSharding(self.mesh, sharding.REPLICATED)
    secret = None if config.simulation else bytes(randomness.SECRET_BYTES)
    setup = build.build(
      config,
      mesh=self.mesh,
      secret=secret,
      workload=describe_workload(config),
      init=jax.eval_shape,
    )
    if config.chunk is None:
      slots = setup.participants.slots
      setup = chunk_size.set_even(setup, slots, self.mesh)
    self.setup = setup
    self._draws, self._params = (
      place(x, self._one) for x in (setup.draws, setup.params)
    )
    init = programs.make_init(setup).lower(self._draws, self._params)
    self._state = jax.tree.map(
      lambda x, spec: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=spec),
      setup.state,
      init.compile().output_shardings,
    )
    self._programs = programs.make_programs(setup, self._state, self.mesh)

  def lower_round(self, setup: build.Setup) -> Lowered:
    """The rounds that are dispatched as one, with room for the largest clients."""
    everyone = range(sharding.num_devices(self.mesh))
    cohorts = place(
      chunk_size.gather_nobody(self._config, setup, self.mesh, everyone),
      self._one if self.mesh is None else sharding.sharding_over(self.mesh, 1),
    )
    sizes, plan = self.setup.train.sizes, setup.plan
    steps = plan.epochs * -(
      -np.minimum(sizes, plan.max_examples or sizes) // plan.batch_size
    )
    rounds = cohorts.clients.shape[0]
    devices = sharding.num_devices(self.mesh)
    examples = (
      setup.participants.slots * rounds * float(steps.mean()) * plan.batch_size
    )
    figures = {
      'chunk': plan.chunk,
      'slots': setup.participants.slots,
      'room_steps': int(cohorts.mask.shape[3]),
      'cohort_bytes': sum(
        x.size * x.dtype.itemsize for x in jax.tree.leaves(cohorts)
      )
      / devices,
      # Of full batches of average clients.
      'paper_flops': examples * _FLOPS[setup.dim]() / devices
      if setup.dim in _FLOPS
      else None,
    }
    program = self._programs.advance.lower(self._draws, self._state, cohorts)
    return Lowered(program, float(steps.mean()), figures)

  def lower(self, name: str) -> Lowered:
    """One of the other programs: init, flush, score, score_rounds or evaluate."""
    if name == 'init':
      program = programs.make_init(self.setup).lower(self._draws, self._params)
    elif name == 'evaluate':
      test, mesh = self.setup.test, self.mesh
      size = model_evaluation.count_program_examples(
        test.num_examples, sharding.num_devices(mesh)
      )
      spec = self._one if mesh is None else sharding.sharding_over(mesh)
      examples, mask = (
        jax.tree.map(
          lambda x: jax.ShapeDtypeStruct((size, *x.shape[1:]), x.dtype), x
        )
        for x in (dict(test.columns), np.zeros(1, bool))
      )
      program = model_evaluation.make_program(self.setup.task, mesh=mesh).lower(
        self._params, place(examples, spec), place(mask, spec)
      )
    else:
      program = getattr(self._programs, name).lower(self._draws, self._state)
    return Lowered(program, 1.0, {})


def describe_workload(config: Config) -> workload.Workload | None:
  """The task of a config with data of the shapes of its data; None to load them."""
  if config.task == 'emnist':
    source = synthetic.generate_images(
      config.seed,
      **workload.drop_none(
        num_clients=config.data.num_clients,
        num_examples=config.data.num_examples,
      ),
    )
    row = {
      name: np.zeros(shape, dtype)
      for name, (dtype, shape) in synthetic.IMAGES.items()
    }
    task = emnist.task(62, width=config.model.width)
    splits = 'all_train', 'all_test'
  elif config.task == 'stackoverflow':
    source = synthetic.generate_sentences(
      config.seed,
      max_sentences=_SENTENCES,
      **workload.drop_none(num_clients=config.data.num_clients),
    )
    row = {'words': np.zeros(config.data.max_words, np.int16)}
    sizes = config.model.embedding_size, config.model.hidden_size
    task = stackoverflow.task(
      config.data.vocabulary_size or 1_000,
      embedding_size=sizes[0],
      hidden_size=sizes[1],
    )
    splits = 'train', 'heldout'
  else:
    return None
  train, test = (_describe_split(source, split, row) for split in splits)
  return workload.Workload(task, train, test, 'shapes', 0.0)


def _describe_split(
  source: sources.Source, split: str, row: dict[str, np.ndarray]
) -> federated.FederatedData:
  """The sizes of all clients, and columns of one row that takes no room."""
  names, raw = zip(*source.read(split))
  ends = np.cumsum([0, *(x.num_examples for x in raw)])
  columns = {
    name: np.broadcast_to(x, (int(ends[-1]), *x.shape))
    for name, x in row.items()
  }
  return federated.FederatedData(columns, ends, np.array(names))


def lower_game(name: str, device: Any, *, quick: bool = False) -> Lowered:
  """A step of a white-box game on CIFAR-10, at the paper's sizes or small ones.

  Args:
    name: `GAME` and a model of `papers.models`.
    device: that plays it.
    quick: whether the model, the data and the batch are small.
  """
  model = name.removeprefix(GAME)
  works: Any = trained.ITEMS['table1'].experiment.load('paper').works
  work = next(
    x for x in works.values() if x.task == model and x.data == 'cifar10'
  )
  images = {
    key: jax.ShapeDtypeStruct((500 if quick else shape[0], *shape[1:]), dtype)
    for key, (shape, dtype) in _IMAGES.items()
  }
  (num,) = images['label'].shape
  expected = 8.0 if quick else work.expected_batch
  microbatch = 4 if quick else work.microbatch
  sizes = dict(width=1) if quick else work.model.to_dict()
  task = getattr(models, model)(10, **sizes)
  game = white_box.white_box_game(
    dp_sgd.noisy_gradient(
      task,
      clip_norm=work.clip_norm,
      noise_multiplier=1.0,
      expected_batch=expected,
      microbatch=microbatch,
    ),
    gradient_canaries.make_gradient_canary('dirac', norm=work.clip_norm),
    optimizer=optax.sgd(work.learning_rate, work.momentum or None),
    steps=work.steps,
    clip_norm=work.clip_norm,
    expected_batch=expected,
  )
  places = poisson_batches.choose_padded_batch(
    num, expected, steps=work.steps, multiple=microbatch
  )
  key = jax.eval_shape(lambda: jax.random.key(0))
  state = jax.eval_shape(game.init, jax.eval_shape(task.init, key), key)
  keys = jax.eval_shape(lambda: white_box.derive_game_keys(0))
  program = game.step.lower(
    *place(
      (state, images, jax.ShapeDtypeStruct((2, places), jnp.int32), keys),
      SingleDeviceSharding(device),
    )
  )
  figures = {'chunk': microbatch, 'slots': places}
  return Lowered(program, places / microbatch, figures)
