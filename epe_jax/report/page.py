"""A page: sections of paragraphs, lists, tables, figures and code.

Every report is one `Page`. `render_text` shows it in a terminal, `render_markdown`
as Markdown, and `html.render_html` as a file of its own.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

from epe_jax.text import tables

Role = Literal['plain', 'headline', 'muted', 'alarm']


class Text(NamedTuple):
  """A paragraph; the role says how much it matters."""

  text: str
  role: Role = 'plain'


class Items(NamedTuple):
  """A list, one paragraph for each item."""

  texts: Sequence[str]


class Cells(NamedTuple):
  """A table.

  Attributes:
    table: what is shown.
    marked_row: the row that is highlighted.
    terms: key of the glossary for columns, by their heads, where it is another than
      `glossary.find_term` finds.
    text: how a terminal shows it; None for columns.
  """

  table: tables.Table
  marked_row: int | None = None
  terms: Mapping[str, str] = {}
  text: str | None = None


class Figure(NamedTuple):
  """The name of an image file, and what it shows."""

  file: str
  caption: str


class Code(NamedTuple):
  """Code, under a paragraph that says what it is for."""

  about: str
  code: str
  language: str
  is_folded: bool = False


Block: TypeAlias = Text | Items | Cells | Figure | Code


class Section(NamedTuple):
  """Blocks under a title.

  Attributes:
    title: '' for those that belong to the title of the page.
    blocks: in order.
    key: the anchor in HTML.
    is_folded: hidden in HTML until a reader opens it.
  """

  title: str
  blocks: Sequence[Block]
  key: str = ''
  is_folded: bool = False


class Page(NamedTuple):
  """A title and sections; those without blocks are left out."""

  title: str
  sections: Sequence[Section]


def render_text(page: Page) -> str:
  """The page for a terminal, without figures and without a final newline."""
  return _render(page, _underline, _underline, _render_block_as_text)


def render_markdown(page: Page) -> str:
  """The page in Markdown, without a final newline; markup of HTML is escaped."""
  text = _render(
    page, lambda x: f'# {x}', lambda x: f'## {x}', _render_block_as_markdown
  )
  return tables.escape_html(text)


def _render(
  page: Page,
  form_title: Callable[[str], str],
  form_heading: Callable[[str], str],
  form_block: Callable[[Block], str],
) -> str:
  parts = [form_title(page.title)] if page.title else []
  for section in page.sections:
    blocks = [*filter(None, map(form_block, section.blocks))]
    if blocks and section.title:
      parts.append(form_heading(section.title))
    parts += blocks
  return '\n\n'.join(parts)


def _underline(title: str) -> str:
  return f'{title}\n{"=" * len(title)}'


def _render_block_as_text(block: Block) -> str:
  match block:
    case Text(text):
      return tables.fill_paragraph(text)
    case Items(texts):
      return '\n'.join(tables.fill_paragraph(x, bullet='- ') for x in texts)
    case Cells(table, text=text):
      return text or tables.format_text(tables.fold_table(table))
    case Code(about, code):
      return f'{tables.fill_paragraph(about)}\n\n{code}'
    case Figure():
      return ''


def _render_block_as_markdown(block: Block) -> str:
  match block:
    case Text(text, 'headline'):
      return f'**{text}**'
    case Text(text):
      return text
    case Items(texts):
      return '\n'.join(f'- {text}' for text in texts)
    case Cells(table):
      return tables.format_markdown(table)
    case Code(about, code, language):
      return f'{about}\n\n```{language}\n{code}\n```'
    case Figure(file, caption):
      return f'![{caption}]({file})\n\n*{caption}*'
