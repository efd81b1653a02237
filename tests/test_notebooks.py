"""Notebooks run from top to bottom, and are committed without what they show."""

import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys

import nbclient
import nbformat
import pytest

_ROOT = pathlib.Path(__file__).parents[1]
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
# What Jupyter itself should no longer use is no fault of a notebook.
@pytest.mark.filterwarnings(
  'ignore::DeprecationWarning:(jupyter_c|nbclient|tornado|zmq)'
)
@_each_notebook
def test_a_notebook_runs_and_shows_its_table_and_figures(path, tmp_path):
  if path.stem in _NEED_TORCH:
    pytest.importorskip('torch', reason='runs in make test-frameworks')
  # A clone of its own: only what is in the repository may be relied on, and
  # whatever the notebook writes is removed with the directory.
  folder = tmp_path / 'clone' / path.parent.name
  folder.mkdir(parents=True)
  shutil.copytree(_ROOT / 'configs', tmp_path / 'clone' / 'configs')
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
  figures = [out for out in outputs if 'image/png' in out.get('data', {})]
  assert figures
  assert any(out.get('name') == 'stdout' for out in outputs)


@_each_notebook
def test_a_notebook_is_committed_without_outputs(path):
  notebook = _read(path)
  nbformat.validate(notebook)
  assert notebook.metadata.kernelspec.name == 'python3'
  assert not _outputs(notebook)
  assert not any(cell.execution_count for cell in _code_cells(notebook))
  assert path.stat().st_size < 50_000


@_each_notebook
def test_a_notebook_begins_with_the_installation_that_all_share(path):
  first, *_ = _code_cells(_read(_ROOT / 'colabs' / 'quickstart.ipynb'))
  assert _code_cells(_read(path))[0].source == first.source


@_each_notebook
def test_the_docs_have_a_notebook_with_its_outputs(path):
  page = (_ROOT / f'docs/notebooks/{path.stem}.md').read_text(encoding='utf-8')
  for cell in _code_cells(_read(path)):
    assert cell.source in page
  assert f'![png]({path.stem}/' in page


@_each_notebook
def test_without_the_package_a_notebook_installs_it_from_its_clone(
  path, monkeypatch
):
  installed = []
  monkeypatch.chdir(path.parent)
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  monkeypatch.setattr(
    subprocess, 'run', lambda command, check: installed.append(command)
  )
  exec(_code_cells(_read(path))[0].source, {})
  assert installed == [
    [
      *(sys.executable, '-m', 'pip', 'install', '-q'),
      f'{_ROOT}[training,reports]',
    ]
  ]


@_each_notebook
def test_without_a_clone_a_notebook_says_where_to_put_one(
  path, tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(FileNotFoundError, match=r'configs/digits\.py.*clone'):
    exec(_code_cells(_read(path))[0].source, {})
