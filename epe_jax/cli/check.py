"""Checks whether a DP aggregation clips, averages and adds noise as it claims.

  epe-jax check package.module:factory --clip_norm=1 --noise_multiplier=1 \\
    --num_clients=10 --shapes=20x30,30
  epe-jax check my_aggregation.py:factory
  epe-jax check epe_jax.conformance.example:NoNoiseOnBiases

factory(claim) makes a new mechanism, whose aggregate(updates, weights) runs one round.
The check passes chosen updates to it for up to a minute, and reports on every rule. The
last example is such a mechanism, with a mistake; its file is one to begin with:

  python -c 'import epe_jax.conformance.example as e; print(e.__file__)'

The exit status is the first that applies: 2 wrong arguments, or no report, as the mechanism
fails, never ends, or ends its process; 1 a privacy rule is broken; 3 a rule that --require
names was not checked; 4 a utility rule is broken; 0 none of these, which says nothing of
rules that were not checked.
"""

from collections.abc import Sequence
import contextlib
import dataclasses
import functools
from io import TextIOWrapper
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from typing import IO, Any

from absl import app, flags

from epe_jax import io, python_path
from epe_jax.cli import command_flags, program
from epe_jax.cli.command_flags import Flag
from epe_jax.experiment import stopping
from epe_jax.experiment.sweeps import launch
from epe_jax.report import tables, terminal

BROKEN, NOT_CHECKED, WASTEFUL = 1, 3, 4
"""Exit statuses: a privacy rule is broken; a required rule was not checked; a utility
rule is broken. The first that applies."""

# Seconds for imports and the first calls, besides those of rounds and fresh processes.
_BEGIN = 120.0


def define_flags(values: flags.FlagValues) -> None:
  """Defines the flags of `check`, which describe the claim."""
  command_flags.define(
    values,
    Flag('clip_norm', 'Claimed clip norm S, > 0.', float, 1.0),
    Flag('noise_multiplier', 'Claimed noise multiplier z, > 0.', float, 1.0),
    Flag('epsilon', 'Claimed ε of a round at delta, in place of z.', float),
    Flag(
      'num_clients', 'n, the expected number of clients in a round.', int, 10
    ),
    Flag(
      'shapes',
      'Shapes of the tensors of an update, such as 20x30,30,().',
      default='64x32,32',
    ),
    Flag(
      'release',
      'Whether the release is the mean over n, or the sum.',
      ('mean', 'sum'),
      'mean',
    ),
    Flag('step_size', 'Learning rate that the release includes.', float, 1.0),
    Flag(
      'adjacency',
      'Neighbouring rounds: one update is zero, one client absent, or one update '
      'any other.',
      ('zero_out', 'add_or_remove', 'replace'),
      'zero_out',
    ),
    Flag(
      'noise',
      'Law of the noise; Laplace noise has the scale z S.',
      ('gaussian', 'discrete_gaussian', 'skellam', 'laplace'),
      'gaussian',
    ),
    Flag('norm', 'Norm in which updates are clipped: 1, 2 or inf.', float, 2.0),
    Flag('granularity', 'Step of the grid of discrete noise.', float, 0.0),
    Flag(
      'participations',
      'Maximum number of rounds of a client; from 2 on, z is that of all.',
      int,
      1,
    ),
    Flag('min_separation', 'Rounds from one of a client to its next.', int, 1),
    Flag(
      'calls_per_release',
      'Calls of aggregate, such as of micro-batches, of which the last one releases.',
      int,
      1,
    ),
    Flag('max_rounds', 'Maximum number of rounds of a run.', int),
    command_flags.DELTA._replace(
      help='δ of every ε; 0 with Laplace noise, for pure ε.', default=1e-5
    ),
    Flag(
      'budget',
      'Seconds that rounds may take, about; to start fresh processes may take as '
      'long again.',
      float,
      60.0,
    ),
    Flag(
      'require',
      'Rules that fail if they were not checked, such as clipping,resume; all that '
      'apply, or none.',
      default='noise_scale,clipping',
    ),
    Flag('seed', 'Seed of the updates that are passed.', int, 0),
    command_flags.FORMAT,
    Flag('report', 'File for the report as JSON, whatever is printed.'),
    Flag('badge', 'File for a badge, as JSON for the endpoint of shields.io.'),
  )


