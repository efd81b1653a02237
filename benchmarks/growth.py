"""How the cost of an audited run grows with clients, parameters, canaries, rounds.

  python benchmarks/growth.py
  python benchmarks/growth.py --quick

A multilayer perceptron is trained by DP-FedAvg with all iterates audited, one of the
four sizes varied at a time: without an audit, with Hadamard and with sphere canaries,
in turn within one process. Memory is what XLA reserves for the program of a round:
arguments, results and everything in between. Exponents are least-squares slopes of log
cost against log size: 1 is proportional, 0 does not matter. Floors: matrix products at
the speed of a large one, and vectors that are read or written once at the speed of one
pass over a vector.
"""

from collections.abc import Callable, Sequence
import json
from typing import Any, NamedTuple

from absl import flags
import harness
import jax
import jax.numpy as jnp
import numpy as np
import optax

from epe_jax import canaries
from epe_jax.audit import audited_algorithm, observers
from epe_jax.training import algorithms, clipping, fedavg
from epe_jax.types import Task

_REPETITIONS = flags.DEFINE_integer('repetitions', 2, 'Runs of each form.')
_FEATURES, _CLASSES, _BATCH, _STEPS = 256, 10, 16, 2
_UNAUDITED = 'unaudited'
# Rounds scored together, which only canaries that are made one by one need.
_BUFFER = {'hadamard': 1, 'sphere': 8}
# Largest matrix C whose canaries are made one by one and timed.
_MAX_ENTRIES = 4e9


class Size(NamedTuple):
  """The sizes of a run: clients of a round, parameters, canaries, rounds."""

  clients: int = 8
  dim: int = 100_000
  canaries: int = 256
  rounds: int = 8


DIRECTIONS: dict[str, tuple[float, ...]] = {
  'clients': (4, 16, 64, 256),
  'dim': (1e5, 3e5, 1e6, 4e6),
  'canaries': (16, 256, 4096, 65536),
  'rounds': (8, 32, 128, 512),
}
QUICK: dict[str, tuple[float, ...]] = {
  'clients': (1, 2),
  'dim': (1e5, 2e5),
  'canaries': (16, 32),
  'rounds': (8, 16),
}


class Program(NamedTuple):
  """A run that can be timed.

  Attributes:
    call: trains all rounds, and blocks until they are done.
    bytes: XLA's for a round.
  """

  call: Callable[[], None]
  bytes: int


def hidden(dim: int) -> int:
  """Units of each of two layers, for approximately d parameters."""
  b = _FEATURES + _CLASSES + 2
  return round((-b + (b * b + 4 * (dim - _CLASSES)) ** 0.5) / 2)


def perceptron(units: int) -> Task:
  """256 features, two layers, ten classes; 6 d flops for each example."""
  sizes = (_FEATURES, units, units, _CLASSES)

  def init(key):
    keys = jax.random.split(key, len(sizes) - 1)
    return [
      (jax.random.normal(k, (a, b)) / a**0.5, jnp.zeros(b))
      for k, a, b in zip(keys, sizes, sizes[1:])
    ]

  def logits(params, x):
    *layers, (last, bias) = params
    for w, b in layers:
      x = jax.nn.relu(x @ w + b)
    return x @ last + bias

  def loss(params, batch, key):
    del key
    return optax.softmax_cross_entropy_with_integer_labels(
      logits(params, batch['x']), batch['y']
    )

  return Task(init, loss, lambda params, batch: {})


def cohort(clients: int) -> fedavg.Cohort:
  """Random examples; one client per chunk, which is fastest on a CPU."""
  rng = np.random.default_rng(0)
  shape = (clients, 1, _STEPS, _BATCH)
  return fedavg.Cohort(
    {
      'x': jnp.asarray(rng.normal(size=(*shape, _FEATURES)), jnp.float32),
      'y': jnp.asarray(rng.integers(_CLASSES, size=shape), jnp.int32),
    },
    jnp.ones(shape, bool),
    jnp.arange(clients)[:, None],
  )


