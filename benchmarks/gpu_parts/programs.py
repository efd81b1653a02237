"""Parts that run benchmarks, each in a process of its own."""

import math
import os
import pathlib
import subprocess
import sys
from typing import Any

from epe_jax import io
from gpu_parts.configs import ROOT
from gpu_parts.results import Context, Results
from gpu_parts.schedule import SHARES_DEVICE

_DIMS = (1_206_590, 4_050_748, 10**8, 10**9)
_GROUPS = (('hadamard', 'hadamard2'), ('sphere',))
# Seconds of all canaries of a group in one dimension.
_LIMIT = 45.0


def audited_round(context: Context, results: Results) -> None:
  """Work B with an audit against the same without: Hadamard, then sphere."""
  for family in ('hadamard',) if context.quick else ('hadamard', 'sphere'):
    found = results.attempt(
      family,
      lambda family=family: run_benchmark(
        'audited_round',
        context,
        '--works=B',
        f'--families={family}',
        '--nopeaks',
        f'--rounds={1 if context.quick else 60}',
      ),
    )
    if found and family == 'hadamard':
      results.add(works=found['works'])


def canary_kernels(context: Context, results: Results) -> None:
  """All families, by d: a projection of one vector, and inserting two canaries.

  Families that are made one by one come last, because they take longest.
  """
  sizes, insertions = [], []
  every = [(families, dim) for families in _GROUPS for dim in _DIMS]
  for families, dim in every[:1] if context.quick else every:
    one_by_one = families == _GROUPS[-1]
    counts = '2e3,1e5' if dim < 10**8 and not one_by_one else '2e3'
    # A projection of microseconds is dispatched many times, because a single one
    # would be timed by its dispatch.
    calls = 50 if dim < 10**7 and not one_by_one else 2
    flags = [f'--dims={dim}', f'--counts={counts}', '--stacks=1']
    flags += [f'--calls={calls}', f'--families={",".join(families)}']
    flags += ['--max_entries=2e9', f'--repetitions={1 if one_by_one else 5}']
    name = f'{", ".join(families)} at d = {dim:,}'
    found = results.attempt(
      name,
      lambda flags=flags: run_benchmark(
        'canary_kernels', context, *flags, limit=_LIMIT
      ),
    )
    if found:
      sizes += found['sizes']
      insertions += found['insertions']
      del results.figures[name]
      results.add(sizes=sizes, insertions=insertions)


def precision(context: Context, results: Results) -> None:
  """Effect of tensorfloat32 and bfloat16 on cosines and ε of the digits run."""
  mode = 'smoke' if context.quick else 'full'
  config = f'--config={ROOT}/configs/digits.py:{mode}'
  flags: list[str] = []
  if context.quick:
    flags += ['--config.model.width=4', '--config.canaries.observed=4']
    flags += ['--config.canaries.unobserved=4']
  found = run_benchmark('precision', context, config, *flags)
  results.add(rows=found['rows'])


def run_benchmark(
  name: str, context: Context, *flags: str, limit: float = math.inf
) -> dict[str, Any]:
  """Runs a benchmark and returns its record.

  Args:
    name: of its file.
    context: of the part.
    *flags: of the benchmark.
    limit: seconds after which it is ended.

  Raises:
    RuntimeError: it failed; its output is in the log.
    subprocess.TimeoutExpired: it took longer than there was time.
  """
  path = pathlib.Path(context.folder, f'{name}.json')
  command = [sys.executable, str(ROOT / 'benchmarks' / f'{name}.py'), *flags]
  command += [f'--out={path}'] + ['--quick'] * context.quick
  environment = {
    key: value for key, value in os.environ.items() if key not in SHARES_DEVICE
  }
  environment['PYTHONPATH'] = os.pathsep.join(sys.path)
  done = subprocess.run(
    command,
    env=environment,
    timeout=max(1.0, min(limit, context.seconds_left)),
  )
  if done.returncode:
    raise RuntimeError(f'{name} ended with {done.returncode}')
  return io.read_json(path)
