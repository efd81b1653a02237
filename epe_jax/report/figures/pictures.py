"""Writes figures as PNG and SVG."""

import functools
import io as streams
import os
import pathlib
import re
from typing import Any

import matplotlib
from matplotlib import figure

from epe_jax import io

# Text stays text, which is small, sharp and searchable; a fixed salt makes the file
# reproducible.
_SVG: Any = {'svg.fonttype': 'none', 'svg.hashsalt': 'epe_jax'}
_FAMILY = re.compile(r'font-family: [^;"]*')


def write_figure(fig: figure.Figure, path: str | os.PathLike[str]) -> str:
  """Writes a figure as PNG and as SVG.

  Args:
    path: of the PNG; the SVG has the same name with another ending.

  Returns:
    The SVG as text.
  """
  path = pathlib.Path(path)
  save = functools.partial(fig.savefig, format='png', dpi=150)
  io.write_atomically(path, save)
  text = render_svg(fig)
  io.write_text(path.with_suffix('.svg'), text)
  return text


def render_svg(fig: figure.Figure) -> str:
  """The figure as SVG; the same figure gives the same text."""
  file = streams.StringIO()
  with matplotlib.rc_context(_SVG):
    fig.savefig(file, format='svg', metadata={'Date': None, 'Creator': None})
  return _FAMILY.sub(
    "font-family: 'DejaVu Sans', Verdana, sans-serif", file.getvalue()
  )
