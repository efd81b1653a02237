"""The files of an item: text, Markdown, LaTeX, pictures; and a page of all items."""

from collections.abc import Mapping
import functools
import os
import pathlib
from typing import Any

from epe_jax import io
from epe_jax.papers.one_shot import items, product
from epe_jax.text import tables

_FORMATS = {
  'txt': tables.format_text,
  'md': tables.format_markdown,
  'tex': tables.format_latex,
}
_PICTURES = ('png', 'pdf')

_HEAD = """\
# The paper's tables and figures

Each item is the result of one command. `scripts/docs.py --results=FOLDER` builds this page
from the results. `--scale=paper` uses the paper's sizes. `--scale=small` takes about half an
hour per item on two idle cores. `--list` lists all items. Every ε is a point estimate unless
it is called a bound: see [reading the numbers](estimates.md)."""


def write_item(
  folder: str | os.PathLike,
  name: str,
  item: product.Product,
  origin: Mapping[str, Any],
) -> None:
  """Writes item.json, table.txt, .md and .tex, and each figure as .png and .pdf.

  Args:
    folder: created if it is missing.
    name: of the item.
    item: its tables and figures.
    origin: scale, command and whatever else item.json is to hold.
  """
  folder = pathlib.Path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  for suffix, form in _FORMATS.items():
    text = '\n\n'.join(map(form, item.tables)) + '\n'
    path = folder / f'table.{suffix}'
    io.write_text(path, text)
  for figure_name, drawing in item.figures.items():
    for suffix in _PICTURES:
      save = functools.partial(drawing.savefig, format=suffix, dpi=150)
      io.write_atomically(folder / f'{figure_name}.{suffix}', save)
  record = {
    'name': name,
    'figures': list(item.figures),
    'tables': [table._asdict() for table in item.tables],
    **origin,
  }
  io.write_json(folder / 'item.json', record)


def format_page(folder: str | os.PathLike, *, link: str) -> str:
  """The page of all items in a folder, in the order of `items.ITEMS`.

  Args:
    folder: has a folder with an item.json for each finished item.
    link: the path from the page to it.

  Returns:
    Markdown that ends in a newline.
  """
  parts, missing = [_HEAD], []
  for name, item in items.ITEMS.items():
    path = pathlib.Path(folder) / name / 'item.json'
    if not path.is_file():
      missing.append(f'{item.title} (`{name}`)')
      continue
    record = io.read_json(path)
    parts += [
      f'## {item.title}',
      f'{item.source[0].upper()}{item.source[1:]}. Scale: '
      f'**{record["scale"]}**.',
      f'```sh\n{record["command"]}\n```',
      *(
        tables.format_markdown(tables.Table(**table))
        for table in record['tables']
      ),
      *(
        f'![{title}]({link}/{name}/{title}.png)' for title in record['figures']
      ),
    ]
  if missing:
    parts += ['## Not made yet', '\n'.join(f'- {line}' for line in missing)]
  return '\n\n'.join(parts) + '\n'
