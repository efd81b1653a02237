"""Files of an item (text, Markdown, LaTeX, figures), its page and the index of all."""

from collections.abc import Mapping, Sequence
import functools
import math
import os
import pathlib
from typing import Any

from epe_jax import io
from epe_jax.report import tables
from papers import origins, registry
from papers.item import CAUTION, Product

_FORMATS = {
  'txt': tables.format_text,
  'md': tables.format_markdown,
  'tex': tables.format_latex,
}
_PICTURES = ('png', 'pdf')

_HEAD = """\
# The papers' tables and figures

Each item is the result of one command, which `make results` repeats, and has a page with the
paper's numbers next to ours.
`--scale=paper` has the paper's sizes; `--scale=medium` trains the paper's LSTM, a quarter of an
hour for each run on two idle cores; `--scale=small` takes about half an hour per item. Every ε
is an [estimate](estimates.md) unless it is called a bound."""
_ROWS_SHOWN = 16
# Data as a run names them -> what they are, where they are not the paper's.
_STAND_INS = {
  'by its 60,000 train examples': (
    'the images are Fashion-MNIST, about 18 for each client; public EMNIST has about '
    '101 digits.'
  ),
  'by its 649,258 train examples': (
    'the text is court transcripts of 8,334 speakers, not StackOverflow.'
  ),
}
# Key in reported.json -> its name on a page.
_NAMES = {
  'analytic': 'analytic ε',
  'dim': 'd',
  'dp_cp': '(ε, δ)-DP (CP)',
  'dp_zb': '(ε, δ)-DP (ZB)',
  'eps_est_all': 'ε_est, all',
  'eps_est_final': 'ε_est, final',
  'eps_lo_all': 'ε_lo, all',
  'eps_lo_final': 'ε_lo, final',
  'epsilon': 'ε',
  'f_dp_cp': 'f-DP (CP)',
  'f_dp_zb': 'f-DP (ZB)',
  'katz': 'ε-DP (Katz)',
  'sigma': 'σ',
}


def write_item(
  folder: str | os.PathLike,
  name: str,
  product: Product,
  origin: Mapping[str, Any],
) -> None:
  """Writes item.json, table.txt, .md and .tex, and each figure as .png and .pdf.

  item.json also has the scale, command and versions of `origin`.
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


def format_index(folder: str | os.PathLike, *, link: str) -> str:
  """The page, in Markdown, that lists all items in the order of `registry.ITEMS`.

  Args:
    folder: it has the item.json of each finished item in `registry.folder_of`.
    link: the path from the page to it.
  """
  parts, missing = [], []
  for key, paper in registry.PAPERS.items():
    body = []
    for short, item in paper.items.items():
      name = registry.name_item(key, short)
      at = registry.folder_of(name)
      path = pathlib.Path(folder, at, 'item.json')
      if path.is_file():
        title = f'[{item.title}]({link}/{at}/index.md)'
        body.append([title, item.source, io.read_json(path)['scale']])
      else:
        missing.append(f'{item.title} (`{name}`)')
    table = tables.Table(
      '', ['item', 'in the paper', 'scale'], body, paper.remarks
    )
    parts += [f'## {paper.title}', tables.format_markdown(table)]
  if missing:
    parts += ['## Not made yet', '\n'.join(f'- {line}' for line in missing)]
  parts = [_HEAD, '<!-- begin items -->', *parts, '<!-- end items -->']
  return '\n\n'.join(parts) + '\n'


def format_item(name: str, record: Mapping[str, Any]) -> str:
  """The page of an item, in Markdown: the paper's numbers, and ours in its item.json.

  Tables are shown in part if they are long.
  """
  item = registry.ITEMS[name]
  found = [tables.Table(**table) for table in record['tables']]
  cautions = dict.fromkeys(
    note for t in found for note in t.notes if note.startswith(CAUTION)
  )
  said, seen = _format_paper(name, found), {*cautions}
  if not said and 'Figure' in item.source:
    said = ['A figure, whose numbers it does not print.']
  notes = ' '.join(note for table in found for note in table.notes)
  stand_ins = [text for data, text in _STAND_INS.items() if data in notes]
  parts = [
    f'# {item.title}',
    *(f'**{CAUTION}{text}**' for text in stand_ins),
    *(f'**{caution}**' for caution in cautions),
    f'{item.source[0].upper()}{item.source[1:]}. Scale: **{record["scale"]}**.',
    f'```sh\n{record["command"]}\n```',
    *_format_origin(record),
    *(
      ['## What the paper says', *said, '## What this package gives']
      if said
      else []
    ),
  ]
  for table in found:
    notes = [note for note in table.notes if not _is_of_paper(note)]
    shown = table._replace(
      body=table.body[:_ROWS_SHOWN],
      # What is below an earlier table already is not repeated.
      notes=[note for note in notes if note not in seen],
    )
    seen.update(notes)
    parts.append(tables.format_markdown(shown))
    if len(table.body) > _ROWS_SHOWN:
      parts.append(f'{_ROWS_SHOWN} of {len(table.body)} rows.')
  parts += [f'![{title}]({title}.png)' for title in record['figures']]
  parts.append('All rows: [item.json](item.json).')
  return '\n\n'.join(parts)


def _format_origin(record: Mapping[str, Any]) -> list[str]:
  """What made an item, and whether another compiler agrees."""
  parts = [origins.format_origin(record)]
  if agreement := record.get('agreement'):
    old, new = agreement['jaxlib']
    parts.append(
      f'jaxlib {old} miscomputes some programs on CPUs, but not these: with '
      f'{new} the cosines of {agreement["runs"]} of the runs, cut to '
      f'{agreement["rounds"]} rounds, are the same within '
      f'{agreement["difference"]:.1g} (`{agreement["command"]}`).'
    )
  if repeated := record.get('repeated'):
    parts.append(
      f'Repeated with {origins.format_versions(repeated)}: {repeated["differ"]} of '
      f'{repeated["cells"]} cells of its tables differ.'
    )
  return parts


def _format_paper(name: str, found: Sequence[tables.Table]) -> list[str]:
  """The paper's sentences, and its numbers where it has tables of them."""
  notes = [note for table in found for note in table.notes]
  sentences = dict.fromkeys(
    note.partition(': ')[2] for note in notes if _is_of_paper(note)
  )
  parts = [f'- {sentence}' for sentence in sentences]
  parts = ['\n'.join(parts)] if parts else []
  short = name.rpartition(':')[2]
  for title, rows in registry.find_reported(name).items():
    if len(rows) > 1 or not parts:
      body = [[_format_reported(x) for x in row.values()] for row in rows]
      part = title.removeprefix(short).removeprefix('_')
      head = [_name_reported(column) for column in rows[0]]
      table = tables.Table(_name_reported(part), head, body)
      parts.append(tables.format_markdown(table))
  return parts


def _is_of_paper(note: str) -> bool:
  return note.startswith(('The paper: ', 'The paper, of'))


def _format_reported(x: float) -> str:
  """A number as the paper prints it."""
  if not math.isfinite(x):
    return '∞'
  return f'{x:,.0f}' if x == round(x) else f'{x:g}'


def _name_reported(key: str) -> str:
  """The name of a column or table of a paper's numbers, for people.

  >>> _name_reported('f_dp_cp'), _name_reported('canife_std')
  ('f-DP (CP)', 'canife std')
  """
  return _NAMES.get(key, key.replace('_', ' '))
