"""What an audit, and exact noise, add to a round: time and peak memory.

  python -m benchmarks.speed.audited_round
  python -m benchmarks.speed.audited_round --quick

A round without an audit is compared with the same round with 1000 + 1000 canaries,
inserted in their rounds and scored against all iterates and the final model; and with
the round with the noise of a model for release, or with secure aggregation. Rounds of all forms are timed in turn
within one process. Their number is that of rounds scored together by the form with the
largest buffer, so that projections enter at their true rate. Memory is that of a
separate process for each form, which finds its programs compiled: some rounds, a
checkpoint and a last projection.

Work A: 100 clients x 100 images, the EMNIST CNN. Work B: 20 clients x 64 sentences, the
StackOverflow LSTM. Both in batches of 16.
"""

from collections.abc import Sequence
import json
import pathlib
import tempfile
from typing import Any, NamedTuple

from absl import flags
import jax
import numpy as np
import optax

from benchmarks import harness
from epe_jax import canaries
from epe_jax.audit import audit_step, audited_algorithm, observers
from epe_jax.audit.observers import Observer
from epe_jax.experiment import checkpoint, programs
from epe_jax.parallel import hosts, sharding
from epe_jax.sampling import canary_schedules
from epe_jax.tasks import emnist, stackoverflow
from epe_jax.training import (
  aggregation,
  clipping,
  exact_noise,
  fedavg,
  secure_aggregation,
)
from epe_jax.types import Task

_WORKS = flags.DEFINE_list('works', ['A', 'B'], 'A, B or both.')
_FAMILIES = flags.DEFINE_list(
  'families', ['hadamard', 'hadamard2', 'sphere'], 'Canaries.'
)
_ROUNDS = flags.DEFINE_integer('rounds', None, 'Rounds that are timed.')
_MEMORY = flags.DEFINE_float('memory', 2e9, 'Bytes, as config.audit.memory.')
_PEAKS = flags.DEFINE_bool('peaks', True, 'Measure memory, too.')
_CORES = flags.DEFINE_integer(
  'cores', 64, 'Maximum number of cores that become devices.'
)
_NOISES = flags.DEFINE_list(
  'noises', ['exact_noise'], 'exact_noise or secure_aggregation.'
)
_BATCH, _RUN = 16, 2048  # Examples of a step; rounds of the run, for its trace.
_PLAIN = ('unaudited', 'exact_noise', 'secure_aggregation')


class Work(NamedTuple):
  """A task and the clients that train it."""

  task: Task
  cohort: fedavg.Cohort
  clients: int
  client_rate: float
  server: optax.GradientTransformation


class Form(NamedTuple):
  """A round, its initial state and the number of rounds scored together."""

  advance: Any
  state: audited_algorithm.AuditState
  observers: dict[str, Observer]
  buffer: int

  def run(self, work: Work) -> 'Form':
    """The form after one more round."""
    mesh = sharding.mesh()
    keys = [hosts.replicate_key(mesh, jax.random.key(i)) for i in (2, 3)]
    state, metrics = self.advance(self.state, work.cohort, *keys)
    jax.block_until_ready((state, metrics))
    return self._replace(state=state)


