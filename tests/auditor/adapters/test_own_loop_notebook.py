"""The notebook of a loop in PyTorch runs where PyTorch is."""

import os
import pathlib

import pytest

pytest.importorskip('torch', reason='PyTorch: make test-frameworks')
nbclient = pytest.importorskip('nbclient')
import nbformat

ROOT = pathlib.Path(__file__).parents[3]


def test_the_notebook_audits_its_loop_and_finds_the_bug(tmp_path):
  path = ROOT / 'colabs' / 'own_loop.ipynb'
  notebook = nbformat.read(path, as_version=4)
  client = nbclient.NotebookClient(
    notebook,
    timeout=240,
    kernel_name='python3',
    resources={'metadata': {'path': str(path.parent)}},
  )
  client.execute(env={**os.environ, 'PYTHONPATH': str(ROOT)})
  outputs = [out for cell in notebook.cells for out in cell.get('outputs', [])]
  printed = [out.text for out in outputs if out.get('name') == 'stdout']
  assert any('every round' in text for text in printed)
  assert any('noise that is claimed' in text for text in printed)
