"""Tables of text: for the terminal, for Markdown and for LaTeX."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple
import unicodedata

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
  lines = [table.head, *table.body]
  widths = [max(map(_width, column)) for column in zip(*lines, strict=True)]
  drawn = []
  for line in lines:
    first, *others = (
      ' ' * (width - _width(cell)) for cell, width in zip(line, widths)
    )
    cells = [line[0] + first]
    cells += [pad + cell for pad, cell in zip(others, line[1:])]
    drawn.append('  '.join(cells).rstrip())
  notes = [f'- {note}' for note in table.notes]
  parts = [table.title, '\n'.join(drawn), '\n'.join(notes)]
  return '\n\n'.join(part for part in parts if part)


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
  """A page with each block between its markers, whatever stood there.

  Args:
    text: with `<!-- begin NAME -->` and `<!-- end NAME -->` for each block.
    blocks: name -> what belongs between its markers.

  Raises:
    ValueError: a marker is missing.

  >>> splice('<!-- begin x -->?<!-- end x -->.', {'x': '1'}).splitlines()
  ['<!-- begin x -->', '1', '<!-- end x -->.']
  """
  for name, block in blocks.items():
    begin, end = f'<!-- begin {name} -->', f'<!-- end {name} -->'
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
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
  rows = [' & '.join(map(_escaped, row)) + r' \\' for row in table.body]
  said = [f'{table.title}.' if table.title else '', *table.notes]
  caption = _escaped(' '.join(said))
  return '\n'.join(
    [
      r'\begin{table}',
      r'\centering',
      rf'\caption{{{caption.strip()}}}',
      rf'\begin{{tabular}}{{{columns}}}',
      r'\toprule',
      ' & '.join(map(_escaped, table.head)) + r' \\',
      r'\midrule',
      *rows,
      r'\bottomrule',
      r'\end{tabular}',
      r'\end{table}',
    ]
  )


def _width(cell: str) -> int:
  # A combining mark stands on the letter before it.
  return sum(not unicodedata.combining(letter) for letter in cell)


def _escaped(cell: str) -> str:
  return ''.join(_LATEX.get(letter, letter) for letter in cell)
