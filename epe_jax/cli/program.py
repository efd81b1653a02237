"""The program `epe-jax`: its commands, their help, and exit statuses.

A command imports what it needs when it is called: estimates from a file of scores
need no JAX.
"""

from collections.abc import Callable, Mapping, Sequence
import difflib
import importlib
import linecache
import os
import pathlib
import re
import sys
import sysconfig
import traceback
from types import FrameType, MappingProxyType, ModuleType

from absl import app, flags

from epe_jax import __version__, extras, python_path
from epe_jax.report import tables, terminal

OK, VIOLATED, FAILED, CRASHED, INTERRUPTED = 0, 1, 2, 70, 130
"""Exit statuses: done; a claim or a rule is violated; refused; a bug; stopped by
Ctrl-C. Those of `check` alone are in its module."""


TRACEBACK = 'EPE_JAX_TRACEBACK'
"""An environment variable: if it is 1, errors of input come with their traceback."""

_BUG = (
  'error: this is a bug of epe_jax, and not of what it was given. Please report it in '
  'the issues of its repository, with the lines above and the command.'
)


COMMANDS = {
  'run': 'train with canaries, audit, and write a report',
  'plan': 'predict what an audit will measure and cost',
  'estimate': 'ε from scores of any system, a run or an auditor, without JAX',
  'sweep': 'runs over a grid of settings or seeds',
  'report': 'rewrite the report of a run, or compare runs',
  'data': 'download or import federated data',
  'check': 'check whether an aggregation adds noise as it claims',
}
"""The commands of `epe-jax` and what they do, by name.

Each has a module of `epe_jax.cli` with its help as docstring, `define_flags(values)` and
`execute(values, argv)`, which returns the exit status.
"""

# Whose `raise` statements foresee bad input: the package, and a script with its papers.
_OURS = {'epe_jax', 'papers', '__main__'}
# Folders of packages of others, and of Python itself.
_PACKAGES = {'site-packages', 'dist-packages'}
_PYTHON = sysconfig.get_path('stdlib')

_HELP = """\
usage: epe-jax COMMAND [ARGUMENTS]

One-shot empirical privacy estimation for federated learning.

{commands}

  epe-jax COMMAND --help   explains a command, with examples
  epe-jax --version        prints the version

{statuses}
"""

_STATUSES = (
  'Exit status: 0 done; 1 what was claimed is violated (--claim, check); 2 wrong '
  'arguments or input, code of yours that fails, or training that diverges, with the '
  'reason on stderr; 3 and 4 '
  'of check, whose help has them; 70 a bug '
  'in epe-jax; 130 stopped by Ctrl-C, 143 by SIGTERM, 142 after an hour of waiting. '
  f'{TRACEBACK}=1 adds a traceback to every reason.'
)


def main(
  argv: Sequence[str] | None = None,
  others: Mapping[str, ModuleType] = MappingProxyType({}),
) -> int:
  """Runs a command.

  Args:
    argv: arguments without the name of the program; those of the process if None.
    others: commands that are not of `COMMANDS`, by name.

  Returns:
    The exit status.
  """
  terminal.prepare_streams()
  os.environ.update(python_path.QUIET | os.environ)
  try:
    with tables.limit_width(terminal.measure_width(sys.stdout)):
      status = _dispatch(sys.argv[1:] if argv is None else argv, others)
    sys.stdout.flush()
  except OSError as error:
    # Of output to a full disk.
    terminal.discard_output()
    _print_error(_explain_os_error(error))
    return FAILED
  return status


def run_script(name: str, module: ModuleType | None = None) -> None:
  """Runs a command as a program of scripts/, and ends the process.

  Like programs of absl, it ends with 1 whatever is wrong.

  Args:
    name: of the command.
    module: that has it; None for a command of `COMMANDS`.
  """
  others = {} if module is None else {name: module}
  sys.exit(min(main([name, *sys.argv[1:]], others), 1))


def format_help() -> str:
  """The commands, with a line each."""
  width = max(map(len, COMMANDS))
  lines = [f'  {name:<{width}}  {x}' for name, x in COMMANDS.items()]
  statuses = tables.fill_paragraph(_STATUSES)
  return _HELP.format(commands='\n'.join(lines), statuses=statuses)


def format_command_help(module: ModuleType) -> str:
  """What a command does, with examples, and its flags."""
  values = flags.FlagValues()
  module.define_flags(values)
  listed = values.get_help(include_special_flags=False).splitlines()
  # Without the names of the modules that define them.
  listed = [line for line in listed if line.startswith(' ')]
  blocks = (module.__doc__ or '').strip().split('\n\n')
  text = '\n\n'.join(
    # Examples are not wrapped, so that they can be copied.
    block if block.startswith(' ') else tables.fill_paragraph(block)
    for block in blocks
  )
  if not listed:
    return f'{text}\n'
  return '\n'.join([text, '', 'Flags:', '', *listed, ''])


