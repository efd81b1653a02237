"""A page as one HTML file that loads nothing, and as the files of a report."""

from collections.abc import Mapping
import os
import pathlib
import re

import jinja2
import markupsafe
from matplotlib import figure

from epe_jax import io
from epe_jax._version import __version__
from epe_jax.report import glossary, page
from epe_jax.report.figures import pictures, style

# Of an inch.
_POINTS = 72
_HEX_COLOR = re.compile('|'.join(style.PAGE_COLORS), re.I)
_BACKGROUND = re.compile(
  r'(<g id="patch_\d+">\s*<path [^>]*style="fill: )#ffffff', re.I
)
_ID = re.compile(r' id="([^"]*)"')
_REFERENCE = re.compile(r'(?<=url\(#)[^)]+|(?<=href="#)[^"]+')


def write_page(
  folder: str | os.PathLike[str],
  name: str,
  content: page.Page,
  figures: Mapping[str, figure.Figure],
) -> pathlib.Path:
  """Writes the figures of a page, NAME.html, and last NAME.md.

  Args:
    folder: where the files go; it is made if it is not there.
    name: of the files, without an ending.
    content: the page.
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
    content: the page.
    svgs: file name -> SVG of each figure; figures without one are left out.
  """
  environment = jinja2.Environment(
    loader=jinja2.PackageLoader('epe_jax.report'),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
  )
  css = environment.get_template('style.css').render(
    light=_declare_colors(0), dark=_declare_colors(1)
  )
  text = environment.get_template('page.html.jinja').render(
    page=content,
    appendix=page.name_appendix(content),
    kind_of=lambda block: type(block).__name__,
    inline=lambda shown: inline_svg(
      svgs[shown.file], shown.file.partition('.')[0], shown.caption
    ),
    svgs=svgs,
    glue=lambda text: text.replace(' %', '\N{NO-BREAK SPACE}%'),
    link=lambda head: _link_head(head, content),
    css=markupsafe.Markup(css),
    version=__version__,
  )
  return text.rstrip() + '\n'


def inline_svg(text: str, name: str, label: str) -> markupsafe.Markup:
  """An SVG file as an element of a page, in the colours of the page.

  Args:
    text: the file, as `pictures.render_svg` makes it.
    name: of letters; it begins each id within the figure, so that ids of several
      figures differ.
    label: what the figure shows, for those who cannot see it.
  """
  body = text[text.index('<svg') :].strip()
  body = re.sub(r'\s*<metadata>.*?</metadata>', '', body, flags=re.S)
  body = re.sub(
    r'\s*<defs>\s*<style.*?</style>\s*</defs>', '', body, flags=re.S
  )
  # The page shows through, and with it that a figure scrolls.
  body = _BACKGROUND.sub(r'\1none', body)
  used = set(_REFERENCE.findall(body))
  body = _ID.sub(lambda m: f' id="{name}-{m[1]}"' if m[1] in used else '', body)
  body = _REFERENCE.sub(lambda m: f'{name}-{m[0]}', body)
  body = _HEX_COLOR.sub(lambda m: f'var({name_color(m[0])})', body)
  view = re.search(r'viewBox="\S+ \S+ (\S+) [^"]*"', body)
  assert view is not None, 'every figure has a size'
  is_narrow = float(view[1]) < _POINTS * style.WIDE / 2
  start = markupsafe.Markup('<svg {}{} role="img" aria-label="{}">').format(
    markupsafe.Markup(view[0]),
    markupsafe.Markup(' class="narrow"' if is_narrow else ''),
    label,
  )
  body = body[body.index('>') + 1 :].replace(' xlink:href=', ' href=')
  return start + markupsafe.Markup(re.sub(r'\n\s*', '\n', body))


def name_color(color: str) -> str:
  """The CSS variable of a colour of `style.PAGE_COLORS`."""
  return f'--c{color.lower().removeprefix("#")}'


def _declare_colors(mode: int) -> markupsafe.Markup:
  return markupsafe.Markup(
    ' '.join(
      f'{name_color(color)}: {shown[mode]};'
      for color, shown in style.PAGE_COLORS.items()
    )
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
