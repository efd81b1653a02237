"""A page as one HTML file that loads nothing, and as the files of a report."""

import base64
from collections.abc import Mapping, Sequence
import html
import importlib.resources
import itertools
import os
import pathlib
import re

import markdown_it
from markdown_it.token import Token
from matplotlib import figure

from epe_jax import __version__, io
from epe_jax.report import glossary, page
from epe_jax.report.figures import style

# Of an inch.
_POINTS = 72
# Letters of a cell that is not broken into lines.
_SHORT = 30
_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="epe_jax {version}">
<title>{title}</title>
<style>
{css}</style>
</head>
<body>
<main>
{first}</main>
{appendix}</body>
</html>
"""


def write_page(
  folder: str | os.PathLike[str],
  name: str,
  content: page.Page,
  figures: Mapping[str, figure.Figure],
) -> pathlib.Path:
  """Writes the figures of a page, NAME.html, and last NAME.md.

  Args:
    folder: where the files go; it is made if it is not there.
    figures: file name -> figure, written as PNG and as SVG.

  Returns:
    The path of NAME.md.
  """
  path = pathlib.Path(folder, f'{name}.md')
  path.parent.mkdir(parents=True, exist_ok=True)
  svgs = {
    file: style.write_figure(fig, path.parent / file)
    for file, fig in figures.items()
  }
  io.write_text(path.with_suffix('.html'), render_html(content, svgs))
  io.write_text(path, page.render_markdown(content) + '\n')
  return path


def render_html(content: page.Page, svgs: Mapping[str, str]) -> str:
  """A page as HTML that loads nothing and ends in a newline.

  The head of a column leads to its definition, if the page defines it.

  Args:
    svgs: file name -> SVG of each figure.
  """
  parser = markdown_it.MarkdownIt('commonmark', {'html': True}).enable('table')
  tokens = parser.parse(page.render_markdown(content))
  _add_attributes(tokens)
  _embed_figures(tokens, svgs)
  _link_words(tokens)
  text = parser.renderer.render(tokens, parser.options, {})
  first, details, appendix = text.replace(
    ' %', '\N{NO-BREAK SPACE}%'
  ).partition('<details')
  css = importlib.resources.files('epe_jax.report').joinpath('style.css')
  return _PAGE.format(
    version=__version__,
    title=html.escape(content.title),
    css=css.read_text('utf-8'),
    first=first,
    appendix=details + appendix.replace(' markdown="1"', '', 1),
  )


def embed_svg(text: str, label: str) -> str:
  """An SVG file as an image of a page, which holds it as it is.

  Args:
    text: the file, as `style.render_svg` makes it.
    label: what the figure shows, for those who cannot see it.
  """
  width = re.search(r'viewBox="\S+ \S+ (\S+) [^"]*"', text)
  assert width is not None, 'every figure has a size'
  kind = ' class="narrow"' if float(width[1]) < _POINTS * style.WIDE / 2 else ''
  data = base64.b64encode(text.encode()).decode()
  return (
    f'<img{kind} src="data:image/svg+xml;base64,{data}" '
    f'alt="{html.escape(label)}">'
  )


def _add_attributes(tokens: Sequence[Token]) -> None:
  """Marks sections, alarms, heads of rows, and cells that are not to be broken."""
  for i, token in enumerate(tokens):
    if token.type == 'heading_open':
      token.attrs = {'id': re.sub(r'\W+', '-', tokens[i + 1].content.lower())}
    elif token.type == 'paragraph_open':
      # Nothing but one bold text.
      if re.fullmatch(r'\*\*(?!.*(?<!\\)\*\*.).*\*\*', tokens[i + 1].content):
        token.attrs = {'class': 'alarm'}
    elif token.type in ('fence', 'table_open'):
      token.attrs = {'tabindex': '0'}  # They scroll.
    elif token.type == 'td_open' and tokens[i - 1].type == 'tr_open':
      token.attrs, token.tag, tokens[i + 2].tag = {'scope': 'row'}, 'th', 'th'
    elif token.type == 'td_open' and len(tokens[i + 1].content) < _SHORT:
      token.attrs = {'class': 'number'}


def _embed_figures(tokens: Sequence[Token], svgs: Mapping[str, str]) -> None:
  for child in (child for token in tokens for child in token.children or ()):
    if child.type == 'image':
      svg = svgs[str(child.attrs['src'])]
      child.type, child.content = 'html_inline', embed_svg(svg, child.content)


def _link_words(tokens: Sequence[Token]) -> None:
  """Has the heads of columns lead to the definitions that the page has."""
  keys = {term.name: key for key, term in glossary.TERMS.items()}
  defined = set()
  for token, _, inline in zip(tokens, tokens[1:], tokens[2:]):
    if token.type == 'list_item_open':
      name = re.match(r'\*\*(.+?)\*\*: ', inline.content)
      if name and name[1] in keys:
        token.attrs = {'id': f'word-{keys[name[1]]}'}
        defined.add(keys[name[1]])
  for token, inline in itertools.pairwise(tokens):
    # What is of a canary is explained by what follows.
    key = glossary.find_term(re.sub('^(canary|client), ', '', inline.content))
    if token.type == 'th_open' and key in defined and inline.children:
      link = Token('link_open', 'a', 1, {'href': f'#word-{key}'})
      inline.children = [link, *inline.children, Token('link_close', 'a', -1)]
