"""Rounds of EMNIST and StackOverflow: seconds, share of the peak, a profile."""

from collections.abc import Callable, Iterator
import contextlib
import sys
from typing import Any

import jax
import numpy as np
from peers import works

from epe_jax.parallel import barrier
from epe_jax.training import local_training
from gpu_parts import ceilings, configs, profiles, rounds
from gpu_parts.results import Context, Results

# Of a profile; each is traced in full.
_PROFILED = 3


def emnist_round(context: Context, results: Results) -> None:
  """101 clients, 2,000 canaries, all iterates; then the same without audit."""
  config = configs.emnist(context, rounds=2 if context.quick else 500)
  repetitions = 3 if context.quick else 50
  made = results.build('audited', lambda: rounds.Rounds(config))
  _measure(made, 'audited', config, context, results, repetitions)
  _profile(made, 'emnist_round', context, results)
  _compare(made, config, results, repetitions)


def next_word_round(context: Context, results: Results) -> None:
  """167 clients of 256 sentences, in float32, tensorfloat32 and bfloat16."""
  config = configs.stackoverflow(
    context, rounds=2 if context.quick else 2048, all_full=True
  )
  repetitions = 2 if context.quick else 10
  made = results.build('float32', lambda: rounds.Rounds(config))
  _measure(made, 'float32', config, context, results, repetitions)
  _profile(made, 'next_word_round', context, results)
  _compare(made, config, results, repetitions)
  for precision in () if context.quick else local_training.PRECISIONS[1:]:
    # In the same chunks, which is also fewer programs to compile.
    config = rounds.replace(config, precision=precision, chunk=made.chunk)
    del made  # Its memory is free again.
    made = results.build(precision, lambda config=config: rounds.Rounds(config))
    _measure(made, precision, config, context, results, repetitions)


def _measure(
  made: rounds.Rounds,
  name: str,
  config: Any,
  context: Context,
  results: Results,
  repetitions: int,
) -> None:
  """Seconds of rounds; their floor, if the model has the size of the paper's."""

  def measure() -> dict[str, Any]:
    single = rounds.time_in_turn({'it': made}, repetitions)['it']
    figures = {
      **made.describe(),
      'seconds': float(np.median(single)),
      'seconds_best': min(single),
      # Rounds that do not wait for each other, as in a run.
      'seconds_in_a_row': made.run(repetitions) / (repetitions * made.rounds),
      'repetitions': repetitions,
    }
    if context.quick:
      return figures
    is_text = 'stackoverflow' in config.task
    flops = works.lstm_flops() if is_text else works.cnn_flops()
    peak = ceilings.read_peak(context.folder.parent, config.precision)
    floor = made.examples * flops / peak
    return {
      **figures,
      'flops': made.examples * flops,
      'peak_flops_per_second': peak,
      'floor_seconds': floor,
      'share_of_peak': floor / figures['seconds_in_a_row'],
    }

  results.attempt(name, measure)


def _profile(
  made: rounds.Rounds, name: str, context: Context, results: Results
) -> None:
  path = context.folder.parent / f'gpu_{name}.xplane.pb.gz'
  results.attempt(
    'profile', lambda: profiles.profile(lambda: made.run(_PROFILED), path)
  )


def _compare(
  made: rounds.Rounds, config: Any, results: Results, repetitions: int
) -> None:
  def compare() -> dict[str, Any]:
    # In chunks of the same size, or it would be these that are compared.
    same = rounds.replace(config, chunk=made.chunk)
    unaudited = rounds.Rounds(rounds.without_audit(same))
    return rounds.measure_ratio(made, unaudited, repetitions)

  results.attempt('ratio', compare)


def variants(context: Context, results: Results) -> None:
  """Rounds with other chunks, rounds of a dispatch, and kinds of barriers."""
  repetitions = 2 if context.quick else 10
  jobs = {
    'emnist': configs.emnist(context, rounds=64),
    'stackoverflow': configs.stackoverflow(context, rounds=64, all_full=True),
  }
  changes: dict[str, dict[str, Any]] = {
    'as_chosen': {},
    '4_rounds_per_dispatch': {'rounds_per_dispatch': 4},
    'chunk_of_half': {'chunk': 2},
    'chunk_of_quarter': {'chunk': 4},
  }
  if context.quick:
    del jobs['stackoverflow']
    changes = {'4_rounds_per_dispatch': changes['4_rounds_per_dispatch']}
  for job, config in jobs.items():
    clients = config.clients_per_round
    for name, fields in changes.items():
      if 'chunk' in fields:
        fields = {'chunk': -(-clients // fields['chunk'])}
      changed = rounds.replace(config, **fields)
      results.attempt(
        f'{job}/{name}',
        lambda changed=changed: _time_variant(changed, repetitions),
      )
    with without_branches():
      results.attempt(
        f'{job}/optimization_barrier',
        lambda config=config: _time_variant(config, repetitions),
      )


@contextlib.contextmanager
def without_branches() -> Iterator[None]:
  """Replaces every fusion barrier by `optimization_barrier`.

  A fusion barrier is a conditional, whose predicate a GPU reads back to its host.
  """
  before = barrier.fusion_barrier

  def materialize(always: jax.Array, make: Callable[[], Any]) -> Any:
    del always
    return jax.lax.optimization_barrier(make())

  users = [
    module
    for name, module in list(sys.modules.items())
    if name.startswith('epe_jax')
    and getattr(module, 'fusion_barrier', None) is before
  ]
  for module in users:
    module.fusion_barrier = materialize  # pyright: ignore[reportAttributeAccessIssue]
  jax.clear_caches()
  try:
    yield
  finally:
    for module in users:
      module.fusion_barrier = before  # pyright: ignore[reportAttributeAccessIssue]
    jax.clear_caches()


def _time_variant(config: Any, repetitions: int) -> dict[str, Any]:
  made = rounds.Rounds(config)
  seconds = rounds.time_in_turn({'it': made}, repetitions)['it']
  return {
    'seconds': float(np.median(seconds)),
    'chunk': made.chunk,
    'compile_seconds': made.compile_seconds,
  }
