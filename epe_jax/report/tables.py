"""Tables and paragraphs: in Markdown, in LaTeX, and in columns for a terminal."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import contextlib
import contextvars
import itertools
import re
import textwrap
from typing import NamedTuple, TypeVar
import unicodedata

WIDTH = 100
"""Columns of paragraphs, where `limit_width` does not say fewer."""

_Row = TypeVar('_Row')

_width = contextvars.ContextVar('width', default=WIDTH)
_GAP, _FIRM = '  ', '\N{NO-BREAK SPACE}'
_LATEX = str.maketrans(
  {
    '\\': r'\textbackslash{}',
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
    **{letter: f'\\{letter}' for letter in '&%$#_{}'},
  }
)


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


def select_columns(
  rows: Iterable[_Row],
  columns: Mapping[str, Callable[[_Row], str]],
  *,
  title: str = '',
) -> Table:
  """A line for each row, of what each column shows of it.

  >>> select_columns([1, 2], {'x': str, 'x²': lambda x: f'{x**2}'}).body
  [['1', '1'], ['2', '4']]
  """
  body = [[form(row) for form in columns.values()] for row in rows]
  return Table(title, [*columns], body)


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
  if sum(map(_measure_column, columns)) + len(_GAP) * (len(columns) - 1) <= (
    get_width()
  ):
    return table
  heads = [
    [
      line.replace(_FIRM, ' ')
      for line in textwrap.wrap(
        head.replace(' %', f'{_FIRM}%'),
        max(_measure_column([*head.split(), *cells]), 1),
        break_long_words=False,
      )
    ]
    for head, *cells in columns[1:]
  ]
  others = [
    _measure_column([*head, *cells])
    for head, (_, *cells) in zip(heads, columns[1:])
  ]
  words = [word for cell in columns[0] for word in cell.split()]
  room = get_width() - sum(len(_GAP) + width for width in others)
  first = max(room, _measure_column(words))
  rows = [
    [textwrap.wrap(table.head[0], first), *heads],
    *(
      [textwrap.wrap(name, first), *([cell] for cell in cells)]
      for name, *cells in table.body
    ),
  ]
  head, *body = [list(itertools.zip_longest(*r, fillvalue='')) for r in rows]
  return table._replace(head=head[0], body=[*head[1:], *itertools.chain(*body)])


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
  columns = []
  for (side, *cells), least in zip(
    zip(alignment, *rows, strict=True), widths or itertools.repeat(0)
  ):
    width = max(least, _measure_column(cells))
    pads = [' ' * (width - _measure_column([cell])) for cell in cells]
    is_left = side == '<'
    columns.append(
      [x + pad if is_left else pad + x for x, pad in zip(cells, pads)]
    )
  return '\n'.join(gap.join(line).rstrip() for line in zip(*columns))


def fill_paragraph(text: str, *, bullet: str = '') -> str:
  """The text in lines of at most 100 columns, or as `limit_width` says.

  Args:
    bullet: what the first line begins with; the others are indented as far.
  """
  # A number stays on the line of its sign: textwrap breaks at plain spaces.
  glued = re.sub('(?<=[=≈]) | (?=[=≈%])', _FIRM, text)
  filled = textwrap.fill(
    glued,
    get_width(),
    initial_indent=bullet,
    subsequent_indent=' ' * len(bullet),
    break_on_hyphens=False,
  )
  return filled.replace(_FIRM, ' ')


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


def format_plain_markdown(
  table: Table, *, marked_row: int | None = None
) -> str:
  """The table as `format_markdown`, if nothing in it is Markdown.

  Args:
    marked_row: the row that is in bold.
  """
  body = [[*map(escape_markdown, line)] for line in table.body]
  if marked_row is not None:
    body[marked_row] = [f'**{cell}**' for cell in body[marked_row]]
  return format_markdown(
    Table(
      escape_markdown(table.title),
      [*map(escape_markdown, table.head)],
      body,
      [*map(escape_paragraph, table.notes)],
    )
  )


def render_text(markdown: str, *, is_folded: bool = True) -> str:
  r"""Markdown of plain texts, as functions of this room make it, for a terminal.

  Args:
    is_folded: whether tables have to fit into the columns that there are: their
      rows become paragraphs if need be.

  >>> print(render_text('**What**: 1 \\* 2\n\n| z | ε |\n| --- | --- |\n| 0 | ∞ |'))
  What: 1 * 2
  <BLANKLINE>
  z  ε
  0  ∞
  """
  parts = []
  for part in markdown.split('\n\n'):
    if part.startswith('| '):
      parts.append(_render_table(part, is_folded))
    elif part.startswith('- '):
      items = part.removeprefix('- ').split('\n- ')
      parts.append(fill_items(map(_unescape, items)))
    else:
      parts.append(fill_paragraph(_unescape(part)))
  return '\n\n'.join(filter(None, parts))


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


def splice(text: str, blocks: Mapping[str, str]) -> str:
  """Replaces what a page has between markers.

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
    before, has_begin, rest = text.partition(begin)
    _, has_end, after = rest.partition(end)
    if not (has_begin and has_end):
      raise ValueError(f'The page lacks {begin} or {end}; put them back.')
    text = f'{before}{begin}\n{block}\n{end}{after}'
  return text


def format_latex(table: Table) -> str:
  r"""The table in LaTeX, for a document that loads `booktabs`.

  >>> print(format_latex(Table('At 5 %', ['z'], [['∞']])).splitlines()[2])
  \caption{At 5 \%.}
  """
  head, *body = [
    rf'{" & ".join(cell.translate(_LATEX) for cell in line)} \\'
    for line in (table.head, *table.body)
  ]
  sentences = [f'{table.title}.' if table.title else '', *table.notes]
  caption = ' '.join(sentences).translate(_LATEX).strip()
  rows = '\n'.join([r'\toprule', head, r'\midrule', *body, r'\bottomrule'])
  return (
    f'\\begin{{table}}\n\\centering\n\\caption{{{caption}}}\n'
    f'\\begin{{tabular}}{{l{"r" * (len(table.head) - 1)}}}\n'
    f'{rows}\n\\end{{tabular}}\n\\end{{table}}'
  )


def _render_table(markdown: str, is_folded: bool) -> str:
  lines = [
    [
      _unescape(cell.strip().replace('\\|', '|'))
      for cell in re.split(r'(?<!\\)\|', line)[1:-1]
    ]
    for line in markdown.splitlines()
  ]
  table = Table('', lines[0], lines[2:])
  if not is_folded:
    return format_text(table)
  text = format_text(fold_table(table))
  if max(map(len, text.splitlines())) <= get_width():
    return text
  rows = []
  for name, *values in table.body:
    listed = [f'{head} {value}' for head, value in zip(table.head[1:], values)]
    rows.append(f'{name}: {", ".join(listed if len(values) > 1 else values)}')
  return fill_items(rows)


def _unescape(markdown: str) -> str:
  """The text that `escape_paragraph` escaped, maybe in bold at its beginning."""
  text = re.sub(r'^\*\*(.+)\*\*(?=:|$)', r'\1', markdown)
  text = re.sub(r'\\([\\`[\]*~_#>])', r'\1', text)
  return text.replace('&lt;', '<').replace('&amp;', '&')


def _measure_column(cells: Iterable[str]) -> int:
  """The width of the widest cell; 0 without any."""
  # A combining mark stands on the letter before it.
  return max(
    (sum(not unicodedata.combining(x) for x in cell) for cell in cells),
    default=0,
  )