def algorithm(
  task: Task, dim: int, size: Size, form: str
) -> algorithms.Algorithm:
  """DP-FedAvg, audited by a family of canaries with one canary per round."""
  plain = fedavg.dp_fedavg(
    task,
    client_opt=optax.sgd(0.05),
    server_opt=optax.sgd(1.0, momentum=0.9),
    clipping=clipping.fixed(0.1),
    noise_multiplier=0.1,
    expected_clients=size.clients + 1.0,
  )
  if form == _UNAUDITED:
    return audited_algorithm.unaudited(plain)
  made = canaries.family(form)(jax.random.key(1), size.canaries, dim)
  took_part = np.zeros((size.rounds, size.canaries), bool)
  took_part[np.arange(size.rounds), np.arange(size.rounds) % size.canaries] = 1
  watch = observers.all_iterates(made, rounds=size.rounds, buffer=_BUFFER[form])
  return audited_algorithm.audited(plain, made, took_part, {'trace': watch})


def program(size: Size, form: str) -> tuple[Program, int]:
  """The compiled run of a size, and its number of parameters."""
  task = perceptron(hidden(size.dim))
  params = task.init(jax.random.key(0))
  dim = harness.count_parameters(params)
  made = algorithm(task, dim, size, form)
  clients, keys = cohort(size.clients), (jax.random.key(2), jax.random.key(3))
  step = jax.jit(made.step, donate_argnums=0)
  compiled = step.lower(made.init(params), clients, *keys).compile()

  def call():
    state = made.init(params)
    for _ in range(size.rounds):
      state, _ = compiled(state, clients, *keys)
    jax.block_until_ready(state)

  memory = compiled.memory_analysis()
  assert memory is not None, 'XLA does not say what it reserves here'
  reserved = (
    memory.argument_size_in_bytes
    + memory.output_size_in_bytes
    + memory.temp_size_in_bytes
    - memory.alias_size_in_bytes
  )
  return Program(call, reserved), dim


def measure_point(size: Size, direction: str) -> dict:
  """Seconds and bytes of each form at one size."""
  programs, dim = {}, 0
  for form in (_UNAUDITED, *_BUFFER):
    if form == 'sphere' and size.canaries * size.dim > _MAX_ENTRIES:
      continue
    programs[form], dim = program(size, form)
  return {
    'direction': direction,
    **size._replace(dim=dim)._asdict(),
    'seconds': harness.summarize(
      harness.time_in_turn(
        {form: one.call for form, one in programs.items()}, _REPETITIONS.value
      )
    ),
    'bytes': {form: one.bytes for form, one in programs.items()},
    'flops': 6.0 * dim * _BATCH * _STEPS * size.clients * size.rounds,
  }


def measure_speed(quick: bool) -> dict[str, float]:
  """Speed of the machine at this moment."""
  size, length = (300, 10**6) if quick else (3000, 50 * 10**6)
  return {
    'matmul_flops_per_second': harness.matmul_flops_per_second(size),
    'read_bytes_per_second': harness.read_bytes_per_second(length),
  }


def floors(point: dict, best: dict[str, float]) -> dict[str, float]:
  """Seconds of the arithmetic of training, and of moving vectors."""
  vector = 4.0 * point['dim'] * point['rounds'] / best['read_bytes_per_second']
  train = point['flops'] / best['matmul_flops_per_second']
  # The sum and the model are read, the model is written; a projection reads once.
  return {
    form: train + (3 if form == _UNAUDITED else 4) * vector
    for form in point['seconds']
  }


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
  """Least-squares slope of log cost against log size."""
  return float(np.polyfit(np.log(sizes), np.log(costs), 1)[0])


def exponents(points: Sequence[dict]) -> dict[str, dict[str, Any]]:
  """Direction -> of_time or of_memory -> form -> exponent."""
  found: dict[str, dict[str, Any]] = {}
  for direction in dict.fromkeys(p['direction'] for p in points):
    mine = [p for p in points if p['direction'] == direction]
    found[direction] = {
      name: {
        form: _slope(mine, direction, cost, form) for form in mine[0][cost]
      }
      for name, cost in (('of_time', 'seconds'), ('of_memory', 'bytes'))
    }
  return found


