"""Whole recorded runs, with their estimates: EMNIST, and StackOverflow's epoch."""

import pathlib
import threading
import time
from typing import Any

import numpy as np

from epe_jax.experiment import audited_run, metrics, stopping, workdirs
from gpu_parts import configs, rounds
from gpu_parts.results import Context, Results

# Seconds between two reads of the progress of a run.
_INTERVAL = 5.0


def emnist(context: Context, results: Results) -> None:
  """500 rounds of 101 clients, 1,000 + 1,000 canaries, all iterates."""
  config = configs.emnist(context, rounds=2 if context.quick else 500)
  config.checkpoint_every = config.evaluate_every = min(config.rounds, 100)
  _record(config, context, results)


def stackoverflow(context: Context, results: Results) -> None:
  """2,048 rounds of 167 clients of at most 256 sentences, one recorded run.

  One that is stopped for time is resumed by the same command.
  """
  config = configs.stackoverflow(context, rounds=2 if context.quick else 2048)
  config.checkpoint_every = config.evaluate_every = min(config.rounds, 128)
  _record(config, context, results)


def _record(config: Any, context: Context, results: Results) -> None:
  compilations, begun = rounds.Compilations(), time.monotonic()
  files = workdirs.workdir_at(context.folder / 'run')
  ended = threading.Event()

  def watch() -> None:
    while not ended.wait(_INTERVAL):
      results.add(**progress(files.metrics))

  results.add(rounds_asked_for=config.rounds)
  watching = threading.Thread(target=watch, daemon=True)
  watching.start()
  try:
    result = audited_run.run(config, files.folder)
  except stopping.Stopped as error:
    raise RuntimeError(f'no time for all rounds: {error}') from None
  finally:
    ended.set()
    watching.join()
    results.add(**progress(files.metrics))
  assert result is not None
  assert result.seconds is not None
  assert result.waited_share is not None
  results.add(
    # Of all rounds, with waiting for data, without compilation and estimates.
    seconds=result.seconds / (1 - result.waited_share),
    seconds_per_round=result.seconds_per_round,
    waited_share=result.waited_share,
    # From the command to the numbers of the report, in this process.
    wall_seconds=time.monotonic() - begun,
    compile_seconds=compilations.total(),
    round_programs_compiled=compilations.count(rounds.ADVANCE),
    rounds=result.rounds,
    chunk=result.chunk,
    data=result.data,
    accuracy=result.accuracy,
    epsilon={
      attack.threat_model.key: float(attack.first.epsilon)
      for attack in result.audit.attacks
    },
    analytic_epsilon=result.analytic_epsilon,
  )


def progress(path: pathlib.Path) -> dict[str, float]:
  """Rounds of a run so far, their median and their total seconds."""
  if not path.exists():
    return {'rounds': 0}
  lines = [x for x in metrics.read_lines(path) if x['round'] > 0]
  if not lines:
    return {'rounds': 0}
  seconds = [x['seconds'] for x in lines]
  return {
    'rounds': len(lines),
    'seconds_per_round': float(np.median(seconds)),
    'seconds_so_far': sum(seconds),
  }