def _dispatch(argv: Sequence[str], others: Mapping[str, ModuleType]) -> int:
  name, *rest = [*argv] or ['']
  if name in ('--help', '-h', '-help', 'help'):
    if not rest:
      print(format_help(), end='')
      return OK
    name, rest = rest[0], ['--help']
  if name == '--version':
    print(f'epe_jax {__version__}')
    return OK
  if name not in (*COMMANDS, *others):
    return _refuse_command(name)
  program = f'{name}.py' if name in others else f'epe-jax {name}'
  find = lambda: (
    others.get(name) or importlib.import_module(f'epe_jax.cli.{name}')
  )
  try:
    return _run(program, find, rest)
  except (app.UsageError, flags.Error) as error:
    _print_traceback()
    _print_error(f'{error}\n{program} --help has examples and all flags.')
    return FAILED
  except KeyboardInterrupt:
    # Commands that keep something say so themselves.
    print('Stopped.', file=sys.stderr)
    return INTERRUPTED
  except SystemExit as stop:
    if not isinstance(stop.code, str):
      raise
    print(stop.code, file=sys.stderr)
    return FAILED
  except Exception as error:
    if is_of_input(error):
      _print_traceback()
      _print_error(_name_flags(find(), _explain_os_error(error)))
      return FAILED
    traceback.print_exc()
    if line := _find_line_of_user(error):
      _print_error(f'{line}: {type(error).__name__}: {error}')
      return FAILED
    print(_BUG, file=sys.stderr)
    # Not 1, which a shell would take for a violated claim.
    return CRASHED


def is_of_input(error: Exception) -> bool:
  """Whether an error is due to the input of the program, and not to a bug.

  Errors of the operating system are, and those of a `raise` statement of this package
  or of a file of the user. What Python, NumPy or another library raises by itself was
  not foreseen, whatever its type.

  Args:
    error: that was raised.
  """
  if isinstance(error, OSError | ImportError):
    return True
  if not isinstance(error, ValueError | FloatingPointError):
    return False
  *_, (frame, line) = traceback.walk_tb(error.__traceback__)
  path = frame.f_code.co_filename
  if not _is_ours(frame) and _is_of_library(path):
    return False
  return linecache.getline(path, line).lstrip().startswith('raise ')


def _find_line_of_user(error: Exception) -> str | None:
  """Where the user's own code raised an error, or called the library that did."""
  for frame, line in reversed([*traceback.walk_tb(error.__traceback__)]):
    path = frame.f_code.co_filename
    if _is_ours(frame):
      return None
    if not _is_of_library(path):
      return f'{path}, line {line}'
  return None


def _is_ours(frame: FrameType) -> bool:
  return frame.f_globals.get('__name__', '').partition('.')[0] in _OURS


def _is_of_library(path: str) -> bool:
  parts = pathlib.Path(path)
  is_installed = bool(_PACKAGES & {*parts.parts})
  return is_installed or path.startswith('<') or parts.is_relative_to(_PYTHON)


def _run(
  program: str, find: Callable[[], ModuleType], rest: Sequence[str]
) -> int:
  with extras.explain_missing():
    module = find()
    if {'--help', '-h', '-help', '--helpfull'} & {*rest}:
      print(format_command_help(module), end='')
      return OK
    values = flags.FlagValues()
    module.define_flags(values)
    return module.execute(values, [program, *rest])


def _refuse_command(name: str) -> int:
  if not name:
    print(format_help(), end='', file=sys.stderr)
    return FAILED
  similar = difflib.get_close_matches(name, COMMANDS, n=1)
  meant = f' Did you mean {similar[0]!r}?' if similar else ''
  _print_error(
    f'{name!r} is not a command.{meant} Give one of {", ".join(COMMANDS)}; '
    'epe-jax --help explains them.'
  )
  return FAILED


def _print_traceback() -> None:
  if os.environ.get(TRACEBACK) == '1':
    traceback.print_exc()


def _print_error(text: str) -> None:
  """Prints an error, wrapped at words if stderr is a terminal."""
  text = f'error: {text}'
  if sys.stderr.isatty():
    with tables.limit_width(terminal.measure_width(sys.stderr)):
      text = '\n'.join(map(_fill_line, text.splitlines()))
  print(text, file=sys.stderr)


def _fill_line(line: str) -> str:
  indent = line[: len(line) - len(line.lstrip())]
  return tables.fill_paragraph(line.lstrip(), bullet=indent)


def _name_flags(module: ModuleType, text: str) -> str:
  """An error about arguments of a function, with the flags that set them."""
  values = flags.FlagValues()
  module.define_flags(values)
  names = '|'.join(map(re.escape, values))
  for prefix in ('', 'num_'):
    text = re.sub(rf'(?<![\w.-]){prefix}((?:{names})=)', r'--\1', text)
  return text


def _explain_os_error(error: Exception) -> str:
  """Puts the path of an error of the operating system first."""
  if isinstance(error, OSError) and error.filename and error.strerror:
    # The second path of a rename is the one that the user gave.
    path = error.filename2 or error.filename
    return f'{path}: {error.strerror}; give another path.'
  return str(error)