def _slope(mine: Sequence[dict], direction: str, cost: str, form: str) -> float:
  timed = [p for p in mine if form in p[cost]]
  return exponent([p[direction] for p in timed], [p[cost][form] for p in timed])


def time_projection(form: str, size: Size) -> float:
  """Seconds of a projection of the rounds that are scored together."""
  made = canaries.family(form)(jax.random.key(1), size.canaries, size.dim)
  v = jax.random.normal(jax.random.key(2), (_BUFFER[form], size.dim))
  project = jax.jit(made.project)
  return harness.time_call(lambda: project(v), 3).best


def one_round(clients: int, dim: int) -> float:
  """Seconds of an unaudited round; with 0 clients, of the server alone."""
  task = perceptron(hidden(dim))
  plain = algorithm(task, dim, Size(clients=clients), _UNAUDITED)
  state = plain.init(task.init(jax.random.key(0)))
  present = cohort(max(clients, 1))
  if not clients:
    # One empty slot: no client takes a step.
    present = present._replace(
      mask=jnp.zeros_like(present.mask),
      clients=-jnp.ones_like(present.clients),
    )
  keys = jax.random.key(2), jax.random.key(3)
  step = jax.jit(plain.step)
  return harness.time_call(lambda: step(state, present, *keys), 3).best


def unit_costs(points: Sequence[dict], large: Size) -> dict[str, float]:
  """The marginal cost of each size, measured at the large size.

  Args:
    points: those of the direction of clients, for a small model.
    large: dim and canaries of a model that is larger than all caches.
  """
  mine = [p for p in points if p['direction'] == 'clients']
  slope, _ = np.polyfit(
    [p['clients'] * p['rounds'] for p in mine],
    [p['seconds'][_UNAUDITED] for p in mine],
    1,
  )
  client = (one_round(10, large.dim) - one_round(2, large.dim)) / 8
  projections = {form: time_projection(form, large) for form in _BUFFER}
  noise = jax.jit(lambda: jax.random.normal(jax.random.key(4), (large.dim,)))
  return {
    'seconds_per_client_step': float(slope) / _STEPS,
    'seconds_per_client_step_large': client / _STEPS,
    'training_flops_per_second': (
      6.0 * mine[0]['dim'] * _BATCH * _STEPS / float(slope)
    ),
    'training_flops_per_second_large': (
      6.0 * large.dim * _BATCH * _STEPS / client
    ),
    'server_seconds_per_parameter': one_round(0, large.dim) / large.dim,
    'noise_seconds_per_parameter': (harness.time_call(noise).best / large.dim),
    'sphere_seconds_per_canary_parameter': (
      projections['sphere'] / (large.dim * large.canaries)
    ),
    'hadamard_seconds_per_parameter': projections['hadamard'] / large.dim,
    'dim': large.dim,
    'canaries': large.canaries,
    'vectors_of_a_projection': _BUFFER['sphere'],
  }


def measure(quick: bool) -> dict:
  points, speeds = [], [measure_speed(quick)]
  for direction, values in (QUICK if quick else DIRECTIONS).items():
    for value in values:
      size = Size()._replace(**{direction: int(value)})
      points.append(measure_point(size, direction))
      print(json.dumps(points[-1]), flush=True)
    speeds.append(measure_speed(quick))
  # Other work on the machine slows products down, but not at every moment.
  speed = {name: max(x[name] for x in speeds) for name in speeds[0]}
  for point in points:
    point['floor_seconds'] = floors(point, speed)
  large = Size() if quick else Size(dim=4_000_000)
  return {
    'points': points,
    'exponents': exponents(points),
    'unit_costs': unit_costs(points, large),
    'speed': speed,
    'batch': _BATCH,
    'steps': _STEPS,
  }


if __name__ == '__main__':
  harness.run(measure, 'jax')
