"""The versions of frameworks that an integration was tested with."""

from collections.abc import Sequence
from importlib import metadata
import inspect
import pkgutil
import warnings


def check_version(
  package: str,
  *,
  first: str,
  last: str,
  uses: Sequence[str] = (),
  beside: str = '',
) -> None:
  """Checks that a framework was tested, or else that it has what is used of it.

  Args:
    package: its name, as pip has it.
    first: the first version that was tested.
    last: the last one; later patches of its minor version pass as well.
    uses: what an integration relies on besides its imports, as
      'module:Class.method(argument, ...)'.
    beside: a framework that does not run beside other versions of the package.

  Warns:
    UserWarning: the framework is of another version.

  Raises:
    ImportError: the framework is missing, or is of another version and lacks some of
      `uses`.

  >>> check_version('epe_jax', first='99.0', last='99.1', uses=['epe_jax:gone(x)'])
  Traceback (most recent call last):
  ImportError: epe_jax 0.1.0 is installed, but this integration was tested with 99.0 to 99.1, and epe_jax:gone(x) is not there; install one of these.
  """
  try:
    installed = metadata.version(package)
  except metadata.PackageNotFoundError as error:
    raise ImportError(
      f'{package} is not installed; install {package}>={first},<={last}.'
    ) from error
  if _parse(first) <= _parse(installed)[: len(_parse(last))] <= _parse(last):
    return
  if beside:
    raise ImportError(
      f'{beside} does not run beside {package} {installed}; install {package} '
      f'{first} to {last} in an environment of its own.'
    )
  tested = (
    f'{package} {installed} is installed, but this integration was tested with '
    f'{first} to {last}'
  )
  for use in uses:
    if not _is_there(use):
      raise ImportError(
        f'{tested}, and {use} is not there; install one of these.'
      )
  warnings.warn(f'{tested}; if it fails install one of these.', stacklevel=2)


def _is_there(use: str) -> bool:
  path, _, arguments = use.rstrip(')').partition('(')
  try:
    found = pkgutil.resolve_name(path)
  except (ImportError, AttributeError):
    return False
  return not arguments or set(arguments.split(', ')) <= set(
    inspect.signature(found).parameters
  )


def _parse(version: str) -> tuple[int, ...]:
  """Major and minor version, which is where signatures move."""
  digits = (part for part in version.split('+')[0].split('.')[:2])
  return tuple(int(''.join(c for c in x if c.isdigit()) or 0) for x in digits)
