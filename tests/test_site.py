"""The site: how much it asks a person to read, and what a search finds first."""

import importlib.util
import pathlib
import types

import pytest

ROOT = pathlib.Path(__file__).parents[1]


def load_module(name):
  path = ROOT / 'docs' / f'{name}.py'
  spec = importlib.util.spec_from_file_location(name, path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def test_nobody_is_asked_to_read_too_much():
  words = load_module('site_words')
  counts = words.count_pages()
  assert {'README.md', 'docs/faq.md'} <= counts.keys()
  assert sum(counts.values()) <= words.MAX_WORDS


def test_code_and_what_commands_write_is_not_prose():
  count_words = load_module('site_words').count_words
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
  hooks = load_module('site_hooks')
  file = types.SimpleNamespace(src_uri=path)
  page = types.SimpleNamespace(file=file, meta={})
  assert hooks.on_page_markdown('text', page, None, None) == 'text'
  assert page.meta.get('search', {}).get('boost') == boost
