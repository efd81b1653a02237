"""Doctests of docstrings as code blocks, for pages of the API."""

import re
import textwrap

import griffe


class FenceExamples(griffe.Extension):
  """Fences each run of prompts and outputs, up to the next empty line."""

  def on_object(self, *, obj: griffe.Object, **kwargs) -> None:
    """Changes the docstring of an object before it is parsed."""
    if obj.docstring is not None:
      obj.docstring.value = re.sub(
        r'^([ \t]*)>>> .*(?:\n[ \t]*\S.*)*',
        lambda found: textwrap.indent(
          f'```pycon\n{textwrap.dedent(found[0])}\n```', found[1]
        ),
        obj.docstring.value,
        flags=re.MULTILINE,
      )
