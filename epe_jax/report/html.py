"""A page as one HTML file that loads nothing, and as the files of a report."""

import base64
from collections.abc import Mapping
import os
import pathlib
import re

import jinja2
import markupsafe
from matplotlib import figure

from epe_jax import __version__, io
from epe_jax.report import glossary, page
from epe_jax.report.figures import pictures, style

# Of an inch.
_POINTS = 72


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
    file: pictures.write_figure(fig, path.parent / file)
    for file, fig in figures.items()
  }
  io.write_text(path.with_suffix('.html'), render_html(content, svgs))
  io.write_text(path, page.render_markdown(content) + '\n')
  return path


def render_html(content: page.Page, svgs: Mapping[str, str]) -> str:
  """A page as HTML that loads nothing and ends in a newline.

  The head of a column leads to its definition, if the page defines it.

  Args:
    svgs: file name -> SVG of each figure; figures without one are left out.
  """
  environment = jinja2.Environment(
    loader=jinja2.PackageLoader('epe_jax.report'),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
  )
  css = environment.get_template('style.css').render()
  text = environment.get_template('page.html.jinja').render(
    page=content,
    appendix=page.name_appendix(content),
    kind_of=lambda block: type(block).__name__,
    embed=lambda shown: embed_svg(svgs[shown.file], shown.caption),
    svgs=svgs,
    glue=lambda text: text.replace(' %', '\N{NO-BREAK SPACE}%'),
    link=lambda head: _link_head(head, content),
    css=markupsafe.Markup(css),
    version=__version__,
  )
  return text.rstrip() + '\n'


def embed_svg(text: str, label: str) -> markupsafe.Markup:
  """An SVG file as an image of a page, which holds it as it is.

  Args:
    text: the file, as `pictures.render_svg` makes it.
    label: what the figure shows, for those who cannot see it.
  """
  width = re.search(r'viewBox="\S+ \S+ (\S+) [^"]*"', text)
  assert width is not None, 'every figure has a size'
  is_narrow = float(width[1]) < _POINTS * style.WIDE / 2
  return markupsafe.Markup(
    '<img{} src="data:image/svg+xml;base64,{}" alt="{}">'
  ).format(
    markupsafe.Markup(' class="narrow"' if is_narrow else ''),
    base64.b64encode(text.encode()).decode(),
    label,
  )


def _link_head(head: str, content: page.Page) -> markupsafe.Markup:
  """The head of a column, which leads to its definition if there is one.

  Under a head of a group only what follows the name of the group is shown.
  """
  shown = re.sub('^(canary|client), ', '', head)
  key = glossary.find_term(shown)
  defined = (
    key in block.terms
    for section in content.sections
    for block in section.blocks
    if isinstance(block, page.Words)
  )
  if key is None or not any(defined):
    return markupsafe.escape(shown)
  return markupsafe.Markup('<a href="#word-{}">{}</a>').format(key, shown)
