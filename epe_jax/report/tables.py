"""Tables as text, for the terminal, Markdown and LaTeX; and paragraphs."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
import contextlib
import contextvars
import itertools
import re
import textwrap
from typing import NamedTuple
import unicodedata

WIDTH = 100
"""Columns of paragraphs, where `limit_width` does not say fewer."""

_width = contextvars.ContextVar('width', default=WIDTH)
_GAP = '  '
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


@contextlib.contextmanager
def limit_width(columns: int) -> Iterator[None]:
  """Limits output width."""
  token = _width.set(columns)
  try:
    yield
  finally:
    _width.reset(token)


def get_width() -> int:
  """The columns that there are, as `limit_width` says."""
  return _width.get()


def fold_table(table: Table) -> Table:
  """The table with its head and first column broken into lines, if it is too wide.

  No word is broken, so that a table of many columns may remain too wide.

  >>> table = Table('', ['of a', 'ε'], [['own round', '25.2']])
  >>> with limit_width(12):
  ...   print(format_text(fold_table(table)))
  of a      ε
  own    25.2
  round
  """
  columns = list(zip(table.head, *table.body))
  if _measure_columns(columns) <= _width.get():
    return table
  heads = [
    textwrap.wrap(
      head, max(map(_measure_width, [*head.split(), *cells]), default=1)
    )
    for head, *cells in columns[1:]
  ]
  others = [
    max(map(_measure_width, [*head, *cells]), default=0)
    for head, (_, *cells) in zip(heads, columns[1:])
  ]
  words = [word for cell in columns[0] for word in cell.split()]
  room = _width.get() - sum(len(_GAP) + width for width in others)
  first = max(room, *map(_measure_width, words))
  rows = [[textwrap.wrap(table.head[0], first), *heads]]
  rows += [
    [textwrap.wrap(name, first), *([cell] for cell in cells)]
    for name, *cells in table.body
  ]
  head, *body = [list(itertools.zip_longest(*r, fillvalue='')) for r in rows]
  lines = [*head[1:], *itertools.chain(*body)]
  return table._replace(head=head[0], body=lines)


def format_text(table: Table) -> str:
  """The table in columns, the first aligned left and the others right.

  >>> print(format_text(Table('Two', ['z', 'ε'], [['0', '∞'], ['0.1', '91.7']])))
  Two
  <BLANKLINE>
  z       ε
  0       ∞
  0.1  91.7
  """
  alignment = '<' + '>' * (len(table.head) - 1)
  rows = align_columns([table.head, *table.body], alignment)
  parts = fill_paragraph(table.title), rows, fill_items(table.notes)
  return '\n\n'.join(filter(None, parts))


def align_columns(
  rows: Sequence[Sequence[str]],
  alignment: str,
  *,
  widths: Sequence[int] = (),
  gap: str = _GAP,
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
  """The text in lines of at most 100 columns, or as `limit_width` says.

  Args:
    bullet: what the first line begins with; the others are indented as far.
  """
  # A number stays on the line of its sign: textwrap breaks at plain spaces.
  glued = re.sub('(?<=[=≈]) | (?=[=≈%])', '\N{NO-BREAK SPACE}', text)
  filled = textwrap.fill(
    glued,
    _width.get(),
    initial_indent=bullet,
    subsequent_indent=' ' * len(bullet),
    break_on_hyphens=False,
  )
  return filled.replace('\N{NO-BREAK SPACE}', ' ')


def fill_items(texts: Iterable[str]) -> str:
  """A list whose items are paragraphs, as `fill_paragraph` fills them."""
  return '\n'.join(fill_paragraph(text, bullet='- ') for text in texts)


def format_markdown(table: Table) -> str:
  """The table in Markdown, its title in bold.

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


def escape_markdown(text: str) -> str:
  r"""Markdown that shows a text as it is: on one line, without links, images or HTML.

  >>> print(escape_markdown('![a_b](javascript:c)\n**<script>** `d`, 2 * 3'))
  !\[a_b\](javascript:c) \*\*&lt;script>\*\* \`d\`, 2 * 3
  """
  text = ' '.join(text.splitlines())
  # Stars between spaces, and what is within a word, mark nothing up.
  marks = r'[\\`[\]]|(?<=\S)[*~]|[*~](?=\S)|(?<!\w)_(?=\S)|(?<=\S)_(?!\w)'
  text = re.sub(marks, r'\\\g<0>', text)
  return re.sub('&(?=#?\\w+;)', '&amp;', text).replace('<', '&lt;')


def escape_paragraph(text: str) -> str:
  """The same for a paragraph, which begins neither a heading nor a quotation."""
  return re.sub('^(?=[#>])', r'\\', escape_markdown(text))


def format_plain_markdown(table: Table) -> str:
  """The table as `format_markdown`, if nothing in it is Markdown."""
  escape = lambda texts: [*map(escape_markdown, texts)]
  title, head = escape_markdown(table.title), escape(table.head)
  notes = [*map(escape_paragraph, table.notes)]
  return format_markdown(Table(title, head, [*map(escape, table.body)], notes))


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


def _measure_columns(columns: Sequence[Sequence[str]]) -> int:
  """The width of a table."""
  widths = [max(map(_measure_width, column)) for column in columns]
  return sum(widths) + len(_GAP) * (len(widths) - 1)


def _measure_width(cell: str) -> int:
  # A combining mark stands on the letter before it.
  return sum(not unicodedata.combining(letter) for letter in cell)


def _escape_latex(cell: str) -> str:
  return ''.join(_LATEX.get(letter, letter) for letter in cell)
