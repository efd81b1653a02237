"""What the white-box game adds to a step of DP-SGD.

  python benchmarks/white_box_step.py
  python benchmarks/white_box_step.py --quick

A step of DP-SGD by itself against a step of the game, in which two batches have
gradients and noise, and a canary gradient that is drawn anew joins one of them.
Steps of all are timed in turn within one process, after all have compiled; the
gathering of examples is within each. Poisson batches differ in size, so that the
plain step is timed on either batch of the game, and the mean of both counts. The
floor is twice the plain step: that is what the game is.

All is done once more by a process in which the C library keeps memory that it was
given back. By itself glibc returns blocks of more than 32 MB to the system, so that
a program which needs such a block for its temporary arrays has it cleared anew in
each step.
"""

from collections.abc import Callable
import json
import os
import pathlib
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

from epe_jax.dpsgd import dp_sgd, gradient_canaries, poisson_batches, white_box
from epe_jax.tasks import digits, emnist
from epe_jax.training import fedavg
from epe_jax.types import Batch, Task

_QUICK = flags.DEFINE_bool('quick', False, 'Small sizes: does it run?')
_STEPS = flags.DEFINE_integer('steps', 30, 'Steps that are timed.')
_CANARY = flags.DEFINE_enum(
  'canary', 'dirac', ['dirac', 'random'], 'Gradient of the canary.'
)
_OUT = flags.DEFINE_string(
  'out', str(record.FOLDER / 'white_box_step.json'), 'File of the result.'
)
_EXAMPLES, _CLIP_NORM, _NOISE = 2048, 1.0, 1.0
# glibc keeps this much, and asks for it in one piece.
_KEEPS_MEMORY = {
  'MALLOC_TOP_PAD_': str(500 * 2**20),
  'MALLOC_TRIM_THRESHOLD_': str(8 * 2**30),
}


class Work(NamedTuple):
  """What is trained on what.

  Attributes:
    task: the model.
    examples: all of them.
    expected_batch: m.
  """

  task: Task
  examples: Batch
  expected_batch: float


def make_works() -> dict[str, Work]:
  """The digits network and the EMNIST CNN, on random images."""
  rng = np.random.default_rng(0)

  def images(side: int, classes: int) -> Batch:
    return {
      'pixels': rng.random((_EXAMPLES, side, side), np.float32),
      'label': rng.integers(0, classes, _EXAMPLES, np.int32),
    }

  width, batches = 200, (64.0, 16.0, 128.0)
  if _QUICK.value:
    width, batches = 2, (4.0, 2.0, 3.0)
  return {
    'digits': Work(digits.task(width), images(8, 10), batches[0]),
    **{
      f'EMNIST CNN, {batch:g} examples': Work(
        emnist.task(62), images(28, 62), batch
      )
      for batch in batches[1:]
    },
  }


