"""The site: how much it asks a person to read, and what a search finds first."""

import pathlib
import re
import runpy
import types

import pytest

ROOT = pathlib.Path(__file__).parents[1]
# More than this nobody reads.
MAX_WORDS = 20_000
# Code, what commands write, tags, and outputs of notebooks.
NOT_PROSE = re.compile(
  r'<!-- begin ([\w ]+) -->.*?<!-- end \1 -->|^ *```.*?^ *```|'
  r'<[!/a-z][^>\n]*>|^    [^\n]*',
  re.DOTALL | re.MULTILINE,
)


def count_words(text):
  """Words of a page that a person wrote."""
  words = NOT_PROSE.sub('', text).split()
  return sum(any(map(str.isalnum, word)) for word in words)


def count_all():
  """Words of all pages but those of outputs, which have a sentence or two."""
  pages = {ROOT / 'README.md', *ROOT.glob('docs/**/*.md')}
  for folder in ('frameworks', 'runs'):
    pages -= {*ROOT.glob(f'docs/{folder}/**/*.md')}
  assert {ROOT / 'README.md', ROOT / 'docs' / 'faq.md'} <= pages
  return sum(count_words(page.read_text('utf-8')) for page in pages)


def test_nobody_is_asked_to_read_too_much():
  assert count_all() <= MAX_WORDS


def test_code_and_what_commands_write_is_not_prose():
  assert count_words('Two words.') == 2
  code = '```sh\nmake run\n```\n'
  inside_of_list = '  ```sh\n  make\n  ```\n'
  assert count_words(f'Two words.\n\n{code}\n{inside_of_list}') == 2
  block = '<!-- begin x -->\n| a | b |\n<!-- end x -->'
  assert count_words(f'Two words.\n\n{block}') == 2
  # A table that a person wrote is prose, but its rules are not words.
  assert count_words('| a | b |\n|---|---|\n| c | d |') == 4
  other = '<!-- begin x -->\nstays\n<!-- end y -->'
  assert count_words(other) == 1


@pytest.mark.parametrize(
  ('path', 'boost'),
  [('faq.md', None), ('api/audit.md', 0.1), ('results/bars/index.md', 0.5)],
)
def test_a_search_finds_pages_before_the_api(path, boost):
  hooks = runpy.run_path(str(ROOT / 'docs' / 'site_hooks.py'))
  file = types.SimpleNamespace(src_uri=path)
  page = types.SimpleNamespace(file=file, meta={})
  assert hooks['on_page_markdown']('text', page, None, None) == 'text'
  assert page.meta.get('search', {}).get('boost') == boost
