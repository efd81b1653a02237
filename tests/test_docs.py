"""README and docs say what the code does: examples run, figures are measured."""

import doctest
import functools
import importlib.util
import json
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob('*.md'), *ROOT.glob('docs/*.md')])


@functools.cache
def load_script(name):
  """Once, for a script defines its flags when it is loaded."""
  spec = importlib.util.spec_from_file_location(
    f'script_{name}', ROOT / 'scripts' / f'{name}.py'
  )
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def test_pages_show_the_figures_of_the_recorded_runs():
  for name, text in load_script('docs').splice_pages().items():
    assert (ROOT / name).read_text() == text, name


def test_the_page_of_results_shows_what_was_made():
  page = (ROOT / 'docs' / 'results.md').read_text()
  assert load_script('docs').format_results() == page


@pytest.mark.parametrize('page', PAGES, ids=lambda p: p.stem)
def test_python_examples_in_the_docs_run(page):
  for i, code in enumerate(
    re.findall(r'```python\n(.*?)```', page.read_text(), re.S)
  ):
    if '>>>' in code:
      test = doctest.DocTestParser().get_doctest(code, {}, f'{i}', str(page), 0)
      assert doctest.DocTestRunner().run(test).failed == 0
    else:
      exec(compile(code, f'{page}[{i}]', 'exec'), {})


@pytest.mark.parametrize('page', PAGES, ids=lambda p: p.stem)
def test_links_and_pictures_of_the_docs_exist(page):
  for target in re.findall(r'\]\(([^)#]+)', page.read_text()):
    if '://' not in target:
      assert (page.parent / target).exists(), target


def test_the_commands_of_the_readme_name_files_and_targets_that_exist():
  readme = (ROOT / 'README.md').read_text()
  targets = set(
    re.findall(r'^([a-z-]+):', (ROOT / 'Makefile').read_text(), re.M)
  )
  for target in re.findall(r'`?make ([a-z-]+)', readme):
    assert target in targets
  for path in re.findall(r'(?:scripts|configs)/\w+\.py', readme):
    assert (ROOT / path).exists(), path


def test_recorded_runs_have_no_secret_and_no_path_of_a_machine():
  for path in (ROOT / 'docs').rglob('*.json'):
    text = path.read_text()
    json.loads(text)
    assert 'noise_key' not in text
    assert not re.search(r'"/(home|root|tmp|work)', text), path
