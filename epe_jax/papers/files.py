"""Files of an item (text, Markdown, LaTeX, figures) and the page of all items."""

from collections.abc import Mapping
import functools
import os
import pathlib
from typing import Any

from epe_jax import io
from epe_jax.papers import registry
from epe_jax.papers.item import Item, Product
from epe_jax.text import tables

_FORMATS = {
  'txt': tables.format_text,
  'md': tables.format_markdown,
  'tex': tables.format_latex,
}
_PICTURES = ('png', 'pdf')

_HEAD = """\
# The papers' tables and figures

Each item is the result of one command. `scripts/docs.py --results=FOLDER` builds this page
from the results. `--scale=paper` uses the paper's sizes. `--scale=small` takes about half an
hour per item on two idle cores. `--list` lists all items. Every ε is a point estimate unless
it is called a bound: see [reading the numbers](estimates.md)."""


def write_item(
  folder: str | os.PathLike,
  name: str,
  product: Product,
  origin: Mapping[str, Any],
) -> None:
  """Writes item.json, table.txt, .md and .tex, and each figure as .png and .pdf.

  Args:
    folder: created if it is missing.
    name: of the item.
    product: its tables and figures.
    origin: scale, command and versions, which item.json holds too.
  """
  folder = pathlib.Path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  for suffix, format_table in _FORMATS.items():
    # The terminal's width must not matter.
    with tables.limit_width(tables.WIDTH):
      text = '\n\n'.join(map(format_table, product.tables)) + '\n'
    path = folder / f'table.{suffix}'
    io.write_text(path, text)
  for figure_name, drawing in product.figures.items():
    for suffix in _PICTURES:
      save = functools.partial(drawing.savefig, format=suffix, dpi=150)
      io.write_atomically(folder / f'{figure_name}.{suffix}', save)
  record = {
    'name': name,
    'figures': list(product.figures),
    'tables': [table._asdict() for table in product.tables],
    **origin,
  }
  io.write_json(folder / 'item.json', record)


def format_page(folder: str | os.PathLike, *, link: str) -> str:
  """The page of all items in a folder, in the order of `registry.ITEMS`.

  Args:
    folder: it has the item.json of each finished item in `registry.folder_of`.
    link: the path from the page to it.

  Returns:
    Markdown that ends in a newline.
  """
  parts, missing = [_HEAD], []
  for paper, (title, items) in registry.PAPERS.items():
    parts.append(f'## {title}')
    for key, item in items.items():
      name = registry.name_item(paper, key)
      at = registry.folder_of(name)
      path = pathlib.Path(folder, at, 'item.json')
      if path.is_file():
        parts += _format_item(item, io.read_json(path), f'{link}/{at}')
      else:
        missing.append(f'{item.title} (`{name}`)')
  if missing:
    parts += ['## Not made yet', '\n'.join(f'- {line}' for line in missing)]
  return '\n\n'.join(parts) + '\n'


def _format_item(item: Item, record: Mapping[str, Any], link: str) -> list[str]:
  """The parts of a page on one item, from its item.json."""
  return [
    f'### {item.title}',
    f'{item.source[0].upper()}{item.source[1:]}. Scale: **{record["scale"]}**.',
    f'```sh\n{record["command"]}\n```',
    *(
      tables.format_markdown(tables.Table(**table))
      for table in record['tables']
    ),
    *(f'![{title}]({link}/{title}.png)' for title in record['figures']),
  ]
