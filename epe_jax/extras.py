"""The extra that installs a missing package, and the command for it.

Without extras, the package estimates from files of scores. JAX, Matplotlib and the
readers of some formats come with an extra each.
"""

from collections.abc import Iterator
import contextlib

EXTRAS = {
  'PIL': 'images',
  'array_record': 'tfds',
  'filelock': 'training',
  'flax': 'training',
  'flwr': 'flower',
  'google': 'training',
  'h5py': 'hdf5',
  'haiku': 'haiku',
  'importlib_resources': 'tfds',
  'jax': 'training',
  'jax_privacy': 'dpsgd',
  'markdown_it': 'reports',
  'matplotlib': 'reports',
  'ml_collections': 'training',
  'mlflow': 'mlflow',
  'nvflare': 'nvflare',
  'opacus': 'opacus',
  'optax': 'training',
  'pandas': 'reports',
  'pfl': 'pfl',
  'pooch': 'training',
  'pyarrow': 'training',
  'pytest': 'dev',
  'ray': 'ray',
  'requests': 'training',
  'sklearn': 'training',
  'submitit': 'slurm',
  'tensorboardX': 'tensorboard',
  'tensorflow_datasets': 'tfds',
  'tqdm': 'training',
  'wandb': 'wandb',
}
"""Import name of a package that may be missing -> its extra."""


REGISTRY_NAME: str | None = None
"""The name of the package on the registry; None until it is published there.

Messages and the README tell how to install from a checkout until then.
"""


def format_install(extra: str) -> str:
  """The command that installs an extra.

  >>> format_install('hdf5')
  "pip install '.[hdf5]' in a checkout of epe_jax"
  """
  if REGISTRY_NAME is None:
    return f"pip install '.[{extra}]' in a checkout of epe_jax"
  return f"pip install '{REGISTRY_NAME}[{extra}]'"


@contextlib.contextmanager
def explain_missing() -> Iterator[None]:
  """Names the extra and the command if an import in the block fails.

  Raises:
    ModuleNotFoundError: a package is missing. It replaces the error of the import
      and has the same `name`.

  >>> with explain_missing():
  ...   raise ModuleNotFoundError("No module named 'haiku'", name='haiku')
  Traceback (most recent call last):
  ModuleNotFoundError: haiku is not installed. Install it with the extra 'haiku': pip install '.[haiku]' in a checkout of epe_jax
  """
  try:
    yield
  except ModuleNotFoundError as error:
    package = (error.name or '').partition('.')[0]
    extra = EXTRAS.get(package)
    if extra is None:
      raise
    raise ModuleNotFoundError(
      f'{error.name} is not installed. Install it with the extra {extra!r}: '
      + format_install(extra),
      name=error.name,
    ) from error
