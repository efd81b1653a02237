"""Configs by name: those that ship with the package, and files of one's own."""

from collections.abc import Sequence
import difflib
import importlib.util
import inspect
import os
import pathlib
import traceback
from types import ModuleType
from typing import Any, TypeAlias

from epe_jax import interpreters
from epe_jax.data import registry

Config: TypeAlias = Any
"""An ml_collections ConfigDict, whose fields type checkers know nothing of."""

GRIDS = 'grids'
"""The file of the package that has the axes of sweeps."""

# Files of the package that are no jobs.
_NO_JOBS = {'__init__', 'common', GRIDS, 'paper'}


def list_configs() -> list[str]:
  """Lists the jobs by name: those of configs/, and data sets with a `get_config`.

  Raises:
    ValueError: the package is not installed.
  """
  stems = {path.stem for path in _find_folder().glob('*.py')}
  return sorted((stems | registry.list_jobs().keys()) - _NO_JOBS)


def load_config(name: str | os.PathLike) -> Config:
  """Loads a config.

  Args:
    name: a job that ships with the package, such as 'digits', or the path of a
      file with a function `get_config`; with :MODE behind it for its argument, such
      as 'emnist:smoke' or 'mine.py:smoke'.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: there is no such job or mode, or the file has no `get_config`.
  """
  text, _, mode = os.fspath(name).partition(':')
  path = _find_file(text)
  if _is_path(text):
    # For the modules beside it, whose functions its fields may name.
    interpreters.search_last(path.resolve().parent)
  get_config = getattr(_load_module(path), 'get_config', None)
  if get_config is None:
    raise ValueError(
      f'{text} has no function get_config(); give a file that has, such as '
      'those of configs/, or the name of a job that ships: '
      f'{", ".join(list_configs())}.'
    )
  if not mode:
    return _call(path, get_config)
  if not inspect.signature(get_config).parameters:
    raise ValueError(
      f'{text}:{mode}: get_config() of this file takes no mode; leave out '
      f':{mode}.'
    )
  try:
    return _call(path, get_config, mode)
  except ValueError as error:
    raise ValueError(f'{text}:{mode}: {error}') from error


def load_grid(name: str) -> Config:
  """Loads the axes of a sweep.

  Args:
    name: a grid that ships with the package, such as 'repetitions', or the path of
      a file as `load_config` takes it, such as 'mine.py:noise'.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: there is no such grid, or the file has no `get_config`.
  """
  if _is_path(name):
    return load_config(name)
  try:
    return load_config(f'{GRIDS}:{name}')
  except ValueError as error:
    # Which file of the package has the grids is of no use to who misspelt one.
    raise ValueError(str(error).removeprefix(f'{GRIDS}:{name}: ')) from error


def find_similar_fields(name: str, fields: Sequence[str]) -> list[str]:
  """The fields that a wrong name may mean; none if none is near.

  Args:
    name: of no field.
    fields: dotted names.

  >>> fields = ['rounds', 'server.momentum', 'noise_multiplier']
  >>> [find_similar_fields(x, fields) for x in ('momentum', 'noise', 'round')]
  [['server.momentum'], ['noise_multiplier'], ['rounds']]
  """
  word = name.rpartition('.')[2]
  last = {field: field.rpartition('.')[2] for field in fields}
  return (
    # The right name in a wrong group, the beginning of one, and then a misspelt one.
    [field for field in fields if last[field] == word]
    or [field for field in fields if last[field].startswith(f'{word}_')]
    or difflib.get_close_matches(name, fields, n=1)
  )


def name_run(name: str | os.PathLike) -> str:
  """Names the run of a config, for the folder that it is written into.

  >>> name_run('digits'), name_run('configs/emnist.py:smoke')
  ('digits', 'emnist-smoke')
  """
  text, _, mode = os.fspath(name).partition(':')
  stem = pathlib.PurePath(text).stem
  return f'{stem}-{mode}' if mode else stem


def _is_path(text: str) -> bool:
  file = text.partition(':')[0]
  return file.endswith('.py') or '/' in file or os.sep in file


def _find_file(text: str) -> pathlib.Path:
  """Finds the file of a config, given as the name of a job or as a path."""
  if _is_path(text):
    path = pathlib.Path(text)
    if not path.is_file():
      raise FileNotFoundError(_explain_missing(path))
    return path
  path = _find_folder() / f'{text}.py'
  if not path.is_file():
    path = registry.list_jobs().get(text, path)
  if not text.isidentifier() or not path.is_file():
    jobs = list_configs()
    similar = difflib.get_close_matches(text, jobs, n=1)
    meant = f'Did you mean {similar[0]!r}? ' if similar else ''
    raise ValueError(
      f'{text!r} is not a config. {meant}Give one of {", ".join(jobs)}, or the path '
      'of a file that ends in .py.'
    )
  return path


def _explain_missing(path: pathlib.Path) -> str:
  text = f'{path} does not exist'
  if not path.is_absolute():
    # A checkout's configs/digits.py, say, seen from another folder.
    text += f' in {pathlib.Path.cwd()}'
  if path.stem in list_configs():
    return (
      f'{text}. The config of that name that ships is found from anywhere: give '
      f'{path.stem!r} in place of a path.'
    )
  return (
    f'{text}. Give the path of a file, or a config that ships: '
    f'{", ".join(list_configs())}.'
  )


def _find_folder() -> pathlib.Path:
  """Finds the folder of the package's configs; that of a checkout is configs/."""
  spec = importlib.util.find_spec('epe_jax.configs')
  if spec is None or not spec.submodule_search_locations:
    raise ValueError(
      'epe_jax.configs is missing: the package is not installed. Run '
      '`pip install -e .` in the checkout, or give the path of a config and '
      'install its package.'
    )
  return pathlib.Path(spec.submodule_search_locations[0])


def _load_module(path: pathlib.Path) -> ModuleType:
  spec = importlib.util.spec_from_file_location(f'config_{path.stem}', path)
  if spec is None or spec.loader is None:
    raise ValueError(f'{path} is no file of Python; give one that ends in .py.')
  module = importlib.util.module_from_spec(spec)
  try:
    spec.loader.exec_module(module)
  except SyntaxError as error:
    raise ValueError(
      f'{path}, line {error.lineno}: {error.msg}. Give a file of Python.'
    ) from error
  except ImportError:
    # Whose message may name the extra that is missing.
    raise
  except Exception as error:
    raise ValueError(_locate(path, error)) from error
  return module


def _call(path: pathlib.Path, get_config: Any, *mode: str) -> Config:
  """Calls get_config(); what it raises names the file and the line."""
  try:
    return get_config(*mode)
  except ImportError:
    raise
  except Exception as error:
    is_refusal = isinstance(error, ValueError) and mode
    text = str(error) if is_refusal else _locate(path, error)
    raise ValueError(text) from error


def _locate(path: pathlib.Path, error: Exception) -> str:
  """An exception, after the last line of a file that led to it."""
  lines = [
    frame.lineno
    for frame in traceback.extract_tb(error.__traceback__)
    if os.path.realpath(frame.filename) == os.path.realpath(path)
  ]
  where = f'{path}, line {lines[-1]}' if lines else f'{path}'
  return f'{where}: {type(error).__name__}: {error}'
