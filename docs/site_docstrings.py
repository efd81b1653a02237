"""Doctests of docstrings as code blocks, for pages of the API."""

import re
import textwrap

import griffe

# From a prompt to the next empty line.
_EXAMPLE = re.compile(r'^([ \t]*)>>> .*(?:\n[ \t]*\S.*)*', re.M)


def fence_examples(text: str) -> str:
  """Puts each run of prompts and outputs between fences."""

  def fence(match: re.Match) -> str:
    code = textwrap.dedent(match.group())
    return textwrap.indent(f'```pycon\n{code}\n```', match.group(1))

  return _EXAMPLE.sub(fence, text)


class FenceExamples(griffe.Extension):
  """Fences the examples of every docstring before it is parsed."""

  def on_object(self, *, obj: griffe.Object, **kwargs) -> None:
    """Changes the docstring of an object that was read."""
    if obj.docstring is not None:
      obj.docstring.value = fence_examples(obj.docstring.value)
