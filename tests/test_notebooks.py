"""Notebooks run without a checkout, and are committed without their outputs."""

import copy
import importlib.machinery
import importlib.util
import os
import re
import runpy

from IPython.core import inputtransformer2
import nbclient
import nbformat
import pytest

from tests import installed, test_install

_ROOT = installed.ROOT
_FIRST_CELLS = runpy.run_path(str(_ROOT / 'colabs' / 'first_cells.py'))
_NOTEBOOKS = sorted((_ROOT / 'colabs').glob('*.ipynb'))
_NEED_TORCH = ('own_loop',)
_each_notebook = pytest.mark.parametrize(
  'path', _NOTEBOOKS, ids=lambda path: path.stem
)


def _read(path):
  return nbformat.read(path, as_version=4)


def _code_cells(notebook):
  return [cell for cell in notebook.cells if cell.cell_type == 'code']


def _outputs(notebook):
  return [out for cell in _code_cells(notebook) for out in cell.outputs]


def test_there_are_notebooks_to_test():
  assert _NOTEBOOKS


@pytest.mark.integration
# What Jupyter itself should no longer use is not a fault of a notebook.
@pytest.mark.filterwarnings(
  'ignore::DeprecationWarning:(jupyter_c|nbclient|tornado|zmq)'
)
@_each_notebook
def test_a_notebook_runs_without_a_checkout_and_begins_with_epsilon(
  path, tmp_path
):
  if path.stem in _NEED_TORCH:
    pytest.importorskip('torch', reason='runs in make test-frameworks')
  # An empty folder: only the package may be relied on, and whatever the notebook
  # writes is removed with the folder.
  folder = tmp_path / 'empty'
  folder.mkdir()
  notebook = _read(path)
  client = nbclient.NotebookClient(
    notebook,
    timeout=300,
    kernel_name='python3',
    resources={'metadata': {'path': str(folder)}},
  )
  smoke = {'EPE_JAX_NOTEBOOK_MODE': 'smoke', 'TMPDIR': str(tmp_path)}
  # Raises CellExecutionError, with the traceback, where a cell fails.
  client.execute(env=os.environ | smoke)

  assert all(cell.execution_count for cell in _code_cells(notebook))
  outputs = _outputs(notebook)
  assert any('image/png' in out.get('data', {}) for out in outputs)
  printed = [out.text for out in outputs if out.get('name') == 'stdout']
  # A run's report has a title above its headline.
  assert 'ε' in ''.join(printed[0].splitlines()[:4])


@_each_notebook
def test_a_notebook_is_committed_without_outputs(path):
  notebook = _read(path)
  nbformat.validate(notebook)
  assert notebook.metadata.kernelspec.name == 'python3'
  assert not _outputs(notebook)
  assert not any(cell.execution_count for cell in _code_cells(notebook))
  assert path.stat().st_size < 50_000


@_each_notebook
def test_a_notebook_begins_with_the_cells_that_all_share(path):
  notebook = _read(path)
  expected = copy.deepcopy(notebook)
  _FIRST_CELLS['set_first_cells'](
    expected, path.stem, _FIRST_CELLS['read_repository']()
  )
  assert notebook == expected, 'run colabs/first_cells.py'


def test_a_repository_on_github_gives_a_notebook_its_badge_and_installs_it():
  set_first_cells = _FIRST_CELLS['set_first_cells']
  notebook = _read(_NOTEBOOKS[0])
  before = copy.deepcopy(notebook)
  address = 'https://github.com/owner/epe_jax'
  for _ in range(2):  # A second time nothing is added.
    set_first_cells(notebook, 'quickstart', address)
  title, installation = (cell.source for cell in notebook.cells[:2])
  assert title.startswith('# ')
  assert title.count('owner/epe_jax/blob/main/colabs/quickstart.ipynb)') == 1
  assert f"dpsgd] @ git+{address}'" in installation
  set_first_cells(notebook, 'quickstart', 'https://example.org/epe_jax')
  assert 'colab' not in notebook.cells[0].source
  set_first_cells(notebook, 'quickstart', None)
  assert notebook == before


