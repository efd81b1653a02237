"""Counts the words of prose that the documentation asks a person to read.

  python docs/site_words.py

Prose is what is written by hand: without code, outputs, and what stands between the
markers of a command; without the pages that commands write as a whole.
"""

import pathlib
import re

_ROOT = pathlib.Path(__file__).resolve().parents[1]
MAX_WORDS = 30_000
"""More than this nobody reads."""

# Folders of docs/ whose pages are written by commands alone.
_GENERATED = ('frameworks', 'runs')
_NOT_PROSE = (
  re.compile(r'<!-- begin ([\w: -]+) -->.*?<!-- end \1 -->', re.DOTALL),
  re.compile(r'^ *```.*?^ *```', re.DOTALL | re.MULTILINE),
  re.compile(r'<[^>]*>'),
  # Outputs of notebooks.
  re.compile(r'^    .*$', re.MULTILINE),
)


def count_words(text: str) -> int:
  """Words of a page outside code and what commands write.

  >>> count_words('One page.\\n```sh\\nmake\\n```\\n<!-- begin x -->1<!-- end x -->')
  2
  """
  for pattern in _NOT_PROSE:
    text = pattern.sub('', text)
  return sum(any(map(str.isalnum, word)) for word in text.split())


def count_pages() -> dict[str, int]:
  """Counts the words of the README and of each page in docs/."""
  docs = _ROOT / 'docs'
  pages = [_ROOT / 'README.md', *sorted(docs.rglob('*.md'))]
  return {
    str(page.relative_to(_ROOT)): count_words(page.read_text(encoding='utf-8'))
    for page in pages
    if not page.is_relative_to(docs)
    or page.relative_to(docs).parts[0] not in _GENERATED
  }


def main() -> None:
  """Prints the words of all pages together."""
  counts = count_pages()
  print(f'{sum(counts.values()):,} words of prose on {len(counts)} pages')


if __name__ == '__main__':
  main()
