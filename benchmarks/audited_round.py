"""What an audit, and exact noise, add to a round: time, and memory at its peak.

  python benchmarks/audited_round.py
  python benchmarks/audited_round.py --quick

A round without an audit against the same round with 1000 + 1000 canaries, of
which those of the round are put in, all iterates are scored and the final
model will be; and against the round with the noise of a model for release.
Rounds of all forms are timed in turn within one process, and as
many of them as are scored together by the form that buffers most, so that projections
come at their true rate. Memory is that of a process of its own for each form,
which finds its programs compiled: some rounds, a checkpoint and a last projection.

Work A: 100 clients x 100 images, the EMNIST CNN. Work B: 20 clients x 64
sentences, the StackOverflow LSTM. Both in batches of 16.
"""

import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time
from typing import Any, NamedTuple

from absl import app, flags
import jax
import numpy as np
import optax
import record

from epe_jax import canaries
from epe_jax.audit import audited_algorithm, buffers, observers
from epe_jax.audit.observers import Observer
from epe_jax.experiment import checkpoint, programs
from epe_jax.parallel import sharding
from epe_jax.sampling import canary_schedules
from epe_jax.tasks import emnist, stackoverflow
from epe_jax.training import clipping, fedavg, noise
from epe_jax.types import Task

_QUICK = flags.DEFINE_bool('quick', False, 'Small sizes: does it run?')
_WORKS = flags.DEFINE_list('works', ['A', 'B'], 'Of A and B.')
_FAMILIES = flags.DEFINE_list('families', ['hadamard', 'sphere'], 'Canaries.')
_ROUNDS = flags.DEFINE_integer('rounds', None, 'Rounds that are timed.')
_MEMORY = flags.DEFINE_float('memory', 2e9, 'Bytes, as config.audit.memory.')
_PEAKS = flags.DEFINE_bool('peaks', True, 'Measure memory, too.')
_CORES = flags.DEFINE_integer('cores', 64, 'Cores that are devices, at most.')
_PEAK = flags.DEFINE_string('peak', None, 'Form whose peak memory is printed.')
_OUT = flags.DEFINE_string(
  'out', str(record.FOLDER / 'audited_round.json'), 'File of the result.'
)
_BATCH, _RUN = 16, 2048  # Examples of a step; rounds of the run, for its trace.


class Work(NamedTuple):
  """What is trained on what."""

  task: Task
  cohort: fedavg.Cohort
  clients: int
  client_rate: float
  server: optax.GradientTransformation


class Form(NamedTuple):
  """A round, its state at the start and how many rounds are scored together."""

  advance: Any
  state: audited_algorithm.AuditState
  observers: dict[str, Observer]
  buffer: int


