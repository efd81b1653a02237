"""Runs notebooks, and writes pages of docs with their outputs.

  python colabs/render.py quickstart estimators
  .venv-frameworks/torch/bin/python colabs/render.py own_loop

Names are those of colabs/*.ipynb, which are committed without outputs. A page and its
figures go to docs/notebooks.
"""

import pathlib
import shutil

from absl import app, flags
import nbclient
from nbconvert import exporters
import nbformat

from epe_jax import io

_OUT = flags.DEFINE_string('out', 'docs/notebooks', 'Folder of the pages.')

_NOTEBOOKS = pathlib.Path(__file__).parent
_TIMEOUT = 600
_WIDGET = 'application/vnd.jupyter.widget-view+json'


def execute(path: pathlib.Path) -> nbformat.NotebookNode:
  """Runs a notebook from top to bottom, in its own folder."""
  notebook = nbformat.read(path, as_version=4)
  resources = {'metadata': {'path': str(path.parent)}}
  nbclient.NotebookClient(
    notebook,
    timeout=_TIMEOUT,
    kernel_name='python3',
    coalesce_streams=True,
    resources=resources,
  ).execute()
  for cell in notebook.cells:
    if cell.cell_type == 'code':
      cell.outputs = [x for x in cell.outputs if not _is_progress(x)]
      for output in cell.outputs:
        if 'text' in output:
          # Paths are those of the machine on which the notebook ran.
          output.text = io.hide_paths(output.text)
  return notebook


def _is_progress(output: nbformat.NotebookNode) -> bool:
  """Whether an output only matters while the notebook runs."""
  return output.get('name') == 'stderr' or _WIDGET in output.get('data', {})


def write_page(notebook: nbformat.NotebookNode, name: str) -> pathlib.Path:
  """Writes the page of a notebook that ran, and its figures next to it."""
  out = pathlib.Path(_OUT.value)
  out.mkdir(parents=True, exist_ok=True)
  resources = {'unique_key': name, 'output_files_dir': name}
  body, made = exporters.MarkdownExporter().from_notebook_node(
    notebook, resources=resources
  )
  shutil.rmtree(out / name, ignore_errors=True)  # Figures of cells that moved.
  for file, data in made['outputs'].items():
    (out / file).parent.mkdir(exist_ok=True)
    io.write_atomically(out / file, lambda f, data=data: f.write(data))
  page = out / f'{name}.md'
  lines = '\n'.join(line.rstrip() for line in body.splitlines())
  note = f'Written by `colabs/render.py` from colabs/{name}.ipynb.'
  title, _, rest = lines.strip().partition('\n')
  io.write_text(page, f'{title}\n\n{note}\n{rest}\n')
  return page


def main(argv: list[str]) -> None:
  paths = [_NOTEBOOKS / f'{name}.ipynb' for name in argv[1:]]
  if not paths:
    known = ', '.join(sorted(path.stem for path in _NOTEBOOKS.glob('*.ipynb')))
    raise app.UsageError(f'give notebooks, some of {known}.')
  for path in paths:
    if not path.exists():
      raise app.UsageError(f'{path.stem!r} is not a notebook of {_NOTEBOOKS}.')
  for path in paths:
    print(write_page(execute(path), path.stem))


if __name__ == '__main__':
  app.run(main)