def make_work(name: str, quick: bool) -> Work:
  """Work A or B; with `quick` a small one."""
  rng = np.random.default_rng(0)
  if name == 'A':
    clients, examples, task = 100, 100, emnist.task(62)
    columns = lambda *shape: {
      'pixels': rng.random((*shape, 28, 28), np.float32),
      'label': rng.integers(0, 62, shape, np.int32),
    }
    rate, server = 0.031, optax.sgd(1.0, momentum=0.9)
  else:
    clients, examples, task = 20, 64, stackoverflow.task()
    columns = lambda *shape: {
      'words': rng.integers(1, 10_001, (*shape, 20), np.int16)
    }
    rate, server = 1.0, optax.sgd(0.56)
  if quick:
    clients, examples = 2, 20
  steps = -(-examples // _BATCH)
  # One by one on a CPU, all at once elsewhere, as is the default of runs.
  chunk = 1 if jax.default_backend() == 'cpu' else clients
  shape = (1, clients // chunk, chunk, steps, _BATCH)
  real = np.arange(steps * _BATCH).reshape(shape[3:]) < examples
  cohort: Any = fedavg.Cohort(
    columns(*shape),
    np.broadcast_to(real, shape),  # pyright: ignore[reportArgumentType]
    np.arange(clients, dtype=np.int32).reshape(shape[:3]),  # pyright: ignore[reportArgumentType]
  )
  cohort = hosts.assemble_global(sharding.mesh(), cohort, axis=1)
  return Work(task, cohort, clients, rate, server)


def make_form(name: str, work: Work, memory: float, quick: bool) -> Form:
  """'unaudited', the same with another noise, or a family of canaries."""
  mesh = sharding.mesh()
  make_aggregation = aggregation.float32
  if name == 'exact_noise':
    make_aggregation = exact_noise.exact(work.clients, mesh=mesh)
  params = work.task.init(jax.random.key(0))
  dim = harness.count_parameters(params)
  if name == 'secure_aggregation':
    make_aggregation = secure_aggregation.plan(
      bits=16, dim=dim, noise_multiplier=0.1, clients=float(work.clients)
    ).make_aggregation
  algorithm = fedavg.dp_fedavg(
    work.task,
    client_opt=optax.sgd(work.client_rate),
    server_opt=work.server,
    clipping=clipping.fixed(0.1),
    noise_multiplier=0.1,
    expected_clients=float(work.clients),
    aggregation=make_aggregation,
    mesh=mesh,
  )
  attackers, buffer = {}, 1
  if name in _PLAIN:
    audited = audited_algorithm.unaudited(algorithm)
  else:
    num = 20 if quick else 2000
    c = canaries.family(name, mesh=mesh)(jax.random.key(1), num, dim)
    if canaries.FAMILIES[name].one_by_one:
      buffer = audit_step.choose_buffer(memory, rounds=_RUN, views=2, dim=dim)
      buffer = min(buffer, 2) if quick else buffer
    attackers = {
      'final': observers.final_model(c, mesh=mesh),
      'trace': observers.all_iterates(
        c,
        rounds=_RUN,
        views=('aggregate', 'residual'),
        buffer=buffer,
        mesh=mesh,
      ),
    }
    included = np.zeros((_RUN, num), bool)
    included[:, : num // 2] = canary_schedules.once_per_period(
      np.random.default_rng(0), rounds=_RUN, num=num // 2
    )
    audited = audited_algorithm.audited(algorithm, c, included, attackers)
  state = jax.jit(audited.init)(hosts.replicate(mesh, params))
  advance = jax.jit(
    programs.make_advance(audited),
    donate_argnums=0,
    out_shardings=hosts.step_shardings(mesh, state),
  )
  return Form(advance, state, attackers, buffer)


def time_rounds(
  work: Work, names: Sequence[str], rounds: int | None, quick: bool
) -> dict[str, Any]:
  """Seconds of the rounds of each form, in turn."""
  forms = {name: make_form(name, work, _MEMORY.value, quick) for name in names}

  def advance(name: str) -> None:
    forms[name] = forms[name].run(work)

  rounds = rounds or max(f.buffer for f in forms.values())
  seconds = harness.time_in_turn(
    {name: lambda name=name: advance(name) for name in names}, rounds
  )
  mean, plain = harness.summarize(seconds, 'mean'), seconds['unaudited']
  others = {name: seconds[name] for name in names[1:]}
  return {
    'rounds': rounds,
    'scored_together': {name: f.buffer for name, f in forms.items()},
    'seconds': mean,
    'seconds_median': harness.summarize(seconds, 'median'),
    'seconds_longest': {name: max(x.wall) for name, x in seconds.items()},
    'over_unaudited': {n: mean[n] / mean['unaudited'] for n in others},
    # Of paired rounds; without the projections of forms with a buffer.
    'over_unaudited_median': {n: x.over(plain) for n, x in others.items()},
    # The same of CPU time, for a machine that does other work too.
    'busy_over_unaudited_median': {
      n: float(np.median(np.divide(x.cpu, plain.cpu)))
      for n, x in others.items()
    },
  }


def measure_peak(
  name: str, work_name: str, memory: float, quick: bool, cores: int
) -> int:
  """Peak memory of this process after an audit of three rounds."""
  hosts.use_cores(cores)
  work = make_work(work_name, quick)
  form = make_form(name, work, memory, quick)
  for _ in range(3):
    form = form.run(work)
  with tempfile.TemporaryDirectory() as folder:
    saved = checkpoint.Checkpoints(
      pathlib.Path(folder, 'checkpoints'), of='a run'
    )
    saved.save(3, form.state)
    saved.close()
  for key, observer in form.observers.items():
    score = jax.jit(observer.scores)
    jax.block_until_ready(
      score(form.state.observers[key], form.state.algorithm.params)
    )
  return harness.max_resident_bytes()


def measure_peaks(
  work: str, names: Sequence[str], quick: bool
) -> dict[str, Any]:
  """The peak of each form, in the second of two processes.

  The second one finds its programs compiled: compilers need more memory than the
  audit, and a varying amount of it.
  """
  peaks = {}
  for name in names:
    with tempfile.TemporaryDirectory() as folder:
      for _ in range(2):
        peaks[name] = harness.call_in_process(
          'benchmarks.speed.audited_round:measure_peak',
          *(name, work, _MEMORY.value, quick, _CORES.value),
          environment={
            'JAX_COMPILATION_CACHE_DIR': folder,
            'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
          },
        )
  plain = peaks['unaudited']
  return {
    'peak_bytes': peaks,
    'peak_bytes_more': {name: peaks[name] - plain for name in names[1:]},
  }


def measure(quick: bool) -> dict:
  hosts.use_cores(_CORES.value)
  names = ['unaudited', *_NOISES.value, *_FAMILIES.value]
  works = {}
  for name in _WORKS.value:
    # Before this process has a device, whose memory it would occupy.
    peaks = measure_peaks(name, names, quick) if _PEAKS.value else {}
    work = make_work(name, quick)
    works[name] = time_rounds(work, names, _ROUNDS.value, quick) | peaks
    print(json.dumps(works[name]), flush=True)
  return {'works': works}


if __name__ == '__main__':
  harness.run(measure, 'jax')