def work(name: str) -> Work:
  """A or B, or a tenth of it."""
  rng = np.random.default_rng(0)
  if name == 'A':
    clients, examples, task = 100, 100, emnist.task(62)
    images = lambda *shape: rng.random((*shape, 28, 28), np.float32)
    columns = lambda *shape: {
      'pixels': images(*shape),
      'label': rng.integers(0, 62, shape, np.int32),
    }
    rate, server = 0.031, optax.sgd(1.0, momentum=0.9)
  else:
    clients, examples, task = 20, 64, stackoverflow.task()
    columns = lambda *shape: {
      'words': rng.integers(1, 10_001, (*shape, 20), np.int16)
    }
    rate, server = 1.0, optax.sgd(0.56)
  if _QUICK.value:
    clients, examples = 2, 20
  steps = -(-examples // _BATCH)
  # One by one on a processor, all at once elsewhere, as runs have it by default.
  chunk = 1 if jax.default_backend() == 'cpu' else clients
  shape = (1, clients // chunk, chunk, steps, _BATCH)
  real = np.arange(steps * _BATCH).reshape(shape[3:]) < examples
  batch = fedavg.Cohort(
    columns(*shape),
    np.broadcast_to(real, shape),  # pyright: ignore[reportArgumentType]
    np.arange(clients, dtype=np.int32).reshape(shape[:3]),  # pyright: ignore[reportArgumentType]
  )
  batch = sharding.assemble_global(sharding.mesh(), batch, axis=1)
  return Work(task, batch, clients, rate, server)


def names() -> list[str]:
  """Of all forms."""
  return ['unaudited', 'exact_noise', *_FAMILIES.value]


def form(name: str, this: Work) -> Form:
  """'unaudited', the same with 'exact_noise', or a family of canaries."""
  mesh = sharding.mesh()
  is_exact = name == 'exact_noise'
  algorithm = fedavg.dp_fedavg(
    this.task,
    client_opt=optax.sgd(this.client_rate),
    server_opt=this.server,
    clipping=clipping.fixed(0.1),
    noise_multiplier=0.1,
    expected_clients=float(this.clients),
    make_noise=noise.exact(this.clients, mesh=mesh)
    if is_exact
    else noise.float32,
    mesh=mesh,
  )
  params = this.task.init(jax.random.key(0))
  attackers, buffer = {}, 1
  if name in ('unaudited', 'exact_noise'):
    audited = audited_algorithm.unaudited(algorithm)
  else:
    num = 20 if _QUICK.value else 2000
    dim = sum(x.size for x in jax.tree.leaves(params))
    set_ = canaries.family(name, mesh=mesh)(jax.random.key(1), num, dim)
    if canaries.FAMILIES[name].one_by_one:
      buffer = buffers.choose_buffer(
        _MEMORY.value, rounds=_RUN, views=2, dim=dim
      )
      buffer = min(buffer, 2) if _QUICK.value else buffer
    attackers = {
      'final': observers.final_model(set_, mesh=mesh),
      'trace': observers.all_iterates(
        set_,
        rounds=_RUN,
        sees=('aggregate', 'residual'),
        buffer=buffer,
        mesh=mesh,
      ),
    }
    rows = np.zeros((_RUN, num), bool)
    rows[:, : num // 2] = canary_schedules.once_per_period(
      np.random.default_rng(0), rounds=_RUN, num=num // 2
    )
    audited = audited_algorithm.audited(algorithm, set_, rows, attackers)
  state = jax.jit(audited.init)(sharding.replicate(mesh, params))
  advance = jax.jit(
    programs.make_advance(audited),
    donate_argnums=0,
    out_shardings=sharding.step_shardings(mesh, state),
  )
  return Form(advance, state, attackers, buffer)


def advanced(form: Form, this: Work) -> Form:
  """A round further."""
  mesh = sharding.mesh()
  keys = [sharding.replicate_key(mesh, jax.random.key(i)) for i in (2, 3)]
  state, metrics = form.advance(form.state, this.cohort, *keys)
  jax.block_until_ready((state, metrics))
  return form._replace(state=state)


def seconds(this: Work) -> dict[str, Any]:
  """Of the rounds of each form, in turn."""
  forms = {name: form(name, this) for name in names()}
  # All compile first.
  forms = {name: advanced(f, this) for name, f in forms.items()}
  rounds = _ROUNDS.value or max(f.buffer for f in forms.values())
  found: dict[str, list[float]] = {name: [] for name in forms}
  busy: dict[str, list[float]] = {name: [] for name in forms}
  for _ in range(rounds):
    for name in forms:
      begun = time.perf_counter(), time.process_time()
      forms[name] = advanced(forms[name], this)
      found[name].append(time.perf_counter() - begun[0])
      busy[name].append(time.process_time() - begun[1])
  mean = {name: float(np.mean(x)) for name, x in found.items()}
  median = {name: float(np.median(x)) for name, x in found.items()}
  return {
    'rounds': rounds,
    'scored_together': {name: f.buffer for name, f in forms.items()},
    'seconds': mean,
    'seconds_median': median,
    'seconds_longest': {name: max(x) for name, x in found.items()},
    'over_unaudited': {n: mean[n] / mean['unaudited'] for n in names()[1:]},
    # Of rounds side by side; without the projections of those that buffer.
    'over_unaudited_median': {
      n: float(np.median(np.divide(found[n], found['unaudited'])))
      for n in names()[1:]
    },
    # Of the processor's time, for a machine that does other things too.
    'busy_over_unaudited_median': {
      n: float(np.median(np.divide(busy[n], busy['unaudited'])))
      for n in names()[1:]
    },
  }


def print_peak(name: str, this: Work) -> None:
  """Bytes that this process has had in memory at most."""
  found = form(name, this)
  for _ in range(3):
    found = advanced(found, this)
  with tempfile.TemporaryDirectory() as folder:
    saved = checkpoint.checkpoints(
      pathlib.Path(folder, 'checkpoints'), of='a run'
    )
    saved.save(3, found.state)
    saved.close()
  for key, observer in found.observers.items():
    score = jax.jit(observer.scores)
    jax.block_until_ready(
      score(found.state.observers[key], found.state.algorithm.params)
    )
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
  print(json.dumps({'peak': peak}))


def peaks(work: str) -> dict[str, int]:
  """The peak of each form, in a process of its own.

  The second of two: it finds its programs compiled, for compilers need more
  memory than the audit does, and some more or less of it each time.
  """
  found = {}
  for name in names():
    command = [sys.executable, __file__, f'--works={work}', f'--peak={name}']
    command += [f'--memory={_MEMORY.value}', f'--quick={_QUICK.value}']
    command += [f'--cores={_CORES.value}']
    with tempfile.TemporaryDirectory() as folder:
      environment = {
        **os.environ,
        'JAX_COMPILATION_CACHE_DIR': folder,
        'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
      }
      for _ in range(2):
        done = subprocess.run(
          command, env=environment, check=True, capture_output=True, text=True
        )
    found[name] = json.loads(done.stdout.splitlines()[-1])['peak']
  return found


def main(argv: list[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'{argv[1]!r} is not a flag; see --help.')
  sharding.use_cores(_CORES.value)
  if _PEAK.value is not None:
    print_peak(_PEAK.value, work(_WORKS.value[0]))
    return
  load = os.getloadavg()[0]
  rows = {}
  for name in _WORKS.value:
    # Before this process has a device, whose memory it would take.
    bytes_ = peaks(name) if _PEAKS.value else {}
    rows[name] = seconds(work(name))
    if bytes_:
      rows[name] |= {
        'peak_bytes': bytes_,
        'peak_bytes_more': {
          n: bytes_[n] - bytes_['unaudited'] for n in names()[1:]
        },
      }
    print(json.dumps(rows[name]), flush=True)
  result = {'works': rows, 'quick': _QUICK.value, 'load_before': load}
  record.write(_OUT.value, result, 'jax')


if __name__ == '__main__':
  app.run(main)