def time_steps(work: Work, steps: int) -> dict[str, Any]:
  """Seconds of steps of both forms, in turn."""
  sizes: dict[str, Any] = dict(
    clip_norm=_CLIP_NORM, expected_batch=work.expected_batch
  )
  optimizer = optax.sgd(0.1)
  plain = dp_sgd.dpsgd(
    work.task, optimizer=optimizer, noise_multiplier=_NOISE, **sizes
  )
  game = white_box.white_box_game(
    dp_sgd.noisy_gradient(work.task, noise_multiplier=_NOISE, **sizes),
    gradient_canaries.make_gradient_canary(
      _CANARY.value, norm=_CLIP_NORM, moving=True
    ),
    optimizer=optimizer,
    steps=steps + 1,
    **sizes,
  )
  keys = white_box.derive_game_keys(0)
  params = work.task.init(jax.random.key(0))
  data = jax.device_put(work.examples)
  batches = [
    poisson_batches.draw_poisson_batches(
      0,
      purpose,
      num_examples=_EXAMPLES,
      expected_batch=work.expected_batch,
      steps=steps + 1,
    )
    for purpose in ('benchmark B', "benchmark B'")
  ]

  def step_plain(state, data, indices, t, which):
    batch = dp_sgd.gather_batch(data, indices[which])
    step_keys = [
      jax.random.fold_in(key, t) for key in (keys.training, keys.noise)
    ]
    return plain.step(state, batch, fedavg.no_canaries(), *step_keys)[0]

  def step_game(state, data, indices, t):
    del t  # The state has its own.
    batch, other = (dp_sgd.gather_batch(data, row) for row in indices)
    return game.step(state, batch, other, keys)

  states = {
    name: game.init(params, keys.canary)
    if name == 'game'
    else plain.init(params)
    for name in ('plain', 'plain, other batch', 'game')
  }
  indices = np.stack([rows[0] for rows in batches])
  zero = np.int32(0)
  advance_plain = (
    jax.jit(step_plain, donate_argnums=0)
    .lower(states['plain'], data, indices, zero, zero)
    .compile()
  )
  advance_game = (
    jax.jit(step_game, donate_argnums=0)
    .lower(states['game'], data, indices, zero)
    .compile()
  )
  forms: dict[str, Callable] = {
    'plain': lambda *args: advance_plain(*args, zero),
    'plain, other batch': lambda *args: advance_plain(*args, np.int32(1)),
    'game': advance_game,
  }
  seconds: dict[str, list[float]] = {name: [] for name in forms}
  for t in range(steps + 1):
    indices = np.stack([rows[t] for rows in batches])
    for name, advance in forms.items():
      begun = time.perf_counter()
      states[name] = advance(states[name], data, indices, np.int32(t))
      jax.block_until_ready(states[name])
      # The first step is for warming up.
      if t:
        seconds[name].append(time.perf_counter() - begun)
  both = (seconds['plain'], seconds['plain, other batch'])
  return {
    'dim': sum(x.size for x in jax.tree.leaves(params)),
    'expected_batch': work.expected_batch,
    'padded_batch': batches[0].shape[1],
    'temporary_bytes': {
      'plain': _count_temporary_bytes(advance_plain),
      'game': _count_temporary_bytes(advance_game),
    },
    'seconds_median': {n: float(np.median(x)) for n, x in seconds.items()},
    # Of steps side by side.
    'over_plain': float(
      np.median(np.divide(seconds['game'], np.mean(both, axis=0)))
    ),
  }


def _count_temporary_bytes(program: jax.stages.Compiled) -> int | None:
  """Of the arrays that a program makes on its way; None where it does not tell."""
  analysis = program.memory_analysis()
  return None if analysis is None else analysis.temp_size_in_bytes


def time_with_memory_kept() -> dict[str, float]:
  """The ratio of each work in a process that keeps its memory."""
  with tempfile.TemporaryDirectory() as folder:
    out = pathlib.Path(folder, 'result.json')
    subprocess.run(
      [sys.executable, __file__, *sys.argv[1:], f'--out={out}'],
      env={**os.environ, **_KEEPS_MEMORY},
      stdout=subprocess.DEVNULL,
      check=True,
    )
    works = json.loads(out.read_text())['works']
  return {name: work['over_plain'] for name, work in works.items()}


def main(argv: list[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'{argv[1]!r} is not a flag; see --help.')
  load = os.getloadavg()[0]
  steps = 2 if _QUICK.value else _STEPS.value
  works = {name: time_steps(w, steps) for name, w in make_works().items()}
  if not _KEEPS_MEMORY.items() <= os.environ.items():
    for name, ratio in time_with_memory_kept().items():
      works[name]['over_plain_memory_kept'] = ratio
  result = {
    'works': works,
    'steps': steps,
    'canary': _CANARY.value,
    'quick': _QUICK.value,
    'load_before': load,
  }
  record.write(_OUT.value, result, 'jax', 'jax-privacy')


if __name__ == '__main__':
  app.run(main)
