"""A report: one page that everybody reads, and an appendix for those who ask.

Every report is one `Page`. `render_text` shows it in a terminal, `render_markdown`
as Markdown, and `html.render_html` as a file of its own. The appendix is closed until
a reader opens it; nothing stands in both parts.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import re
from typing import Literal, NamedTuple, TypeAlias

from epe_jax.report import glossary, tables

Role = Literal['plain', 'headline', 'muted', 'alarm']

APPENDIX = 'Appendix'
"""What a reader opens to see more."""


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
    groups: heads over several columns in HTML, as (head, number of columns); the
      heads of these columns begin with it and a comma. Empty for none.
  """

  table: tables.Table
  marked_row: int | None = None
  groups: Sequence[tuple[str, int]] = ()


class Figure(NamedTuple):
  """The name of an image file, and what it shows."""

  file: str
  caption: str


class Code(NamedTuple):
  """Code, under a paragraph that says what it is for."""

  about: str
  code: str
  language: str


class Words(NamedTuple):
  """Definitions; key of the glossary -> term."""

  terms: Mapping[str, glossary.Term]


Block: TypeAlias = Text | Items | Cells | Figure | Code | Words


class Section(NamedTuple):
  """Blocks of the appendix under a title.

  Attributes:
    title: a few words.
    blocks: in order; a section without blocks is left out.
    key: the anchor in HTML.
  """

  title: str
  blocks: Sequence[Block]
  key: str = ''


class Page(NamedTuple):
  """A report.

  Attributes:
    title: what it is about.
    blocks: the page that everybody reads.
    appendix: all else; sections without blocks are left out.
  """

  title: str
  blocks: Sequence[Block]
  appendix: Sequence[Section] = ()

  @property
  def sections(self) -> list[Section]:
    """The sections of the appendix that have blocks."""
    return [section for section in self.appendix if section.blocks]


def define_words(page: Page) -> Page:
  """Adds definitions of the words that the page uses, and of no others."""
  blocks = [*page.blocks, *(b for s in page.appendix for b in s.blocks)]
  used = glossary.find_used(' '.join(x for b in blocks for x in _list_texts(b)))
  words = [Words(used)] if used else []
  section = Section('Words', words, key='words')
  return page._replace(appendix=[*page.appendix, section])


def render_text(page: Page, *, has_appendix: bool = False) -> str:
  """The page for a terminal, without figures and without a final newline.

  Args:
    has_appendix: whether the appendix follows, but for its code.
  """
  parts = [_underline(page.title)] if page.title else []
  parts += map(_render_block_as_text, page.blocks)
  for section in page.sections if has_appendix else ():
    blocks = [*filter(None, map(_render_block_as_text, section.blocks))]
    parts += [_underline(section.title), *blocks] if blocks else []
  return '\n\n'.join(filter(None, parts))


def render_markdown(page: Page) -> str:
  """The page in Markdown, without a final newline; it shows every text as it is."""
  form: Callable[[Block], str] = _render_block_as_markdown
  parts = [f'# {tables.escape_markdown(page.title)}'] if page.title else []
  parts += map(form, page.blocks)
  if page.sections:
    inside = [
      '\n\n'.join([f'## {section.title}', *map(form, section.blocks)])
      for section in page.sections
    ]
    parts += [
      f'<details markdown="1"><summary>{name_appendix(page)}</summary>',
      *inside,
      '</details>',
    ]
  return '\n\n'.join(parts)


def name_appendix(page: Page) -> str:
  """What a closed appendix shows of itself: the titles of its sections."""
  titles = (section.title for section in page.sections)
  return f'{APPENDIX}: {", ".join(t[0].lower() + t[1:] for t in titles)}'


def _list_texts(block: Block) -> Iterator[str]:
  """All that a reader sees of a block, but definitions and code."""
  match block:
    case Text(text):
      yield text
    case Items(texts):
      yield from texts
    case Figure(_, caption):
      yield caption
    case Cells(table):
      yield from (table.title, *table.head, *table.notes)
      for row in table.body:
        yield from row
    case Code(about):
      yield about
    case Words():
      pass


def _underline(title: str) -> str:
  return f'{title}\n{"=" * len(title)}'


def _render_block_as_text(block: Block) -> str:
  match block:
    case Text(text):
      return tables.fill_paragraph(text)
    case Items(texts):
      return tables.fill_items(texts)
    case Cells(table):
      return _format_table(table)
    case Words(terms):
      return tables.fill_items(f'{x.name}: {x.text}' for x in terms.values())
    case Code() | Figure():
      return ''


def _format_table(table: tables.Table) -> str:
  """The table in columns, or a paragraph for each row if they are too wide."""
  text = tables.format_text(tables.fold_table(table))
  if max(map(len, text.splitlines())) <= tables.get_width():
    return text
  rows = []
  for name, *values in table.body:
    said = (f'{head} {value}' for head, value in zip(table.head[1:], values))
    listed = values[0] if len(values) == 1 else ', '.join(said)
    rows.append(f'{name}: {listed}')
  parts = (
    tables.fill_paragraph(table.title),
    tables.fill_items(rows),
    tables.fill_items(table.notes),
  )
  return '\n\n'.join(filter(None, parts))


def _render_block_as_markdown(block: Block) -> str:
  escape = tables.escape_markdown
  match block:
    case Text(text, 'headline' | 'alarm'):
      return f'**{escape(text)}**'
    case Text(text):
      return tables.escape_paragraph(text)
    case Items(texts):
      return '\n'.join(f'- {tables.escape_paragraph(text)}' for text in texts)
    case Cells(table):
      return tables.format_plain_markdown(table)
    case Code(about, code, language):
      # Longer than any fence within.
      fence = '`' * max([3, *(1 + len(x) for x in re.findall('`+', code))])
      about = tables.escape_paragraph(about)
      return f'{about}\n\n{fence}{language}\n{code}\n{fence}'
    case Figure(file, caption):
      return f'![{escape(caption)}]({file})\n\n*{escape(caption)}*'
    case Words(terms):
      definitions = (
        f'**{escape(x.name)}**: {escape(x.text)}' for x in terms.values()
      )
      return '\n'.join(f'- {text}' for text in definitions)
