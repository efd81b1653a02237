"""Makes a folder for PYTHONPATH with everything that a bare machine lacks.

Nothing is installed: the package and its configs are linked from the checkout, and
wheels are unpacked if their package is missing.
"""

from collections.abc import Iterable
import importlib.metadata
import pathlib
import zipfile

REQUIRED = (
  'absl-py',
  'dp-accounting',
  'flax',
  'jax',
  'jaxtyping',
  'lazy-loader',
  'ml-collections',
  'numpy',
  'optax',
  'orbax-checkpoint',
  'scikit-learn',
  'scipy',
  'tqdm',
)
"""Required packages; dm-haiku is needed for StackOverflow only."""


def make_site(
  folder: pathlib.Path, root: pathlib.Path, wheels: Iterable[pathlib.Path]
) -> list[str]:
  """Makes the folder.

  Args:
    folder: an empty one.
    root: the checkout.
    wheels: files *.whl; those of installed packages are skipped.

  Returns:
    Names of the packages whose wheels were unpacked.
  """
  package = folder / 'epe_jax'
  package.mkdir(parents=True)
  for path in (root / 'epe_jax').iterdir():
    if path.name != '__pycache__':
      (package / path.name).symlink_to(path)
  (package / 'configs').symlink_to(root / 'configs')
  unpacked = []
  for path in sorted(wheels):
    name = path.name.split('-')[0].replace('_', '-').lower()
    if not is_installed(name):
      with zipfile.ZipFile(path) as wheel:
        wheel.extractall(folder)
      unpacked.append(name)
  return unpacked


def is_installed(name: str) -> bool:
  """Whether a package of this name is on the path of Python."""
  try:
    importlib.metadata.version(name)
  except importlib.metadata.PackageNotFoundError:
    return False
  return True


def find_missing(unpacked: Iterable[str]) -> list[str]:
  """Names the required packages that are neither installed nor unpacked."""
  here = set(unpacked)
  return [x for x in REQUIRED if x not in here and not is_installed(x)]
