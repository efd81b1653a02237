"""The versions of frameworks that an integration was tested with."""

from importlib import metadata


def check_version(
  package: str, *, first: str, last: str, beside: str = ''
) -> None:
  """Checks that a framework is of a version whose signatures are known.

  Args:
    package: its name, as pip has it.
    first: the first version that was tested.
    last: the last one; later patches of its minor version pass as well.
    beside: a framework that does not run beside other versions of the package.

  Raises:
    ImportError: the framework is missing, or of another version.

  >>> check_version('epe_jax', first='99.0', last='99.1')
  Traceback (most recent call last):
  ImportError: epe_jax 0.1.0 is installed, but this integration was tested with 99.0 to 99.1; install one of these.
  """
  try:
    installed = metadata.version(package)
  except metadata.PackageNotFoundError as error:
    raise ImportError(
      f'{package} is not installed; install {package}>={first},<={last}.'
    ) from error
  if (
    not _parse(first) <= _parse(installed)[: len(_parse(last))] <= _parse(last)
  ):
    if beside:
      raise ImportError(
        f'{beside} does not run beside {package} {installed}; install {package} '
        f'{first} to {last} in an environment of its own.'
      )
    raise ImportError(
      f'{package} {installed} is installed, but this integration was tested with '
      f'{first} to {last}; install one of these.'
    )


def _parse(version: str) -> tuple[int, ...]:
  """Major and minor version, which is where signatures move."""
  digits = (part for part in version.split('+')[0].split('.')[:2])
  return tuple(int(''.join(c for c in x if c.isdigit()) or 0) for x in digits)
