"""Commands and programs of scripts/ run within a test: importing JAX takes seconds."""

import contextlib
import io
import pathlib
import runpy
import sys
from typing import NamedTuple
import warnings

from absl import app, flags
from absl.testing import flagsaver
import pytest

from epe_jax.cli import program

# Flags of all programs, which are to stay.
app.define_help_flags()

SCRIPTS = pathlib.Path(__file__).parents[1] / 'scripts'


class Ended(NamedTuple):
  """How a program ended: the exit status a shell sees, and what it wrote."""

  returncode: int
  stdout: str
  stderr: str


def run_command(name, *arguments) -> Ended:
  """What `epe-jax NAME` does with these arguments."""
  with (
    contextlib.redirect_stdout(io.StringIO()) as out,
    contextlib.redirect_stderr(io.StringIO()) as err,
  ):
    code = program.main([name, *map(str, arguments)])
  return Ended(code, out.getvalue(), err.getvalue())


def run_script(name, *arguments) -> Ended:
  """What scripts/NAME.py does with these arguments, run as a program.

  An error that is not `SystemExit` is raised. Flags, `sys.path` and
  `sys.argv` are restored behind it.
  """
  path = str(SCRIPTS / f'{name}.py')
  before, of_libraries = set(flags.FLAGS), {}
  out, err, code = io.StringIO(), io.StringIO(), None
  with (
    flagsaver.flagsaver(),
    pytest.MonkeyPatch.context() as patch,
    warnings.catch_warnings(),
    contextlib.redirect_stdout(out),
    contextlib.redirect_stderr(err),
  ):
    # ml_collections loads configs as Python will not do for ever.
    warnings.filterwarnings('ignore', 'the load_module', DeprecationWarning)
    patch.setattr(sys, 'argv', [path, *map(str, arguments)])
    patch.setattr(sys, 'path', [*sys.path])
    try:
      runpy.run_path(path, run_name='__main__')
    except SystemExit as stop:
      code = stop.code
    finally:
      for flag in set(flags.FLAGS) - before:
        module = flags.FLAGS.find_module_defining_flag(flag)
        if module in sys.modules and not module.startswith(
          ('epe_jax.', 'ml_coll')
        ):
          of_libraries[flag] = flags.FLAGS[flag]
  # The next script has flags of the same names, so `flagsaver` took all away; a
  # library that was imported on the way stays, and needs its own.
  for flag, of_library in of_libraries.items():
    flags.FLAGS[flag] = of_library
  if isinstance(code, str):
    # As the interpreter does when a program ends with a text.
    err.write(f'{code}\n')
    code = 1
  return Ended(code or 0, out.getvalue(), err.getvalue())
