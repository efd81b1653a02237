"""Configs by name: those that ship with the package, and your own files."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
import contextlib
import difflib
import importlib.util
import inspect
import os
import pathlib
import traceback
from typing import Any, TypeAlias

from epe_jax import python_path
from epe_jax.data import data_sets

Config: TypeAlias = Any
"""An ml_collections ConfigDict, whose fields type checkers know nothing of."""

GRIDS = 'grids'
"""The file of the package that has the axes of sweeps."""

# Files of the package that are no jobs.
_NO_JOBS = {'__init__', 'common', GRIDS}


def complete_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
  """Fills in what follows from other fields."""
  complete = dict(fields)
  if complete.get('canaries.schedule', '') is None:
    independent = complete.get('noise.correlation') == 'independent'
    complete['canaries.schedule'] = (
      'once_per_period' if independent else 'worst_case'
    )
  return complete


def replace_fields(config: Config, **fields: Any) -> Config:
  """Copies a config with other or new fields at its top level."""
  copy = config.copy_and_resolve_references()
  with copy.unlocked():
    copy.update(fields)
  return copy


def list_configs() -> list[str]:
  """Lists the jobs by name: those of configs/, and data sets with a `get_config`.

  Raises:
    ValueError: the package is not installed.
  """
  stems = {path.stem for path in _find_folder().glob('*.py')}
  return sorted((stems | data_sets.list_jobs().keys()) - _NO_JOBS)


def load_config(name: str | os.PathLike) -> Config:
  """Loads a config.

  Args:
    name: a job that ships with the package, such as 'digits', or the path of a
      file with a function `get_config`; followed by :MODE for its argument, such as
      'emnist:smoke' or 'mine.py:smoke'.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: there is no such job or mode, or the file has no `get_config`.
  """
  text, _, mode = os.fspath(name).partition(':')
  path = _find_file(text)
  if _is_path(text):
    # Its fields may name functions of the modules next to it.
    python_path.search_last(path.resolve().parent)
  with _locate_errors(path):
    module = python_path.import_file(path, name=f'config_{path.stem}')
  get_config = getattr(module, 'get_config', None)
  if get_config is None:
    raise ValueError(
      f'{text} has no function get_config(); give a file that has, or the name '
      f'of a job that ships: {", ".join(list_configs())}.'
    )
  if mode and not inspect.signature(get_config).parameters:
    raise ValueError(
      f'{text}:{mode}: get_config() of this file takes no mode; leave out '
      f':{mode}.'
    )
  with _locate_errors(path, mode=mode and f'{text}:{mode}'):
    return get_config(mode) if mode else get_config()


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
    # A person who misspells a grid need not know its file in the package.
    raise ValueError(str(error).removeprefix(f'{GRIDS}:{name}: ')) from error


def check_field(name: str, fields: Sequence[str]) -> None:
  """Checks that a config has a field, or a group of fields, of some name.

  Raises:
    ValueError: it has none. The message suggests another one.
  """
  if not any(f'{field}.'.startswith(f'{name}.') for field in fields):
    raise ValueError(
      f'the config has no field {name!r}; {suggest_field(name, fields)}'
    )


def suggest_field(
  name: str, fields: Sequence[str], *, missing: Iterable[str] = ()
) -> str:
  """Suggests fields for a name of none, as the end of an error.

  Args:
    name: the wrong name.
    fields: the dotted names of all fields.
    missing: those without a value. A field that was renamed or misspelled has
      mostly left its own name without one.

  >>> fields = ['rounds', 'server.momentum', 'noise_multiplier']
  >>> suggest_field('momentum', fields), suggest_field('noise', fields)
  ("did you mean 'server.momentum'?", "did you mean 'noise_multiplier'?")
  """
  word = name.rpartition('.')[2]
  last = {field: field.rpartition('.')[2] for field in fields}
  similar = (
    difflib.get_close_matches(name, missing, n=1)
    # The right name in a wrong group, the beginning of one, a misspelled one.
    or [field for field in fields if last[field] == word]
    or [field for field in fields if last[field].startswith(f'{word}_')]
    or difflib.get_close_matches(name, fields, n=1)
  )
  if similar:
    return f'did you mean {" or ".join(map(repr, similar))}?'
  group = name.rpartition('.')[0]
  within = [field for field in fields if field.startswith(f'{group}.')]
  tops = dict.fromkeys(field.partition('.')[0] for field in fields)
  return f'give one of {", ".join(within or tops)}.'


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
  if not _is_path(text):
    path = _find_folder() / f'{text}.py'
    if not path.is_file():
      path = data_sets.list_jobs().get(text, path)
    if text.isidentifier() and path.is_file():
      return path
    similar = difflib.get_close_matches(text, list_configs(), n=1)
    meant = f'Did you mean {similar[0]!r}? ' if similar else ''
    raise ValueError(
      f'{text!r} is not a config. {meant}Give one of '
      f'{", ".join(list_configs())}, or the path of a file that ends in .py.'
    )
  path = pathlib.Path(text)
  if path.is_file():
    return path
  where = '' if path.is_absolute() else f' in {pathlib.Path.cwd()}'
  if path.stem in list_configs():
    cure = (
      'The config of that name that ships is found from anywhere: give '
      f'{path.stem!r} in place of a path.'
    )
  else:
    cure = (
      'Give the path of a file, or a config that ships: '
      f'{", ".join(list_configs())}.'
    )
  raise FileNotFoundError(f'{text} does not exist{where}. {cure}')


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


@contextlib.contextmanager
def _locate_errors(
  path: pathlib.Path, *, mode: str | None = None
) -> Iterator[None]:
  """Raises what the code of a file raises as an error with its file and line."""
  try:
    yield
  except ImportError:
    # Its message may name the extra that is missing.
    raise
  except SyntaxError as error:
    raise ValueError(
      f'{path}, line {error.lineno}: {error.msg}. Give a file of Python.'
    ) from error
  except Exception as error:
    if mode and isinstance(error, ValueError):
      # The file refuses the mode.
      raise ValueError(f'{mode}: {error}') from error
    lines = [
      frame.lineno
      for frame in traceback.extract_tb(error.__traceback__)
      if os.path.realpath(frame.filename) == os.path.realpath(path)
    ]
    where = f'{path}, line {lines[-1]}' if lines else f'{path}'
    raise ValueError(f'{where}: {type(error).__name__}: {error}') from error
