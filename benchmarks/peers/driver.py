"""One system in its own process: it answers line for line, and works in turn.

The process reads "build A" or "run A" from standard input and answers with one
JSON object. Whatever else a library prints goes to standard error.
"""

from collections.abc import Callable, Iterable
import importlib.metadata
import json
import os
import sys
import time
import traceback
from typing import Any, NamedTuple

import numpy as np
import works as works_lib


class Round(NamedTuple):
  """One work, ready to run.

  Attributes:
    run: trains one round, from the clients' arrays in memory to the new model, and
      returns its local steps, counted and not derived, and the examples computed
      in them, padding included.
    weights: all of the model's parameters.
    form: how the system does it, in words.
  """

  run: Callable[[], tuple[int, int]]
  weights: Callable[[], Iterable[Any]]
  form: str


def serve(start: Callable[[works_lib.Work], Round], *packages: str) -> None:
  """Answers until standard input ends.

  Args:
    start: builds a work; what it needs is compiled by rounds of warm-up.
    *packages: those whose versions decide how fast it is.
  """
  answers = os.fdopen(os.dup(1), 'w', buffering=1)
  os.dup2(2, 1)
  known = works_lib.works(quick='--quick' in sys.argv)
  rounds: dict[str, Round] = {}

  def answer(verb: str, name: str) -> dict:
    if verb == 'build':
      rounds[name] = start(known[name])
      versions = {p: importlib.metadata.version(p) for p in packages}
      return {**_checked(rounds[name], known[name]), 'versions': versions}
    begun = time.perf_counter()
    rounds[name].run()
    return {'seconds': time.perf_counter() - begun}

  for line in sys.stdin:
    try:
      reply = answer(*line.split())
    except Exception as error:
      traceback.print_exc()
      reply = {'error': f'{type(error).__name__}: {error}'[:2000]}
    print(json.dumps(reply), file=answers)


def _checked(round: Round, work: works_lib.Work) -> dict:
  """Facts of a work that all systems have to agree on."""
  flatten = lambda: np.concatenate([np.ravel(x) for x in round.weights()])
  before = flatten()
  round.run()
  steps, rows = round.run()
  after = flatten()
  if not np.all(np.isfinite(after)):
    raise ValueError('the model has parameters that are not finite')
  found = {
    'parameters': int(after.size),
    'steps': steps,
    'examples': work.examples,
    'rows': rows,
    'change': float(np.linalg.norm(after - before)),
    'form': round.form,
  }
  for name in ('parameters', 'steps'):
    if found[name] != getattr(work, name):
      raise ValueError(
        f'{found[name]} {name}, but the work has {getattr(work, name)}'
      )
  if not found['change'] > 0:
    raise ValueError('two rounds did not change the model')
  return found
