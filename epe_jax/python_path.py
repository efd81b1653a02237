"""The module search path: of functions that users name, and of subprocesses.

The working directory may be a folder of data from others, so its files must not
shadow packages: it comes last. By default, Python puts it first for -m and -c.
"""

from collections.abc import Callable, Iterator
import contextlib
import importlib
import importlib.util
import os
import pathlib
import re
import sys
import types
from typing import Any

_SAFE = 'PYTHONSAFEPATH'

QUIET = {'TF_CPP_MIN_LOG_LEVEL': '3'}
"""Variables without which XLA writes a log of its own to stderr: on a CPU with AVX-512,
jaxlib calls each program in the cache compiled for another machine, and compiles it
again. What fails raises an exception. JAX reads them when it is imported."""


def make_command(code: str, *arguments: str) -> list[str]:
  """A command that runs statements in a Python that finds the modules of this one.

  The path is set within that process and not by PYTHONPATH, as Python runs a
  sitecustomize.py of every folder of that before anything else. `arguments` are
  `sys.argv` from its second element on.
  """
  begin = f'import sys; sys.path[:] = {[*map(str, sys.path)]}'
  return [sys.executable, '-P', '-c', f'{begin}\n{code}', *arguments]


def make_environment(**variables: str) -> dict[str, str]:
  """The variables of a process of `make_command`: those of this one, but for these.

  It is quiet, since what reads its output takes the last line for why it failed.
  """
  return {**os.environ, **QUIET, **variables}


@contextlib.contextmanager
def start_safely() -> Iterator[None]:
  """Starts processes of multiprocessing without the working directory on their path.

  Their path is that of this process once they run, but not while they start.
  """
  before = os.environ.get(_SAFE)
  os.environ[_SAFE] = '1'
  try:
    yield
  finally:
    del os.environ[_SAFE]
    if before is not None:
      os.environ[_SAFE] = before


def search_last(folder: str | os.PathLike) -> None:
  """Appends a folder, an absolute path, to the module search path."""
  if os.fspath(folder) not in sys.path:
    sys.path.append(os.fspath(folder))


def is_function(name: str | os.PathLike) -> bool:
  """Whether a name is that of a Python function and not of a file.

  >>> is_function('package.module:function'), is_function('folder/file.h5')
  (True, False)
  """
  match = re.fullmatch(r'[A-Za-z_][\w.]*:[A-Za-z_]\w*', str(name))
  return match is not None and not pathlib.Path(name).exists()


def import_module(name: str) -> types.ModuleType:
  """Imports what a user names: package.module, or folder/file.py.

  Modules in the working directory, or next to the file, are found last of all.

  Raises:
    ImportError: there is no such module. What its code raises passes.
  """
  if name.endswith('.py'):
    path = pathlib.Path(name).resolve()
    search_last(path.parent)
    return import_file(path, name='imported_file')
  # Installed programs do not have it on their path.
  search_last(os.getcwd())
  return importlib.import_module(name)


def import_file(path: pathlib.Path, *, name: str) -> types.ModuleType:
  """Imports a file that is in no package, as the module of a name."""
  spec = importlib.util.spec_from_file_location(name, path)
  if spec is None or spec.loader is None:
    raise ImportError(
      f'{path} is not a file of Python; give one that ends in .py.'
    )
  module = importlib.util.module_from_spec(spec)
  # Dataclasses look up the names of their annotations here.
  sys.modules[name] = module
  spec.loader.exec_module(module)
  return module


def name_function(function: Callable[..., Any]) -> str | None:
  """The name by which another process can import a function; None if it has none.

  >>> name_function(is_function), name_function(lambda: 0)
  ('epe_jax.python_path:is_function', None)
  """
  name = getattr(function, '__qualname__', '')
  module = sys.modules.get(getattr(function, '__module__', None) or '')
  spec = getattr(module, '__spec__', None)
  if spec is None or getattr(module, name, None) is not function:
    return None
  return f'{spec.name}:{name}'


def import_function(name: str) -> Callable[..., Any]:
  """Imports package.module:function or folder/file.py:function.

  Raises:
    ValueError: there is no such function.
  """
  path, _, function = name.rpartition(':')
  try:
    module = import_module(path)
  except (ImportError, AttributeError, OSError) as error:
    raise ValueError(
      f'{name} cannot be imported ({error}). Its module should lie in the '
      f'working directory or on the path of Python, {sys.path}.'
    ) from error
  if not hasattr(module, function):
    raise ValueError(
      f'{path} has no function {function!r}; give one that it has.'
    )
  value = getattr(module, function)
  if not callable(value):
    raise ValueError(f'{name} is a {type(value).__name__}, not a function.')
  return value