def execute(values: flags.FlagValues, argv: Sequence[str]) -> int:
  """Runs the command, as `program` does.

  Raises:
    app.UsageError: not one factory is given, or a flag is out of range.
    ValueError: as `check_apart`, or flags exclude each other, or an output's folder
      is missing.
  """
  name = _parse(values, argv)
  given: dict[str, Any] = values.flag_values_dict()
  z, epsilon = given['noise_multiplier'], given['epsilon']
  if epsilon is not None and not values['noise_multiplier'].using_default_value:
    raise ValueError(
      f'--noise_multiplier={z} and --epsilon={epsilon}; give one of them.'
    )
  files = {key: given[key] for key in ('report', 'badge') if given[key]}
  for file in files.values():
    folder = pathlib.Path(os.path.realpath(file)).parent
    if not folder.is_dir():
      raise ValueError(f'{file}: there is no folder {folder}; make it first.')
  limit = _BEGIN + 3 * max(20.0, given['budget'])
  outcome = check_apart(name, argv[1:], min(limit, 1e6))
  if given['format'] == 'json':
    print(io.format_json(outcome['report']))
  else:
    print(outcome['text'])
  missing = outcome['missing']
  if missing:
    print(f'Not checked, but required: {", ".join(missing)}.', file=sys.stderr)
  for key, file in files.items():
    io.write_json(file, outcome[key])
  if 'privacy' in outcome['broken']:
    return BROKEN
  if missing:
    return NOT_CHECKED
  return WASTEFUL if outcome['broken'] else 0


def _parse(values: flags.FlagValues, argv: Sequence[str]) -> str:
  """Parses flags, and returns the name of the factory."""
  rest = values(list(argv))[1:]
  if len(rest) != 1:
    raise app.UsageError(
      f'give one factory, not {len(rest)}: {rest}. It is named as '
      'package.module:factory or file.py:factory.'
    )
  if not rest[0].rpartition(':')[0]:
    raise app.UsageError(
      f'{rest[0]!r} is not a factory; give package.module:factory.'
    )
  return rest[0]


def check_apart(
  name: str, argv: Sequence[str], seconds: float
) -> dict[str, Any]:
  """Checks a factory in a process of its own, which is killed when time is up.

  A mechanism may end its process, or wait for ever where no signal reaches it: the
  report is what that process has handed over, whatever its exit status. It is a
  fresh process and not a fork, as factories may need threads, which a fork loses.
  It costs the start of Python alone, as only there the suite is imported.

  Args:
    name: of the factory.
    argv: arguments of the command.
    seconds: until it is killed.

  Returns:
    As `make_outcome`.

  Raises:
    ValueError: the check failed, or was not finished.
  """
  with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
    path = pathlib.Path(folder, 'outcome.json')
    work = {'path': str(path), 'argv': argv, 'width': tables.get_width()}
    process = launch.start_process(
      f'from {__name__} import check_here; check_here()',
      [],
      work,
      environment={'PYTHONUNBUFFERED': '1'},
      # What a mechanism prints is not part of a report.
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
    )
    relay = threading.Thread(target=_relay, args=[process.stdout], daemon=True)
    relay.start()
    end = f'did not end within {seconds:g} s, and was killed'
    try:
      status = process.wait(seconds)
      end = f'ended with status {status} and without a report'
    except subprocess.TimeoutExpired:
      pass
    finally:
      _kill(process)
      # Processes of the mechanism that are not killed may keep the pipe open.
      relay.join(1.0)
    outcome = io.read_json(path) if path.exists() else {}
  if 'report' in outcome:
    return outcome
  raise ValueError(
    outcome.get('error')
    or f'{name}: the process of the check {end}. Let the mechanism raise an error '
    'where it cannot go on; if it is slow, raise --budget.'
  )


def _relay(output: IO[bytes]) -> None:
  """Prints what a mechanism prints."""
  with TextIOWrapper(output, 'utf-8', errors='replace') as lines:
    # A line may be of any length.
    while line := lines.readline(1 << 16):
      # If it did not read on, the process would wait for it.
      with contextlib.suppress(OSError):
        print(line.removesuffix('\n'), file=sys.stderr)


