"""README and docs say what the code does: examples run, figures are measured."""

import ast
import doctest
import functools
import importlib
import importlib.util
import json
import pathlib
import re
import runpy

import pytest
import setuptools

import epe_jax
from epe_jax import epsilon

ROOT = pathlib.Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob('*.md'), *ROOT.glob('docs/*.md')])
# Pages whose examples train, or trace what is far larger than a test.
LONG = ('dpsgd', 'own_models', 'scale', 'tutorial')


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


def test_the_pages_of_results_show_what_was_made():
  pages = load_script('docs').format_results()
  items = list((ROOT / 'docs' / 'results').rglob('item.json'))
  assert len(pages) == 1 + len(items)
  for name, text in pages.items():
    assert (ROOT / name).read_text() == text, name


@pytest.mark.parametrize(
  'page',
  [
    pytest.param(
      page, id=page.stem, marks=[pytest.mark.integration] * (page.stem in LONG)
    )
    for page in PAGES
  ],
)
def test_python_examples_in_the_docs_run(page):
  for i, code in enumerate(
    re.findall(r'```python\n(.*?)```', page.read_text(), re.S)
  ):
    if '>>>' in code:
      test = doctest.DocTestParser().get_doctest(code, {}, f'{i}', str(page), 0)
      assert doctest.DocTestRunner().run(test).failed == 0
    else:
      exec(compile(code, f'{page}[{i}]', 'exec'), {})


def examples():
  """Name and source of each example that a person may read and copy."""
  for page in PAGES:
    for code in re.findall(r'```python\n(.*?)```', page.read_text(), re.S):
      yield page.name, of_doctest(code) if '>>>' in code else code
  for path in ROOT.glob('examples/*.py'):
    yield path.name, path.read_text()
  for path in ROOT.glob('colabs/*.ipynb'):
    for cell in json.loads(path.read_text())['cells']:
      if cell['cell_type'] == 'code':
        lines = ''.join(cell['source']).splitlines(keepends=True)
        yield path.name, ''.join(s for s in lines if s.lstrip()[:1] not in '!%')
  for path in pathlib.Path(epe_jax.__file__).parent.rglob('*.py'):
    for node in ast.walk(ast.parse(path.read_text())):
      if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
        yield path.name, of_doctest(ast.get_docstring(node) or '')


def of_doctest(text):
  return ''.join(e.source for e in doctest.DocTestParser().get_examples(text))


def names_of(code):
  """Dotted names of this package in some code, as 'epe_jax.epsilon.Scores'."""
  tree, modules = ast.parse(code), {}
  for node in ast.walk(tree):
    if isinstance(node, ast.ImportFrom) and node.module is not None:
      for alias in node.names if node.module.startswith('epe_jax') else ():
        modules[alias.asname or alias.name] = f'{node.module}.{alias.name}'
    elif isinstance(node, ast.Import):
      yield from (a.name for a in node.names if a.name.startswith('epe_jax'))
  yield from modules.values()
  for node in ast.walk(tree):
    of = node.value if isinstance(node, ast.Attribute) else None
    if isinstance(of, ast.Name) and of.id in modules:
      yield f'{modules[of.id]}.{node.attr}'


def is_public(name):
  """Whether every step is in `__all__`, or where there is none unmarked."""
  path, *steps = name.split('.')
  value = importlib.import_module(path)
  for step in steps:
    public = getattr(value, '__all__', None)
    if step.startswith('_') or (public is not None and step not in public):
      return False
    path = f'{path}.{step}'
    if not hasattr(value, step):
      importlib.import_module(path)
    value = getattr(value, step)
    if not hasattr(value, '__path__') and not hasattr(value, '__file__'):
      break  # Attributes of a function or a value are its own affair.
  return True


@pytest.mark.integration
def test_examples_use_public_names_alone():
  for where, code in examples():
    for name in names_of(code):
      assert is_public(name), f'{where}: {name}'


def test_scripts_use_public_names_of_epsilon_alone():
  for path in ROOT.glob('scripts/*.py'):
    for name in names_of(path.read_text()):
      if name.startswith('epe_jax.epsilon'):
        assert is_public(name), f'{path.name}: {name}'


def test_pages_name_what_epsilon_has():
  for page in PAGES:
    for name in re.findall(r'`epsilon\.(\w[\w.]*)', page.read_text()):
      if page.name != 'CHANGELOG.md':
        assert name in epsilon.__all__, f'{page.name}: {name}'


def test_pages_name_source_files_that_exist():
  roots = ROOT, ROOT / 'epe_jax'
  for page in PAGES:
    for name in re.findall(r'`((?:\w+/)+\w+\.py)`', page.read_text()):
      # Files of other projects are in folders that this one does not have.
      if any((root / name.split('/')[0]).is_dir() for root in roots):
        assert any((root / name).is_file() for root in roots), (page, name)


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


def test_the_readme_of_a_wheel_has_no_link_that_leads_nowhere(monkeypatch):
  monkeypatch.setattr(setuptools, 'setup', lambda **keywords: None)
  setup = runpy.run_path(str(ROOT / 'setup.py'))
  text = setup['read_description']()
  for target in re.findall(r'\]\(([^)]*)\)', text):
    assert '://' in target, target
  assert 'FAQ (`docs/faq.md`)' in text


def test_recorded_runs_have_no_secret_and_no_path_of_a_machine():
  for path in (ROOT / 'docs').rglob('*.json'):
    text = path.read_text()
    json.loads(text)
    assert 'noise_key' not in text
    assert not re.search(r'"/(home|root|tmp|work)', text), path
