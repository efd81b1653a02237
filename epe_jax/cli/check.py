"""Checks whether a DP aggregation clips, averages and adds noise as it claims.

  epe-jax check package.module:factory --clip_norm=1 --noise_multiplier=1 \\
    --num_clients=10 --shapes=20x30,30
  epe-jax check my_aggregation.py:factory
  epe-jax check epe_jax.conformance.example:NoNoiseOnBiases

factory(claim) makes a new mechanism, whose aggregate(updates, weights) runs one round.
The check passes chosen updates to it for up to a minute, and reports on every rule. The
last example is such a mechanism, with a mistake; its file is one to begin with:

  python -c 'import epe_jax.conformance.example as e; print(e.__file__)'

The exit status is the first that applies: 2 wrong arguments; 1 a privacy rule is broken;
3 a rule that --require names was not checked; 4 a utility rule is broken; 0 none of these,
which says nothing of rules that were not checked.
"""

from __future__ import annotations

from collections.abc import Sequence
import contextlib
import dataclasses
import functools
import os
import pathlib
import sys
import traceback
from typing import TYPE_CHECKING, Any, cast

from absl import app, flags

from epe_jax import io, python_path
from epe_jax.cli import command_flags
from epe_jax.cli.command_flags import Flag

if TYPE_CHECKING:
  from epe_jax.conformance.session import Make

BROKEN, NOT_CHECKED, WASTEFUL = 1, 3, 4
"""Exit statuses: a privacy rule is broken; a required rule was not checked; a utility
rule is broken. The first that applies."""


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
    Flag('max_rounds', 'Maximum number of rounds of a run.', int),
    command_flags.DELTA._replace(help='δ of every ε.', default=1e-5),
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
    command_flags.JSON,
    Flag('report', 'File for the report as JSON, whatever is printed.'),
    Flag('badge', 'File for a badge, as JSON for the endpoint of shields.io.'),
  )


def execute(values: flags.FlagValues, argv: Sequence[str]) -> int:
  """Runs the command, as `program` does.

  Raises:
    app.UsageError: not one factory is given, or a flag is out of range.
  """
  rest = values(list(argv))[1:]
  if len(rest) != 1:
    raise app.UsageError(
      f'give one factory, not {len(rest)}: {rest}. It is named as '
      'package.module:factory or file.py:factory.'
    )
  return run_check(rest[0], values)


def run_check(name: str, values: flags.FlagValues) -> int:
  """Checks a factory and prints the report.

  Args:
    name: module:factory or file.py:factory.
    values: flags, parsed.

  Returns:
    The exit status: 0, or one of those above.

  Raises:
    ValueError: there is no such factory, or a flag is out of range.
  """
  from epe_jax import conformance

  given: dict[str, Any] = values.flag_values_dict()
  z, epsilon = given['noise_multiplier'], given['epsilon']
  make_claim = functools.partial(conformance.Claim, noise_multiplier=z)
  if epsilon is not None:
    make_claim = functools.partial(conformance.Claim.from_epsilon, epsilon)
    if not values['noise_multiplier'].using_default_value:
      raise ValueError(
        f'--noise_multiplier={z} and --epsilon={epsilon}; give one of them.'
      )
  fields = {field.name for field in dataclasses.fields(conformance.Claim)}
  rest = fields - {'noise_multiplier', 'shapes'}
  claim = make_claim(
    shapes=parse_shapes(given['shapes']), **{name: given[name] for name in rest}
  )
  required = [x for x in given['require'].split(',') if x not in ('', 'none')]
  conformance.check_required(required, conformance.RULES)
  files = [pathlib.Path(given[x]) for x in ('report', 'badge') if given[x]]
  for file in files:
    folder = pathlib.Path(os.path.realpath(file)).parent
    if not folder.is_dir():
      raise ValueError(f'{file}: there is no folder {folder}; make it first.')
  factory = load_factory(name)
  try:
    # What a mechanism prints is no part of a report.
    with contextlib.redirect_stdout(sys.stderr):
      report = conformance.check(
        factory,
        claim,
        budget=given['budget'],
        seed=given['seed'],
        name=name,
      )
  except (Exception, SystemExit) as error:
    # From the first round, which is not adversarial.
    raise ValueError(_locate(name, error)) from error
  if given['json']:
    print(io.format_json(report.to_json()))
  else:
    print(conformance.format_report(report))
  missing = conformance.list_missing(report, required)
  if missing:
    print(f'Not checked, but required: {", ".join(missing)}.', file=sys.stderr)
  if given['report']:
    io.write_json(given['report'], report.to_json())
  if given['badge']:
    io.write_json(given['badge'], conformance.make_badge(report))
  if any(finding.severity == 'privacy' for finding in report.findings):
    return BROKEN
  if missing:
    return NOT_CHECKED
  return WASTEFUL if report.findings else 0


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


def load_factory(name: str) -> Make:
  """Imports a factory by its name.

  Args:
    name: module:factory or file.py:factory. Modules are searched for in the
      working directory, too.

  Raises:
    ValueError: there is no such factory.
  """
  module_name, colon, attribute = name.rpartition(':')
  if not colon or not module_name or not attribute:
    raise ValueError(f'{name!r} is no factory; give package.module:factory.')
  try:
    if module_name.endswith('.py') and not pathlib.Path(module_name).is_file():
      raise ValueError(
        f'{module_name!r} cannot be imported: there is no such file; give one, or a '
        'module on the path of Python.'
      )
    module = python_path.import_module_or_file(module_name)
  except ModuleNotFoundError as error:
    cure = f'install {error.name}'
    if error.name == module_name.partition('.')[0]:
      cure = 'give a module on the path of Python, or a file'
    raise ValueError(
      f'{module_name!r} cannot be imported ({error}); {cure}.'
    ) from error
  except (Exception, SystemExit) as error:
    raise ValueError(_locate(module_name, error)) from error
  factory = getattr(module, attribute, None)
  if not callable(factory):
    raise ValueError(
      f'{module_name!r} has no function {attribute!r}; give one that makes a '
      'mechanism from a claim.'
    )
  return cast('Make', factory)


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
