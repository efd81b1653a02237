"""Writes the cells that every notebook begins with: its badge, and the installation.

  python colabs/first_cells.py

A notebook needs no checkout: its first code cell installs the package where it is
missing, from the constant `PACKAGE`. That is made here, from the first that there is:
the name on the registry (`epe_jax.extras.REGISTRY_NAME`), the repository
(`project.urls.Repository` in pyproject.toml), a wheel next to the notebook. A
repository on GitHub also gives a notebook a badge that opens it in Colab. A notebook
of a framework installs that, too.
"""

import pathlib
import re
import tomllib

from absl import app
import nbformat

from epe_jax import __version__, extras

_NOTEBOOKS = pathlib.Path(__file__).parent
_EXTRAS = '[training,reports,dpsgd]'
_FRAMEWORKS = {'own_loop': 'torch'}
_GITHUB = 'https://github.com/'
_COLAB = 'https://colab.research.google.com'
_BADGE = re.compile(rf'\[!\[[^\]]*\]\({re.escape(_COLAB)}[^\n]*\n\n')
_INSTALLATION = """\
import importlib.util

# Where the package comes from if this runtime lacks it: {source}.
PACKAGE = '{package}'

found = importlib.util.find_spec('epe_jax')
# A folder of that name, such as a clone, has no origin.
if found is None or found.origin is None:
  %pip install -q "{{PACKAGE}}"
  importlib.invalidate_caches()"""
_FRAMEWORK = """

if importlib.util.find_spec('{framework}') is None:
  %pip install -q {framework}
  importlib.invalidate_caches()"""


def read_repository() -> str | None:
  """Returns the address of the repository; None if pyproject.toml has none."""
  text = (_NOTEBOOKS.parent / 'pyproject.toml').read_text(encoding='utf-8')
  return tomllib.loads(text)['project'].get('urls', {}).get('Repository')


def make_installation(name: str, repository: str | None) -> str:
  """Makes the first code cell.

  >>> cell = make_installation('quickstart', 'https://example.org/epe_jax')
  >>> print(cell.split(chr(10))[3])
  PACKAGE = 'epe_jax[training,reports,dpsgd] @ git+https://example.org/epe_jax'
  """
  if extras.REGISTRY_NAME is not None:
    source, package = 'the registry', f'{extras.REGISTRY_NAME}{_EXTRAS}'
  elif repository is not None:
    source = 'the repository'
    package = f'epe_jax{_EXTRAS} @ git+{repository}'
  else:
    source = 'a wheel next to the\n# notebook, which `pip wheel --no-deps .` in a checkout makes'
    package = f'epe_jax-{__version__}-py3-none-any.whl{_EXTRAS}'
  cell = _INSTALLATION.format(source=source, package=package)
  if framework := _FRAMEWORKS.get(name):
    cell += _FRAMEWORK.format(framework=framework)
  return cell


def make_badge(name: str, repository: str | None) -> str:
  """Makes the badge that opens a notebook in Colab; '' if Colab cannot read it.

  >>> make_badge('quickstart', None)
  ''
  >>> print(make_badge('quickstart', 'https://github.com/owner/epe_jax').strip())
  [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/owner/epe_jax/blob/main/colabs/quickstart.ipynb)
  """
  if repository is None or not repository.startswith(_GITHUB):
    return ''
  path = repository.removeprefix(_GITHUB).removesuffix('.git').strip('/')
  return (
    f'[![Open in Colab]({_COLAB}/assets/colab-badge.svg)]'
    f'({_COLAB}/github/{path}/blob/main/colabs/{name}.ipynb)\n\n'
  )


def set_first_cells(
  notebook: nbformat.NotebookNode, name: str, repository: str | None
) -> None:
  """Replaces the badge below the title, and the first code cell."""
  title, code = notebook.cells[:2]
  heading, _, text = title.source.partition('\n\n')
  text = _BADGE.sub('', text)
  title.source = f'{heading}\n\n{make_badge(name, repository)}{text}'
  code.source = make_installation(name, repository)


def main(argv: list[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'{argv[1]!r}: this command takes no arguments.')
  repository = read_repository()
  for path in sorted(_NOTEBOOKS.glob('*.ipynb')):
    notebook = nbformat.read(path, as_version=4)
    set_first_cells(notebook, path.stem, repository)
    nbformat.write(notebook, path)


if __name__ == '__main__':
  app.run(main)
