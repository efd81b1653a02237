"""Tables as text, for the terminal, Markdown and LaTeX; and paragraphs."""

from collections.abc import Mapping, Sequence
import itertools
import re
import textwrap
from typing import NamedTuple
import unicodedata

_WIDTH = 100
_LATEX = {
  '\\': r'\textbackslash{}',
  '&': r'\&',
  '%': r'\%',
  '$': r'\$',
  '#': r'\#',
  '_': r'\_',
  '{': r'\{',
  '}': r'\}',
  '~': r'\textasciitilde{}',
  '^': r'\textasciicircum{}',
  '∞': r'$\infty$',
  'ε': r'$\varepsilon$',
  'δ': r'$\delta$',
  'σ': r'$\sigma$',
  '±': r'$\pm$',
  '√': r'$\surd$',
  '²': r'$^2$',
  '≥': r'$\geq$',
  '≈': r'$\approx$',
  '·': r'$\cdot$',
}


class Table(NamedTuple):
  """Cells under a head, with what a reader has to know of them.

  Attributes:
    title: what is shown, in one line.
    head: names of the columns.
    body: rows of as many cells.
    notes: sentences below the table.
  """

  title: str
  head: Sequence[str]
  body: Sequence[Sequence[str]]
  notes: Sequence[str] = ()


def format_text(table: Table) -> str:
  """The table in columns, the first aligned left and the others right.

  Returns:
    Text without a final newline.

  >>> print(format_text(Table('Two', ['z', 'ε'], [['0', '∞'], ['0.1', '91.7']])))
  Two
  <BLANKLINE>
  z       ε
  0       ∞
  0.1  91.7
  """
  alignment = '<' + '>' * (len(table.head) - 1)
  rows = align_columns([table.head, *table.body], alignment)
  notes = '\n'.join(f'- {note}' for note in table.notes)
  return '\n\n'.join(part for part in (table.title, rows, notes) if part)


def align_columns(
  rows: Sequence[Sequence[str]],
  alignment: str,
  *,
  widths: Sequence[int] = (),
  gap: str = '  ',
) -> str:
  """Rows whose cells stand below each other.

  Args:
    rows: cells, equally many in each row.
    alignment: '<' or '>' for each column, left or right.
    widths: the minimum of each column; without, it is as wide as its cells.
    gap: between columns.

  Returns:
    A line for each row, without a final newline.

  Raises:
    ValueError: a row has fewer or more cells than alignment has columns.

  >>> print(align_columns([['a', 'b'], ['10', '200']], '>>'))
   a    b
  10  200
  """
  columns = zip(alignment, *rows, strict=True)
  padded = [
    _pad_cells(cells, side, width)
    for (side, *cells), width in zip(columns, widths or itertools.repeat(0))
  ]
  return '\n'.join(gap.join(line).rstrip() for line in zip(*padded))


def fill_paragraph(text: str, *, bullet: str = '') -> str:
  """The text in lines of at most 100 columns.

  Args:
    text: one paragraph.
    bullet: what the first line begins with; the others are indented as far.
  """
  # A number stays on the line of its sign: textwrap breaks at plain spaces.
  glued = re.sub('(?<=[=≈]) | (?=[=≈%])', '\N{NO-BREAK SPACE}', text)
  filled = textwrap.fill(
    glued,
    _WIDTH,
    initial_indent=bullet,
    subsequent_indent=' ' * len(bullet),
    break_on_hyphens=False,
  )
  return filled.replace('\N{NO-BREAK SPACE}', ' ')


def format_markdown(table: Table) -> str:
  """The table in Markdown, its title in bold.

  Returns:
    Text without a final newline.

  >>> print(format_markdown(Table('', ['a|b'], [['1']])))
  | a\\|b |
  | --- |
  | 1 |
  """
  lines = [table.head, ['---'] * len(table.head), *table.body]
  cells = [[cell.replace('|', '\\|') for cell in line] for line in lines]
  rows = '\n'.join(f'| {" | ".join(line)} |' for line in cells)
  notes = '\n'.join(f'- {note}' for note in table.notes)
  title = table.title and f'**{table.title}**'
  return '\n\n'.join(part for part in (title, rows, notes) if part)


def splice(text: str, blocks: Mapping[str, str]) -> str:
  """Replaces what a page has between markers.

  Args:
    text: with `<!-- begin NAME -->` and `<!-- end NAME -->` for each block.
    blocks: name -> what belongs between its markers.

  Returns:
    The page with every block between its markers.

  Raises:
    ValueError: a marker is missing.

  >>> splice('<!-- begin x -->?<!-- end x -->.', {'x': '1'}).splitlines()
  ['<!-- begin x -->', '1', '<!-- end x -->.']
  """
  for name, block in blocks.items():
    begin, end = f'<!-- begin {name} -->', f'<!-- end {name} -->'
    before, has_begin, rest = text.partition(begin)
    _, has_end, after = rest.partition(end)
    if not (has_begin and has_end):
      raise ValueError(f'The page lacks {begin} or {end}; put them back.')
    text = f'{before}{begin}\n{block}\n{end}{after}'
  return text


def format_latex(table: Table) -> str:
  r"""The table in LaTeX, for a document that loads `booktabs`.

  Returns:
    A `table` environment, without a final newline.

  >>> print(format_latex(Table('At 5 %', ['z'], [['∞']])).splitlines()[2])
  \caption{At 5 \%.}
  """
  columns = 'l' + 'r' * (len(table.head) - 1)
  rows = [' & '.join(map(_escape_latex, row)) + r' \\' for row in table.body]
  sentences = [f'{table.title}.' if table.title else '', *table.notes]
  caption = _escape_latex(' '.join(sentences))
  return '\n'.join(
    [
      r'\begin{table}',
      r'\centering',
      rf'\caption{{{caption.strip()}}}',
      rf'\begin{{tabular}}{{{columns}}}',
      r'\toprule',
      ' & '.join(map(_escape_latex, table.head)) + r' \\',
      r'\midrule',
      *rows,
      r'\bottomrule',
      r'\end{tabular}',
      r'\end{table}',
    ]
  )


def _pad_cells(cells: Sequence[str], side: str, width: int) -> list[str]:
  """The cells of a column, all as wide as the widest, or wider."""
  width = max(width, *map(_measure_width, cells))
  pads = [' ' * (width - _measure_width(cell)) for cell in cells]
  return [
    cell + pad if side == '<' else pad + cell for cell, pad in zip(cells, pads)
  ]


def _measure_width(cell: str) -> int:
  # A combining mark stands on the letter before it.
  return sum(not unicodedata.combining(letter) for letter in cell)


def _escape_latex(cell: str) -> str:
  return ''.join(_LATEX.get(letter, letter) for letter in cell)