def _kill(process: subprocess.Popen[bytes]) -> None:
  """Ends a process, with those that it has started."""
  with contextlib.suppress(OSError):
    if hasattr(os, 'killpg'):
      os.killpg(process.pid, signal.SIGKILL)
    else:
      process.kill()
  process.wait()
  assert process.stdin is not None, 'it is a pipe'
  process.stdin.close()


def check_here() -> None:
  """Runs in the process of a check: reads what to do, and hands over the outcome."""
  terminal.prepare_streams()
  work = json.loads(sys.stdin.readline())
  stopping.end_with_parent()
  try:
    with tables.limit_width(work['width']):
      outcome = make_outcome(work['argv'])
  except BaseException as error:
    is_told = isinstance(error, ValueError)
    if not is_told or os.environ.get(program.TRACEBACK) == '1':
      traceback.print_exc()
    text = str(error) if is_told else f'the check failed: {error!r}'
    outcome = {'error': ' '.join(text.split())}
  io.write_json(work['path'], outcome)
  # Threads of a mechanism may go on for ever, and what it runs at exit may fail.
  os._exit(0)


def make_outcome(argv: Sequence[str]) -> dict[str, Any]:
  """Checks a factory.

  Args:
    argv: the factory as module:factory or file.py:factory, and flags.

  Returns:
    The report and the badge as JSON values, the report as text, the severities of
    broken rules, and the required rules that were not checked.

  Raises:
    ValueError: there is no such factory, a flag is out of range, or the factory or
      its mechanism raised something in the first round.
  """
  from epe_jax import conformance

  values = flags.FlagValues()
  define_flags(values)
  name = _parse(values, ['epe-jax check', *argv])
  given: dict[str, Any] = values.flag_values_dict()
  make_claim = functools.partial(
    conformance.Claim, noise_multiplier=given['noise_multiplier']
  )
  if given['epsilon'] is not None:
    make_claim = functools.partial(
      conformance.Claim.from_epsilon, given['epsilon']
    )
  fields = {field.name for field in dataclasses.fields(conformance.Claim)}
  rest = fields - {'noise_multiplier', 'shapes'}
  claim = make_claim(
    shapes=parse_shapes(given['shapes']), **{name: given[name] for name in rest}
  )
  required = [x for x in given['require'].split(',') if x not in ('', 'none')]
  conformance.check_required(required, conformance.RULES)
  try:
    factory = python_path.import_function(name)
    report = conformance.check(
      factory, claim, budget=given['budget'], seed=given['seed'], name=name
    )
  except BaseException as error:
    # Of its module, or of the first round, which is not adversarial, or to end all of
    # Python.
    raise ValueError(_locate(name, error)) from error
  return {
    'report': io.spell_non_finite(report.to_json()),
    'badge': conformance.make_badge(report),
    'text': conformance.format_report(report),
    'broken': [finding.severity for finding in report.findings],
    'missing': conformance.list_missing(report, required),
  }


def _locate(name: str, error: BaseException) -> str:
  """Describes what a factory or its mechanism raised, and where."""
  if isinstance(error, SyntaxError):
    return f'{error.filename}, line {error.lineno}: SyntaxError: {error.msg}'
  frame = traceback.extract_tb(error.__traceback__)[-1]
  text = f'{type(error).__name__}: {error}'.rstrip('.')
  package = pathlib.Path(__file__).parents[1]
  if pathlib.Path(frame.filename).is_relative_to(package):
    if isinstance(error, ValueError):
      return str(error)
    return (
      f'{name}: {text}. A factory is called with a claim, and aggregate of what '
      'it returns with updates and weights.'
    )
  return f'{frame.filename}, line {frame.lineno}: {text}'


def parse_shapes(text: str) -> tuple[tuple[int, ...], ...]:
  """Reads shapes.

  Raises:
    ValueError: the text is not of that form.

  >>> parse_shapes('20x30,30,()')
  ((20, 30), (30,), ())
  """
  try:
    return tuple(
      () if shape == '()' else tuple(map(int, shape.split('x')))
      for shape in text.split(',')
    )
  except ValueError as error:
    raise ValueError(
      f'--shapes={text!r}; give sizes such as 20x30,30.'
    ) from error
