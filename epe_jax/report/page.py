"""A report: one page that everybody reads, and an appendix for those who ask.

A page is Markdown, whose blocks are made here and by `tables.format_markdown`.
`render_text` shows it in a terminal, `html` as a file of its own. The appendix is
closed until a reader opens it; nothing stands in both parts.
"""

from collections.abc import Iterable, Mapping, Sequence
import re
from typing import NamedTuple

from epe_jax.report import glossary, tables

_CODE = re.compile(r'^(`{3,})\w*\n.*\n\1$', re.DOTALL | re.MULTILINE)
_FIGURE = re.compile(r'^!\[.*', re.MULTILINE)


class Page(NamedTuple):
  """A report.

  Attributes:
    title: what it is about; '' for none.
    blocks: the page that everybody reads, in Markdown; empty ones are left out.
    appendix: title of a section -> its blocks; sections without any are left out.
  """

  title: str
  blocks: Sequence[str]
  appendix: Mapping[str, Sequence[str]] = {}

  @property
  def sections(self) -> dict[str, Sequence[str]]:
    """The sections of the appendix that have blocks."""
    return {name: x for name, x in self.appendix.items() if any(x)}


def make_paragraph(text: str) -> str:
  """A paragraph that shows a text as it is."""
  return tables.escape_paragraph(text)


def make_bold(text: str) -> str:
  """A paragraph that stands out."""
  return f'**{tables.escape_markdown(text)}**'


def make_titled(title: str, text: str = '') -> str:
  """A paragraph under its title, which also a list may follow."""
  return f'**{title}**: {tables.escape_markdown(text)}'.rstrip()


def make_list(texts: Iterable[str]) -> str:
  """A list with an item for each text; '' without any."""
  return '\n'.join(f'- {tables.escape_paragraph(text)}' for text in texts)


def make_figure(file: str, caption: str) -> str:
  """An image by the name of its file, and what it shows."""
  caption = tables.escape_markdown(caption)
  return f'![{caption}]({file})\n\n*{caption}*'


def make_code(about: str, code: str, language: str) -> str:
  """Code, under a paragraph that says what it is for."""
  # Longer than any fence within.
  fence = '`' * max([3, *(1 + len(x) for x in re.findall('`+', code))])
  return f'{make_paragraph(about)}\n\n{fence}{language}\n{code}\n{fence}'


def define_words(page: Page) -> Page:
  """Adds definitions of the words that the page uses, and of no others."""
  blocks = [*page.blocks, *(x for s in page.appendix.values() for x in s)]
  text = _CODE.sub('', '\n\n'.join(blocks))
  words = '\n'.join(
    f'- **{tables.escape_markdown(term.name)}**: '
    f'{tables.escape_markdown(term.text)}'
    for term in glossary.find_used(text).values()
  )
  return page._replace(
    appendix={**page.appendix, 'Glossary': [words] * bool(words)}
  )


def render_text(page: Page, *, has_appendix: bool = False) -> str:
  """The page for a terminal, without figures and without a final newline.

  Args:
    has_appendix: whether the appendix follows, but for its code.
  """
  parts = [_underline(page.title), *map(_render_block, page.blocks)]
  for title, blocks in page.sections.items() if has_appendix else ():
    shown = [*filter(None, map(_render_block, blocks))]
    parts += [_underline(title), *shown] if shown else []
  return '\n\n'.join(filter(None, parts))


def render_markdown(page: Page) -> str:
  """The page in Markdown, without a final newline; it shows every text as it is."""
  parts = [
    page.title and f'# {tables.escape_markdown(page.title)}',
    *page.blocks,
  ]
  if page.sections:
    titles = ', '.join(t[0].lower() + t[1:] for t in page.sections)
    parts.append(f'<details markdown="1"><summary>Appendix: {titles}</summary>')
    for title, blocks in page.sections.items():
      parts += [f'## {title}', *blocks]
    parts.append('</details>')
  return '\n\n'.join(filter(None, parts))


def _underline(title: str) -> str:
  return title and f'{title}\n{"=" * len(title)}'


def _render_block(block: str) -> str:
  """A block for a terminal, which shows neither code nor figures."""
  if _CODE.search(block) or _FIGURE.match(block):
    return ''
  return tables.render_text(block)
