"""Rounds of DP-FedAvg, compared with pfl-research, FedJAX and TFF.

  bash benchmarks/peers/install.sh
  python -m benchmarks.speed.rounds
  python -m benchmarks.speed.rounds --quick

Each system runs in its own process and environment. They work in turn: while one
does, all threads of the others are stopped, so that none can take a core from it by
busy waiting. A round begins with the clients' examples in memory and ends with the new
model; it includes batching and padding.
"""

from collections.abc import Iterator
import contextlib
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
from typing import Any, NamedTuple

from absl import app, flags

from benchmarks import harness
from benchmarks.peers import works as works_lib

_PEERS = harness.HERE / 'peers'

_WORKS = flags.DEFINE_list('works', ['A', 'Ah', 'B'], 'Rounds to train.')
_SYSTEMS = flags.DEFINE_list(
  'systems',
  [
    'epe_jax',
    'pfl',
    'pfl_last',
    'fedjax',
    'fedjax_pmap',
    'tff',
    'epe_jax_bfloat16',
    'pfl_bfloat16',
  ],
  'Systems that train them. Ratios are to epe_jax.',
)
_REPETITIONS = flags.DEFINE_integer('repetitions', 5, 'Of each work.', 1)
_ENVS = flags.DEFINE_string(
  'envs', str(_PEERS / 'env'), "Folder of the peers' environments."
)
_OURS = 'epe_jax'
_ROUNDED = '--precision=bfloat16'
# Name -> its environment, and the options of its program.
_FORMS = {
  _OURS: (_OURS, []),
  'pfl': ('pfl', []),
  'pfl_last': ('pfl', ['--layout=last']),
  'fedjax': ('fedjax', []),
  'fedjax_pmap': ('fedjax', ['--backend=pmap']),
  'tff': ('tff', []),
  'epe_jax_bfloat16': (_OURS, [_ROUNDED]),
  'pfl_bfloat16': ('pfl', [_ROUNDED]),
}


class System(NamedTuple):
  """A process that trains rounds when told to.

  Attributes:
    process: leader of a process group, which includes its helpers.
    built: work -> facts that the system reported when it built the work.
    seconds: work -> seconds of each round so far.
  """

  process: subprocess.Popen
  built: dict[str, dict[str, Any]]
  seconds: dict[str, list[float]]


def command(name: str, quick: bool) -> tuple[list[str], dict[str, str]]:
  """The command that starts a system, and its environment.

  Raises:
    FileNotFoundError: it is not installed.
  """
  package, options = _FORMS[name]
  envs = pathlib.Path(_ENVS.value).absolute()
  python = envs / package / 'bin' / 'python'
  environment = {k: v for k, v in os.environ.items() if k != 'PYTHONPATH'}
  if package == _OURS:
    python = pathlib.Path(sys.executable)
    environment = dict(os.environ)
  elif package == 'tff':
    environment['PYTHONPATH'] = str(envs / 'authors')
  if not python.exists():
    raise FileNotFoundError(
      f'{python} is missing. Install the peers: benchmarks/peers/install.sh'
    )
  given = [str(python), str(_PEERS / f'round_{package}.py')]
  given += options
  given += ['--quick'] * quick
  return given, environment


def ask(system: System, line: str) -> dict[str, Any]:
  """Sends a line and waits for the answer; the process is stopped otherwise.

  Raises:
    RuntimeError: the system could not do it.
  """
  process = system.process
  assert process.stdin is not None
  assert process.stdout is not None
  os.killpg(process.pid, signal.SIGCONT)
  try:
    process.stdin.write(line + '\n')
    process.stdin.flush()
    reply = process.stdout.readline()
  except BrokenPipeError:
    reply = ''
  if not reply:
    raise RuntimeError(f'the process ended with {process.wait()}')
  os.killpg(process.pid, signal.SIGSTOP)
  answer = json.loads(reply)
  if 'error' in answer:
    raise RuntimeError(answer['error'])
  return answer