def _run_first_cell(name, specs, monkeypatch):
  """The commands of a first cell where find_spec finds some packages."""
  commands = []

  class Shell:
    def run_line_magic(self, name, line):
      commands.append((name, line))

  monkeypatch.setattr(importlib.util, 'find_spec', specs.get)
  source = _code_cells(_read(_ROOT / 'colabs' / f'{name}.ipynb'))[0].source
  cell = inputtransformer2.TransformerManager().transform_cell(source)
  exec(cell, {'get_ipython': Shell})
  return commands


@pytest.mark.parametrize(
  ('spec', 'is_installed'),
  [
    (None, False),
    # A clone next to the notebook looks like a package without a file.
    (importlib.machinery.ModuleSpec('epe_jax', None, is_package=True), False),
    (importlib.util.find_spec('epe_jax'), True),
  ],
  ids=['missing', 'a clone', 'installed'],
)
def test_the_package_is_installed_where_it_is_missing(
  spec, is_installed, monkeypatch
):
  commands = _run_first_cell('quickstart', {'epe_jax': spec}, monkeypatch)
  expected = [] if is_installed else [('pip', 'install -q "{PACKAGE}"')]
  assert commands == expected


@pytest.mark.parametrize('is_installed', [True, False])
def test_pytorch_is_installed_where_it_is_missing(is_installed, monkeypatch):
  specs = {'epe_jax': importlib.util.find_spec('epe_jax')}
  if is_installed:
    specs['torch'] = importlib.machinery.ModuleSpec('torch', None)
  commands = _run_first_cell('own_loop', specs, monkeypatch)
  assert commands == ([] if is_installed else [('pip', 'install -q torch')])


def _read_page(path):
  page = _ROOT / 'docs' / 'notebooks' / f'{path.stem}.md'
  return page.read_text(encoding='utf-8')


@_each_notebook
def test_the_docs_have_a_notebook_with_its_outputs(path):
  page, cells = _read_page(path), _read(path).cells
  for cell in cells:
    assert cell.source.partition('\n\n')[2] in page
    assert cell.source.partition('\n\n')[0] in page
  figures = re.findall(rf'!\[png\]\(({path.stem}/\w+\.png)\)', page)
  folder = _ROOT / 'docs' / 'notebooks'
  assert {folder / name for name in figures} == set(
    (folder / path.stem).iterdir()
  )
  assert figures


@_each_notebook
def test_a_page_begins_with_epsilon_and_delta_and_ends_in_a_figure_or_a_sentence(
  path,
):
  page = _read_page(path)
  printed = re.findall(r'^    (?=\S)(.*)', _remove_code(page), re.MULTILINE)
  title = printed[:2] if printed[1].startswith('===') else []
  headline = printed[len(title) :][:2]
  assert 'ε' in headline[0]
  assert 'δ = 1e-5' in ' '.join(headline)
  last = page.rstrip().splitlines()[-1]
  assert last.startswith('![png]') or last.endswith('.')


def _remove_code(page):
  return re.sub(r'^```.*?^```', '', page, flags=re.DOTALL | re.MULTILINE)


wheel = test_install.wheel


@pytest.mark.slow  # Builds a wheel and downloads what it requires: a minute.
def test_in_an_empty_environment_a_notebook_installs_a_wheel_and_runs(
  wheel, tmp_path
):
  python = test_install.install('ipython', tmp_path) / 'python'
  first, *others = (
    cell.source
    for cell in _code_cells(_read(_ROOT / 'colabs' / 'estimators.ipynb'))
  )
  first, count = re.subn(
    r"^PACKAGE = '.*'$",
    # The notebook of estimators does not need JAX.
    f"PACKAGE = '{wheel}[reports]'",
    first,
    flags=re.MULTILINE,
  )
  assert count == 1
  program = tmp_path / 'empty' / 'estimators.ipy'
  program.parent.mkdir()
  program.write_text('\n'.join([first, *others]), encoding='utf-8')
  done = test_install.call(
    *(python, '-m', 'IPython', '--no-banner', program),
    cwd=program.parent,
    MPLBACKEND='Agg',
  )
  assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
  assert 'ε of at least' in done.stdout
