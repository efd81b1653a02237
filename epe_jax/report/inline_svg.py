"""SVG files as parts of a page: in its colours, and with names of their own."""

import re

import markupsafe

COLORS = {
  # In files -> by a light page, by a dark one.
  '#000000': ('#111111', '#e8eaed'),
  '#ffffff': ('#ffffff', '#16181d'),
  '#0072b2': ('#0072b2', '#4ea3dc'),
  '#56b4e9': ('#56b4e9', '#8ccdf2'),
  '#009e73': ('#009e73', '#2bc49a'),
  '#d55e00': ('#d55e00', '#f0813a'),
  '#e69f00': ('#e69f00', '#f2b63c'),
  '#cc79a7': ('#cc79a7', '#de98c0'),
  '#cccccc': ('#cccccc', '#4d535c'),
  '#b0b0b0': ('#b0b0b0', '#6b727c'),
  '#999999': ('#999999', '#8b929c'),
  '#808080': ('#808080', '#9aa0a8'),
  '#777777': ('#707070', '#9aa0a8'),
  '#666666': ('#666666', '#aab0b8'),
  '#dddddd': ('#dddddd', '#3a3f46'),
  '#eeeeee': ('#eeeeee', '#262a31'),
}
"""The colours of figures, and what a page shows for them."""

_COLOR = re.compile('|'.join(COLORS), re.I)
_ID = re.compile(r' id="([^"]*)"')
_REFERENCE = re.compile(r'(?<=url\(#)[^)]+|(?<=href="#)[^"]+')


def name_color(color: str) -> str:
  """The CSS variable of a colour of `COLORS`."""
  return f'--c{color.lower().removeprefix("#")}'


def inline_svg(text: str, name: str, label: str) -> markupsafe.Markup:
  """An SVG file as an element of a page.

  Args:
    text: the file, as `pictures.render_svg` makes it.
    name: of letters; what is referred to within the figure is called after it, so
      that figures of one page do not meet.
    label: what the figure shows, for who cannot see it.
  """
  body = text[text.index('<svg') :].strip()
  body = re.sub(r'\s*<metadata>.*?</metadata>', '', body, flags=re.S)
  body = re.sub(
    r'\s*<defs>\s*<style.*?</style>\s*</defs>', '', body, flags=re.S
  )
  used = set(_REFERENCE.findall(body))
  body = _ID.sub(lambda m: f' id="{name}-{m[1]}"' if m[1] in used else '', body)
  body = _REFERENCE.sub(lambda m: f'{name}-{m[0]}', body)
  body = _COLOR.sub(lambda m: f'var({name_color(m[0])})', body)
  view = re.search(r'viewBox="[^"]*"', body)
  assert view is not None, 'every figure has a size'
  start = markupsafe.Markup('<svg {} role="img" aria-label="{}">').format(
    markupsafe.Markup(view[0]), label
  )
  body = body[body.index('>') + 1 :].replace(' xlink:href=', ' href=')
  body = re.sub(r'\n\s*', '\n', body)
  return start + markupsafe.Markup(body)