@contextlib.contextmanager
def started(
  names: list[str], works: list[str], quick: bool
) -> Iterator[tuple[dict[str, System], dict[str, str]]]:
  """Systems with their works built and warm, and why others are not measured."""
  systems: dict[str, System] = {}
  missing: dict[str, str] = {}
  try:
    for name in names:
      try:
        given, environment = command(name, quick)
      except FileNotFoundError as error:
        missing[name] = str(error)
        print(f'not measured: {name}: {error}', flush=True)
        continue
      process = subprocess.Popen(
        given,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        process_group=0,
        text=True,
      )
      systems[name] = System(process, {}, {})
      for work in works:
        try:
          systems[name].built[work] = ask(systems[name], f'build {work}')
          print(f'{name} {work}: {systems[name].built[work]}', flush=True)
        except RuntimeError as error:
          missing[f'{name} {work}'] = str(error)
          print(f'not measured: {name} {work}: {error}', flush=True)
    yield systems, missing
  finally:
    for system in systems.values():
      with contextlib.suppress(ProcessLookupError):
        os.killpg(system.process.pid, signal.SIGKILL)
      system.process.wait()


def time_rounds(systems: dict[str, System], works: list[str]) -> None:
  """Times rounds in turn; the first system changes with each repetition."""
  names = list(systems)
  for repetition in range(_REPETITIONS.value):
    first = repetition % len(names)
    for work in works:
      for name in names[first:] + names[:first]:
        if work in systems[name].built:
          seconds = ask(systems[name], f'run {work}')['seconds']
          systems[name].seconds.setdefault(work, []).append(seconds)
          print(f'{name} {work}: {seconds:.3f} s', flush=True)


def summarize(
  work: works_lib.Work, name: str, systems: dict[str, System], speed: float
) -> dict[str, Any]:
  """The figures of one work, with floor, and ratios of the fastest of each peer too."""
  found = {
    system: {
      'median': statistics.median(one.seconds[name]),
      'all': one.seconds[name],
      **{key: one.built[name][key] for key in ('rows', 'change', 'form')},
    }
    for system, one in systems.items()
    if name in one.seconds
  }
  figures = {
    'clients': len(work.sizes),
    'examples': work.examples,
    'steps': work.steps,
    'parameters': work.parameters,
    'gflop': work.examples * work.flops / 1e9,
    'floor_seconds': work.examples * work.flops / speed,
    'seconds': found,
  }
  if _OURS in found:
    ours = found[_OURS]['median']
    ratios = {k: v['median'] / ours for k, v in found.items() if k != _OURS}
    for peer, ratio in [*ratios.items()]:
      package, options = _FORMS[peer]
      if _ROUNDED not in options:
        fastest = f'fastest {package}'
        ratios[fastest] = min(ratio, ratios.get(fastest, ratio))
    figures['share_of_floor'] = {'median': figures['floor_seconds'] / ours}
    figures['ratio'] = {'median': ratios}
  return figures


def measure(quick: bool) -> dict:
  known = works_lib.works(quick=quick)
  for flag, names in ((_WORKS, known), (_SYSTEMS, _FORMS)):
    for name in flag.value:
      if name not in names:
        raise app.UsageError(
          f'--{flag.name} has {name!r}; give some of {list(names)}.'
        )
  works = _WORKS.value
  with started(_SYSTEMS.value, works, quick) as (systems, missing):
    before = harness.matmul_flops_per_second()
    time_rounds(systems, works)
    after = harness.matmul_flops_per_second()
  speed = max(before, after)
  return {
    'works': {
      work: summarize(known[work], work, systems, speed) for work in works
    },
    'not_measured': missing,
    'matmul_gflop_per_second': {'before': before / 1e9, 'after': after / 1e9},
    'versions': {
      name: next(iter(one.built.values()))['versions']
      for name, one in systems.items()
      if one.built
    },
    'repetitions': _REPETITIONS.value,
  }


if __name__ == '__main__':
  harness.run(measure, 'jax')
