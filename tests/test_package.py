"""What says of the package elsewhere what it is agrees with it, and with itself."""

import ast
import pathlib
import re
import shutil
import subprocess

import pytest
import yaml

import epe_jax
from tests import installed

ROOT = pathlib.Path(__file__).parents[1]
PROJECT = installed.PROJECT


def read(name):
  return (ROOT / name).read_text('utf-8')


def list_messages(path):
  """The strings of a module; of its docstrings that of a command, which is its help."""
  tree = ast.parse(path.read_text('utf-8'))
  statements = [x for x in ast.walk(tree) if isinstance(x, ast.Expr)]
  if path.parent.name == 'cli':
    statements.remove(tree.body[0])
  docstrings = {x.value for x in statements}
  for node in ast.walk(tree):
    if isinstance(node, ast.Constant) and node not in docstrings:
      yield str(node.value)


def test_no_message_names_a_file_that_only_a_checkout_has():
  # A wheel has configs within epe_jax.
  named = re.compile(
    r'(?<![\w./-])((benchmarks|colabs|configs|docs|examples|scripts'
    r'|tests)/|[A-Z]+\.md|Makefile)'
  )
  for folder in ('epe_jax', 'configs'):
    for path in (ROOT / folder).rglob('*.py'):
      for text in list_messages(path):
        assert not named.search(text), f'{path}: {text}'


def test_what_is_to_be_cited_is_on_the_page_of_the_bibliography():
  page = ' '.join(read('docs/bibliography.md').split()).casefold()
  citation = yaml.safe_load(read('CITATION.cff'))
  assert citation['version'] == epe_jax.__version__
  assert citation['abstract'] == PROJECT['description']
  for work in (citation['preferred-citation'], *citation['references']):
    assert work['title'].casefold() in page


@pytest.mark.integration
def test_a_release_has_its_version_and_its_day(tmp_path):
  names = '.ci/run', 'epe_jax/__init__.py', 'CHANGELOG.md', 'CITATION.cff'
  for name in names:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    shutil.copy(ROOT / name, tmp_path / name)

  def release(tag):
    done = subprocess.run(
      ['bash', '.ci/run', 'release', tag],
      capture_output=True,
      text=True,
      check=False,
      cwd=tmp_path,
    )
    return done.returncode, done.stderr

  version, day = epe_jax.__version__, '2031-02-03'
  changelog = tmp_path / 'CHANGELOG.md'
  entries = re.sub(
    rf'(?m)^## {version} \(.*\)$',
    f'## {version} (unreleased)',
    read('CHANGELOG.md'),
  )
  changelog.write_text(entries)
  code, said = release(f'v{version}')
  assert code == 1
  assert 'CHANGELOG.md has no heading' in said
  changelog.write_text(entries.replace('unreleased', day, 1))
  code, said = release(f'v{version}')
  assert code == 1
  assert f"CITATION.cff has no line 'date-released: {day}'" in said
  with (tmp_path / 'CITATION.cff').open('a') as file:
    file.write(f'date-released: {day}\n')
  assert release(f'v{version}') == (0, '')
  code, said = release(f'v{version}.1')
  assert code == 1
  assert f'The tag is v{version}.1, and the version {version}.' in said


def test_the_makefile_names_files_that_exist():
  text = (ROOT / 'Makefile').read_text()
  names = re.findall(
    r'\b(?:tests|benchmarks|scripts|examples)/[\w/]+\b(?:\.\w+)?', text
  )
  assert names
  assert [name for name in names if not (ROOT / name).exists()] == []
