"""What the white-box game adds to a step of DP-SGD.

  python benchmarks/white_box_step.py
  python benchmarks/white_box_step.py --quick

A step of DP-SGD is compared with a step of the game, in which two batches have
gradients and noise, and one of them a canary gradient that is drawn in each step. Steps
of all forms are timed in turn within one process, after all have compiled, with the
gathering of examples. Poisson batches differ in size, so the plain step is timed on both
batches of the game, and the mean counts. The floor is twice the plain step.

Everything is repeated in a process in which the C library keeps memory that is freed. By
default glibc returns blocks of more than 32 MB to the system, so a program that needs
such a block for temporary arrays has it cleared again in each step.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from absl import flags
import harness
import jax
import numpy as np
import optax

from epe_jax.dpsgd import dp_sgd, gradient_canaries, poisson_batches, white_box
from epe_jax.tasks import digits, emnist
from epe_jax.training import algorithms
from epe_jax.types import Batch, Task

_STEPS = flags.DEFINE_integer('steps', 30, 'Steps that are timed.')
_CANARY = flags.DEFINE_enum(
  'canary', 'dirac', ['dirac', 'random'], 'Gradient of the canary.'
)
_EXAMPLES, _CLIP_NORM, _NOISE = 2048, 1.0, 1.0
# glibc keeps this much memory, and allocates it in one piece.
_KEEPS_MEMORY = {
  'MALLOC_TOP_PAD_': str(500 * 2**20),
  'MALLOC_TRIM_THRESHOLD_': str(8 * 2**30),
}


class Work(NamedTuple):
  """A model and its examples.

  Attributes:
    task: the model.
    examples: all examples.
    expected_batch: m.
  """

  task: Task
  examples: Batch
  expected_batch: float


def make_works(quick: bool) -> dict[str, Work]:
  """The digits network and the EMNIST CNN, on random images."""
  rng = np.random.default_rng(0)

  def images(side: int, classes: int) -> Batch:
    return {
      'pixels': rng.random((_EXAMPLES, side, side), np.float32),
      'label': rng.integers(0, classes, _EXAMPLES, np.int32),
    }

  width, batches = 200, (64.0, 16.0, 128.0)
  if quick:
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


def time_steps(work: Work, canary: Any, steps: int) -> dict[str, Any]:
  """Seconds of the steps of both forms, in turn."""
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
      canary, norm=_CLIP_NORM, moving=True
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
    return plain.step(state, batch, algorithms.no_canaries(), *step_keys)[0]

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
  done = dict.fromkeys(forms, 0)

  def advance(name: str) -> Any:
    t = done[name]
    indices = np.stack([rows[t] for rows in batches])
    states[name] = forms[name](states[name], data, indices, np.int32(t))
    done[name] += 1
    return states[name]

  seconds = harness.time_in_turn(
    {name: lambda name=name: advance(name) for name in forms}, steps
  )
  both = (seconds['plain'].wall, seconds['plain, other batch'].wall)
  return {
    'dim': harness.count_parameters(params),
    'expected_batch': work.expected_batch,
    'padded_batch': batches[0].shape[1],
    'temporary_bytes': {
      'plain': _count_temporary_bytes(advance_plain),
      'game': _count_temporary_bytes(advance_game),
    },
    'seconds_median': harness.summarize(seconds, 'median'),
    # Of paired steps.
    'over_plain': float(
      np.median(np.divide(seconds['game'].wall, np.mean(both, axis=0)))
    ),
  }


def time_works(canary: str, steps: int, quick: bool) -> dict[str, Any]:
  """Steps of each work."""
  return {
    name: time_steps(work, canary, steps)
    for name, work in make_works(quick).items()
  }


def _count_temporary_bytes(program: jax.stages.Compiled) -> int | None:
  """Bytes of the temporary arrays of a program; None if XLA does not report them."""
  analysis = program.memory_analysis()
  return None if analysis is None else analysis.temp_size_in_bytes


def measure(quick: bool) -> dict:
  steps = 2 if quick else _STEPS.value
  arguments = _CANARY.value, steps, quick
  works = time_works(*arguments)
  kept = harness.call_in_process(
    'white_box_step:time_works', *arguments, environment=_KEEPS_MEMORY
  )
  for name, work in works.items():
    work['over_plain_memory_kept'] = kept[name]['over_plain']
  return {'works': works, 'steps': steps, 'canary': _CANARY.value}


if __name__ == '__main__':
  harness.run(measure, 'jax', 'jax-privacy')
