"""User functions by name: package.module:function."""

from collections.abc import Callable
import importlib
import os
import pathlib
import re
import sys
import types
from typing import Any

from epe_jax import interpreters


def is_function(name: str | os.PathLike) -> bool:
  """Whether a name is that of a Python function and not of a file.

  >>> is_function('package.module:function'), is_function('folder/file.h5')
  (True, False)
  """
  match = re.fullmatch(r'[A-Za-z_][\w.]*:[A-Za-z_]\w*', str(name))
  return match is not None and not pathlib.Path(name).exists()


def import_module(name: str) -> types.ModuleType:
  """Imports a module, last of all from the working directory.

  Raises:
    ImportError: there is no such module.
  """
  # Installed programs do not have it on their path.
  interpreters.search_last(os.getcwd())
  return importlib.import_module(name)


def import_function(name: str) -> Callable[..., Any]:
  """Imports a function by its name.

  Args:
    name: package.module:function. Modules in the working directory are found, too.

  Raises:
    ValueError: there is no such function.
  """
  module, _, function = name.partition(':')
  try:
    value = getattr(import_module(module), function)
  except (ImportError, AttributeError) as error:
    raise ValueError(
      f'{name} cannot be imported ({error}). Its module should lie in the '
      f'working directory or on the path of Python, {sys.path}.'
    ) from error
  if not callable(value):
    raise ValueError(f'{name} is a {type(value).__name__}, not a function.')
  return value
